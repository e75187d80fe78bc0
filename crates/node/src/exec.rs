//! A command of somebody else's in a container that runs: its user, its volumes, its environment, and streams or a terminal of
//! its own. It ends with the container, and when whoever asked for it goes away.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;

use futures::future::{BoxFuture, FutureExt};
use k8s_openapi::api::core::v1::Pod;
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::launch::watch_process;
use crate::reach::KillGroup;
use crate::record::{Attempt, Started, State};
use crate::shim;

#[derive(Clone, Debug, Default)]
pub struct ExecQuery {
    pub container: String,
    pub command: Vec<String>,
    pub stdin: bool,
    pub tty: bool,
}

/// A command that runs. It is ended when `end` is dropped.
pub struct Exec {
    pub input: Option<tokio::fs::File>,
    /// Both streams of a terminal are its output.
    pub output: tokio::fs::File,
    pub errors: Option<tokio::fs::File>,
    pub terminal: Option<Terminal>,
    /// The code with which it ended, or why it could not begin.
    pub end: BoxFuture<'static, Result<i32, String>>,
}

pub struct Terminal(OwnedFd);

impl Terminal {
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        let _ = tcsetwinsize(&self.0, size);
    }
}

struct Streams {
    stdin: Stdio,
    stdout: Stdio,
    stderr: Stdio,
    input: Option<OwnedFd>,
    output: OwnedFd,
    errors: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
}

impl State {
    /// The run of a container that something could be run in.
    fn running(&self, pod: &Pod, container: &str) -> Result<(Attempt, Started), String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let attempts =
            self.containers(uid).into_iter().find(|(name, _)| name == container).map(|(_, attempts)| attempts);
        let run = attempts.and_then(|all| Some(self.attempt(uid, container, *all.last()?)));
        let started = run.as_ref().filter(|run| run.exit().is_none()).and_then(Attempt::started);
        run.zip(started).ok_or_else(|| format!("container not found ({container:?}): it does not run"))
    }

    pub fn can_exec(&self, pod: &Pod, container: &str) -> Result<(), String> {
        self.running(pod, container).map(drop)
    }

    pub fn exec(&self, pod: &Pod, query: ExecQuery) -> Result<Exec, String> {
        let (run, started) = self.running(pod, &query.container)?;
        let said = |error: io::Error| error.to_string();
        let mut launch = run.launch().map_err(said)?;
        launch.argv = query.command;
        if query.tty && !launch.env.iter().any(|(name, _)| name == "TERM") {
            launch.env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        let place = fresh(&run, &launch).map_err(said)?;
        let streams = if query.tty { terminal() } else { pipes(query.stdin) }.map_err(said)?;
        let mode = if query.tty { shim::EXEC_TTY } else { shim::EXEC };
        let mut enter = tokio::process::Command::new("/proc/self/exe");
        enter.arg0("usher").arg(shim::ENTER).arg(place.dir()).arg(mode).env_clear();
        enter.stdin(streams.stdin).stdout(streams.stdout).stderr(streams.stderr).kill_on_drop(true);
        let mut child = enter.spawn().map_err(said)?;
        // Our ends of its pipes must not keep them open.
        drop(enter);
        let group = KillGroup::of(child.id());
        let container = watch_process(started.process.pid);
        let end = async move {
            let place = Discard(place);
            let ended = tokio::select! {
                ended = child.wait() => ended,
                () = async { match container { Some(process) => process.wait().await, None => std::future::pending().await } } => {
                    return Ok(137);
                }
            };
            drop(group);
            if let Some(why) = std::fs::read_to_string(place.0.dir().join(shim::FAILURE)).ok().filter(|t| !t.is_empty())
            {
                return Err(why);
            }
            let status = ended.map_err(|e| e.to_string())?;
            use std::os::unix::process::ExitStatusExt;
            Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(9)))
        };
        let file = |fd: OwnedFd| tokio::fs::File::from_std(File::from(fd));
        Ok(Exec {
            input: streams.input.map(file),
            output: file(streams.output),
            errors: streams.errors.map(file),
            terminal: streams.terminal.map(Terminal),
            end: end.boxed(),
        })
    }
}

/// What was written for a command goes with it.
struct Discard(Attempt);

impl Drop for Discard {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.dir());
    }
}

/// A directory that no other command has.
fn fresh(run: &Attempt, launch: &crate::record::Launch) -> io::Result<Attempt> {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let place = Attempt::at(run.dir().join(format!("exec-{}-{number}", std::process::id())));
    place.create(launch)?;
    Ok(place)
}

fn pipes(with_input: bool) -> io::Result<Streams> {
    let (stdin, input) = match with_input {
        true => io::pipe().map(|(read, write)| (Stdio::from(read), Some(OwnedFd::from(write))))?,
        false => (Stdio::null(), None),
    };
    let ((output, stdout), (errors, stderr)) = (io::pipe()?, io::pipe()?);
    Ok(Streams {
        stdin,
        stdout: stdout.into(),
        stderr: stderr.into(),
        input,
        output: output.into(),
        errors: Some(errors.into()),
        terminal: None,
    })
}

fn terminal() -> io::Result<Streams> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(&*name, flags, rustix::fs::Mode::empty())?;
    let again = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned();
    Ok(Streams {
        stdin: again(&slave)?.into(),
        stdout: again(&slave)?.into(),
        stderr: slave.into(),
        input: Some(again(&master)?),
        output: again(&master)?,
        errors: None,
        terminal: Some(master),
    })
}
