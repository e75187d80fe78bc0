//! The kinds that are served: each built-in kind is one file in `kinds/`.
pub mod kind;
pub mod names;
pub mod table;
pub mod kinds;
