//! Values that are equal are one value: comparing, hashing and caching by them costs a pointer.
//!
//! A value nobody else holds is forgotten when the table has doubled.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A value of an [`Interner`]. Values of different interners never compare equal.
#[derive(Debug)]
pub struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

pub struct Interner<T> {
    known: HashSet<Arc<T>>,
    sweep_at: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { known: HashSet::new(), sweep_at: 1024 }
    }
}

impl<T: Hash + Eq> Interner<T> {
    pub fn intern(&mut self, value: T) -> Shared<T> {
        if let Some(known) = self.known.get(&value) {
            return Shared(known.clone());
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        let value = Arc::new(value);
        self.known.insert(value.clone());
        Shared(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_unused_ones_are_forgotten() {
        let mut table = Interner::default();
        let kept = table.intern(7);
        assert!(kept == table.intern(7) && kept != table.intern(8));
        for value in 100..10_000 {
            table.intern(value);
        }
        assert!(table.known.len() <= 1024, "{}", table.known.len());
        assert!(kept == table.intern(7));
    }
}
