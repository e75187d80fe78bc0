//! The second mode: the stories of this binary on a real control plane with simulated nodes, with `USHER_STORIES_ON`, the
//! kubeconfig of that cluster, in the environment. Run by hand so far; not yet part of the gate:
//!
//! ```text
//! tools/cluster/cluster up /tmp/c; usher node --simulate crates/usher/tests/queues/nodes.yaml --kubeconfig /tmp/c/kubeconfig
//! USHER_STORIES_ON=/tmp/c/kubeconfig cargo test -p usher --test queues -- a_job_waits
//! ```
//!
//! What cannot run there is listed with its reason in `left_out.txt`.

use std::process::Command;
use std::time::Duration;

use super::harness;

const OURS: &str = "on_a_cluster::";

/// Name and reason.
fn left_out() -> Vec<(&'static str, &'static str)> {
    let lines = super::LEFT_OUT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").unwrap_or_else(|| panic!("no reason: {line}"))).collect()
}

fn myself() -> Command {
    Command::new(std::env::current_exe().expect("this binary"))
}

#[test]
fn what_is_left_out_is_a_story_and_no_more_than_one_in_ten_are() {
    let mut list = myself();
    list.args(["--list", "--format", "terse"]);
    let printed = harness::run(list, Duration::from_secs(60)).stdout;
    let all: Vec<&str> = printed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let stories: Vec<&&str> = all.iter().filter(|name| !name.starts_with(OURS)).collect();
    let out = left_out();
    for (name, reason) in &out {
        assert!(stories.contains(&name), "there is no story {name}");
        assert!(reason.len() > 20, "{name} is left out for no reason");
    }
    assert!(out.len() * 10 <= stories.len(), "{} of {} stories are left out", out.len(), stories.len());
}
