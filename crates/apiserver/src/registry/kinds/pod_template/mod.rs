//! What a pod may look like, for everything that contains one: Pod, and the templates of Job and CronJob.
//!
//! Start at [`validate::validate_template`] or [`validate::validate_spec`]; [`defaults`] runs before them. Each file has the rules of
//! one part of the spec, with upstream's field paths and texts (including its occasional odd path).

pub mod annotations;
pub mod containers;
pub mod defaults;
pub mod env;
pub mod mounts;
pub mod pod_resources;
pub mod probes;
pub mod resources;
pub mod scheduling;
pub mod security;
pub mod validate;
pub mod volume_sources;
pub mod volumes;
pub mod warnings;

#[cfg(test)]
mod tests;
