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

/// The only reader of time. Cheap to clone; clones share jumps.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Source>);

#[derive(Debug)]
enum Source {
    /// The machine's clock; it may jump.
    Wall,
    /// Follows tokio's clock, which a paused runtime advances when every task waits; `jump_nanos` is added on top.
    Virtual { start: Timestamp, origin: tokio::time::Instant, jump_nanos: AtomicI64 },
}

impl Clock {
    pub fn wall() -> Clock {
        Clock(Arc::new(Source::Wall))
    }

    /// A clock that shows `start` now and moves with tokio's (paused) time.
    pub fn virtual_from(start: Timestamp) -> Clock {
        Clock(Arc::new(Source::Virtual { start, origin: tokio::time::Instant::now(), jump_nanos: AtomicI64::new(0) }))
    }

    pub fn now(&self) -> Timestamp {
        match &*self.0 {
            Source::Wall => Timestamp::now(),
            Source::Virtual { start, origin, jump_nanos } => {
                let run = SignedDuration::try_from(origin.elapsed()).expect("virtual time within i64 seconds");
                *start + run + SignedDuration::from_nanos(jump_nanos.load(Ordering::Relaxed))
            }
        }
    }

    /// Moves a virtual clock without letting time pass, as an operator's `date -s` would. No effect on wall time.
    pub fn jump(&self, by: SignedDuration) {
        if let Source::Virtual { jump_nanos, .. } = &*self.0 {
            let nanos = i64::try_from(by.as_nanos()).expect("a jump of less than 292 years");
            jump_nanos.fetch_add(nanos, Ordering::Relaxed);
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

    #[test]
    fn seeded_ids_repeat_and_look_like_kubernetes_names() {
        let (a, b) = (Ids::seeded(7), Ids::seeded(7));
        assert_eq!((a.uid(), a.suffix(5)), (b.uid(), b.suffix(5)));
        assert_eq!(a.uid().len(), 36);
        assert!(a.suffix(100).bytes().all(|c| b"bcdfghjklmnpqrstvwxz2456789".contains(&c)));
    }
}
