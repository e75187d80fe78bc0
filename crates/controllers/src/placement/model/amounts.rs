//! What pods ask for and nodes have, as integers: cpu in thousandths, everything else in whole units.
//!
//! Sums of what is used are kept in 128 bits, so that adding and taking away again is exact for any input.

use std::collections::BTreeMap;
use std::sync::Arc;

/// What one pod asks for. Resources that it does not name it does not ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Requests {
    pub cpu_milli: i64,
    pub memory: i64,
    pub storage: i64,
    /// Extended resources, huge pages and the like, by name.
    pub extended: Vec<(Arc<str>, i64)>,
}

impl Requests {
    pub fn is_nothing(&self) -> bool {
        self.cpu_milli == 0 && self.memory == 0 && self.storage == 0 && self.extended.is_empty()
    }
}

/// What a node offers to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    pub cpu_milli: i64,
    pub memory: i64,
    pub storage: i64,
    pub pods: i64,
    pub extended: BTreeMap<Arc<str>, i64>,
}

/// The sum of requests on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub cpu_milli: i128,
    pub memory: i128,
    pub storage: i128,
    pub extended: BTreeMap<Arc<str>, i128>,
}

impl Used {
    pub fn add(&mut self, requests: &Requests) {
        self.change(requests, 1);
    }

    pub fn take(&mut self, requests: &Requests) {
        self.change(requests, -1);
    }

    fn change(&mut self, requests: &Requests, sign: i128) {
        self.cpu_milli += sign * i128::from(requests.cpu_milli);
        self.memory += sign * i128::from(requests.memory);
        self.storage += sign * i128::from(requests.storage);
        for (name, amount) in &requests.extended {
            *self.extended.entry(name.clone()).or_default() += sign * i128::from(*amount);
        }
    }
}

/// Whether a resource is counted by placement besides cpu, memory and storage.
pub fn is_counted(name: &str) -> bool {
    name.contains('/') || name.starts_with("hugepages-") || name.starts_with("attachable-volumes-")
}
