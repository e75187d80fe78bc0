//! The serving certificate of webhooks and of the visibility API, kept in a Secret: [`decide`] says when it is made anew,
//! [`keep`] stores, loads and announces it.

pub mod bundles;
pub mod decide;
pub mod keep;

pub use keep::{Keeper, Serving};
