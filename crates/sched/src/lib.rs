//! The scheduler, pure.

pub mod ledger;
pub mod model;
pub mod quota;
#[cfg(test)]
mod testing;
