//! Runs the scripts of `tests/transcript` with kubectl against `usher up` and
//! against a real kube-apiserver, and compares what a person would have seen.
//!
//! What may differ between two runs of the same server is normalised away
//! (`normalise.rs`); what differs beyond that is a failure, unless
//! `tests/transcript/accepted.txt` lists it with a reason; and so is a listed
//! difference that no longer occurs. How scripts are written: `script.rs`.
//!
//! `USHER_TRANSCRIPT=jobs,apply` runs only those sections. Both transcripts are
//! left in cargo's target directory, under `tmp/transcript`.

#[path = "../harness/mod.rs"]
mod harness;

mod accepted;
mod diff;
mod normalise;
mod script;

use std::{fs, path::Path, thread, time::Instant};

use harness::{CONTROLLERS, Cluster, Server, Shell, Usher};
use script::{Record, Section};

/// With `USHER_AGAINST=real` two real servers are compared: that shows that normalisation leaves nothing that changes by
/// itself. What it finds is a flaw of the scripts or of `normalise.rs`, never of Usher; run it after changing scripts.
#[test]
fn kubectl_sees_no_difference_from_a_real_api_server() {
    let kubectl = need!(harness::kubectl());
    let cluster = need!(Cluster::start(CONTROLLERS));
    install_kueue(&kubectl, &cluster);
    if std::env::var_os("USHER_AGAINST").is_some_and(|against| against == "real") {
        let again = need!(Cluster::start(CONTROLLERS));
        install_kueue(&kubectl, &again);
        return compare(&kubectl, ("real", &cluster), ("real-again", &again), &[]);
    }
    let usher = Usher::start();
    compare(&kubectl, ("real", &cluster), ("usher", &usher), &accepted::load(&data()));
}

/// The kinds that `usher up` brings along.
fn install_kueue(kubectl: &Path, cluster: &Cluster) {
    let crds = harness::repository().join("crds");
    let script = format!(
        "kubectl create -f {} && kubectl wait --for=condition=Established --timeout=30s crd --all",
        crds.display()
    );
    let done = Shell::new(kubectl, cluster).run("crds", &script);
    assert_eq!(done.code, Some(0), "the real server refused crds/: {}{}", done.stdout, done.stderr);
}

type Side<'a> = (&'a str, &'a (dyn Server + Sync));

fn compare(kubectl: &Path, left: Side, right: Side, accepted: &[accepted::Entry]) {
    let wanted = std::env::var("USHER_TRANSCRIPT").ok();
    let sections: Vec<Section> = script::load(&data())
        .into_iter()
        .filter(|section| wanted.as_ref().is_none_or(|names| names.split(',').any(|name| name == section.name)))
        .collect();
    assert!(!sections.is_empty(), "no such section");

    // At the same time: the two have nothing in common but the processor.
    let (ours, theirs) = thread::scope(|scope| {
        let ours = scope.spawn(|| transcript(kubectl, right, &sections));
        let theirs = transcript(kubectl, left, &sections);
        (ours.join().expect("run against the right side"), theirs)
    });

    let mut report = String::new();
    let (mut commands, mut differing) = (0, 0);
    let mut used = vec![false; accepted.len()];
    for (section, (theirs, ours)) in sections.iter().zip(theirs.iter().zip(&ours)) {
        for (theirs, ours) in theirs.iter().zip(ours) {
            assert_eq!(theirs.command, ours.command);
            commands += 1;
            let edits = diff::diff(&theirs.lines, &ours.lines);
            if !diff::differs(&edits) {
                continue;
            }
            let listed = accepted.iter().zip(&mut used).find(|(entry, used)| {
                !**used && entry.section == section.name && entry.command == theirs.title() && entry.covers(&edits)
            });
            match listed {
                Some((_, used)) => *used = true,
                None => {
                    differing += 1;
                    report += &format!("\n== {}: {}\n{}", section.name, theirs.title(), diff::unified(&edits));
                }
            }
        }
    }
    for (entry, used) in accepted.iter().zip(&used) {
        if !used && sections.iter().any(|section| section.name == entry.section) {
            differing += 1;
            report +=
                &format!("\n== {}: {}\naccepted.txt lists another difference here\n", entry.section, entry.command);
        }
    }
    assert!(differing == 0, "{differing} of {commands} commands differ (- {}, + {})\n{report}", left.0, right.0);
}

/// Runs every section on one server; each is kept in a file when it ends.
fn transcript(kubectl: &Path, (name, server): Side, sections: &[Section]) -> Vec<Vec<Record>> {
    let shell = Shell::new(kubectl, server);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("transcript").join(name);
    fs::create_dir_all(&dir).expect("create a directory for transcripts");
    let run = |section: &Section| {
        let began = Instant::now();
        let records = section.run(&shell);
        let text: String =
            records.iter().map(|record| format!("$ {}\n{}\n", record.command, record.lines.join("\n"))).collect();
        fs::write(dir.join(format!("{}.txt", section.name)), text).expect("keep the transcript");
        println!("{name}: {}, {} commands in {:.1?}", section.name, records.len(), began.elapsed());
        records
    };
    sections.iter().map(run).collect()
}

fn data() -> std::path::PathBuf {
    harness::repository().join("tests/transcript")
}
