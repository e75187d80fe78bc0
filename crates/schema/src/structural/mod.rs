//! Custom resources: the structural schema of one version of a CustomResourceDefinition.
//!
//! [`Structural::compile`] reads a `JSONSchemaProps` and refuses what upstream refuses, in its words; the compiled schema
//! then prunes, defaults and validates objects, and lowers itself into the type [`graph`](crate::graph) and into OpenAPI.
//! Everything here is pure; no function panics or recurses deeper than the schema allows, whatever the object looks like.
//!
//! Start reading at [`schema`] (what a schema says), then [`validate`].

mod check;
mod cost;
mod default_check;
mod defaulting;
mod embedded;
mod fieldpath;
mod formats;
mod lists;
mod lower;
#[cfg(test)]
mod native_tests;
mod openapi;
mod parse;
mod prune;
mod ratchet;
mod rules;
mod schema;
#[cfg(test)]
mod tests;
mod typecheck;
mod validate;
mod values;

pub use fieldpath::FieldPath;
pub use openapi::Gvk;
pub use schema::{Options, Structural};
pub(crate) use values::children;
