//! What every command that keeps running does alike: logs on stderr, and signals that end it.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub fn init_logs() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("USHER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

/// SIGTERM and SIGINT, listened for from the start: one that comes right after the ready line must not be lost.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
