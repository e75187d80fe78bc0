//! What a container's process sees of the machine: the machine's own files, with the container's volumes at their mount paths.
//!
//! Processes have no image of their own. In a mount namespace the process gets a root made of the machine's directories, each
//! bound in its place, so that a mount path that does not exist on the machine (`/data`, `/etc/config`) can be made without
//! leaving a trace: the nearest existing directory is replaced by a copy of itself made of binds, with one entry more.
//! This runs in the container's process before the command does; it is no sandbox, and hides nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

use crate::record::{Bind, User, View};

/// A directory with more entries than this is not copied bind by bind.
const MANY_ENTRIES: usize = 5000;
const MAX_LINKS: usize = 40;

/// Tries what [`put_on`] needs, in a process that ends afterwards.
pub fn check(root: &Path) -> io::Result<()> {
    let view = match rustix::process::geteuid().is_root() {
        true => View::Mounts { root: root.to_owned() },
        false => View::UserMounts { root: root.to_owned() },
    };
    put_on(&view, &[Bind { source: "/".into(), target: "/usher-check/a".into(), read_only: true }])
}

pub fn put_on(view: &View, binds: &[Bind]) -> io::Result<()> {
    let root = match view {
        View::Machine => return Ok(()),
        View::Mounts { root } => {
            unshare(UnshareFlags::NEWNS)?;
            root
        }
        View::UserMounts { root } => {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            fs::write("/proc/self/setgroups", "deny").map_err(said("forbid setgroups"))?;
            fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(said("map the user"))?;
            fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).map_err(said("map the group"))?;
            root
        }
    };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)
        .map_err(|e| said("keep mounts private")(e.into()))?;
    build(root, binds)?;
    std::os::unix::fs::chroot(root).map_err(said("change the root"))?;
    std::env::set_current_dir("/")
}

#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: this process has one thread, and the file table, which is what makes unsharing unsafe, is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|e| said("make a mount namespace")(e.into()))
}

/// For this process and for good.
pub fn become_user(user: &User) -> io::Result<()> {
    use rustix::thread::{set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_res_uid};
    // A program with the setuid bit would lead back to where the node's keys are.
    set_no_new_privs(true)?;
    let groups: Vec<_> = user.groups.iter().map(|g| rustix::fs::Gid::from_raw(*g)).collect();
    set_thread_groups(&groups)?;
    set_thread_gid(rustix::fs::Gid::from_raw(user.gid))?;
    let uid = rustix::fs::Uid::from_raw(user.uid);
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}

fn said(what: &str) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A mount path, as far as it exists on the machine, and what is missing of it.
#[derive(Debug, PartialEq)]
struct Place {
    existing: PathBuf,
    missing: PathBuf,
}

fn build(root: &Path, binds: &[Bind]) -> io::Result<()> {
    let mut placed: Vec<(PathBuf, Place, &Bind)> = Vec::new();
    for bind in binds {
        let place = locate(&bind.target)?;
        placed.push((place.existing.join(&place.missing), place, bind));
    }
    placed.sort_by(|a, b| a.0.cmp(&b.0));
    // Directories that need an entry more, unless it will be made inside a volume.
    let mut copied = BTreeSet::from([PathBuf::from("/")]);
    for (path, place, _) in &placed {
        let inside = placed.iter().any(|(other, ..)| other != path && path.starts_with(other));
        if !inside && !place.missing.as_os_str().is_empty() {
            copied.insert(place.existing.clone());
        }
    }
    for dir in &copied {
        copy(dir, &within(root, dir)).map_err(said(&format!("make room in {}", dir.display())))?;
    }
    for (path, _, bind) in &placed {
        attach(bind, &within(root, path)).map_err(said(&format!("mount {}", bind.target.display())))?;
    }
    Ok(())
}

fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Follows symbolic links as the kernel would, up to the first component that is not there.
fn locate(target: &Path) -> io::Result<Place> {
    let mut existing = PathBuf::from("/");
    let mut ahead: Vec<std::ffi::OsString> = components(target).into_iter().rev().collect();
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        if name == ".." {
            existing.pop();
            continue;
        }
        let next = existing.join(&name);
        match fs::symlink_metadata(&next) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other(format!("{} has too many symbolic links", target.display())));
                }
                let to = fs::read_link(&next)?;
                if to.is_absolute() {
                    existing = PathBuf::from("/");
                }
                ahead.extend(components(&to).into_iter().rev());
            }
            Ok(_) => existing = next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let missing = std::iter::once(name).chain(ahead.into_iter().rev()).collect();
                return Ok(Place { existing, missing });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Place { existing, missing: PathBuf::new() })
}

fn components(path: &Path) -> Vec<std::ffi::OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

/// Puts a directory at `to` that has the entries of `from`, each bound, and room for more.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    let entries: Vec<_> = fs::read_dir(from)?.collect::<Result<_, _>>()?;
    if entries.len() > MANY_ENTRIES {
        return Err(io::Error::other(format!("it has {} entries, more than {MANY_ENTRIES}", entries.len())));
    }
    mount("tmpfs", to, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755")?;
    // Not to be found again inside the directory that is bound next.
    mount_change(to, MountPropagationFlags::UNBINDABLE)?;
    fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
    let _ = std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()));
    for entry in entries {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&target)?
        } else {
            drop(fs::File::create(&target)?)
        }
        // What vanished meanwhile, or is not ours to see, stays empty.
        let _ = mount_bind_recursive(&source, &target);
    }
    Ok(())
}

fn attach(bind: &Bind, at: &Path) -> io::Result<()> {
    let is_dir = fs::metadata(&bind.source).map_err(said(&bind.source.display().to_string()))?.is_dir();
    if is_dir {
        fs::create_dir_all(at)?;
    } else if !at.exists() {
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::File::create(at)?;
    }
    mount_bind_recursive(&bind.source, at)?;
    if bind.read_only {
        mount_remount(at, MountFlags::BIND | MountFlags::RDONLY, c"")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_path_is_split_where_the_machine_ends() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("real/inner")).unwrap();
        symlink("real", base.join("link")).unwrap();
        symlink(base.join("real"), base.join("absolute")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        for (path, existing, missing) in [
            ("real/inner", "real/inner", ""),
            ("link/inner", "real/inner", ""),
            ("absolute/x/y", "real", "x/y"),
            ("link/../real/z", "real", "z"),
        ] {
            let place = locate(&base.join(path)).unwrap();
            assert_eq!(place, Place { existing: base.join(existing), missing: missing.into() }, "{path}");
        }
        assert!(locate(&base.join("loop/x")).unwrap_err().to_string().contains("too many symbolic links"));
    }
}
