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
        let listening = timerfd_create(TimerfdClockId::Realtime, TimerfdFlags::CLOEXEC).and_then(|timer| {
            // Armed before anyone waits: a jump right after this is heard.
            if Heard::of(timer.arm())? == Heard::Jump {
                jumped.send_replace(());
            }
            Ok(timer)
        });
        let timer = match listening {
            Ok(timer) => timer,
            Err(error) => return deaf(&error),
        };
        let hear = move || deaf(&hear(&timer, || jumped.send_replace(())));
        if let Err(error) = std::thread::Builder::new().name("clock-jumps".to_owned()).spawn(hear) {
            deaf(&error);
        }
    }

    fn deaf(why: &dyn std::fmt::Display) {
        tracing::warn!(
            "a clock that is set will be noticed late, when something else happens: no timer tells of it ({why})"
        );
    }

    /// A timer on the real-time clock, which the kernel cancels when that is set.
    pub(super) trait Timer {
        fn wait(&self) -> Result<(), Errno>;
        fn arm(&self) -> Result<(), Errno>;
    }

    impl Timer for OwnedFd {
        fn wait(&self) -> Result<(), Errno> {
            rustix::io::read(self, &mut [0; 8]).map(drop)
        }

        /// The timer is there to be cancelled and not to expire: it is set to a time centuries from now.
        fn arm(&self) -> Result<(), Errno> {
            let never = Timespec { tv_sec: i64::from(i32::MAX) * 4, tv_nsec: 0 };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: never };
            timerfd_settime(self, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once).map(drop)
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Heard {
        Nothing,
        Jump,
    }

    impl Heard {
        /// Arming says `ECANCELED` when the clock was set between the last jump and now; the timer is armed all the same.
        fn of(result: Result<(), Errno>) -> Result<Heard, Errno> {
            match result {
                Ok(()) | Err(Errno::INTR) => Ok(Heard::Nothing),
                Err(Errno::CANCELED) => Ok(Heard::Jump),
                Err(error) => Err(error),
            }
        }
    }

    /// Tells of every jump until the timer fails, and then why.
    pub(super) fn hear(timer: &impl Timer, tell: impl Fn()) -> Errno {
        let once = || {
            let waited = timer.wait();
            if waited == Err(Errno::INTR) {
                return Ok(());
            }
            let waited = Heard::of(waited)?;
            let armed = Heard::of(timer.arm())?;
            if waited == Heard::Jump || armed == Heard::Jump {
                tell();
            }
            Ok(())
        };
        loop {
            if let Err(error) = once() {
                return error;
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::cell::{Cell, RefCell};

    use rustix::io::Errno;

    use super::kernel::{Timer, hear};

    /// What the kernel says, call by call; then that the timer is gone.
    struct Script {
        waits: RefCell<Vec<Result<(), Errno>>>,
        arms: RefCell<Vec<Result<(), Errno>>>,
    }

    impl Timer for Script {
        fn wait(&self) -> Result<(), Errno> {
            self.waits.borrow_mut().pop().unwrap_or(Err(Errno::BADF))
        }

        fn arm(&self) -> Result<(), Errno> {
            self.arms.borrow_mut().pop().unwrap_or(Ok(()))
        }
    }

    /// How many jumps are told of, and why it ended.
    fn heard(mut waits: Vec<Result<(), Errno>>, mut arms: Vec<Result<(), Errno>>) -> (u32, Errno) {
        waits.reverse();
        arms.reverse();
        let told = Cell::new(0);
        let why = hear(&Script { waits: waits.into(), arms: arms.into() }, || told.set(told.get() + 1));
        (told.get(), why)
    }

    #[test]
    fn jumps_are_heard_until_the_timer_fails() {
        let jump = Err(Errno::CANCELED);
        assert_eq!(heard(vec![jump, Err(Errno::INTR), jump], vec![]), (2, Errno::BADF));
        assert_eq!(heard(vec![Ok(()), jump], vec![]), (1, Errno::BADF), "a timer that runs out is set again");
        assert_eq!(heard(vec![jump, jump], vec![Err(Errno::INVAL)]), (0, Errno::INVAL));
    }

    #[test]
    fn a_second_jump_while_the_timer_is_set_again_is_heard_and_the_next_one_too() {
        let jump = Err(Errno::CANCELED);
        assert_eq!(heard(vec![jump, jump], vec![jump, Ok(())]), (2, Errno::BADF));
        assert_eq!(heard(vec![Ok(())], vec![jump]), (1, Errno::BADF), "also when only setting it again tells");
    }
}
