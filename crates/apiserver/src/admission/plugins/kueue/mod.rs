//! The kinds of Kueue: what its webhooks fill in and refuse, in process. The rules are [`usher_api::kueue::rules`].

mod admit;

pub use admit::{admit, validate};
