//! What the state of a namespace's content means: its conditions, with upstream's reasons and messages, and what to do next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::runtime::{Meta, Resource};

/// Upstream's guess of how long finalizers take, when nobody will tell.
const FINALIZER_SECS: u64 = 15;

/// What one attempt to empty the namespace found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub namespace: String,
    /// Why discovery is incomplete.
    pub discovery: Option<String>,
    pub kinds: Vec<Kind>,
}

/// What was found of one kind, after its deletion was asked for.
#[derive(Clone, Debug)]
pub struct Kind {
    pub resource: Arc<Resource>,
    /// Why it could not be deleted or listed.
    pub failure: Option<String>,
    pub remaining: Vec<Meta>,
    /// How much longer graceful deletion may take; zero if nothing is graceful, or its time is over.
    pub grace: Duration,
    /// Whether a watch will tell when something goes.
    pub watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is left: let the namespace go.
    Finalize,
    /// Something is on its way out. Look again when it changes, or after this long.
    Wait { recheck: Option<Duration> },
    /// Something failed; try again, later each time.
    Retry,
}

impl Kind {
    fn finalizers(&self) -> impl Iterator<Item = &String> {
        self.remaining.iter().flat_map(|meta| &meta.finalizers)
    }

    /// Neither grace nor a finalizer explains why it is still there.
    fn is_unexplained(&self) -> bool {
        !self.remaining.is_empty() && self.grace.is_zero() && self.finalizers().next().is_none()
    }

    fn error(&self, namespace: &str) -> Option<String> {
        self.failure.clone().or_else(|| {
            let resource = &self.resource;
            self.is_unexplained()
                .then(|| format!("unexpected items still remain in namespace: {namespace} for gvr: {resource}"))
        })
    }
}

/// How much longer pods may take: the longest grace period of those that run, while it lasts.
pub fn grace_left(longest: Duration, deleted_at: Timestamp, now: Timestamp) -> Duration {
    let longest = SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX);
    let left = longest.saturating_sub(now.duration_since(deleted_at));
    Duration::try_from(left).unwrap_or_default()
}

pub fn verdict(report: &Report) -> Verdict {
    let kinds = &report.kinds;
    if report.discovery.is_some() || kinds.iter().any(|kind| kind.failure.is_some()) {
        return Verdict::Retry;
    }
    if kinds.iter().all(|kind| kind.remaining.is_empty()) {
        return Verdict::Finalize;
    }
    // What is marked for deletion will go without us; what is not must be deleted again.
    if kinds.iter().any(|kind| kind.is_unexplained() && kind.remaining.iter().any(|m| !m.being_deleted())) {
        return Verdict::Retry;
    }
    let unwatched = kinds.iter().any(|kind| !kind.remaining.is_empty() && !kind.watched);
    // Upstream looks again after half the estimate and a second. A watch makes that unnecessary, but when grace has
    // passed the conditions say something else.
    let grace = kinds.iter().filter(|kind| !kind.remaining.is_empty()).map(|kind| kind.grace).max().unwrap_or_default();
    let recheck = match unwatched {
        true => Some(Duration::from_secs(grace.as_secs().max(FINALIZER_SECS) / 2 + 1)),
        false => (!grace.is_zero()).then_some(grace),
    };
    Verdict::Wait { recheck }
}

/// The conditions as they should be, and whether that is news. Upstream, while it waits for pods, reports that no content
/// remains; here what remains is reported at every stage.
pub fn conditions(report: &Report, old: &[NamespaceCondition], now: Timestamp) -> (Vec<NamespaceCondition>, bool) {
    let mut all = old.to_vec();
    let mut changed = false;
    for (kind, ok_reason, ok_message, failure) in states(report) {
        let (status, reason, message) = match failure {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", ok_reason, ok_message.to_string()),
        };
        let now = Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)));
        let message = Some(message);
        match all.iter_mut().find(|condition| condition.type_ == kind) {
            None => all.push(NamespaceCondition {
                type_: kind.to_string(),
                status: status.to_string(),
                reason: Some(reason.to_string()),
                message,
                last_transition_time: now,
            }),
            Some(c) if c.status == status && c.reason.as_deref() == Some(reason) && c.message == message => continue,
            Some(condition) => {
                if condition.status != status {
                    condition.last_transition_time = now;
                    condition.status = status.to_string();
                }
                condition.reason = Some(reason.to_string());
                condition.message = message;
            }
        }
        changed = true;
    }
    (all, changed)
}

