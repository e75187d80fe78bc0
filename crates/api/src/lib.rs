//! Names, values and rules of the Kubernetes API that every other crate may use.

pub mod names;
pub mod quantity;
