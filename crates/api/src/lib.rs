//! Names, values and rules of the Kubernetes API that every other crate may use.

pub mod cron;
pub mod names;
pub mod quantity;
