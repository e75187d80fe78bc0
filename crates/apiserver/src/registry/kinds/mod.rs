//! One file a kind.
