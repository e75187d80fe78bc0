//! The Kubernetes API over a store.
pub mod registry;
pub mod crd;
