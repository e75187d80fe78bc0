//! The scheduler's loop: what changes is told to the pure scheduler, what it decides is written.
//!
//! [`book`] keeps the two in step, [`lower`] translates, [`write`] says what a decision means for an object, [`outbox`]
//! in which order, [`run`] and [`put`] do it.

pub mod book;
mod census;
mod families;
pub mod lower;
mod outbox;
mod put;
pub mod requests;
pub mod run;
pub mod write;

#[cfg(test)]
mod tests;
