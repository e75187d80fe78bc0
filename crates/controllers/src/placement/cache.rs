//! What is derived from the state, by what it was derived for. The least recently used goes when there are too many.

use std::collections::HashMap;

use super::model::Shared;

const KEPT: usize = 256;

pub struct Cache<K, V> {
    kept: HashMap<Shared<K>, (u64, V)>,
    uses: u64,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache { kept: HashMap::new(), uses: 0 }
    }
}

impl<K, V: Default> Cache<K, V> {
    pub fn get(&mut self, key: &Shared<K>) -> &mut V {
        self.uses += 1;
        if self.kept.len() >= KEPT && !self.kept.contains_key(key) {
            let oldest = self.kept.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest.map(|key| self.kept.remove(&key));
        }
        let (used, value) = self.kept.entry(key.clone()).or_default();
        *used = self.uses;
        value
    }
}
