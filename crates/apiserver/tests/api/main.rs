//! The API through the in-process service: what clients may rely on, verb by verb.

mod common;
mod kueue;
mod lists_and_watches;
mod plugins;
mod protobuf;
mod visibility;
mod webhook_server;
mod webhooks;
mod writes;