type State = (&'static str, &'static str, &'static str, Option<(&'static str, String)>);

/// Each condition: its type, reason and message when all is well, and the reason and message of what is not.
fn states(report: &Report) -> [State; 5] {
    [
        (
            "NamespaceDeletionDiscoveryFailure",
            "ResourcesDiscovered",
            "All resources successfully discovered",
            report.discovery.clone().map(|message| ("DiscoveryFailed", message)),
        ),
        (
            // Group versions are never parsed here, so this cannot fail; clients look for it all the same.
            "NamespaceDeletionGroupVersionParsingFailure",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
            None,
        ),
        (
            "NamespaceDeletionContentFailure",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
            content_failure(report).map(|message| ("ContentDeletionFailed", message)),
        ),
        (
            "NamespaceContentRemaining",
            "ContentRemoved",
            "All content successfully removed",
            content_remaining(report).map(|message| ("SomeResourcesRemain", message)),
        ),
        (
            "NamespaceFinalizersRemaining",
            "ContentHasNoFinalizers",
            "All content-preserving finalizers finished",
            finalizers_remaining(report).map(|message| ("SomeFinalizersRemain", message)),
        ),
    ]
}

fn content_failure(report: &Report) -> Option<String> {
    let mut errors: Vec<_> = report.kinds.iter().filter_map(|kind| kind.error(&report.namespace)).collect();
    errors.sort();
    let text = errors.join(", ");
    (!errors.is_empty()).then(|| format!("Failed to delete all resource types, {} remaining: {text}", errors.len()))
}

fn content_remaining(report: &Report) -> Option<String> {
    let remaining = report.kinds.iter().filter(|kind| !kind.remaining.is_empty());
    let mut counts: Vec<_> = remaining
        .map(|kind| {
            let id = &kind.resource.id;
            format!("{}.{} has {} resource instances", id.plural, id.group, kind.remaining.len())
        })
        .collect();
    counts.sort();
    (!counts.is_empty()).then(|| format!("Some resources are remaining: {}", counts.join(", ")))
}

