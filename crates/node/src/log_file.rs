//! A container's output on disk: the line format of Kubernetes' container runtimes, bounded in size.
//!
//! `2026-11-15T10:00:00.123456789Z stdout F text`; the tag is `P` for a piece of a line too long for one entry. When the file
//! is full it becomes `log.1`, in place of an older one. Reading is in [`crate::logs`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// As long as a line may be before it is written in pieces.
const LINE_BYTES: usize = 16 * 1024;
/// Kubelet's `containerLogMaxSize`.
const FILE_BYTES: u64 = 10 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Where the file before `log` is kept.
pub fn rotated(log: &Path) -> PathBuf {
    log.with_extension("1")
}

pub struct LogWriter {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    /// What came of a line so far, by stream.
    pending: [Vec<u8>; 2],
}

impl LogWriter {
    pub fn open(path: PathBuf) -> io::Result<LogWriter> {
        LogWriter::bounded(path, FILE_BYTES)
    }

    fn bounded(path: PathBuf, max_bytes: u64) -> io::Result<LogWriter> {
        let file = create(&path)?;
        let bytes = file.metadata()?.len();
        Ok(LogWriter { path, file, bytes, max_bytes, pending: Default::default() })
    }

    pub fn append(&mut self, stream: Stream, text: &[u8], now: Timestamp) -> io::Result<()> {
        let mut out = Vec::with_capacity(text.len() + 64);
        for piece in text.split_inclusive(|&byte| byte == b'\n') {
            let pending = &mut self.pending[stream as usize];
            let (line, whole) = match piece.split_last() {
                Some((b'\n', line)) => (line, true),
                _ => (piece, false),
            };
            let mut line = line;
            while pending.len() + line.len() > LINE_BYTES {
                let (head, tail) = line.split_at(LINE_BYTES - pending.len());
                pending.extend_from_slice(head);
                entry(&mut out, stream, b'P', pending, now);
                pending.clear();
                line = tail;
            }
            pending.extend_from_slice(line);
            if whole {
                entry(&mut out, stream, b'F', pending, now);
                pending.clear();
            }
        }
        self.write(&out)
    }

    /// The stream has ended: a last line without its end is a line.
    pub fn finish(&mut self, stream: Stream, now: Timestamp) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending[stream as usize]);
        if pending.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        entry(&mut out, stream, b'F', &pending, now);
        self.write(&out)
    }

    fn write(&mut self, out: &[u8]) -> io::Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        if self.bytes > 0 && self.bytes + out.len() as u64 > self.max_bytes {
            fs::rename(&self.path, rotated(&self.path))?;
            self.file = create(&self.path)?;
            self.bytes = 0;
        }
        self.file.write_all(out)?;
        self.bytes += out.len() as u64;
        Ok(())
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn entry(out: &mut Vec<u8>, stream: Stream, tag: u8, line: &[u8], now: Timestamp) {
    let _ = write!(out, "{now:.9} {} ", stream.name());
    out.extend_from_slice(&[tag, b' ']);
    out.extend_from_slice(line);
    out.push(b'\n');
}

/// One entry, read back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    pub time: &'a str,
    pub stream: Stream,
    pub is_whole: bool,
    pub text: &'a [u8],
}

impl<'a> Entry<'a> {
    /// `line` without its end.
    pub fn parse(line: &'a [u8]) -> Option<Entry<'a>> {
        let mut parts = line.splitn(4, |&byte| byte == b' ');
        let time = std::str::from_utf8(parts.next()?).ok()?;
        let stream = match parts.next()? {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        };
        let is_whole = parts.next()?.split(|&byte| byte == b':').next() != Some(b"P");
        Some(Entry { time, stream, is_whole, text: parts.next()? })
    }
}

/// The last lines of a container's output, as it wrote them, cut at the front to `max_bytes`.
pub fn last_lines(log: &Path, lines: usize, max_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let Ok(mut file) = File::open(log) else { return out };
    let Ok(start) = tail_start(&mut file, lines) else { return out };
    let mut text = Vec::new();
    if file.seek(SeekFrom::Start(start)).is_err() || file.read_to_end(&mut text).is_err() {
        return out;
    }
    for line in text.split(|&byte| byte == b'\n').filter_map(Entry::parse) {
        out.extend_from_slice(line.text);
        if line.is_whole {
            out.push(b'\n');
        }
    }
    let cut = out.len().saturating_sub(max_bytes);
    out.split_off(cut)
}

/// Where the last `lines` lines of a file begin.
pub fn tail_start(file: &mut File, lines: usize) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.seek(SeekFrom::End(0))?;
    let length = end;
    if lines == 0 {
        return Ok(length);
    }
    let mut seen = 0;
    let mut block = vec![0; BLOCK as usize];
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let block = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(block)?;
        for (at, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let at = start + at as u64;
            // The end of the last line begins no other.
            if at + 1 == length {
                continue;
            }
            seen += 1;
            if seen == lines {
                return Ok(at + 1);
            }
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn written(writes: &[(Stream, &[u8])]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::open(path.clone()).unwrap();
        let now = at("2026-11-15T10:00:00.5Z");
        for (stream, text) in writes {
            log.append(*stream, text, now).unwrap();
        }
        log.finish(Stream::Stdout, now).unwrap();
        log.finish(Stream::Stderr, now).unwrap();
        (dir, path)
    }

    #[test]
    fn lines_of_both_streams_keep_apart_and_carry_their_time() {
        let writes: [(Stream, &[u8]); 4] =
            [(Stream::Stdout, b"a"), (Stream::Stderr, b"oops\n"), (Stream::Stdout, b"b\n\nc"), (Stream::Stdout, b"")];
        let (_dir, path) = written(&writes);
        let text = fs::read_to_string(path).unwrap();
        let time = "2026-11-15T10:00:00.500000000Z";
        assert_eq!(text, format!("{time} stderr F oops\n{time} stdout F ab\n{time} stdout F \n{time} stdout F c\n"));
    }

    #[test]
    fn a_long_line_is_written_in_pieces_and_read_back_whole() {
        let long = vec![b'x'; LINE_BYTES * 2 + 10];
        let (_dir, path) = written(&[(Stream::Stdout, &long), (Stream::Stdout, b"y\n")]);
        let text = fs::read(&path).unwrap();
        let entries: Vec<Entry> = text.split(|&b| b == b'\n').filter_map(Entry::parse).collect();
        assert_eq!(entries.iter().map(|e| e.is_whole).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(last_lines(&path, 10, usize::MAX).len(), long.len() + 2);
    }

    #[test]
    fn a_full_file_makes_way_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = LogWriter::bounded(path.clone(), 100).unwrap();
        for n in 0..5 {
            log.append(Stream::Stdout, format!("line {n}\n").as_bytes(), at("2026-11-15T10:00:00Z")).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() <= 100);
        assert_eq!(last_lines(&path, 10, 100), b"line 4\n");
        assert_eq!(last_lines(&rotated(&path), 10, 100), b"line 2\nline 3\n");
    }

    #[test]
    fn the_tail_begins_at_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "a\nbb\nccc\n").unwrap();
        let mut file = File::open(&path).unwrap();
        let starts: Vec<u64> = (0..5).map(|n| tail_start(&mut file, n).unwrap()).collect();
        assert_eq!(starts, [9, 5, 2, 0, 0]);
    }
}
