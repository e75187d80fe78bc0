//! Files that cannot be opened, and disks that fail.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use bytes::Bytes;
use redb::ReadableTableMetadata;
use tempfile::TempDir;

use super::*;
use crate::{Entry, Expect, ListOptions, Op, Options, Store, WriteError, Written};

const C: &str = "things";

async fn put(store: &Store, key: &str, value: &str) -> Result<Written, WriteError> {
    store.write(C, key, Op::Put(Bytes::copy_from_slice(value.as_bytes())), Expect::Any).await
}

fn open(dir: &Path) -> Result<Store, OpenError> {
    Store::open_disk(dir, Options::default())
}

fn all(store: &Store) -> Vec<Arc<Entry>> {
    store.list(C, &ListOptions::default()).unwrap().entries
}

/// A directory with a closed store of a few entries in it.
async fn filled() -> TempDir {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).unwrap();
    for n in 0..20 {
        put(&store, &format!("{}", n % 7), &format!("{n}{}", "x".repeat(3000))).await.unwrap();
    }
    store.close().await;
    dir
}

fn bytes_of(dir: &TempDir) -> Vec<u8> {
    fs::read(dir.path().join(FILE_NAME)).unwrap()
}

/// Opening `dir` fails and changes nothing in it; returns the error.
fn refused(dir: &TempDir) -> OpenError {
    let before = bytes_of(dir);
    let error = open(dir.path()).err().expect("refused");
    assert!(bytes_of(dir) == before, "the file was touched");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was added");
    error
}

#[tokio::test]
async fn a_newer_format_is_refused_untouched() {
    let dir = filled().await;
    set_format(&dir, 7);
    let error = refused(&dir);
    assert!(matches!(error, OpenError::Newer { found: 7, supported: FORMAT, .. }), "{error}");
    set_format(&dir, FORMAT);
    assert_eq!(all(&open(dir.path()).unwrap()).len(), 7);
}

#[tokio::test]
async fn a_newer_format_that_was_not_closed_is_refused_untouched() {
    let dir = filled().await;
    set_format(&dir, 7);
    let copy = TempDir::new().unwrap();
    {
        let _live = Database::create(dir.path().join(FILE_NAME)).unwrap();
        fs::copy(dir.path().join(FILE_NAME), copy.path().join(FILE_NAME)).unwrap();
    }
    assert!(matches!(refused(&copy), OpenError::Newer { found: 7, .. }));
}

fn set_format(dir: &TempDir, format: u64) {
    let db = Database::create(dir.path().join(FILE_NAME)).unwrap();
    let tx = db.begin_write().unwrap();
    tx.open_table(META).unwrap().insert(META_FORMAT, format).unwrap();
    tx.commit().unwrap();
}

#[tokio::test]
async fn a_store_that_is_open_is_locked() {
    let dir = filled().await;
    let store = open(dir.path()).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("usher.redb"), "{error}");
    put(&store, "a", "still fine").await.unwrap();
    store.close().await;
    assert_eq!(all(&open(dir.path()).unwrap()).len(), 8);
}

#[tokio::test]
async fn damaged_files_are_refused_untouched_and_named() {
    let dir = filled().await;
    let good = bytes_of(&dir);
    let damage: [(&str, Vec<u8>); 5] = [
        ("text", b"this is not a database".to_vec()),
        ("one byte", vec![0x72]),
        ("cut short", good[..20_000].to_vec()),
        ("no header", [vec![0; 4096], good[4096..].to_vec()].concat()),
        ("no data", [good[..4096].to_vec(), vec![0xa5; good.len() - 4096]].concat()),
    ];
    for (what, bytes) in damage {
        fs::write(dir.path().join(FILE_NAME), bytes).unwrap();
        let error = refused(&dir);
        assert!(matches!(error, OpenError::Corrupt { .. }), "{what}: {error}");
        assert!(error.to_string().contains(FILE_NAME), "{what}: {error}");
    }
}

#[tokio::test]
async fn a_database_of_something_else_is_refused_untouched() {
    let dir = TempDir::new().unwrap();
    {
        let db = Database::create(dir.path().join(FILE_NAME)).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(TableDefinition::<u64, u64>::new("photos")).unwrap().insert(1, 1).unwrap();
        tx.commit().unwrap();
    }
    assert!(matches!(refused(&dir), OpenError::Corrupt { .. }));
}

#[tokio::test]
async fn a_hole_in_the_log_is_refused() {
    let dir = filled().await;
    {
        let db = Database::create(dir.path().join(FILE_NAME)).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(LOG).unwrap().remove(9).unwrap();
        tx.commit().unwrap();
    }
    let OpenError::Corrupt { why, .. } = refused(&dir) else { panic!("not corrupt") };
    assert_eq!(why, "revision 10 follows 8");
}

