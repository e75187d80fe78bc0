//! One leader among several copies, by a Lease: [`decide`] says what to do next, [`run`] does it.

pub mod decide;
pub mod run;

#[cfg(test)]
mod tests;

pub use decide::Terms;
pub use run::{Candidate, Election, Standing};
