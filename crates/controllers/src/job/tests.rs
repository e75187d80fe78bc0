//! The decisions: scenario files, and a simulated world in which everything that can go wrong does.

mod scenario;
mod simulation;
