//! Waiting for a file descriptor that is not a socket: a pidfd, an inotify instance.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[allow(unsafe_code)]
pub fn wait_readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned and given away: it stays open for as long as it is registered, and is the same one.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
