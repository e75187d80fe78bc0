//! A container's output, read back: which run is meant, where to begin, what to leave out, and following it to its end.
//!
//! Nothing polls: a reader that follows sleeps until the directory of the run changes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use crate::fd::wait_readable;
use crate::log_file::{Entry, rotated, tail_start};
use crate::record::{Attempt, State};

const PIECE: usize = 64 * 1024;

/// `PodLogOptions`, of one container.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    pub container: String,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
}

impl State {
    /// The output that was asked for, or kubelet's words for why there is none.
    pub fn logs(
        &self,
        pod: &Pod,
        query: LogQuery,
    ) -> Result<impl futures::Stream<Item = Bytes> + Send + 'static, String> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let empty = PodStatus::default();
        let number = choose(pod.status.as_ref().unwrap_or(&empty), name, &query)?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let attempt = self.attempt(uid, &query.container, number);
        let reader = Reader::open(attempt, query)
            .map_err(|e| format!("unable to retrieve container logs for {}: {e}", crate::model::full_name(pod)))?;
        Ok(stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) }))
    }
}

/// The number of the run whose output is meant.
fn choose(status: &PodStatus, pod: &str, query: &LogQuery) -> Result<u32, String> {
    let container = query.container.as_str();
    let mut all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let Some(found) = all.find(|s| s.name == container) else {
        return Err(format!("container {container:?} in pod {pod:?} is not available"));
    };
    let state = found.state.clone().unwrap_or_default();
    let last = found.last_state.clone().unwrap_or_default().terminated;
    let number = |id: Option<String>| id.as_deref().and_then(|id| id.rsplit('/').next()?.parse().ok());
    if query.previous {
        return number(last.and_then(|t| t.container_id))
            .ok_or_else(|| format!("previous terminated container {container:?} in pod {pod:?} not found"));
    }
    let is_over = || format!("container {container:?} in pod {pod:?} is terminated");
    if state.running.is_some() {
        return number(found.container_id.clone()).ok_or_else(is_over);
    }
    if let Some(ended) = state.terminated {
        return number(ended.container_id).or_else(|| number(last.and_then(|t| t.container_id))).ok_or_else(is_over);
    }
    if let Some(last) = last {
        return number(last.container_id).ok_or_else(is_over);
    }
    match state.waiting {
        Some(waiting) => Err(format!(
            "container {container:?} in pod {pod:?} is waiting to start: {}",
            waiting.reason.unwrap_or_default()
        )),
        None => Err(format!("container {container:?} in pod {pod:?} is waiting to start - no logs yet")),
    }
}

struct Reader {
    attempt: Attempt,
    query: LogQuery,
    file: File,
    /// The current file, when an older one is read first.
    then: Option<File>,
    /// Read, but not a whole line yet.
    rest: Vec<u8>,
    at_line_start: bool,
    left: u64,
    changes: Option<AsyncFd<OwnedFd>>,
    over: bool,
}

impl Reader {
    fn open(attempt: Attempt, query: LogQuery) -> io::Result<Reader> {
        let mut current = File::open(attempt.log())?;
        let older = File::open(rotated(&attempt.log())).ok();
        let (file, then) = begin(&mut current, older, query.tail_lines)?.map_or_else(
            || Ok::<_, io::Error>((current.try_clone()?, None)),
            |older| Ok((older, Some(current.try_clone()?))),
        )?;
        let changes = if query.follow { Some(watch_dir(attempt.dir())?) } else { None };
        let left = query.limit_bytes.unwrap_or(u64::MAX);
        Ok(Reader { attempt, query, file, then, rest: Vec::new(), at_line_start: true, left, changes, over: false })
    }

    async fn next(&mut self) -> Option<Bytes> {
        let mut block = vec![0; PIECE];
        while !self.over && self.left > 0 {
            // Looked up before reading: what is written after a run has ended is nothing.
            let ended = self.query.follow && self.is_ended();
            let read = self.file.read(&mut block).ok()?;
            if read > 0 {
                self.rest.extend_from_slice(&block[..read]);
                let piece = self.render();
                if !piece.is_empty() {
                    return Some(piece);
                }
                continue;
            }
            if self.next_file() {
                continue;
            }
            if !self.query.follow || ended {
                self.over = true;
                break;
            }
            self.changed().await;
        }
        None
    }

