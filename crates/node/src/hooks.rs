//! What a container's author wants done right after it has started and right before it is stopped: a command in it, a request
//! to it, or a wait. The words are kubelet's; what a failure means is decided in [`crate::decide`].

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use rustix::process::Signal;

use crate::reach::Reach;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    PostStart,
    PreStop,
}

impl Moment {
    fn place(self) -> &'static str {
        match self {
            Moment::PostStart => "hook-post-start",
            Moment::PreStop => "hook-pre-stop",
        }
    }

    pub fn of(self, container: &Container) -> Option<&LifecycleHandler> {
        let lifecycle = container.lifecycle.as_ref()?;
        match self {
            Moment::PostStart => lifecycle.post_start.as_ref(),
            Moment::PreStop => lifecycle.pre_stop.as_ref(),
        }
    }
}

/// Returns when it is done; dropped before, it is ended. An answer of any kind to a request will do.
pub async fn run(reach: &Reach, moment: Moment) -> Result<(), String> {
    let Some(hook) = moment.of(&reach.container) else { return Ok(()) };
    if let Some(exec) = &hook.exec {
        reach.exec(moment.place(), exec.command.as_deref().unwrap_or_default(), None).await
    } else if let Some(http) = &hook.http_get {
        reach.http(http, "kube-lifecycle/1.37").await.map(drop)
    } else if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        Ok(())
    } else {
        Err("the hook says neither exec nor httpGet or sleep".to_owned())
    }
}

/// The signal that asks a container to stop.
pub fn stop_signal(container: &Container) -> Signal {
    let named = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()).unwrap_or("SIGTERM");
    match named {
        "SIGABRT" => Signal::ABORT,
        "SIGALRM" => Signal::ALARM,
        "SIGCONT" => Signal::CONT,
        "SIGHUP" => Signal::HUP,
        "SIGINT" => Signal::INT,
        "SIGKILL" => Signal::KILL,
        "SIGPIPE" => Signal::PIPE,
        "SIGQUIT" => Signal::QUIT,
        "SIGUSR1" => Signal::USR1,
        "SIGUSR2" => Signal::USR2,
        "SIGWINCH" => Signal::WINCH,
        _ => Signal::TERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_is_stopped_by_the_signal_it_wants() {
        let signal = |lifecycle| {
            stop_signal(&serde_json::from_value::<Container>(json!({"name": "c", "lifecycle": lifecycle})).unwrap())
        };
        assert_eq!(signal(json!(null)), Signal::TERM);
        assert_eq!(signal(json!({"stopSignal": "SIGUSR1"})), Signal::USR1);
        assert_eq!(signal(json!({"stopSignal": "SIGNONSENSE"})), Signal::TERM);
    }
}
