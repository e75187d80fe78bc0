//! The engine on one redb file: a table of records by revision, and a small table of facts about it.
//!
//! Records are only ever inserted at the end; compaction removes those that later ones replaced. One commit is one
//! fsync. redb refuses everything after an I/O error until it is opened again, so a failed commit drops the database
//! and the next commit reopens it, removes what the failed one may have left, and goes on.

use std::{
    fs::{self, File, OpenOptions},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError, TableDefinition,
    TableError, backends::FileBackend,
};

use super::{
    Change, CommitError, Engine, Record,
    volume::{Handle, Volume},
};
use crate::OpenError;

pub const FILE_NAME: &str = "usher.redb";

const FORMAT: u64 = 1;
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_COMPACTED: &str = "compacted";

/// Everything is read once, at open; a larger cache would hold a second copy of what the store has in memory.
const CACHE_BYTES: usize = 16 << 20;

pub struct Disk {
    path: PathBuf,
    volume: Arc<Volume>,
    /// `None` after a failed commit, until the next one.
    db: Option<Database>,
    compacted: u64,
}

impl Disk {
    /// Opens `usher.redb` in `dir`, creating both if need be. A file that cannot be used is left as it was: nothing is
    /// written to an existing one before [`Engine::replay`] has read all of it.
    pub fn open(dir: &Path) -> Result<Disk, OpenError> {
        let path = dir.join(FILE_NAME);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let created = create_missing(dir, &path).map_err(io)?;
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io)?;
        let opened = FileBackend::new(file)
            .map_err(|error| refusal(&path, error))
            .and_then(|backend| Disk::open_backend(path.clone(), Box::new(backend)));
        if created && matches!(opened, Err(OpenError::Io { .. })) {
            let _ = fs::remove_file(&path);
        }
        opened
    }

    /// As `open`, on any backend; `path` is for messages.
    pub fn open_backend(path: PathBuf, backend: Box<dyn StorageBackend>) -> Result<Disk, OpenError> {
        let io = |source| OpenError::Io { path: path.clone(), source };
        let volume = Volume::staged(backend).map_err(io)?;
        let refused = |error| refusal(&path, error);
        let mut db = guarded(|| open_database(&volume).map_err(refused)).unwrap_or_else(|why| Err(corrupt(&path, why)));
        // A refused file stays locked as long as the volume lives, so nobody else is still creating it.
        if matches!(db, Err(OpenError::Corrupt { .. })) && volume.discard_unfinished().map_err(io)? {
            db = open_database(&volume).map_err(refused);
        }
        let db = db?;
        let meta = guarded(|| read_meta(&db)).unwrap_or_else(|why| Err(redb::Error::Corrupted(why)));
        let compacted = match meta.map_err(|error| damage(&path, error))? {
            Some(Meta { format, .. }) if format > FORMAT => {
                return Err(OpenError::Newer { path, found: format, supported: FORMAT });
            }
            Some(meta) => meta.compacted,
            None => {
                initialize(&db).map_err(|error| damage(&path, error))?;
                0
            }
        };
        Ok(Disk { path, volume, db: Some(db), compacted })
    }

    fn reopen(&self, base: u64) -> Result<Database, redb::Error> {
        tracing::warn!(path = %self.path.display(), "reopening the store after a failed write");
        self.volume.rewrite_unsynced()?;
        let db = open_database(&self.volume)?;
        let last = last_revision(&db)?.max(read_meta(&db)?.map_or(0, |meta| meta.compacted));
        // Revision 1 is the empty store; it has no record.
        if last < base && base > 1 {
            return Err(redb::Error::Corrupted(format!("revision {base} is gone, the file ends at {last}")));
        }
        if last > base {
            let tx = db.begin_write()?;
            tx.open_table(LOG)?.retain_in(base + 1.., |_, _| false)?;
            tx.commit()?;
        }
        Ok(db)
    }
}

impl Engine for Disk {
    fn blocks(&self) -> bool {
        true
    }

    fn compacted(&mut self) -> Result<u64, OpenError> {
        Ok(self.compacted)
    }

