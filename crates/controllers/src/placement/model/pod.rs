//! A pod as placement reads it: what it asks of a node ([`Shape`], the same for all pods of a Job) apart from what is its
//! own (name, labels, times).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::amounts::Requests;
use super::node::Taint;
use super::select::{NodeTerm, Requirement, Selector};
use super::shared::Shared;
use crate::runtime::Key;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Empty tolerates every key.
    pub key: String,
    pub operator: Tolerates,
    pub value: String,
    /// `None` tolerates every effect.
    pub effect: Option<super::node::Effect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tolerates {
    Equal,
    Exists,
    Lt,
    Gt,
    /// An operator or an effect that does not exist.
    Nothing,
}

impl Toleration {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if self.effect.is_some_and(|effect| effect != taint.effect) || (!self.key.is_empty() && self.key != taint.key) {
            return false;
        }
        match self.operator {
            Tolerates::Equal => self.value == taint.value,
            Tolerates::Exists => true,
            Tolerates::Lt | Tolerates::Gt => match (self.value.parse::<i64>(), taint.value.parse::<i64>()) {
                (Ok(bound), Ok(value)) if self.operator == Tolerates::Lt => value < bound,
                (Ok(bound), Ok(value)) => value > bound,
                _ => false,
            },
            Tolerates::Nothing => false,
        }
    }
}

/// Which nodes a pod may be on, whatever else is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Aim {
    pub node_selector: Vec<Requirement>,
    /// Required node affinity: one of these; `None` when there is none.
    pub required: Option<Vec<NodeTerm>>,
    /// The only node names that the required affinity leaves, where it names nodes. Empty: its terms exclude each other.
    pub names: Option<BTreeSet<String>>,
    pub preferred: Vec<(i64, NodeTerm)>,
    pub tolerations: Vec<Toleration>,
}

impl Aim {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }
}

/// Which pods a (anti-)affinity term means, and how near is near.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodTerm {
    pub namespaces: BTreeSet<String>,
    /// Namespaces by their labels, besides those named.
    pub namespace_selector: Option<Selector>,
    /// `None` selects no pod.
    pub selector: Option<Selector>,
    pub topology_key: String,
}

impl PodTerm {
    pub fn matches(&self, pod: &Pod, namespace_labels: &BTreeMap<String, String>) -> bool {
        let in_namespace = self.namespaces.contains(&*pod.key.namespace)
            || self.namespace_selector.as_ref().is_some_and(|selector| selector.matches(namespace_labels));
        in_namespace && self.selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    pub max_skew: i64,
    pub topology_key: String,
    /// `None` selects no pod.
    pub selector: Option<Selector>,
    pub min_domains: i64,
    /// Count only nodes that the pod's node affinity and selector admit.
    pub honor_affinity: bool,
    /// Count only nodes whose taints the pod tolerates.
    pub honor_taints: bool,
}

/// What a pod asks about other pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Links {
    pub namespace: String,
    pub affinity: Vec<Arc<PodTerm>>,
    pub anti_affinity: Vec<Arc<PodTerm>>,
    /// With its weight; away from the pods meant when that is negative.
    pub preferred: Vec<(i64, Arc<PodTerm>)>,
    pub spread: Vec<Spread>,
    pub spread_preferred: Vec<Spread>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    pub protocol: String,
    pub port: i32,
    /// Empty stands for every address.
    pub address: String,
}

impl Port {
    pub fn conflicts(&self, other: &Port) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || self.address.is_empty() || other.address.is_empty())
    }
}

/// All that decides where a pod can go. Pods of one shape and the same labels have the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub aim: Shared<Aim>,
    pub requests: Requests,
    /// Requests for scoring, where a container that asks for nothing counts a little.
    pub nonzero_cpu_milli: i64,
    pub nonzero_memory: i64,
    pub ports: Vec<Port>,
    pub links: Option<Shared<Links>>,
    pub priority: i32,
    /// Whether it may preempt pods of lower priority.
    pub preempts: bool,
}

/// The condition PodScheduled, as far as it is compared before it is written again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub generation: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub key: Key,
    pub uid: Arc<str>,
    pub labels: BTreeMap<String, String>,
    pub shape: Shared<Shape>,
    pub created: Option<Timestamp>,
    pub started: Option<Timestamp>,
    pub generation: Option<i64>,
    pub node: Option<Arc<str>>,
    pub nominated: Option<Arc<str>>,
    /// Being deleted.
    pub leaving: bool,
    /// Being deleted because a pod of higher priority needs its place.
    pub preempted: bool,
    pub gated: bool,
    /// Ended: it needs no place any longer.
    pub finished: bool,
    /// Somebody else places it.
    pub foreign: bool,
    pub said: Option<Said>,
}

impl Pod {
    pub fn priority(&self) -> i32 {
        self.shape.priority
    }

    /// Whether it waits for a decision of ours.
    pub fn is_pending(&self) -> bool {
        self.node.is_none() && !self.finished && !self.foreign && !self.leaving && !self.gated
    }

    /// Whether a decision about `other` is as good for this pod.
    pub fn asks_the_same(&self, other: &Pod) -> bool {
        self.uid == other.uid && self.shape == other.shape && self.labels == other.labels
    }
}
