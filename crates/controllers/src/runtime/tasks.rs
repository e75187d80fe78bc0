//! The tasks of one run of the controllers, stopped together.

use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Clones share the tasks.
#[derive(Clone, Default)]
pub struct Tasks {
    stop: CancellationToken,
    running: Arc<Mutex<JoinSet<()>>>,
}

impl Tasks {
    /// Runs `task` until it ends or everything is stopped. A stop drops it where it waits, a call in flight included:
    /// controllers hold no state that the API does not, so there is nothing to put away.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let mut running = self.running.lock();
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// A token that is cancelled with everything else, or earlier by its holder.
    pub fn child(&self) -> CancellationToken {
        self.stop.child_token()
    }

    /// Stops every task, without waiting for it.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Stops every task and returns when the last one has gone.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut running = std::mem::take(&mut *self.running.lock());
        while let Some(ended) = running.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a controller's task failed");
            }
        }
    }
}
