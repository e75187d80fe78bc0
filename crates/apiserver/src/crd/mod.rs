//! Custom resources: what a CustomResourceDefinition means, and how the objects it defines are treated.
//!
//! Pure functions on JSON values: [`definition`] fills in and checks a definition, [`status`] computes its conditions,
//! [`version`] compiles it into what is served, [`object`] takes a custom object through create and update. Nothing here
//! reads the store or the clock. Start reading at [`version`].

pub mod columns;
pub mod definition;
pub mod jsonpath;
pub mod object;
pub mod scale;
pub mod status;
#[cfg(test)]
mod tests;
pub mod version;
