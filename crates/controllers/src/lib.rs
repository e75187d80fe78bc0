//! The controllers: each watches through one shared set of watches, decides in a pure function, and applies through
//! `kube::Client`. None of them knows whether that client is a function call or a socket.

pub mod gc;
pub mod runtime;