    fn replay(&mut self, visit: &mut dyn FnMut(Record<'_>) -> Result<(), String>) -> Result<(), OpenError> {
        let Some(db) = &self.db else { return Ok(()) };
        let read = guarded(|| {
            for row in db.begin_read()?.open_table(LOG)?.iter()? {
                let (revision, bytes) = row?;
                let record = Record::decode(revision.value(), bytes.value()).map_err(redb::Error::Corrupted)?;
                visit(record).map_err(redb::Error::Corrupted)?;
            }
            Ok::<_, redb::Error>(())
        });
        read.unwrap_or_else(|why| Err(redb::Error::Corrupted(why))).map_err(|error| damage(&self.path, error))?;
        self.volume.settle().map_err(|source| OpenError::Io { path: self.path.clone(), source })
    }

    fn commit(&mut self, change: &Change<'_>) -> Result<(), CommitError> {
        // Taken out, so that every way to fail, a panic in redb included, leaves nothing to be reused.
        let db = self.db.take();
        let db = guarded(|| -> Result<Database, redb::Error> {
            let db = match db {
                Some(db) => db,
                None => self.reopen(change.base)?,
            };
            apply(&db, change, self.compacted)?;
            Ok(db)
        });
        let db = db
            .unwrap_or_else(|why| Err(redb::Error::Corrupted(why)))
            .map_err(|error| CommitError(error.to_string()))?;
        self.db = Some(db);
        self.compacted = change.compacted;
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.volume.len().unwrap_or(0)
    }
}

fn apply(db: &Database, change: &Change<'_>, compacted: u64) -> Result<(), redb::Error> {
    let tx = db.begin_write()?;
    let mut log = tx.open_table(LOG)?;
    for revision in change.forget {
        log.remove(revision)?;
    }
    for record in change.append {
        let mut slot = log.insert_reserve(record.revision, record.encoded_len())?;
        record.encode(slot.as_mut()).map_err(redb::Error::Corrupted)?;
    }
    drop(log);
    if change.compacted != compacted {
        tx.open_table(META)?.insert(META_COMPACTED, change.compacted)?;
    }
    tx.commit()?;
    Ok(())
}

struct Meta {
    format: u64,
    compacted: u64,
}

/// `None` in a database that nothing was ever put into.
fn read_meta(db: &Database) -> Result<Option<Meta>, redb::Error> {
    let tx = db.begin_read()?;
    let meta = match tx.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) if tx.list_tables()?.next().is_none() => return Ok(None),
        Err(TableError::TableDoesNotExist(_)) => return Err(redb::Error::Corrupted("it holds something else".into())),
        other => other?,
    };
    let number = |name| Ok::<_, StorageError>(meta.get(name)?.map(|value| value.value()));
    let format = number(META_FORMAT)?.ok_or_else(|| redb::Error::Corrupted("its format is not recorded".into()))?;
    Ok(Some(Meta { format, compacted: number(META_COMPACTED)?.unwrap_or(0) }))
}

fn last_revision(db: &Database) -> Result<u64, redb::Error> {
    Ok(db.begin_read()?.open_table(LOG)?.last()?.map_or(0, |(revision, _)| revision.value()))
}

fn initialize(db: &Database) -> Result<(), redb::Error> {
    let tx = db.begin_write()?;
    tx.open_table(LOG)?;
    tx.open_table(META)?.insert(META_FORMAT, FORMAT)?;
    tx.commit()?;
    Ok(())
}

fn open_database(volume: &Arc<Volume>) -> Result<Database, DatabaseError> {
    Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(Handle(volume.clone()))
}

/// redb asserts what its checksums should have excluded; on a damaged file such an assertion must not end the process.
fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        format!("the database failed internally: {}", text.unwrap_or("no message"))
    })
}

fn refusal(path: &Path, error: DatabaseError) -> OpenError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::Locked { path: path.into() },
        other => damage(path, other.into()),
    }
}

fn corrupt(path: &Path, why: String) -> OpenError {
    OpenError::Corrupt { path: path.into(), why }
}

fn damage(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::Io(source)
            if !matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            OpenError::Io { path: path.into(), source }
        }
        redb::Error::Corrupted(why) => corrupt(path, why),
        other => corrupt(path, other.to_string()),
    }
}

/// Creates the directory and an empty file where there is none, so that both survive a power cut; says whether the
/// file is new. Values may be secrets: nobody else may read the file.
fn create_missing(dir: &Path, path: &Path) -> io::Result<bool> {
    let fresh_dir = !dir.exists();
    if fresh_dir {
        fs::create_dir_all(dir)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(error),
    }
    sync_dir(dir)?;
    if let Some(parent) = dir.parent().filter(|parent| fresh_dir && !parent.as_os_str().is_empty()) {
        sync_dir(parent)?;
    }
    Ok(true)
}

#[cfg(unix)]
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests;
