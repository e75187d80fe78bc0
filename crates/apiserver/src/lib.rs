//! The Kubernetes API over a store.
pub mod crd;
pub mod registry;
