//! Webhooks: whom to ask ([`config`], [`matching`], [`conditions`]), what is asked and answered ([`review`]), how ([`client`]),
//! and in which order ([`dispatch`]).

mod client;
mod conditions;
mod config;
mod dispatch;
mod matching;
mod review;
#[cfg(test)]
mod tests;

pub(crate) use config::Cache;
pub(crate) use dispatch::Rounds;
