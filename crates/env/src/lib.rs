//! The two things a program cannot compute: what time it is, and chance.
//!
//! Everything else in Usher takes `now` as an argument and asks [`Ids`] for names, so that a test can run a year in a
//! second and see the same names twice. Only this crate calls the system's clock or its random numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

mod jumps;

pub use jumps::Jumps;

/// The only reader of time. Cheap to clone; clones share jumps.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// The machine's clock; it may jump.
    Wall,
    /// Follows tokio's clock, which a paused runtime advances when every task waits; `jump_nanos` is added on top.
    Virtual { start: Timestamp, origin: tokio::time::Instant, jump_nanos: AtomicI64, jumped: watch::Sender<()> },
}

impl Clock {
    pub fn wall() -> Clock {
        Clock(Arc::new(Source::Wall))
    }

    /// A clock that shows `start` now and moves with tokio's (paused) time.
    pub fn virtual_from(start: Timestamp) -> Clock {
        Clock(Arc::new(Source::Virtual {
            start,
            origin: tokio::time::Instant::now(),
            jump_nanos: AtomicI64::new(0),
            jumped: watch::Sender::new(()),
        }))
    }

    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Wall => Timestamp::now(),
            Source::Virtual { start, origin, jump_nanos, .. } => {
                let run = SignedDuration::try_from(origin.elapsed()).expect("virtual time within i64 seconds");
                *start + run + SignedDuration::from_nanos(jump_nanos.load(Ordering::Relaxed))
            }
        }
    }

    /// Moves a virtual clock without letting time pass, as an operator's `date -s` would. No effect on wall time.
    pub fn jump(&self, by: SignedDuration) {
        if let Source::Virtual { jump_nanos, jumped, .. } = &*self.0 {
            let nanos = i64::try_from(by.as_nanos()).expect("a jump of less than 292 years");
            jump_nanos.fetch_add(nanos, Ordering::Relaxed);
            jumped.send_replace(());
        }
    }

    /// Tells when the clock is set from now on: whoever sleeps until a time of day has to think again then, because
    /// sleeping goes by another clock.
    pub fn jumps(&self) -> Jumps {
        match &*self.0 {
            Source::Wall => Jumps::of_the_machine(),
            Source::Virtual { jumped, .. } => Jumps::of(jumped),
        }
    }

    /// Whether time is virtual: nothing periodic may be scheduled then, or a paused runtime would never be idle.
    pub fn is_virtual(&self) -> bool {
        matches!(&*self.0, Source::Virtual { .. })
    }
}

/// Where uids and generated name suffixes come from. Seeded in tests.
#[derive(Clone)]
pub struct Ids(Arc<Mutex<StdRng>>);

impl Ids {
    pub fn random() -> Ids {
        Ids(Arc::new(Mutex::new(StdRng::from_os_rng())))
    }

    pub fn seeded(seed: u64) -> Ids {
        Ids(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub fn uid(&self) -> String {
        uuid::Builder::from_random_bytes(self.0.lock().random()).into_uuid().to_string()
    }

    /// The characters Kubernetes appends to `generateName`: no vowels (no words by accident), no easily confused digits.
    pub fn suffix(&self, length: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let mut rng = self.0.lock();
        (0..length).map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())])).collect()
    }

    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.0.lock().fill(&mut out[..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_follows_paused_time_and_can_jump() {
        let start: Timestamp = "2026-03-29T00:00:00Z".parse().unwrap();
        let clock = Clock::virtual_from(start);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), start + SignedDuration::from_hours(1));
        clock.clone().jump(SignedDuration::from_mins(-1));
        assert_eq!(clock.now(), start + SignedDuration::from_mins(59));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_listens_hears_of_a_jump_once() {
        let clock = Clock::virtual_from(Timestamp::UNIX_EPOCH);
        let mut jumps = clock.jumps();
        let mut heard = async || tokio::time::timeout(Duration::from_secs(60), jumps.next()).await.is_ok();
        assert!(!heard().await, "time that passes is no jump");
        clock.jump(SignedDuration::from_hours(1));
        assert!(heard().await);
        assert!(!heard().await);
    }

    #[tokio::test]
    async fn the_machines_clock_can_be_listened_to() {
        let mut jumps = Clock::wall().jumps();
        assert!(tokio::time::timeout(Duration::from_millis(50), jumps.next()).await.is_err(), "nobody has set it");
    }

    #[test]
    fn seeded_ids_repeat_and_look_like_kubernetes_names() {
        let (a, b) = (Ids::seeded(7), Ids::seeded(7));
        assert_eq!((a.uid(), a.suffix(5)), (b.uid(), b.suffix(5)));
        assert_eq!(a.uid().len(), 36);
        assert!(a.suffix(100).bytes().all(|c| b"bcdfghjklmnpqrstvwxz2456789".contains(&c)));
    }
}
