//! Hears when the clock is set: by hand, by a time service, or because the machine slept.
//!
//! On Linux the kernel tells: a timer on the real-time clock is cancelled when that is set, and one thread sleeps in reading
//! it. Nothing polls. Elsewhere nobody tells, and a jump is noticed when a sleeper wakes.

use tokio::sync::watch;

/// One listener's view of the jumps of a clock.
#[derive(Debug)]
pub struct Jumps(watch::Receiver<()>);

impl Jumps {
    pub(crate) fn of(jumped: &watch::Sender<()>) -> Jumps {
        Jumps(jumped.subscribe())
    }

    pub(crate) fn of_the_machine() -> Jumps {
        static HEARD: std::sync::OnceLock<watch::Sender<()>> = std::sync::OnceLock::new();
        Jumps::of(HEARD.get_or_init(|| {
            let jumped = watch::Sender::new(());
            #[cfg(target_os = "linux")]
            kernel::listen(jumped.clone());
            jumped
        }))
    }

    /// Returns after the next jump, or at once if there was one since the last call.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // The clock itself is gone.
            std::future::pending().await
        }
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::os::fd::OwnedFd;

    use rustix::io::Errno;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::sync::watch;

    /// Where the kernel gives no timer there is nothing to hear.
    pub fn listen(jumped: watch::Sender<()>) {
        let Ok(timer) = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC) else { return };
        // Armed before anyone waits: a jump right after this is heard.
        if arm(&timer).is_err() {
            return;
        }
        let hear = move || {
            while wait(&timer).is_ok() {
                jumped.send_replace(());
            }
        };
        let _ = std::thread::Builder::new().name("clock-jumps".to_owned()).spawn(hear);
    }

    fn wait(timer: &OwnedFd) -> Result<(), Errno> {
        loop {
            let heard = rustix::io::read(timer, &mut [0; 8]);
            if heard == Err(Errno::INTR) {
                continue;
            }
            arm(timer)?;
            match heard {
                Err(Errno::CANCELED) => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
    }

    /// The timer is there to be cancelled and not to expire: it is set to a time centuries from now.
    fn arm(timer: &OwnedFd) -> Result<(), Errno> {
        let never = Timespec { tv_sec: i64::from(i32::MAX) * 4, tv_nsec: 0 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: never };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once)?;
        Ok(())
    }
}
