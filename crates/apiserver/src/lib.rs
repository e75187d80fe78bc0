//! The Kubernetes API over a store: decode, default, admit, validate, store, watch, patch, apply.
//!
//! A request comes in through [`listen`] (TLS) or [`service::InProcess`] (a function call), is given a user and checked
//! ([`access`], [`auth`]), parsed ([`request`]), and handed to a verb in [`rest`]. What is served is in the [`registry`]:
//! one file a kind, and custom resources from [`crd`]. Objects are JSON values; their stored form is in [`stored`].
//!
//! No controller lives here. Start reading at [`server`] and `rest::dispatch`.

mod access;
mod admission;
pub mod auth;
mod body;
mod bootstrap;
pub mod crd;
mod discovery;
pub mod exec;
pub mod gates;
pub mod listen;
pub mod logs;
mod metrics;
mod negotiate;
pub mod object;
mod openapi;
pub mod registry;
mod request;
mod rest;
mod selector;
pub mod server;
pub mod service;
mod status;
mod stored;
pub mod visibility;
mod websocket;

pub use access::Keys;
pub use body::Body;
pub use server::{Options, Server};
pub use status::ApiError;