#[tokio::test]
async fn creation_that_was_cut_short_begins_again() {
    // An empty file, and one that has its length and a header but not yet the magic number.
    for len in [0, 1 << 20] {
        let dir = TempDir::new().unwrap();
        let mut bytes = vec![0; len];
        bytes.get_mut(20..60).into_iter().for_each(|header| header.fill(0x11));
        fs::write(dir.path().join(FILE_NAME), bytes).unwrap();
        let store = open(dir.path()).unwrap();
        put(&store, "a", "1").await.unwrap();
        store.close().await;
        assert_eq!(all(&open(dir.path()).unwrap()).len(), 1);
    }
}

#[test]
fn a_path_that_cannot_be_a_directory_is_an_io_error() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = open(&path).err().unwrap();
        assert!(matches!(error, OpenError::Io { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("made/on/demand");
    open(&data).unwrap();
    assert_eq!(fs::metadata(data.join(FILE_NAME)).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A file that starts to fail after a number of changes: a full disk, then a dead one.
#[derive(Debug)]
struct Failing {
    file: FileBackend,
    faults: Arc<Faults>,
}

#[derive(Debug)]
struct Faults {
    /// Writes, syncs and changes of length that still succeed.
    left: AtomicI64,
    /// Whether a failing sync has nevertheless reached the disk.
    sync_lands: bool,
}

impl Faults {
    fn spend(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            true => Ok(()),
            false => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn allow(&self, changes: i64) {
        self.left.store(changes, Ordering::SeqCst);
    }
}

const NEVER: i64 = i64::MAX;

impl StorageBackend for Failing {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.spend()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.faults.sync_lands {
            self.file.sync_data()?;
        }
        self.faults.spend()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.spend()?;
        self.file.write(offset, data)
    }
}

fn open_failing(dir: &TempDir, sync_lands: bool) -> (Store, Arc<Faults>) {
    let path = dir.path().join(FILE_NAME);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let faults = Arc::new(Faults { left: AtomicI64::new(NEVER), sync_lands });
    let backend = Failing { file: FileBackend::new(file).unwrap(), faults: faults.clone() };
    let disk = Disk::open_backend(path, Box::new(backend)).unwrap();
    let options = Options { max_events: 12, ..Options::default() };
    (Store::open(Box::new(disk), options).unwrap(), faults)
}

/// Fails the disk at every possible point of a write, lets it recover, and compares with what was answered.
async fn writes_survive_a_disk_that_fails(sync_lands: bool) {
    let dir = TempDir::new().unwrap();
    let (store, faults) = open_failing(&dir, sync_lands);
    let mut answered = 1;
    put(&store, "a", "0").await.unwrap();
    answered += 1;
    let mut failures = 0;
    for changes in 0..40 {
        let before = (all(&store), store.revision(), store.compacted());
        let mut watch = store.watch(C, "", store.revision()).unwrap();
        faults.allow(changes);
        match put(&store, &format!("{}", changes % 5), &format!("{changes}")).await {
            Ok(written) => {
                answered += 1;
                assert_eq!(written.revision, answered);
            }
            Err(WriteError::Failed(why)) => {
                failures += 1;
                assert!(!why.is_empty());
                assert_eq!((all(&store), store.revision(), store.compacted()), before, "memory is as before");
                // Still broken: fails again, and reads go on.
                faults.allow(0);
                assert!(matches!(put(&store, "b", "x").await, Err(WriteError::Failed(_))));
                assert_eq!((all(&store), store.revision(), store.compacted()), before);
            }
            Err(other) => panic!("unexpected {other}"),
        }
        faults.allow(NEVER);
        let written = put(&store, "c", &format!("after {changes}")).await.expect("the disk has recovered");
        answered += 1;
        assert_eq!(written.revision, answered, "a failed write uses up no revision");
        let mut seen = Vec::new();
        while watch.revision() < answered {
            seen.extend(watch.next().await.unwrap().events);
        }
        assert_eq!(seen.last().unwrap().entry, written.entry);
    }
    assert!(failures > 3, "only {failures} writes failed");
    let before = (all(&store), store.revision(), store.compacted());
    store.close().await;
    drop(store);
    let store = open(dir.path()).unwrap();
    assert_eq!((all(&store), store.revision(), store.compacted()), before);
}

#[tokio::test]
async fn a_full_disk_fails_writes_and_nothing_else() {
    writes_survive_a_disk_that_fails(false).await;
}

#[tokio::test]
async fn a_failed_sync_that_reached_the_disk_changes_nothing() {
    writes_survive_a_disk_that_fails(true).await;
}

#[tokio::test]
async fn a_write_that_failed_but_reached_the_disk_is_taken_back() {
    let dir = TempDir::new().unwrap();
    let mut landed = 0;
    for changes in 0..20 {
        let (store, faults) = open_failing(&dir, true);
        put(&store, "a", &changes.to_string()).await.unwrap();
        let before = (all(&store), store.revision());
        faults.allow(changes);
        let outcome = put(&store, "unwanted", "x").await;
        faults.allow(NEVER);
        if outcome.is_err() {
            landed += i32::from(last_on_disk(&dir) > before.1);
            // The last commit, made by closing, appends nothing that would cover it.
            store.close().await;
            drop(store);
            let store = open(dir.path()).unwrap();
            assert_eq!((all(&store), store.revision()), before);
        } else {
            store.write(C, "unwanted", Op::Delete, Expect::Any).await.unwrap();
        }
    }
    assert!(landed > 0, "no failed write reached the disk");
}

/// What a process that starts now would find.
fn last_on_disk(dir: &TempDir) -> u64 {
    let copy = TempDir::new().unwrap();
    let path = copy.path().join(FILE_NAME);
    fs::copy(dir.path().join(FILE_NAME), &path).unwrap();
    last_revision(&Database::create(&path).unwrap()).unwrap()
}

#[tokio::test]
async fn the_lock_is_held_while_the_disk_fails() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(FILE_NAME);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let volume = Volume::staged(Box::new(FileBackend::new(file).unwrap())).unwrap();
    volume.settle().unwrap();
    drop(open_database(&volume).unwrap());
    assert!(matches!(open(dir.path()), Err(OpenError::Locked { .. })), "closing the database does not unlock");
    drop(open_database(&volume).unwrap());
    drop(volume);
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn compaction_removes_what_was_replaced_from_the_file() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).unwrap();
    for n in 0..300 {
        put(&store, &format!("{}", n % 3), &n.to_string()).await.unwrap();
    }
    store.write(C, "0", Op::Delete, Expect::Any).await.unwrap();
    store.compact(store.revision());
    store.close().await;
    drop(store);
    // Closing stops the background work after a step; opening takes it up again.
    for _ in 0..10 {
        open(dir.path()).unwrap().close().await;
    }
    let db = Database::create(dir.path().join(FILE_NAME)).unwrap();
    let log = db.begin_read().unwrap().open_table(LOG).unwrap();
    let left: Vec<_> = log.iter().unwrap().map(|row| row.unwrap().0.value()).collect();
    assert_eq!(left, [300, 301]);
}

#[tokio::test]
async fn a_deleted_key_does_not_come_back_while_its_records_are_removed() {
    let dir = TempDir::new().unwrap();
    let store = open(dir.path()).unwrap();
    let keys: Vec<_> = (0..200).map(|n| n.to_string()).collect();
    for round in 0..2 {
        for key in &keys {
            put(&store, key, &round.to_string()).await.unwrap();
        }
    }
    for key in &keys {
        store.write(C, key, Op::Delete, Expect::Any).await.unwrap();
    }
    let end = store.revision();
    store.compact(end);
    drop(store);
    // Each time a part of the records goes.
    let mut rows = u64::MAX;
    while rows > 0 {
        let store = open(dir.path()).unwrap();
        assert_eq!((all(&store), store.revision()), (vec![], end));
        drop(store);
        let left = rows_on_disk(&dir);
        assert!(left < rows, "nothing was removed");
        rows = left;
    }
    assert_eq!(open(dir.path()).unwrap().revision(), end);
}

#[tokio::test]
async fn old_records_go_in_the_background_without_a_write() {
    let dir = TempDir::new().unwrap();
    let (store, faults) = open_failing(&dir, false);
    for n in 0..12 {
        put(&store, "a", &n.to_string()).await.unwrap();
    }
    faults.allow(1000);
    store.compact(store.revision());
    let gone = async {
        while faults.left.load(Ordering::SeqCst) == 1000 || rows_on_disk(&dir) > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), gone).await.expect("the log is cleared out");
    assert_eq!(all(&store).len(), 1);
}

fn rows_on_disk(dir: &TempDir) -> u64 {
    let copy = TempDir::new().unwrap();
    let path = copy.path().join(FILE_NAME);
    fs::copy(dir.path().join(FILE_NAME), &path).unwrap();
    // A copy made in the middle of a commit may be unreadable.
    let rows = |db: Database| db.begin_read().ok()?.open_table(LOG).ok()?.len().ok();
    guarded(|| Database::create(&path).ok().and_then(rows)).ok().flatten().unwrap_or(u64::MAX)
}