fn finalizers_remaining(report: &Report) -> Option<String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for finalizer in report.kinds.iter().flat_map(Kind::finalizers) {
        *counts.entry(finalizer).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().map(|(name, n)| format!("{name} in {n} resource instances")).collect();
    (!counts.is_empty())
        .then(|| format!("Some content in the namespace has finalizers remaining: {}", counts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::GroupResource;

    fn kind(group: &str, plural: &str, remaining: Vec<Meta>) -> Kind {
        let resource = Resource {
            id: GroupResource::new(group, plural),
            version: "v1".into(),
            kind: plural.into(),
            api_version: "v1".into(),
            namespaced: true,
            verbs: Default::default(),
        };
        Kind { resource: Arc::new(resource), failure: None, remaining, grace: Duration::ZERO, watched: true }
    }

    fn leaving(finalizers: &[&str]) -> Meta {
        let finalizers = finalizers.iter().map(|f| f.to_string()).collect();
        Meta { finalizers, deletion_timestamp: Some(Timestamp::UNIX_EPOCH), ..Meta::default() }
    }

    fn report(kinds: Vec<Kind>) -> Report {
        Report { namespace: "ns".into(), discovery: None, kinds }
    }

    fn said(report: &Report) -> Vec<String> {
        let (all, _) = conditions(report, &[], Timestamp::UNIX_EPOCH);
        let bad = all.into_iter().filter(|c| c.status == "True");
        bad.map(|c| format!("{}: {}", c.reason.unwrap(), c.message.unwrap())).collect()
    }

    #[test]
    fn an_empty_namespace_is_let_go_with_five_conditions_that_say_so() {
        let empty = report(vec![kind("", "pods", vec![]), kind("batch", "jobs", vec![])]);
        assert_eq!(verdict(&empty), Verdict::Finalize);
        let (all, changed) = conditions(&empty, &[], Timestamp::UNIX_EPOCH);
        assert!(changed && all.len() == 5 && all.iter().all(|c| c.status == "False"));
        assert!(!conditions(&empty, &all, Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1)).1);
    }

    #[test]
    fn content_held_by_finalizers_is_counted_and_waited_for() {
        let held = report(vec![
            kind("", "configmaps", vec![leaving(&["b/x", "a/y"]), leaving(&["a/y"])]),
            kind("batch", "jobs", vec![leaving(&["a/y"])]),
        ]);
        assert_eq!(verdict(&held), Verdict::Wait { recheck: None }, "a watch will tell");
        assert_eq!(
            said(&held),
            [
                "SomeResourcesRemain: Some resources are remaining: configmaps. has 2 resource instances, jobs.batch has 1 resource instances",
                "SomeFinalizersRemain: Some content in the namespace has finalizers remaining: a/y in 3 resource instances, b/x in 1 resource instances",
            ]
        );
    }

    #[test]
    fn pods_are_given_their_grace_and_then_complained_about_but_not_polled() {
        let deleted = Timestamp::UNIX_EPOCH;
        let at = |secs| grace_left(Duration::from_secs(30), deleted, deleted + SignedDuration::from_secs(secs));
        let mut pods = kind("", "pods", vec![leaving(&[])]);
        pods.grace = at(10);
        assert_eq!(verdict(&report(vec![pods.clone()])), Verdict::Wait { recheck: Some(Duration::from_secs(20)) });
        pods.grace = at(30);
        let late = report(vec![pods]);
        assert_eq!(verdict(&late), Verdict::Wait { recheck: None });
        assert_eq!(
            said(&late)[0],
            "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: ns for gvr: /v1, Resource=pods"
        );
    }

    #[test]
    fn what_is_not_even_marked_for_deletion_is_deleted_again() {
        assert_eq!(verdict(&report(vec![kind("", "pods", vec![Meta::default()])])), Verdict::Retry);
    }

    #[test]
    fn a_kind_that_no_watch_tells_about_is_asked_again_after_a_while() {
        let mut odd = kind("x", "odds", vec![leaving(&["f"])]);
        odd.watched = false;
        assert_eq!(verdict(&report(vec![odd])), Verdict::Wait { recheck: Some(Duration::from_secs(8)) });
    }

    #[test]
    fn failures_are_named_and_a_recovery_moves_the_transition_time() {
        let mut jobs = kind("batch", "jobs", vec![]);
        jobs.failure = Some("the server is on fire".into());
        let mut bad = report(vec![jobs]);
        bad.discovery = Some("no answer".into());
        assert_eq!(verdict(&bad), Verdict::Retry);
        assert_eq!(
            said(&bad),
            [
                "DiscoveryFailed: no answer",
                "ContentDeletionFailed: Failed to delete all resource types, 1 remaining: the server is on fire"
            ]
        );
        let (failing, _) = conditions(&bad, &[], Timestamp::UNIX_EPOCH);
        let later = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60);
        let (recovered, changed) = conditions(&report(vec![]), &failing, later);
        assert!(changed);
        let moved: Vec<_> = recovered.iter().map(|c| c.last_transition_time.as_ref().unwrap().0 == later).collect();
        assert_eq!(moved, [true, false, true, false, false]);
    }
}
