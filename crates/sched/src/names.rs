//! Names for ids, and back: the caller's dictionary, used when a reason is put into words.
//!
//! The scheduler itself never looks a name up.

use std::collections::BTreeMap;

use crate::model::{Amount, ResourceId};

/// Gives each name a small number and keeps it until it is released.
#[derive(Debug, Clone, Default)]
pub struct Interner {
    ids: BTreeMap<String, u32>,
    names: Vec<Option<String>>,
    free: Vec<u32>,
}

impl Interner {
    pub fn id(&mut self, name: &str) -> u32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.names.push(None);
            self.names.len() as u32 - 1
        });
        self.names[id as usize] = Some(name.to_string());
        self.ids.insert(name.to_string(), id);
        id
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    pub fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).and_then(Option::as_deref).unwrap_or("unknown")
    }

    /// The number may be given to another name from now on.
    pub fn release(&mut self, name: &str) {
        if let Some(id) = self.ids.remove(name) {
            self.names[id as usize] = None;
            self.free.push(id);
        }
    }
}

#[derive(Debug, Clone)]
pub struct Names {
    pub flavors: Interner,
    pub resources: Interner,
    pub queues: Interner,
    pub locals: Interner,
    pub cohorts: Interner,
    pub checks: Interner,
    pub workloads: Interner,
}

impl Default for Names {
    fn default() -> Self {
        let mut resources = Interner::default();
        let pods = resources.id("pods");
        debug_assert_eq!(pods, ResourceId::PODS.0);
        let empty = Interner::default;
        Names {
            flavors: empty(),
            resources,
            queues: empty(),
            locals: empty(),
            cohorts: empty(),
            checks: empty(),
            workloads: empty(),
        }
    }
}

impl Names {
    /// An amount as Kubernetes writes it: cpu in thousandths, memory and storage in powers of 1024, the rest in powers of 1000.
    pub fn quantity(&self, resource: ResourceId, amount: Amount) -> String {
        let name = self.resources.name(resource.0);
        if name == "cpu" {
            return if amount.0 % 1000 == 0 {
                suffixed(amount.0 / 1000, 1000, &DECIMAL)
            } else {
                format!("{}m", amount.0)
            };
        }
        if name == "memory" || name.ends_with("storage") || name.starts_with("hugepages-") {
            return suffixed(amount.0, 1024, &BINARY);
        }
        suffixed(amount.0, 1000, &DECIMAL)
    }
}

const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The largest suffix that needs no fraction.
fn suffixed(mut value: i64, base: i64, suffixes: &[&str]) -> String {
    let mut at = 0;
    while value != 0 && value % base == 0 && at + 1 < suffixes.len() {
        value /= base;
        at += 1;
    }
    format!("{value}{}", suffixes[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_in_manifests() {
        let mut names = Names::default();
        let mut quantity = |resource: &str, amount: i64| {
            let id = ResourceId(names.resources.id(resource));
            names.quantity(id, Amount(amount))
        };
        assert_eq!(quantity("cpu", 1500), "1500m");
        assert_eq!(quantity("cpu", 3000), "3");
        assert_eq!(quantity("memory", 2 << 30), "2Gi");
        assert_eq!(quantity("memory", 1000), "1000");
        assert_eq!(quantity("nvidia.com/gpu", 8), "8");
        assert_eq!(quantity("pods", 2000), "2k");
    }

    #[test]
    fn a_released_number_is_used_again() {
        let mut names = Interner::default();
        let (a, b) = (names.id("a"), names.id("b"));
        names.release("a");
        assert_eq!((names.id("c"), names.find("a"), names.name(b)), (a, None, "b"));
    }
}
