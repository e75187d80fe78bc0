//! When a status may be written: the first change at once, later ones together, a second after the last write.
//!
//! A function of what was told and of `now`; it waits for nothing and writes nothing. With nothing to write there is no next
//! time, so there is no timer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

/// The least time between two writes of one object.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Who has changed, who is being written, and when each was written last.
#[derive(Debug)]
pub struct Pace<K> {
    states: BTreeMap<K, State>,
    /// When each that has changed may be written.
    due: BTreeSet<(Timestamp, K)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing to write; the last write began then.
    Written(Timestamp),
    Waiting(Timestamp),
    /// Under way since then, and whether it has changed meanwhile.
    Writing {
        since: Timestamp,
        again: bool,
    },
}

impl<K> Default for Pace<K> {
    fn default() -> Self {
        Pace { states: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Pace<K> {
    /// It has changed, or may have.
    pub fn touch(&mut self, key: K, now: Timestamp) {
        let at = match self.states.get_mut(&key) {
            None => now,
            Some(State::Written(last)) => (*last + INTERVAL).max(now),
            Some(State::Waiting(_)) => return,
            Some(State::Writing { again, .. }) => {
                *again = true;
                return;
            }
        };
        self.wait(key, at);
    }

    fn wait(&mut self, key: K, at: Timestamp) {
        self.states.insert(key.clone(), State::Waiting(at));
        self.due.insert((at, key));
    }

    /// Those whose time has come. For each, either [`Pace::begin`] follows, or it had nothing to write.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<K> {
        let mut taken = Vec::new();
        while self.due.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, key)) = self.due.pop_first()
        {
            self.states.remove(&key);
            taken.push(key);
        }
        taken
    }

    /// It is being written from now on.
    pub fn begin(&mut self, key: K, now: Timestamp) {
        self.states.insert(key, State::Writing { since: now, again: false });
    }

    /// The write is over. One that failed is tried again, after the usual time.
    pub fn end(&mut self, key: K, ok: bool, now: Timestamp) {
        let Some(State::Writing { since, again }) = self.states.get(&key).copied() else { return };
        if again || !ok {
            self.wait(key, (since + INTERVAL).max(now));
        } else {
            self.states.insert(key, State::Written(since));
        }
    }

    /// When the next may be written.
    pub fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    /// Takes what is due and has written it at once.
    fn write(pace: &mut Pace<char>, now: Timestamp) -> Vec<char> {
        let due = pace.take_due(now);
        for key in &due {
            pace.begin(*key, now);
            pace.end(*key, true, now);
        }
        due
    }

    #[test]
    fn the_first_change_is_written_at_once_and_later_ones_together_a_second_later() {
        let mut pace = Pace::default();
        pace.touch('a', at(0));
        assert_eq!(write(&mut pace, at(0)), ['a']);
        assert_eq!(pace.next(), None);
        for millis in [1, 200, 999] {
            pace.touch('a', at(millis));
            assert_eq!(write(&mut pace, at(millis)), []);
        }
        assert_eq!(pace.next(), Some(at(1000)));
        assert_eq!(write(&mut pace, at(1000)), ['a']);
        assert_eq!(pace.next(), None);
        pace.touch('a', at(5000));
        assert_eq!(write(&mut pace, at(5000)), ['a']);
    }

    #[test]
    fn one_does_not_wait_for_another() {
        let mut pace = Pace::default();
        pace.touch('a', at(0));
        write(&mut pace, at(0));
        pace.touch('a', at(10));
        pace.touch('b', at(10));
        assert_eq!(write(&mut pace, at(10)), ['b']);
    }

    #[test]
    fn what_had_nothing_to_write_may_be_written_at_once() {
        let mut pace = Pace::default();
        pace.touch('a', at(0));
        assert_eq!(pace.take_due(at(0)), ['a']);
        pace.touch('a', at(1));
        assert_eq!(write(&mut pace, at(1)), ['a']);
    }

    #[test]
    fn a_slow_write_is_not_overtaken_and_its_successor_keeps_the_distance() {
        let mut pace = Pace::default();
        pace.touch('a', at(0));
        assert_eq!(pace.take_due(at(0)), ['a']);
        pace.begin('a', at(0));
        pace.touch('a', at(1500));
        assert_eq!(pace.take_due(at(1500)), []);
        assert_eq!(pace.next(), None);
        pace.end('a', true, at(1600));
        assert_eq!(write(&mut pace, at(1600)), ['a']);
    }

    #[test]
    fn a_refused_write_is_tried_again_a_second_later() {
        let mut pace = Pace::default();
        pace.touch('a', at(0));
        pace.take_due(at(0));
        pace.begin('a', at(0));
        pace.end('a', false, at(3));
        assert_eq!(pace.next(), Some(at(1000)));
    }
}
