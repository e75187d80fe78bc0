//! The HTTPS side of webhooks: one client per endpoint, with its connections kept open.

mod connect;
mod endpoint;
mod post;
mod trust;

pub use endpoint::Endpoint;
pub use post::Client;
