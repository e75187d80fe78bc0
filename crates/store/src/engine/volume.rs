//! The file under the database, as redb sees it, with three things redb's own backend does not do:
//!
//! - *Staging*: until [`Volume::settle`], writes stay in memory. Opening a database writes to it even before one can
//!   look inside; a file that turns out to be newer or damaged must be left as it was.
//! - *Keeping the lock*: closing the database after an I/O error and opening it again goes through the same locked
//!   file, so no other process can slip in between.
//! - *Remembering what was not synced*: after a failed fsync the kernel may call a page clean that never reached the
//!   disk. [`Volume::rewrite_unsynced`] writes those ranges once more before the database is used again.

use std::{collections::HashSet, fmt, io, ops::Bound, sync::Arc};

use parking_lot::{Mutex, RwLock};
use redb::{BackendError, StorageBackend};

const MAGIC_BYTES: usize = 9;
const HEADER_PAGE_BYTES: usize = 4096;
/// A new database takes about 1 MiB.
const UNFINISHED_MAX_BYTES: u64 = 16 << 20;

pub(super) struct Volume {
    file: Box<dyn StorageBackend>,
    /// `None` once settled.
    staged: RwLock<Option<Staged>>,
    unsynced: Mutex<Vec<(u64, usize)>>,
    locked: Mutex<HashSet<(Bound<u64>, Bound<u64>)>>,
}

struct Staged {
    /// What is on the file, which does not change meanwhile.
    file_len: u64,
    len: u64,
    steps: Vec<Step>,
}

enum Step {
    Write(u64, Vec<u8>),
    SetLen(u64),
    Sync,
}

impl Volume {
    pub(super) fn staged(file: Box<dyn StorageBackend>) -> io::Result<Arc<Volume>> {
        let len = file.len()?;
        let staged = Staged { file_len: len, len, steps: Vec::new() };
        Ok(Arc::new(Volume {
            file,
            staged: RwLock::new(Some(staged)),
            unsynced: Mutex::default(),
            locked: Mutex::default(),
        }))
    }

    /// Carries out what was staged, in its order and with its syncs; from here on writes go through.
    pub(super) fn settle(&self) -> io::Result<()> {
        let mut staged = self.staged.write();
        for step in staged.take().into_iter().flat_map(|staged| staged.steps) {
            match step {
                Step::Write(offset, data) => self.write_through(offset, &data)?,
                Step::SetLen(len) => self.file.set_len(len)?,
                Step::Sync => self.sync_through()?,
            }
        }
        Ok(())
    }

    pub(super) fn rewrite_unsynced(&self) -> io::Result<()> {
        let ranges = std::mem::take(&mut *self.unsynced.lock());
        let outcome = self.rewrite(&ranges);
        if outcome.is_err() {
            self.unsynced.lock().extend(ranges);
        }
        outcome
    }

    fn rewrite(&self, ranges: &[(u64, usize)]) -> io::Result<()> {
        let end = self.file.len()?;
        let mut page = Vec::new();
        for &(offset, len) in ranges.iter().filter(|(offset, len)| offset + *len as u64 <= end) {
            page.resize(len, 0);
            self.file.read(offset, &mut page)?;
            self.file.write(offset, &page)?;
        }
        self.file.sync_data()
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        match &*self.staged.read() {
            Some(staged) => Ok(staged.len),
            None => self.file.len(),
        }
    }

    /// Empties a file whose creation was cut short: redb sets its length, writes a header, and only then the magic
    /// number. Beyond the header such a file is nothing but zeros, and short; anything else is left alone.
    pub(super) fn discard_unfinished(self: &Arc<Self>) -> io::Result<bool> {
        let handle = Handle(self.clone());
        let len = self.file.len()?;
        if len == 0 || len > UNFINISHED_MAX_BYTES {
            return Ok(false);
        }
        let mut bytes = vec![0; len as usize];
        self.file.read(0, &mut bytes)?;
        let magic_and_pages = bytes.iter().take(MAGIC_BYTES).chain(bytes.iter().skip(HEADER_PAGE_BYTES));
        if magic_and_pages.into_iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        handle.set_len(0)?;
        Ok(true)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.unsynced.lock().push((offset, data.len()));
        self.file.write(offset, data)
    }

    fn sync_through(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.unsynced.lock().clear();
        Ok(())
    }

    fn read_staged(&self, staged: &Staged, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(out.len() as u64);
        if end > staged.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let on_file = staged.file_len.clamp(offset, end) - offset;
        let (old, new) = out.split_at_mut(on_file as usize);
        new.fill(0);
        if !old.is_empty() {
            self.file.read(offset, old)?;
        }
        for step in &staged.steps {
            match step {
                Step::Write(at, data) => overlay(offset, out, *at, data),
                Step::SetLen(len) => out[(len.clamp(&offset, &end) - offset) as usize..].fill(0),
                Step::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies the part of `data`, which lies at `at`, that falls into `out`, which lies at `offset`.
fn overlay(offset: u64, out: &mut [u8], at: u64, data: &[u8]) {
    let from = offset.max(at);
    let to = (offset + out.len() as u64).min(at + data.len() as u64);
    if from < to {
        out[(from - offset) as usize..(to - offset) as usize]
            .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
    }
}

/// What redb is given: closing it leaves the volume open and locked.
pub(super) struct Handle(pub(super) Arc<Volume>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.file.fmt(f)
    }
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &*self.0.staged.read() {
            Some(staged) => self.0.read_staged(staged, offset, out),
            None => self.0.file.read(offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &mut *self.0.staged.write() {
            Some(staged) => {
                staged.len = len;
                staged.steps.push(Step::SetLen(len));
                Ok(())
            }
            None => self.0.file.set_len(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match &mut *self.0.staged.write() {
            Some(staged) => staged.steps.push(Step::Sync),
            None => return self.0.sync_through(),
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(staged) = &mut *self.0.staged.write() {
            staged.steps.push(Step::Write(offset, data.to_vec()));
            return Ok(());
        }
        self.0.write_through(offset, data)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        let mut locked = self.0.locked.lock();
        if locked.contains(&(start, end)) {
            return Ok(true);
        }
        let acquired = self.0.file.try_lock_range(start, end)?;
        if acquired {
            locked.insert((start, end));
            // Whoever held the lock until now may have changed the length.
            if let Some(staged) = self.0.staged.write().as_mut().filter(|staged| staged.steps.is_empty()) {
                staged.file_len = self.0.file.len()?;
                staged.len = staged.file_len;
            }
        }
        Ok(acquired)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.locked.lock().remove(&(start, end));
        self.0.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.file.query_lock_range(start, end)
    }
}
