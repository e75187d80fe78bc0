//! The collector against a world in a map: scenarios for what must happen, and a property for what must never.
//!
//! The world answers as an API server does; changes reach the collector kind by kind, late and interleaved at will.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use futures::FutureExt;
use kube::api::{DeleteParams, Patch, PropagationPolicy};
use kube::core::Status;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::apply::{Cluster, Collector, Place};
use super::graph::{FOREGROUND, Identity, ORPHAN, Task};
use crate::runtime::{Catalog, GroupResource, Meta, OwnerRef, QueueMetrics, Resource, Signal};

/// Kind 0 has no strategic merge patches, as a custom resource; kind 3 is cluster-scoped.
const KINDS: usize = 4;

#[derive(Default)]
struct World {
    objects: BTreeMap<(usize, Arc<str>, Arc<str>), Meta>,
    /// What the watch of each kind has yet to tell.
    told: [VecDeque<Signal>; KINDS],
    revision: u64,
    misplaced: Vec<String>,
    deletes: usize,
}

struct Sim(Mutex<World>, Arc<Catalog>);

fn resource(kind: usize) -> Arc<Resource> {
    Arc::new(Resource {
        id: GroupResource::new("", &format!("k{kind}s")),
        version: "v1".into(),
        kind: format!("K{kind}").into(),
        api_version: "v1".into(),
        namespaced: kind != 3,
        verbs: ["get", "list", "watch", "delete"].map(String::from).into(),
    })
}

fn refuse(code: u16, reason: &str) -> kube::Error {
    kube::Error::Api(Status::failure("refused", reason).with_code(code).boxed())
}

fn kind_of(at: &Place) -> usize {
    at.resource.kind[1..].parse().unwrap()
}

impl World {
    fn put(&mut self, kind: usize, mut meta: Meta) {
        self.revision += 1;
        meta.resource_version = self.revision.to_string().into();
        let key = (kind, meta.namespace.clone(), meta.name.clone());
        if meta.being_deleted() && meta.finalizers.is_empty() {
            self.objects.remove(&key);
            self.told[kind].push_back(Signal::Deleted(resource(kind), Arc::new(meta)));
        } else {
            self.objects.insert(key, meta.clone());
            self.told[kind].push_back(Signal::Applied(resource(kind), Arc::new(meta)));
        }
    }

    fn find(&mut self, at: &Place) -> Option<Meta> {
        self.objects.get(&(kind_of(at), at.namespace.clone(), at.name.clone())).cloned()
    }

    fn delete(&mut self, kind: usize, mut meta: Meta, policy: &PropagationPolicy) {
        if !meta.being_deleted() {
            meta.finalizers.retain(|f| f != FOREGROUND && f != ORPHAN);
            match policy {
                PropagationPolicy::Foreground => meta.finalizers.push(FOREGROUND.into()),
                PropagationPolicy::Orphan => meta.finalizers.push(ORPHAN.into()),
                PropagationPolicy::Background => {}
            }
            meta.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
        }
        self.put(kind, meta);
    }

    fn edit(&mut self, kind: usize, meta: Meta, patch: &Value) -> Result<(), kube::Error> {
        let mut new = meta.clone();
        let change = &patch["metadata"];
        if change["uid"].as_str().is_some_and(|uid| *uid != *meta.uid)
            || change["resourceVersion"].as_str().is_some_and(|rv| *rv != *meta.resource_version)
        {
            return Err(refuse(409, "Conflict"));
        }
        if let Some(finalizers) = change["finalizers"].as_array() {
            new.finalizers = finalizers.iter().map(|f| f.as_str().unwrap().to_string()).collect();
        }
        let whole_list = !change["resourceVersion"].is_null();
        if let Some(refs) = change["ownerReferences"].as_array() {
            if whole_list {
                new.owner_references = serde_json::from_value(json!(refs)).unwrap();
            }
            for r in refs.iter().filter(|_| !whole_list) {
                new.owner_references.retain(|old| *old.uid != *r["uid"].as_str().unwrap());
                if r["$patch"] != "delete" {
                    new.owner_references.push(serde_json::from_value(r.clone()).unwrap());
                }
            }
        }
        if new != meta {
            self.put(kind, new);
        }
        Ok(())
    }
}

impl Cluster for Sim {
    fn catalog(&self) -> Arc<Catalog> {
        self.1.clone()
    }

    fn is_watched(&self, _: &Resource) -> bool {
        true
    }

    async fn get(&self, at: &Place) -> Result<Option<Meta>, kube::Error> {
        Ok(self.0.lock().find(at))
    }

