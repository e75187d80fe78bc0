//! Which of the events recorded are written, and how: client-go's correlation, as a function of what was recorded before.
//!
//! - The same event again counts up the one that is there.
//! - From the tenth different message of one kind about one object within ten minutes on, they are combined into one.
//! - About one object a component may write 25 events at once, and one more every five minutes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;

const COMBINE_FROM: usize = 10;
const COMBINE_WITHIN: SignedDuration = SignedDuration::from_secs(600);
const BURST: f64 = 25.0;
const REFILL_PER_SEC: f64 = 1.0 / 300.0;
/// Memories beyond this many are given up, the least recently used first.
const REMEMBERED: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        }
    }
}

/// Something worth telling about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub severity: Severity,
    pub about: ObjectReference,
    pub reason: String,
    pub message: String,
}

/// An event to create (`count` 1) or to count up.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub note: Note,
    pub name: String,
    pub count: i32,
    pub first: Timestamp,
}

#[derive(Default)]
pub struct Correlator {
    names: Names,
    similar: Recent<Similar>,
    seen: Recent<Seen>,
    allowance: Recent<Allowance>,
}

/// Names end in the time, as client-go's do; but where time stands still they must not be the same.
#[derive(Default)]
struct Names {
    salt: i128,
    last: i128,
}

impl Names {
    fn next(&mut self, about: &str, now: Timestamp) -> String {
        self.last = (now.as_nanosecond() + self.salt).max(self.last + 1);
        format!("{about}.{:x}", self.last)
    }
}

struct Similar {
    messages: BTreeSet<String>,
    last: Timestamp,
}

struct Seen {
    name: String,
    count: i32,
    first: Timestamp,
}

struct Allowance {
    left: f64,
    at: Timestamp,
}

impl Correlator {
    /// For the events of one component, whose names then differ from those of the others at the same instant.
    pub fn of(component: &str) -> Correlator {
        let salt = component.bytes().fold(0i128, |salt, byte| (salt * 31 + i128::from(byte)) % 997);
        Correlator { names: Names { salt, last: 0 }, ..Correlator::default() }
    }

    /// What to write for `note`, or nothing where it would be too much.
    pub fn admit(&mut self, mut note: Note, now: Timestamp) -> Option<Write> {
        let about = about_key(&note);
        let kind = format!("{about}\0{}", note.reason);
        let key = match self.is_combined(&kind, &note.message, now) {
            true => {
                note.message = format!("(combined from similar events): {}", note.message);
                kind
            }
            false => format!("{kind}\0{}", note.message),
        };
        let names = &mut self.names;
        let mut name = || names.next(note.about.name.as_deref().unwrap_or_default(), now);
        let seen = self.seen.entry(key, || Seen { name: name(), count: 0, first: now });
        seen.count += 1;
        let (name, count, first) = (seen.name.clone(), seen.count, seen.first);
        self.is_allowed(&about, now).then_some(Write { note, name, count, first })
    }

    fn is_combined(&mut self, kind: &str, message: &str, now: Timestamp) -> bool {
        let new = || Similar { messages: BTreeSet::new(), last: now };
        let similar = self.similar.entry(kind.to_string(), new);
        if now.duration_since(similar.last) > COMBINE_WITHIN {
            *similar = new();
        }
        similar.last = now;
        similar.messages.insert(message.to_string());
        let combined = similar.messages.len() >= COMBINE_FROM;
        if combined {
            similar.messages.pop_first();
        }
        combined
    }

    fn is_allowed(&mut self, about: &str, now: Timestamp) -> bool {
        let allowance = self.allowance.entry(about.to_string(), || Allowance { left: BURST, at: now });
        let waited = now.duration_since(allowance.at).as_secs_f64().max(0.0);
        allowance.left = (allowance.left + waited * REFILL_PER_SEC).min(BURST);
        allowance.at = now;
        let allowed = allowance.left >= 1.0;
        if allowed {
            allowance.left -= 1.0;
        }
        allowed
    }
}

fn about_key(note: &Note) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    let about = &note.about;
    [
        note.severity.as_str().to_string(),
        part(&about.api_version),
        part(&about.kind),
        part(&about.namespace),
        part(&about.name),
        part(&about.uid),
        part(&about.field_path),
    ]
    .join("\0")
}

