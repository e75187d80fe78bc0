//! The small process that stands between the node and a container: it starts the container, writes down its output and how
//! it ended, and outlives a node that is killed.
//!
//! It is this same binary, started as `usher __shim DIR`, single-minded: no tokio, no API, no decisions. The container's
//! process is `usher __enter DIR` first (which puts on the mount namespace, the cgroup and the user) and then the command itself.
//! Standard streams of the shim: in: a pipe whose other end the node holds (its end means that the node is gone); out: the lock
//! file of this run, held until the shim ends; err: a pipe to the node for one line, how the start went.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait};
use usher_env::Clock;

use crate::log_file::{LogWriter, Stream, last_lines};
use crate::record::{Attempt, Exit, Launch, ProcessId, Started};
use crate::view;

pub const SHIM: &str = "__shim";
pub const ENTER: &str = "__enter";
/// An entering process that must not go on before its start is on record.
const HELD: &str = "held";
/// One that is somebody's command in a container, with streams of its own; on a terminal.
pub const EXEC: &str = "exec";
pub const EXEC_TTY: &str = "exec-tty";
/// Where such a command leaves why it could not begin.
pub const FAILURE: &str = "failure";
pub const CHECK: &str = "__check-mounts";
/// What the runtimes of Kubernetes report for a container that could not be started.
pub const START_ERROR_CODE: i32 = 128;
/// SIGKILL, for want of better knowledge.
const KILLED: i32 = 9;
const MESSAGE_BYTES: u64 = 4096;
const MESSAGE_LOG_LINES: usize = 80;
const MESSAGE_LOG_BYTES: usize = 2048;

/// Runs the shim if this process was started as one. To be called first in `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let role = arguments.next()?;
    let dir = arguments.next();
    match (role.to_str()?, dir) {
        (SHIM, Some(dir)) => Some(shim(&Attempt::at(dir))),
        (ENTER, Some(dir)) => {
            let how = arguments.next();
            Some(enter(&Attempt::at(dir), how.as_deref().and_then(|a| a.to_str()).unwrap_or_default()))
        }
        (CHECK, Some(dir)) => Some(match view::check(Path::new(&dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }),
        _ => None,
    }
}

fn shim(attempt: &Attempt) -> ExitCode {
    let clock = Clock::wall();
    let tell = |line: &str| drop(writeln!(io::stderr(), "{line}"));
    let exit = match supervise(attempt, &clock, tell) {
        Ok(exit) => exit,
        Err(error) => {
            tell(&format!("failed {error}"));
            start_failure(&clock, error.to_string())
        }
    };
    match attempt.write_exit(&exit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn start_failure(clock: &Clock, why: String) -> Exit {
    Exit {
        code: START_ERROR_CODE,
        signal: None,
        started_at: None,
        finished_at: clock.now(),
        oom_killed: false,
        start_error: Some(why.clone()),
        message: why,
    }
}

fn supervise(attempt: &Attempt, clock: &Clock, tell: impl Fn(&str)) -> io::Result<Exit> {
    let launch = attempt.launch()?;
    // Away from the terminal and the signals of whoever started the node. Fails only if that has been done.
    let _ = rustix::process::setsid();
    // Processes that the container leaves behind become our children: none escapes the end of the container.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let log = Arc::new(Mutex::new(LogWriter::open(attempt.log())?));
    let (stdout, stdout_end) = io::pipe()?;
    let (stderr, stderr_end) = io::pipe()?;
    let (mut failure, failure_end) = io::pipe()?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("usher")
        .arg(ENTER)
        .arg(attempt.dir())
        .arg(HELD)
        .stdin(failure_end)
        .stdout(stdout_end)
        .stderr(stderr_end);
    let child = command.spawn()?;
    drop(command);
    let pid = child.id() as i32;
    let started = Started {
        process: ProcessId::of(pid)?,
        shim: ProcessId::of(rustix::process::getpid().as_raw_nonzero().get())?,
        at: clock.now(),
    };
    attempt.write_started(&started)?;
    let pumps = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)].map(|(stream, pipe)| {
        let (log, clock) = (log.clone(), clock.clone());
        thread::spawn(move || pump(stream, pipe, &log, &clock))
    });
    if launch.dies_with_node {
        kill_when_alone(pid);
    }
    let mut why = String::new();
    let _ = failure.read_to_string(&mut why);
    tell(&if why.is_empty() { "started".to_owned() } else { format!("failed {why}") });
    hang_up();

    let status = wait_for_all(pid);
    for pump in pumps {
        let _ = pump.join();
    }
    if !why.is_empty() {
        return Ok(start_failure(clock, why));
    }
    let signal = status.and_then(WaitStatus::terminating_signal);
    let code = status.and_then(WaitStatus::exit_status).unwrap_or_else(|| 128 + signal.unwrap_or(KILLED));
    Ok(Exit {
        code,
        signal,
        started_at: Some(started.at),
        finished_at: clock.now(),
        oom_killed: launch.cgroup.as_deref().is_some_and(crate::cgroup::was_oom_killed),
        start_error: None,
        message: message(&launch, attempt, code),
    })
}

