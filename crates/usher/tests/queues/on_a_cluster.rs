//! The second mode: every story of this binary again, on a real control plane with simulated nodes. The binary runs itself
//! with `USHER_STORIES_ON`, the kubeconfig of that cluster, in its environment; so does whoever wants one story there:
//!
//! ```text
//! tools/cluster/cluster up /tmp/c; usher node --simulate crates/usher/tests/queues/nodes.yaml --kubeconfig /tmp/c/kubeconfig
//! USHER_STORIES_ON=/tmp/c/kubeconfig cargo test -p usher --test queues -- a_job_waits
//! ```
//!
//! What cannot run there is listed with its reason in `left_out.txt`.

use std::process::Command;
use std::time::Duration;

use super::harness::{self, Beside, Cluster, Server};
use super::need;
use super::world::CLUSTER;

/// At a time. They mostly wait: for Kubernetes' Job controller, which looks at a Job once a second.
const STORIES: &str = "8";
/// All of them together.
const LIMIT: Duration = Duration::from_secs(400);
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

#[test]
fn all_other_stories_hold_on_a_real_cluster() {
    let cluster = need!(Cluster::start_whole());
    let nodes = harness::repository().join("crates/usher/tests/queues/nodes.yaml");
    let _nodes = Beside::start(&["node", "--simulate", nodes.to_str().expect("a path")], &cluster);
    let mut stories = myself();
    stories.args(["--exact", "--test-threads", STORIES]).env(CLUSTER, cluster.kubeconfig());
    for (name, _) in left_out() {
        stories.args(["--skip", name]);
    }
    for own in
        ["what_is_left_out_is_a_story_and_no_more_than_one_in_ten_are", "all_other_stories_hold_on_a_real_cluster"]
    {
        stories.args(["--skip", &format!("{OURS}{own}")]);
    }
    let done = harness::run(stories, LIMIT);
    assert_eq!(done.code, Some(0), "{}\n{}", done.stdout, done.stderr);
}