/// A map that forgets what was not used for longest.
struct Recent<T> {
    values: BTreeMap<String, (u64, T)>,
    by_use: BTreeMap<u64, String>,
    uses: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { values: BTreeMap::new(), by_use: BTreeMap::new(), uses: 0 }
    }
}

impl<T> Recent<T> {
    fn entry(&mut self, key: String, new: impl FnOnce() -> T) -> &mut T {
        self.uses += 1;
        match self.values.get(&key) {
            Some((used, _)) => drop(self.by_use.remove(used)),
            None if self.values.len() == REMEMBERED => {
                if let Some((_, oldest)) = self.by_use.pop_first() {
                    self.values.remove(&oldest);
                }
            }
            None => {}
        }
        self.by_use.insert(self.uses, key.clone());
        let (used, value) = self.values.entry(key).or_insert_with(|| (0, new()));
        *used = self.uses;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_have_names_of_their_own() {
        let (mut jobs, mut pods) = (Correlator::of("job-controller"), Correlator::of("default-scheduler"));
        let name = |from: &mut Correlator, message: &str| from.admit(note("x", message), at(0)).unwrap().name;
        let names = [name(&mut jobs, "a"), name(&mut jobs, "b"), name(&mut pods, "a"), name(&mut pods, "b")];
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 4, "{names:?}");
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + secs).unwrap()
    }

    fn note(name: &str, message: impl Into<String>) -> Note {
        let about = ObjectReference { name: Some(name.to_string()), ..Default::default() };
        Note { severity: Severity::Normal, about, reason: "SuccessfulCreate".to_string(), message: message.into() }
    }

    #[test]
    fn the_same_event_again_counts_up_the_first() {
        let mut correlator = Correlator::default();
        let first = correlator.admit(note("a", "Created pod: p"), at(0)).unwrap();
        let again = correlator.admit(note("a", "Created pod: p"), at(5)).unwrap();
        let other = correlator.admit(note("a", "Created pod: q"), at(6)).unwrap();
        assert_eq!((first.count, again.count, other.count), (1, 2, 1));
        assert_eq!((&again.name, again.first), (&first.name, at(0)));
        assert_ne!(other.name, first.name);
    }

    #[test]
    fn the_tenth_similar_event_is_combined_until_ten_minutes_are_quiet() {
        let mut correlator = Correlator::default();
        for n in 0..9 {
            assert_eq!(
                correlator.admit(note("a", format!("pod {n}")), at(n)).unwrap().note.message,
                format!("pod {n}")
            );
        }
        let tenth = correlator.admit(note("a", "pod 9"), at(9)).unwrap();
        let eleventh = correlator.admit(note("a", "pod 10"), at(10)).unwrap();
        assert_eq!(tenth.note.message, "(combined from similar events): pod 9");
        assert_eq!((tenth.count, eleventh.count), (1, 2));
        assert_eq!(tenth.name, eleventh.name);
        let later = correlator.admit(note("a", "pod 11"), at(611)).unwrap();
        assert_eq!(later.note.message, "pod 11");
    }

    #[test]
    fn a_flood_about_one_object_is_held_back_and_others_are_not() {
        let mut correlator = Correlator::default();
        let written = (0..100).filter(|n| correlator.admit(note("a", format!("{n}")), at(0)).is_some()).count();
        assert_eq!(written, 25);
        assert!(correlator.admit(note("b", "0"), at(0)).is_some());
        assert!(correlator.admit(note("a", "x"), at(299)).is_none());
        assert!(correlator.admit(note("a", "x"), at(301)).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..REMEMBERED + 100 {
            correlator.admit(note(&format!("object-{n}"), "m"), at(0));
        }
        assert_eq!(correlator.seen.values.len(), REMEMBERED);
        assert_eq!(correlator.allowance.by_use.len(), REMEMBERED);
        let last = correlator.admit(note(&format!("object-{}", REMEMBERED + 99), "m"), at(1)).unwrap();
        assert_eq!(last.count, 2, "the newest are remembered");
        assert_eq!(correlator.admit(note("object-0", "m"), at(1)).unwrap().count, 1, "the oldest are not");
    }
}
