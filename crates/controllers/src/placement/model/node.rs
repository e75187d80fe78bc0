//! A node as placement reads it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::amounts::Allocatable;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

impl Taint {
    /// Whether it keeps pods away that do not tolerate it.
    pub fn repels(&self) -> bool {
        matches!(self.effect, Effect::NoSchedule | Effect::NoExecute)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Allocatable,
}