    /// Goes on to the newer file, if there is one.
    fn next_file(&mut self) -> bool {
        if let Some(file) = self.then.take() {
            self.file = file;
            return true;
        }
        let same =
            || -> io::Result<bool> { Ok(self.file.metadata()?.ino() == std::fs::metadata(self.attempt.log())?.ino()) };
        if self.query.follow
            && same().is_ok_and(|same| !same)
            && let Ok(file) = File::open(self.attempt.log())
        {
            self.file = file;
            return true;
        }
        false
    }

    fn is_ended(&self) -> bool {
        self.attempt.exit().is_some() || !matches!(self.attempt.lock(), Ok(None))
    }

    async fn changed(&mut self) {
        let Some(changes) = &mut self.changes else { return };
        if let Ok(mut ready) = changes.readable_mut().await {
            let mut events = [0; 4096];
            while rustix::io::read(ready.get_inner(), &mut events).is_ok_and(|n| n > 0) {}
            ready.clear_ready();
        }
    }

    /// The whole lines read so far, as they were asked for.
    fn render(&mut self) -> Bytes {
        let Some(end) = self.rest.iter().rposition(|&byte| byte == b'\n') else { return Bytes::new() };
        let tail = self.rest.split_off(end + 1);
        let lines = std::mem::replace(&mut self.rest, tail);
        let mut out = Vec::with_capacity(lines.len());
        for entry in lines.split(|&byte| byte == b'\n').filter_map(Entry::parse) {
            self.render_entry(&entry, &mut out);
        }
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX);
        out.truncate(fits);
        self.left -= out.len() as u64;
        Bytes::from(out)
    }

    fn render_entry(&mut self, entry: &Entry, out: &mut Vec<u8>) {
        if self.query.since.is_some_and(|since| entry.time.parse::<Timestamp>().is_ok_and(|at| at < since)) {
            return;
        }
        if self.query.timestamps && self.at_line_start {
            out.extend_from_slice(entry.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(entry.text);
        if entry.is_whole {
            out.push(b'\n');
        }
        self.at_line_start = entry.is_whole;
    }
}

/// Puts `current` where reading begins; returns the older file when it begins there.
fn begin(current: &mut File, older: Option<File>, tail_lines: Option<u64>) -> io::Result<Option<File>> {
    let Some(lines) = tail_lines.map(|n| usize::try_from(n).unwrap_or(usize::MAX)) else { return Ok(older) };
    let start = tail_start(current, lines)?;
    current.seek(SeekFrom::Start(start))?;
    let Some(mut older) = older.filter(|_| start == 0) else { return Ok(None) };
    let mut text = Vec::new();
    current.read_to_end(&mut text)?;
    current.seek(SeekFrom::Start(0))?;
    let missing = lines.saturating_sub(text.iter().filter(|&&byte| byte == b'\n').count());
    let start = tail_start(&mut older, missing)?;
    older.seek(SeekFrom::Start(start))?;
    Ok(Some(older))
}

fn watch_dir(dir: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    let what = inotify::WatchFlags::MODIFY
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::DELETE
        | inotify::WatchFlags::DELETE_SELF;
    inotify::add_watch(&fd, dir, what)?;
    wait_readable(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_file::{LogWriter, Stream};
    use futures::StreamExt;
    use serde_json::{Value, json};

    fn query(container: &str) -> LogQuery {
        LogQuery { container: container.to_owned(), ..LogQuery::default() }
    }

    #[test]
    fn the_run_is_chosen_as_kubelet_does() {
        let ended = |n: u32| json!({"terminated": {"exitCode": 1, "containerID": format!("usher://u/c/{n}")}});
        let running = json!({"running": {}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let status = |state: &Value, last: Option<Value>| -> PodStatus {
            let last = last.unwrap_or(json!({}));
            serde_json::from_value(
                json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 3, "containerID": "usher://u/c/3", "state": state, "lastState": last}]}),
            )
            .unwrap()
        };
        let previous = LogQuery { previous: true, ..query("c") };
        let not = |text: &str| Err(text.to_owned());
        for (status, query, expected) in [
            (status(&running, None), query("c"), Ok(3)),
            (status(&running, Some(ended(2))), previous.clone(), Ok(2)),
            (
                status(&running, None),
                previous.clone(),
                not("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (status(&ended(3), None), query("c"), Ok(3)),
            (status(&waiting, Some(ended(3))), query("c"), Ok(3)),
            (
                status(&waiting, None),
                query("c"),
                not("container \"c\" in pod \"p\" is waiting to start: CrashLoopBackOff"),
            ),
            (status(&running, None), query("d"), not("container \"d\" in pod \"p\" is not available")),
        ] {
            assert_eq!(choose(&status, "p", &query), expected);
        }
    }

    fn attempt() -> (tempfile::TempDir, Attempt) {
        let dir = tempfile::tempdir().unwrap();
        let attempt = Attempt::at(dir.path());
        let mut log = LogWriter::open(attempt.log()).unwrap();
        for (n, stream) in [Stream::Stdout, Stream::Stderr, Stream::Stdout].into_iter().enumerate() {
            let at = Timestamp::from_second(1_800_000_000 + n as i64).unwrap();
            log.append(stream, format!("line {n}\n").as_bytes(), at).unwrap();
        }
        (dir, attempt)
    }

    async fn read(attempt: &Attempt, query: LogQuery) -> String {
        let reader = Reader::open(attempt.clone(), query).unwrap();
        let pieces: Vec<Bytes> =
            stream::unfold(reader, |mut r| async move { Some((r.next().await?, r)) }).collect().await;
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[tokio::test]
    async fn what_is_asked_for_is_read_and_no_more() {
        let (_dir, attempt) = attempt();
        let since = Timestamp::from_second(1_800_000_001).ok();
        for (query, expected) in [
            (LogQuery::default(), "line 0\nline 1\nline 2\n"),
            (LogQuery { tail_lines: Some(1), ..LogQuery::default() }, "line 2\n"),
            (LogQuery { tail_lines: Some(0), ..LogQuery::default() }, ""),
            (LogQuery { since, ..LogQuery::default() }, "line 1\nline 2\n"),
            (LogQuery { limit_bytes: Some(9), ..LogQuery::default() }, "line 0\nli"),
            (
                LogQuery { timestamps: true, tail_lines: Some(1), ..LogQuery::default() },
                "2027-01-15T08:00:02.000000000Z line 2\n",
            ),
        ] {
            assert_eq!(read(&attempt, query.clone()).await, expected, "{query:?}");
        }
    }

    #[tokio::test]
    async fn an_older_file_is_read_first_as_far_as_it_is_wanted() {
        let (_dir, attempt) = attempt();
        std::fs::rename(attempt.log(), rotated(&attempt.log())).unwrap();
        let mut log = LogWriter::open(attempt.log()).unwrap();
        log.append(Stream::Stdout, b"new\n", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(read(&attempt, LogQuery::default()).await, "line 0\nline 1\nline 2\nnew\n");
        assert_eq!(read(&attempt, LogQuery { tail_lines: Some(2), ..LogQuery::default() }).await, "line 2\nnew\n");
        assert_eq!(read(&attempt, LogQuery { tail_lines: Some(1), ..LogQuery::default() }).await, "new\n");
    }

    #[tokio::test]
    async fn following_sees_what_comes_and_ends_with_the_run() {
        let (_dir, attempt) = attempt();
        let lock = attempt.lock().unwrap();
        let mut reader = Reader::open(attempt.clone(), LogQuery { follow: true, ..LogQuery::default() }).unwrap();
        assert_eq!(reader.next().await.unwrap(), "line 0\nline 1\nline 2\n");
        let mut log = LogWriter::open(attempt.log()).unwrap();
        let write = async { log.append(Stream::Stdout, b"more\n", Timestamp::UNIX_EPOCH).unwrap() };
        let (piece, ()) = tokio::join!(reader.next(), write);
        assert_eq!(piece.unwrap(), "more\n");
        let exit = crate::record::Exit {
            code: 0,
            signal: None,
            started_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
            oom_killed: false,
            start_error: None,
            message: String::new(),
        };
        let (end, ()) = tokio::join!(reader.next(), async { attempt.write_exit(&exit).unwrap() });
        assert_eq!(end, None);
        drop(lock);
    }
}
