//! Files that only their owner may read, written whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces `path` by a file of mode 0600 with these bytes, and makes the directories above it (0700) where needed.
///
/// The bytes are in a new file from its first moment 0600 and are on disk before the name points at them: neither another
/// user nor a crash ever sees half of it, and an older file's wider mode does not live on.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_private_dir(parent)?;
    let temporary = beside(path)?;
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The name is ours alone; what is left there would hold a secret nobody knows of.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_dir(parent)
}

/// Creates a file that must not exist yet, 0600, and puts it on disk.
pub(super) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Takes from a file or directory the rights that others have to it.
pub(super) fn close(path: &Path) -> io::Result<()> {
    let mut permissions = fs::metadata(path)?.permissions();
    if permissions.mode() & 0o077 == 0 {
        return Ok(());
    }
    permissions.set_mode(permissions.mode() & 0o700);
    fs::set_permissions(path, permissions)
}

/// Makes a directory and those above it, each 0700; an existing one is left as it is.
pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A name in the same directory for the file while it is written. A stale one of an earlier crash is removed.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    let temporary = path.with_file_name(hidden);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(temporary),
    }
}