    async fn delete(&self, at: &Place, how: &DeleteParams) -> Result<(), kube::Error> {
        let mut world = self.0.lock();
        let meta = world.find(at).ok_or_else(|| refuse(404, "NotFound"))?;
        let expected = how.preconditions.as_ref().expect("deletes name the object they mean");
        if expected.uid.as_deref() != Some(&*meta.uid)
            || expected.resource_version.as_ref().is_some_and(|rv| **rv != *meta.resource_version)
        {
            return Err(refuse(409, "Conflict"));
        }
        world.deletes += 1;
        world.delete(kind_of(at), meta, how.propagation_policy.as_ref().unwrap());
        Ok(())
    }

    async fn patch(&self, at: &Place, patch: &Patch<Value>) -> Result<(), kube::Error> {
        let mut world = self.0.lock();
        let meta = world.find(at).ok_or_else(|| refuse(404, "NotFound"))?;
        match patch {
            Patch::Strategic(_) if kind_of(at) == 0 => Err(refuse(415, "UnsupportedMediaType")),
            Patch::Strategic(value) | Patch::Merge(value) => world.edit(kind_of(at), meta, value),
            _ => Err(refuse(400, "BadRequest")),
        }
    }

    fn report_misplaced(&self, dependent: &Identity, reference: &OwnerRef) {
        self.0.lock().misplaced.push(super::decide::misplaced_message(dependent, reference));
    }
}

fn owner(kind: usize, name: &str) -> OwnerRef {
    OwnerRef {
        api_version: "v1".into(),
        kind: format!("K{kind}").into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        controller: None,
        block_owner_deletion: Some(true),
    }
}

struct Run {
    collector: Collector<Sim>,
    chance: Box<dyn FnMut(usize) -> usize>,
}

impl Run {
    fn new() -> Run {
        Run::with(|_| 0)
    }

    fn with(chance: impl FnMut(usize) -> usize + 'static) -> Run {
        let groups = json!([{"metadata": {"name": ""}, "versions": [{"version": "v1", "resources": (0..KINDS).map(|k| json!({
            "resource": format!("k{k}s"), "scope": if k == 3 { "Cluster" } else { "Namespaced" },
            "responseKind": {"kind": format!("K{k}")}, "verbs": ["get"]})).collect::<Vec<_>>()}]}]);
        let catalog = Catalog::for_tests(serde_json::from_value(groups).unwrap());
        let sim = Sim(Mutex::default(), Arc::new(catalog));
        Run { collector: Collector::on(sim, &QueueMetrics::default()), chance: Box::new(chance) }
    }

    fn world<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        f(&mut self.collector.cluster().0.lock())
    }

    fn create(&self, kind: usize, name: &str, owners: &[OwnerRef]) -> &Run {
        self.create_in(kind, if kind == 3 { "" } else { "ns" }, name, owners)
    }

    fn create_in(&self, kind: usize, namespace: &str, name: &str, owners: &[OwnerRef]) -> &Run {
        let meta = Meta {
            namespace: namespace.into(),
            name: name.into(),
            uid: format!("uid-{name}").into(),
            owner_references: owners.to_vec(),
            ..Meta::default()
        };
        self.world(|w| w.put(kind, meta));
        self
    }

    fn change(&self, name: &str, edit: impl FnOnce(&mut Meta)) {
        self.world(|w| {
            let (key, mut meta) = w.objects.iter().find(|(k, _)| *k.2 == *name).map(|(k, m)| (k.0, m.clone())).unwrap();
            edit(&mut meta);
            w.put(key, meta);
        });
    }

    fn delete(&self, name: &str, policy: PropagationPolicy) {
        self.world(|w| {
            let found = w.objects.iter().find(|(k, _)| *k.2 == *name).map(|(k, m)| (k.0, m.clone()));
            if let Some((kind, meta)) = found {
                w.delete(kind, meta, &policy);
            }
        });
    }

    /// One thing that can happen: a watch tells something, or a worker does something. False when nothing can.
    fn step(&mut self) -> bool {
        let ready = self.world(|w| (0..KINDS).filter(|k| !w.told[*k].is_empty()).collect::<Vec<_>>());
        let (to_delete, to_orphan) = self.collector.queues();
        let (deletes, orphans) = (!to_delete.is_empty(), !to_orphan.is_empty());
        let choices = ready.len() + usize::from(deletes) + usize::from(orphans);
        if choices == 0 {
            return false;
        }
        let choice = (self.chance)(choices);
        if let Some(&kind) = ready.get(choice) {
            let signal = self.world(|w| w.told[kind].pop_front()).unwrap();
            self.collector.hear(signal).now_or_never().unwrap();
        } else if deletes && choice == ready.len() {
            let (queue, _) = self.collector.queues();
            let task = queue.get().now_or_never().unwrap();
            let result = self.collector.work(task.clone()).now_or_never().unwrap();
            queue.done(&task);
            if result.is_err() {
                queue.add(task);
            }
        } else {
            let (_, queue) = self.collector.queues();
            let uid = queue.get().now_or_never().unwrap();
            let result = self.collector.orphan(&uid).now_or_never().unwrap();
            queue.done(&uid);
            if result.is_err() {
                queue.add(uid);
            }
        }
        true
    }

    fn settle(&mut self) -> &mut Run {
        for _ in 0..20_000 {
            if !self.step() {
                return self;
            }
        }
        panic!("the collector never comes to rest");
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.world(|w| w.objects.keys().map(|k| k.2.to_string()).collect());
        names.sort();
        names
    }

    fn owners_of(&self, name: &str) -> Vec<String> {
        self.world(|w| {
            let (_, meta) = w.objects.iter().find(|(k, _)| *k.2 == *name).unwrap();
            meta.owner_references.iter().map(|r| r.name.to_string()).collect()
        })
    }
}

