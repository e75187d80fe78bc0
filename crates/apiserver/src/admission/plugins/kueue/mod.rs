//! The kinds of Kueue, and Jobs in queues: what its webhooks fill in and refuse, in process. The rules are
//! [`usher_api::kueue::rules`].

mod admit;

pub use admit::{admit, validate};
