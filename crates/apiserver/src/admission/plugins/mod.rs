//! The built-in plugins that are on by default upstream and have something to do for the kinds served here, and the rules of
//! Kueue's kinds.

pub mod kueue;
mod limit_ranger;
pub mod namespace;
pub mod nodes;
pub mod pods;
mod priority;
mod runtime_class;
mod service_account;
mod tolerations;
mod values;