use PropagationPolicy::{Background, Foreground, Orphan};

#[test]
fn dependents_of_dependents_go_with_their_owner() {
    let mut run = Run::new();
    run.create(1, "cron", &[]).create(2, "job", &[owner(1, "cron")]).create(0, "pod", &[owner(2, "job")]);
    assert_eq!(run.settle().names(), ["cron", "job", "pod"]);
    run.delete("cron", Background);
    assert!(run.settle().names().is_empty());
    assert!(run.collector.uids().is_empty(), "the graph forgets what is gone");
}

#[test]
fn an_object_with_one_owner_left_stays_and_loses_the_dangling_reference() {
    for kind in [0, 2] {
        let mut run = Run::new();
        run.create(1, "a", &[]).create(1, "b", &[]).create(kind, "pod", &[owner(1, "a"), owner(1, "b")]);
        run.settle().delete("a", Background);
        assert_eq!(run.settle().names(), ["b", "pod"]);
        assert_eq!(run.owners_of("pod"), ["b"]);
    }
}

#[test]
fn an_owner_that_never_existed_counts_as_gone() {
    let mut run = Run::new();
    run.create(1, "pod", &[owner(2, "nobody")]);
    assert!(run.settle().names().is_empty());
}

#[test]
fn an_owner_recreated_under_the_same_name_is_another_owner() {
    let mut run = Run::new();
    let old = OwnerRef { uid: "uid-of-the-first".into(), ..owner(1, "job") };
    run.create(1, "job", &[]).create(2, "pod", &[old]);
    assert_eq!(run.settle().names(), ["job"]);
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents_only() {
    let mut run = Run::new();
    let free = OwnerRef { block_owner_deletion: None, ..owner(1, "job") };
    run.create(1, "job", &[]).create(2, "held", &[owner(1, "job")]).create(2, "free", &[free]);
    run.change("held", |m| m.finalizers.push("example.com/hold".into()));
    run.change("free", |m| m.finalizers.push("example.com/hold".into()));
    run.settle().delete("job", Foreground);
    assert_eq!(run.settle().names(), ["free", "held", "job"]);
    run.change("held", |m| m.finalizers.clear());
    assert_eq!(run.settle().names(), ["free"], "the one that does not block is not waited for");
    run.change("free", |m| m.finalizers.clear());
    assert!(run.settle().names().is_empty());
}

#[test]
fn foreground_deletion_goes_down_the_tree_before_it_comes_up() {
    let mut run = Run::new();
    run.create(1, "top", &[]).create(2, "middle", &[owner(1, "top")]).create(0, "leaf", &[owner(2, "middle")]);
    run.change("leaf", |m| m.finalizers.push("example.com/hold".into()));
    run.settle().delete("top", Foreground);
    assert_eq!(run.settle().names(), ["leaf", "middle", "top"]);
    run.change("leaf", |m| m.finalizers.clear());
    assert!(run.settle().names().is_empty());
}

#[test]
fn a_dependent_with_another_owner_lets_go_of_one_in_foreground_deletion() {
    let mut run = Run::new();
    run.create(1, "leaving", &[]).create(1, "staying", &[]);
    run.create(2, "pod", &[owner(1, "leaving"), owner(1, "staying")]);
    run.settle().delete("leaving", Foreground);
    assert_eq!(run.settle().names(), ["pod", "staying"]);
    assert_eq!(run.owners_of("pod"), ["staying"]);
}

#[test]
fn a_circle_in_foreground_deletion_is_broken() {
    let mut run = Run::new();
    run.create(1, "a", &[owner(2, "b")]).create(2, "b", &[owner(1, "a")]);
    assert_eq!(run.settle().names(), ["a", "b"]);
    run.delete("a", Foreground);
    assert!(run.settle().names().is_empty());
}

#[test]
fn orphans_stay_and_lose_their_reference() {
    for kind in [0, 2] {
        let mut run = Run::new();
        run.create(1, "job", &[]).create(kind, "p1", &[owner(1, "job")]).create(kind, "p2", &[owner(1, "job")]);
        run.settle().delete("job", Orphan);
        assert_eq!(run.settle().names(), ["p1", "p2"]);
        assert!(run.owners_of("p1").is_empty() && run.owners_of("p2").is_empty());
    }
}

#[test]
fn a_reference_into_another_namespace_is_reported_and_counts_as_gone() {
    for owner_first in [true, false] {
        let mut run = Run::new();
        let create_owner = |run: &Run| {
            run.create_in(1, "elsewhere", "job", &[]);
        };
        if owner_first {
            create_owner(&run);
            run.settle();
        }
        run.create(2, "pod", &[owner(1, "job")]);
        if !owner_first {
            // The dependent is seen first, and its owner before anybody asks for it.
            run.step();
            create_owner(&run);
            while run.world(|w| !w.told[1].is_empty()) {
                run.step();
            }
        }
        assert_eq!(run.settle().names(), ["job"], "owner first: {owner_first}");
        let expected = "ownerRef [v1/K1, namespace: ns, name: job, uid: uid-job] does not exist in namespace \"ns\"";
        assert_eq!(run.world(|w| w.misplaced.clone()), [expected], "owner first: {owner_first}");
    }
}

#[test]
fn a_cluster_scoped_owner_may_own_in_any_namespace() {
    let mut run = Run::new();
    run.create(3, "node", &[]).create(1, "lease", &[owner(3, "node")]).create_in(
        2,
        "other",
        "pod",
        &[owner(3, "node")],
    );
    assert_eq!(run.settle().names(), ["lease", "node", "pod"]);
    run.delete("node", Background);
    assert!(run.settle().names().is_empty());
}

#[test]
fn a_cluster_scoped_object_with_a_namespaced_owner_is_left_alone() {
    let mut run = Run::new();
    run.create(3, "node", &[owner(1, "nobody")]);
    assert_eq!(run.settle().names(), ["node"]);
}

#[test]
fn dependents_that_disagree_about_an_absent_owner_all_go() {
    let mut run = Run::new();
    let other_name = OwnerRef { name: "misspelt".into(), ..owner(1, "job") };
    run.create(2, "right", &[owner(1, "job")]).create(2, "wrong", &[other_name]);
    assert!(run.settle().names().is_empty());
    assert!(run.collector.uids().is_empty());
}

#[test]
fn a_wrong_claim_about_a_live_owner_does_not_harm_the_right_one() {
    let mut run = Run::new();
    let other_name = OwnerRef { name: "misspelt".into(), ..owner(1, "job") };
    run.create(2, "wrong", &[other_name]).create(2, "right", &[owner(1, "job")]).create(1, "job", &[]);
    assert_eq!(run.settle().names(), ["job", "right"]);
}

#[test]
fn an_object_whose_owner_is_of_an_unknown_kind_waits_for_the_kind() {
    let mut run = Run::new();
    run.create(1, "pod", &[OwnerRef { kind: "Unheard".into(), ..owner(1, "x") }]);
    assert_eq!(run.settle().names(), ["pod"]);
    assert!(run.collector.queues().0.is_empty(), "nothing is polled");
}

#[test]
fn an_owner_that_came_and_went_unseen_is_asked_for_after_the_next_list() {
    let mut run = Run::new();
    run.create(1, "job", &[]).create(2, "pod", &[owner(1, "job")]);
    run.world(|w| w.told[1].clear());
    assert_eq!(run.settle().names(), ["job", "pod"]);
    run.delete("job", Background);
    run.world(|w| w.told[1].clear());
    assert_eq!(run.settle().names(), ["pod"], "nobody told");
    run.collector.hear(Signal::Synced(resource(1))).now_or_never().unwrap();
    assert!(run.settle().names().is_empty());
}

#[test]
fn an_object_that_gains_an_owner_while_being_examined_is_spared() {
    let mut run = Run::new();
    run.create(1, "a", &[]).create(1, "b", &[]).create(2, "pod", &[owner(1, "a")]);
    run.settle().delete("a", Background);
    // The watch of the pod's kind is behind: the collector still believes that `a` is its only owner.
    run.change("pod", |m| m.owner_references.push(owner(1, "b")));
    run.collector.hear(run.world(|w| w.told[1].pop_front()).unwrap()).now_or_never().unwrap();
    run.collector.work(Task::Examine("uid-pod".into())).now_or_never().unwrap().unwrap();
    assert_eq!(run.settle().names(), ["b", "pod"]);
}

/// What may remain: an object that nobody deleted, without owners or with one that remains.
fn survivors(owners: &[Vec<usize>], deleted: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut alive = BTreeSet::new();
    for (i, of) in owners.iter().enumerate() {
        if !deleted.contains(&i) && (of.is_empty() || of.iter().any(|o| alive.contains(o))) {
            alive.insert(i);
        }
    }
    alive
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Owners always have smaller numbers; number 100 never existed.
    #[test]
    fn exactly_what_no_live_owner_reaches_is_deleted(
        raw in prop::collection::vec((0usize..3, prop::collection::vec((0usize..14, any::<bool>()), 0..4)), 1..14),
        deletions in prop::collection::vec((0usize..14, any::<bool>(), 0usize..40), 0..8),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let owners: Vec<Vec<usize>> = raw.iter().enumerate().map(|(i, (_, refs))| {
            let mut of: Vec<usize> = refs.iter().map(|(o, _)| if *o == 13 { 100 } else { *o }).filter(|o| *o < i || *o == 100).collect();
            of.sort();
            of.dedup();
            of
        }).collect();
        let mut at = 0;
        let mut run = Run::with(move |n| { at += 1; choices[at % choices.len()].index(n) });
        for (i, (kind, refs)) in raw.iter().enumerate() {
            let refs: Vec<_> = owners[i].iter().map(|&o| OwnerRef {
                block_owner_deletion: refs.iter().find(|(r, _)| *r == o).map(|(_, b)| *b),
                ..owner(raw.get(o).map_or(1, |r| r.0), &format!("o{o}"))
            }).collect();
            run.create(*kind, &format!("o{i}"), &refs);
        }
        let mut deleted = BTreeSet::new();
        for (i, foreground, steps) in deletions {
            for _ in 0..steps {
                run.step();
            }
            if i < raw.len() {
                run.delete(&format!("o{i}"), if foreground { Foreground } else { Background });
                deleted.insert(i);
            }
        }
        run.settle();
        let alive = survivors(&owners, &deleted);
        let mut expected: Vec<String> = alive.iter().map(|i| format!("o{i}")).collect();
        expected.sort();
        prop_assert_eq!(run.names(), expected);
        for i in &alive {
            let mut left: Vec<_> = owners[*i].iter().filter(|o| alive.contains(o)).map(|o| format!("o{o}")).collect();
            left.sort();
            let mut found = run.owners_of(&format!("o{i}"));
            found.sort();
            prop_assert_eq!(found, left, "dangling references are removed, others kept");
        }
        prop_assert_eq!(run.collector.uids().len(), alive.len(), "the graph holds what exists and nothing else");
    }

    /// Whatever the order: who is deleted as an orphan-maker takes nobody along.
    #[test]
    fn orphaning_deletes_nothing_else(
        raw in prop::collection::vec((0usize..3, prop::collection::vec(0usize..10, 0..3)), 2..10),
        deletions in prop::collection::btree_set(0usize..10, 0..6),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let mut at = 0;
        let mut run = Run::with(move |n| { at += 1; choices[at % choices.len()].index(n) });
        for (i, (kind, refs)) in raw.iter().enumerate() {
            let refs: BTreeSet<_> = refs.iter().filter(|o| **o < i).collect();
            let refs: Vec<_> = refs.into_iter().map(|&o| owner(raw[o].0, &format!("o{o}"))).collect();
            run.create(*kind, &format!("o{i}"), &refs);
        }
        run.settle();
        for i in &deletions {
            run.delete(&format!("o{i}"), Orphan);
        }
        run.settle();
        let mut expected: Vec<_> = (0..raw.len()).filter(|i| !deletions.contains(i)).map(|i| format!("o{i}")).collect();
        expected.sort();
        prop_assert_eq!(run.names(), expected);
    }
}
