//! What an API object may look like, and everything that follows from that alone.
//!
//! One description of types, the [`graph`], drives all of it: reading JSON the way Go's decoders do ([`codec`]),
//! protobuf request bodies ([`protobuf`]), strategic merge patches ([`strategic`]), server-side apply and managed fields
//! ([`apply`]), the OpenAPI documents ([`openapi`]) and custom resources ([`structural`]).
//!
//! Nothing here does I/O, reads the clock or knows about HTTP. Start reading at [`graph`].

pub mod apply;
pub mod builtin;
pub mod codec;
pub mod duration;
pub mod expression;
pub mod fieldset;
pub mod graph;
pub mod managed;
pub mod openapi;
pub mod protobuf;
pub mod strategic;
pub mod structural;

pub use usher_api::field;

#[cfg(test)]
mod golden;
