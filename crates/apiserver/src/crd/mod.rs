//! Custom resources: what a CustomResourceDefinition means, and how the objects it defines are treated.
//!
//! Mostly pure functions on JSON values: [`definition`] fills in and checks a definition, [`status`] computes its conditions,
//! [`version`] compiles it into what is served, [`object`] takes a custom object through create and update. None of these
//! reads the store or the clock; [`kinds`] and `serve` connect them to the server. Start reading at [`version`].

pub mod columns;
pub mod definition;
pub mod jsonpath;
pub mod kinds;
pub mod object;
pub mod scale;
mod serve;
pub mod status;
#[cfg(test)]
mod tests;
pub mod version;

pub use serve::{compile, serve_all};
