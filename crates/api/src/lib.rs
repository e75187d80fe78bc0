//! Names, values, rules and kinds of the Kubernetes API that every other crate may use.

pub mod crd;
pub mod cron;
pub mod field;
pub mod kueue;
pub mod names;
pub mod quantity;
pub mod ray;
pub mod watch;
