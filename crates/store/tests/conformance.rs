//! Both engines, through the suite that lives with the trait.

use tempfile::TempDir;
use usher_store::{Options, Store, conformance::Bed, conformance_suite};

struct InMemory;

impl Bed for InMemory {
    fn open(&self, options: Options) -> Store {
        Store::open_memory(options)
    }
}

struct OnDisk(TempDir);

impl OnDisk {
    fn new() -> OnDisk {
        OnDisk(TempDir::new().unwrap())
    }
}

impl Bed for OnDisk {
    fn open(&self, options: Options) -> Store {
        Store::open_disk(self.0.path(), options).unwrap()
    }
}

conformance_suite!(memory, InMemory);
conformance_suite!(disk, OnDisk::new(), durable);
