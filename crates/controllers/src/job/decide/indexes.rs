//! Sets of completion indexes as a Job's status writes them: sorted, comma separated, runs of three and more as `a-b`.
//!
//! What cannot be read is left out, and what lies beyond the Job's completions is forgotten: an elastic Job that has
//! shrunk no longer has those indexes.

use std::fmt;

/// Sorted runs that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<Run>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: i32,
    last: i32,
}

impl Indexes {
    /// Reads the indexes below `completions`.
    pub fn parse(text: &str, completions: i32) -> Indexes {
        let mut runs = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let mut limits = part.split('-');
            let Some(Ok(first)) = limits.next().map(str::parse::<i32>) else { continue };
            if first >= completions {
                break;
            }
            let last = match limits.next().map(str::parse::<i32>) {
                None => first,
                Some(Ok(last)) => last.min(completions - 1),
                Some(Err(_)) => continue,
            };
            if first >= 0 && last >= first {
                runs.push(Run { first, last });
            }
        }
        Indexes::joined(runs)
    }

    pub fn count(&self) -> i32 {
        self.0.iter().map(|run| run.last - run.first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, index: i32) -> bool {
        let at = self.0.partition_point(|run| run.last < index);
        self.0.get(at).is_some_and(|run| run.first <= index)
    }

    #[must_use]
    pub fn union(&self, other: &Indexes) -> Indexes {
        Indexes::joined(self.0.iter().chain(&other.0).copied().collect())
    }

    /// How many indexes both have.
    pub fn shared(&self, other: &Indexes) -> i32 {
        let (mut mine, mut theirs, mut count) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.0.get(mine), other.0.get(theirs)) {
            count += (a.last.min(b.last) - a.first.max(b.first) + 1).max(0);
            if a.last <= b.last {
                mine += 1;
            }
            if b.last <= a.last {
                theirs += 1;
            }
        }
        count
    }

    /// The lowest indexes below `completions` that are not in the set, `limit` of them at most. The work is bounded by
    /// the number of runs and `limit`, whatever `completions` is.
    pub fn first_missing(&self, limit: usize, completions: i32) -> Vec<i32> {
        let mut missing = Vec::new();
        let mut candidate = 0;
        let past_the_end = Run { first: completions, last: completions };
        for run in self.0.iter().chain([&past_the_end]) {
            while candidate < run.first.min(completions) && missing.len() < limit {
                missing.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(run.last.saturating_add(1));
        }
        missing
    }

    fn joined(mut runs: Vec<Run>) -> Indexes {
        runs.sort_by_key(|run| run.first);
        let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
        for run in runs {
            match joined.last_mut() {
                Some(before) if run.first <= before.last.saturating_add(1) => before.last = before.last.max(run.last),
                _ => joined.push(run),
            }
        }
        Indexes(joined)
    }
}

impl FromIterator<i32> for Indexes {
    fn from_iter<I: IntoIterator<Item = i32>>(indexes: I) -> Self {
        Indexes::joined(indexes.into_iter().map(|index| Run { first: index, last: index }).collect())
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match run.last - run.first {
                0 => write!(f, "{}", run.first)?,
                1 => write!(f, "{},{}", run.first, run.last)?,
                _ => write!(f, "{}-{}", run.first, run.last)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn runs_of_three_are_written_short_and_pairs_are_not() {
        let written = |list: &[i32]| list.iter().copied().collect::<Indexes>().to_string();
        assert_eq!(written(&[]), "");
        assert_eq!(written(&[3, 1, 2, 5, 7, 8]), "1-3,5,7,8");
    }

    #[test]
    fn what_cannot_be_read_or_is_out_of_range_is_left_out() {
        for (text, completions, read) in [
            ("", 10, ""),
            ("0-2,4", 10, "0-2,4"),
            ("0-2,4", 3, "0-2"),
            ("1-9", 5, "1-4"),
            ("7", 5, ""),
            ("x,2,3-y,5", 10, "2,5"),
            ("1,2,3", 10, "1-3"),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), read, "{text:?} of {completions}");
        }
    }

    proptest! {
        #[test]
        fn indexes_are_sets(a: BTreeSet<u8>, b: BTreeSet<u8>, limit in 0usize..40, completions in 0i32..300) {
            let set = |s: &BTreeSet<u8>| s.iter().map(|i| i32::from(*i)).collect::<Indexes>();
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x.count() as usize, a.len());
            prop_assert_eq!(x.union(&y), set(&a.union(&b).copied().collect()));
            prop_assert_eq!(x.shared(&y) as usize, a.intersection(&b).count());
            prop_assert_eq!(Indexes::parse(&x.to_string(), 256), x.clone());
            let missing: Vec<i32> = (0..completions).filter(|i| !x.has(*i)).take(limit).collect();
            prop_assert_eq!(x.first_missing(limit, completions), missing);
        }
    }
}
