//! The Kubernetes API over a store.
pub mod auth;
pub mod registry;
