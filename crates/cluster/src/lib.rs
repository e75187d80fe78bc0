//! What Usher needs on a cluster that is not its own: webhooks, the certificates they are served with, a leader among several
//! copies, the visibility API, health, metrics, and the manifests that install all of it.
//!
//! What is filled in and refused is said by `usher_api::kueue::rules`, who is admitted by `usher-controllers`; neither is
//! known here. Start reading in [`webhook::review`] (what is answered), [`certificates::decide`] (when certificates are made
//! anew), [`election::decide`] (who leads) and [`manifests`].

pub mod certificates;
pub mod client;
pub mod default_queue;
pub mod election;
pub mod leader_pod;
pub mod manifests;
pub mod names;
pub mod probes;
pub mod serve;
#[cfg(test)]
mod testing;
pub mod visibility;
pub mod webhook;
