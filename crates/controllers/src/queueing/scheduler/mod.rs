//! The scheduler's loop: what changes is told to the pure scheduler, what it decides is written.
//!
//! [`book`] keeps the two in step, [`lower`] translates, [`write`] says what a decision means for an object, [`run`] does it.

pub mod book;
mod census;
mod families;
pub mod lower;
pub mod requests;
pub mod run;
pub mod write;
