//! Startup, liveness and readiness probes of one run of a container.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio_util::sync::DropGuard;

use crate::launch::Kit;
use crate::model::{Failed, Health};
use crate::record::Attempt;

/// What a probe has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    Started,
    Ready(bool),
    Failed(Failed),
}

impl Finding {
    pub fn note(self, health: &mut Health) {
        match self {
            Finding::Started => health.started = Some(true),
            Finding::Ready(ready) => health.ready = Some(ready),
            Finding::Failed(failed) => health.failed = Some(failed),
        }
    }
}

/// Probing ends when this is dropped.
pub struct Guard {
    _stop: Option<DropGuard>,
}

pub fn start(
    _kit: Arc<Kit>,
    _pod: Arc<Pod>,
    _container: Container,
    _run: Attempt,
    _since: Timestamp,
    _report: impl Fn(Finding) + Send + 'static,
) -> Guard {
    Guard { _stop: None }
}
