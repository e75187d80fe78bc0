//! The words: a typed reason becomes the text of the condition and of the event, as kube-scheduler words it.
//!
//! Nothing else in placement makes sentences.

use std::collections::BTreeMap;

use super::fit::Mismatch;

/// Why a pod has no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    NoNodes,
    /// The node names that the pod's affinity asks for exclude each other; nobody is preempted for it.
    Conflict {
        nodes: usize,
    },
    /// What each node lacks.
    Nodes {
        nodes: usize,
        lacks: BTreeMap<Mismatch, usize>,
        preemption: Preemption,
    },
}

/// What preemption came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// The pod asks not to.
    Never,
    /// Pods that it preempted before are still ending.
    Waiting,
    /// No pods whose end would help, node by node.
    Useless {
        nodes: usize,
        because: BTreeMap<Hindrance, usize>,
    },
    Found {
        node: String,
        victims: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hindrance {
    NotHelpful,
    NoVictims,
    Still(Mismatch),
}

impl Mismatch {
    fn words(&self) -> String {
        let words = match self {
            Mismatch::NotNamed => "node(s) didn't satisfy plugin(s) [NodeAffinity]",
            Mismatch::Unschedulable => "node(s) were unschedulable",
            Mismatch::Taint => "node(s) had untolerated taint(s)",
            Mismatch::NodeAffinity => "node(s) didn't match Pod's node affinity/selector",
            Mismatch::Ports => "node(s) didn't have free ports for the requested pod ports",
            Mismatch::TooManyPods => "Too many pods",
            Mismatch::Insufficient(resource) => return format!("Insufficient {resource}"),
            Mismatch::SpreadLabel => "node(s) didn't match pod topology spread constraints (missing required label)",
            Mismatch::Spread => "node(s) didn't match pod topology spread constraints",
            Mismatch::Affinity => "node(s) didn't match pod affinity rules",
            Mismatch::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Mismatch::ExistingAntiAffinity => "node(s) didn't satisfy existing pods anti-affinity rules",
        };
        words.to_string()
    }
}

impl Hindrance {
    fn words(&self) -> String {
        match self {
            Hindrance::NotHelpful => "Preemption is not helpful for scheduling".to_string(),
            Hindrance::NoVictims => "No preemption victims found for incoming pod".to_string(),
            Hindrance::Still(mismatch) => mismatch.words(),
        }
    }
}

impl Preemption {
    fn words(&self) -> String {
        match self {
            Preemption::Never => "preemption: not eligible due to preemptionPolicy=Never.".to_string(),
            Preemption::Waiting => {
                "preemption: not eligible due to a terminating pod on the nominated node.".to_string()
            }
            Preemption::Useless { nodes, because } => {
                format!("preemption: {}", histogram(*nodes, because.iter().map(|(why, n)| (why.words(), *n))))
            }
            Preemption::Found { node, victims } => {
                format!("preemption: found a potential placement for pod on node {node}, preempting {victims} victims")
            }
        }
    }
}

/// The message of the condition, and of the event.
pub fn render(unfit: &Unfit) -> String {
    match unfit {
        Unfit::NoNodes => "no nodes available to schedule pods".to_string(),
        // The last words are a slip of kube-scheduler's: its plugin for resource claims misses what it did not prepare.
        Unfit::Conflict { nodes } => format!("0/{nodes} nodes are available: pod affinity terms conflict. not found"),
        Unfit::Nodes { nodes, lacks, preemption } => {
            let lacks = lacks.iter().map(|(why, n)| (why.words(), *n));
            format!("{} {}", histogram(*nodes, lacks), preemption.words())
        }
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 Too many pods.`; sorted as text, counts included, as upstream does.
fn histogram(nodes: usize, reasons: impl Iterator<Item = (String, usize)>) -> String {
    let mut lines: Vec<String> = reasons.map(|(words, count)| format!("{count} {words}")).collect();
    lines.sort();
    match lines.is_empty() {
        true => format!("0/{nodes} nodes are available:"),
        false => format!("0/{nodes} nodes are available: {}.", lines.join(", ")),
    }
}

/// An event's note holds this much; upstream cuts there.
const NOTE_MAX: usize = 1024;

pub fn note(message: &str) -> String {
    if message.len() <= NOTE_MAX {
        return message.to_string();
    }
    let mut end = NOTE_MAX - 4;
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} ...", &message[..end])
}