/// Lets go of the pipe to the node: it has read its line.
fn hang_up() {
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(null.as_fd());
    }
}

fn pump(stream: Stream, mut pipe: impl Read, log: &Mutex<LogWriter>, clock: &Clock) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        // A log that cannot be written (disk full) must not stop the container: it would block on a full pipe.
        if let Ok(mut log) = log.lock() {
            let _ = log.append(stream, &buffer[..read], clock.now());
        }
    }
    if let Ok(mut log) = log.lock() {
        let _ = log.finish(stream, clock.now());
    }
}

/// Returns how the container's main process ended, after everything it started has ended too, by force if need be.
fn wait_for_all(main: i32) -> Option<WaitStatus> {
    let mut ended = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == main && !status.stopped() => {
                ended = Some(status);
                if let Some(group) = Pid::from_raw(main) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                kill_children();
            }
            Ok(_) if ended.is_some() => kill_children(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No children are left.
            Err(_) => return ended,
        }
    }
}

/// What left the container's process group, by `setsid` or as a daemon.
fn kill_children() {
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|p| p.parse().ok()).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn kill_when_alone(main: i32) {
    thread::spawn(move || {
        let mut rest = Vec::new();
        let _ = io::stdin().read_to_end(&mut rest);
        if let Some(group) = Pid::from_raw(main) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    });
}

/// Kubelet's limits: 4096 bytes of the file, or the last 80 lines and 2048 bytes of the output of a failed container.
fn message(launch: &Launch, attempt: &Attempt, code: i32) -> String {
    let mut text = Vec::new();
    if let Some(file) = launch.message.as_ref().and_then(|path| File::open(path).ok()) {
        let _ = file.take(MESSAGE_BYTES).read_to_end(&mut text);
    }
    if text.is_empty() && launch.message_from_log && code != 0 {
        text = last_lines(&attempt.log(), MESSAGE_LOG_LINES, MESSAGE_LOG_BYTES);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Becomes the container. Comes back only to say why not.
fn enter(attempt: &Attempt, how: &str) -> ExitCode {
    let keeps_streams = matches!(how, EXEC | EXEC_TTY);
    let failure = match keeps_streams {
        true => File::create(attempt.dir().join(FAILURE)),
        // Closed by the exec: its end tells the shim that the container runs.
        false => io::stdin().as_fd().try_clone_to_owned().map(File::from),
    };
    let Ok(mut failure) = failure else { return ExitCode::FAILURE };
    if how == HELD && !is_on_record(attempt) {
        return ExitCode::FAILURE;
    }
    let _ = rustix::process::setsid();
    if how == EXEC_TTY {
        let _ = rustix::process::ioctl_tiocsctty(io::stdin());
    }
    let stdin = if keeps_streams { Stdio::inherit() } else { Stdio::null() };
    let why = match attempt.launch().and_then(|launch| become_container(&launch, stdin)) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let _ = failure.write_all(why.to_string().as_bytes());
    ExitCode::from(START_ERROR_CODE as u8)
}

/// Waits until the shim has written down that we run: what is not on record never ran, whoever is killed when.
fn is_on_record(attempt: &Attempt) -> bool {
    let shim = rustix::process::getppid();
    while attempt.started().is_none() {
        if rustix::process::getppid() != shim {
            return false;
        }
        thread::sleep(std::time::Duration::from_micros(200));
    }
    true
}

fn become_container(launch: &Launch, stdin: Stdio) -> io::Result<std::convert::Infallible> {
    let said = |what: String| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    if let Some(cgroup) = &launch.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0").map_err(said(format!("join cgroup {}", cgroup.display())))?;
    }
    view::put_on(&launch.view, &launch.binds)?;
    std::env::set_current_dir(&launch.cwd)
        .map_err(said(format!("change to the working directory {}", launch.cwd.display())))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Some(user) = &launch.user {
        view::become_user(user).map_err(said(format!("become user {}", user.uid)))?;
    }
    let Some((program, arguments)) = launch.argv.split_first() else {
        return Err(io::Error::other("the container has no command"));
    };
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdin(stdin)
        .exec();
    let cause = match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => "no such file or directory".to_owned(),
        io::ErrorKind::NotFound => "executable file not found in $PATH".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    Err(io::Error::other(format!("exec: {program:?}: {cause}")))
}
