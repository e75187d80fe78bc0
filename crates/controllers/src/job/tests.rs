//! The decisions: scenario files, and a simulated world in which everything that can go wrong does. And what is remembered
//! of calls.

mod carry_out;
mod scenario;
mod simulation;
