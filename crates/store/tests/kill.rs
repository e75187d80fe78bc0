//! A process that writes under load is killed at random moments, again and again, on the same data. Every write that it
//! was answered must be there afterwards, byte for byte, and nothing half done.
//!
//! The child is this binary too, told by the environment where to write; it prints a line for every answer. Hence no
//! harness: whichever of the two this process is, `main` decides.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tempfile::TempDir;
use usher_store::{Expect, Kind, ListOptions, Op, OpenError, Options, Store, WriteError};

const ROUNDS: u64 = 25;
const ENOUGH_WRITES: u64 = 500;
const TASKS: u64 = 16;
const KEYS_PER_TASK: u64 = 6;
/// Numbers of one round's writes begin at a multiple of this.
const ROUND: u64 = 1_000_000;
const C: &str = "things";
const DATA_DIR: &str = "USHER_STORE_KILL_TEST_DIR";
const ROUND_NUMBER: &str = "USHER_STORE_KILL_TEST_ROUND";

/// Small, so that compaction is always at work when the end comes.
fn options() -> Options {
    Options { max_events: 300, ..Options::default() }
}

/// A task's `n`th write goes to one of its keys and is a delete now and then; the bytes follow from both numbers.
fn key(task: u64, n: u64) -> String {
    format!("{task}/{}", n % KEYS_PER_TASK)
}

fn is_delete(n: u64) -> bool {
    n / KEYS_PER_TASK % 4 == 3
}

fn value(task: u64, n: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(task << 48 | n);
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((0..random.random_range(0..6000)).map(|_| random.random::<u8>()));
    bytes
}

const TEST: &str = "answered_writes_survive_sigkill";

fn main() -> ExitCode {
    if let Some(dir) = std::env::var_os(DATA_DIR) {
        be_the_child(Path::new(&dir));
        return ExitCode::SUCCESS;
    }
    let asked = Asked::read(std::env::args().skip(1));
    if asked.list {
        if asked.includes(TEST) {
            println!("{TEST}: test");
        }
        return ExitCode::SUCCESS;
    }
    asked.run(TEST, answered_writes_survive_sigkill)
}

/// What `cargo test -- …` asked for, as far as one test can tell it apart.
#[derive(Default)]
struct Asked {
    list: bool,
    exact: bool,
    only_ignored: bool,
    filters: Vec<String>,
    skip: Vec<String>,
}

impl Asked {
    fn read(mut args: impl Iterator<Item = String>) -> Asked {
        let mut asked = Asked::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--list" => asked.list = true,
                "--exact" => asked.exact = true,
                "--ignored" => asked.only_ignored = true,
                "--skip" => asked.skip.extend(args.next()),
                "--test-threads" | "--format" | "--color" | "--logfile" | "--shuffle-seed" | "-Z" => drop(args.next()),
                flag if flag.starts_with("--skip=") => asked.skip.push(flag["--skip=".len()..].to_owned()),
                flag if flag.starts_with('-') => {}
                _ => asked.filters.push(arg),
            }
        }
        asked
    }

    fn includes(&self, name: &str) -> bool {
        let hit = |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        let chosen = self.filters.is_empty() || self.filters.iter().any(hit);
        chosen && !self.skip.iter().any(hit) && !self.only_ignored
    }

    fn run(&self, name: &str, test: fn()) -> ExitCode {
        let run = usize::from(self.includes(name));
        println!("\nrunning {run} test{}", if run == 1 { "" } else { "s" });
        let started = Instant::now();
        let passed = run == 0 || std::panic::catch_unwind(test).is_ok();
        let word = if passed { "ok" } else { "FAILED" };
        if run == 1 {
            println!("test {name} ... {word}");
        }
        let failed = usize::from(!passed);
        println!(
            "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
            run - failed,
            1 - run,
            started.elapsed().as_secs_f64()
        );
        // What libtest exits with when a test failed.
        if passed { ExitCode::SUCCESS } else { ExitCode::from(101) }
    }
}

fn be_the_child(dir: &Path) {
    let round: u64 = std::env::var(ROUND_NUMBER).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = Store::open_disk(dir, options()).unwrap();
        say("open");
        let tasks: Vec<_> =
            (0..TASKS).map(|task| tokio::spawn(keep_writing(store.clone(), task, round * ROUND))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// One write after the other, for ever.
async fn keep_writing(store: Store, task: u64, first: u64) {
    for n in first.. {
        let op = if is_delete(n) { Op::Delete } else { Op::Put(Bytes::from(value(task, n))) };
        match store.write(C, &key(task, n), op, Expect::Any).await {
            Ok(written) => say(&format!("wrote {task} {n} {}", written.revision)),
            Err(WriteError::NotFound) if is_delete(n) => say(&format!("wrote {task} {n} 0")),
            Err(error) => panic!("{error}"),
        }
    }
}

/// One `write` call, so that a line is never mixed with another or cut unless the process dies in it.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

struct Writing {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Writing {
    fn start(dir: &Path, round: u64) -> Writing {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(DATA_DIR, dir)
            .env(ROUND_NUMBER, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            // A line without its end was not said.
            while out.read_line(&mut line).is_ok_and(|len| len > 0) && line.ends_with('\n') {
                let _ = send.send(std::mem::take(&mut line));
            }
        });
        let writing = Writing { child, lines };
        while writing.lines.recv_timeout(Duration::from_secs(60)).expect("the child opens the store") != "open\n" {}
        writing
    }

    /// Kills the child and returns all it was answered: task, number, revision (0: there was nothing to delete).
    fn kill(mut self) -> Vec<(u64, u64, u64)> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut answers = Vec::new();
        for line in self.lines {
            let mut words = line.split_whitespace();
            if words.next() == Some("wrote") {
                let mut number = || words.next().unwrap().parse().unwrap();
                answers.push((number(), number(), number()));
            }
        }
        answers
    }
}

/// The last answers of every task, over all rounds.
#[derive(Default)]
struct Answered {
    by_key: HashMap<String, (u64, u64)>,
    /// The number of the next write, which may or may not have happened.
    next: HashMap<u64, u64>,
}

impl Answered {
    fn add(&mut self, round: u64, answers: Vec<(u64, u64, u64)>) {
        self.next = (0..TASKS).map(|task| (task, round * ROUND)).collect();
        for (task, n, revision) in answers {
            self.by_key.insert(key(task, n), (n, revision));
            self.next.insert(task, n + 1);
        }
    }

    /// Compares with what is on disk, and takes over what turned out to have happened.
    fn check(&mut self, store: &Store) {
        let page = store.list(C, &ListOptions::default()).unwrap();
        let found: HashMap<_, _> = page.entries.iter().map(|entry| (entry.key.to_string(), entry)).collect();
        for task in 0..TASKS {
            let in_flight = self.next[&task];
            for number in 0..KEYS_PER_TASK {
                let key = key(task, number);
                let open = (in_flight % KEYS_PER_TASK == number).then_some(in_flight);
                let answered = self.by_key.get(&key).copied();
                match found.get(&key) {
                    Some(entry) => {
                        let n = u64::from_le_bytes(entry.value[..8].try_into().unwrap());
                        assert!(entry.value == value(task, n), "{key} is torn");
                        assert!(!is_delete(n));
                        if open != Some(n) {
                            assert_eq!(answered, Some((n, entry.mod_revision)), "{key}: an answered write is lost");
                        }
                        self.by_key.insert(key, (n, entry.mod_revision));
                    }
                    None => {
                        let deleted = answered.is_none_or(|(n, _)| is_delete(n)) || open.is_some_and(is_delete);
                        assert!(deleted, "{key}: an answered write is lost");
                        self.by_key.remove(&key);
                    }
                }
            }
        }
    }
}

/// The retained history leads, without a hole, to the current state.
async fn check_history(store: &Store) {
    let start = store.compacted();
    let at = ListOptions { at: Some(start), ..ListOptions::default() };
    let mut state: HashMap<_, _> =
        store.list(C, &at).unwrap().entries.into_iter().map(|entry| (entry.key.to_string(), entry)).collect();
    let mut watch = store.watch(C, "", start).unwrap();
    let mut revision = start.max(1);
    while revision < store.revision() {
        for event in watch.next().await.unwrap().events {
            assert_eq!(event.revision, revision + 1);
            revision = event.revision;
            let before = match event.kind {
                Kind::Put => state.insert(event.key().into(), event.entry.clone()),
                Kind::Delete => state.remove(event.key()),
            };
            assert_eq!(before, event.prev);
        }
    }
    let mut end: Vec<_> = state.into_values().collect();
    end.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(end, store.list(C, &ListOptions::default()).unwrap().entries);
}

fn answered_writes_survive_sigkill() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(kill_again_and_again());
}

async fn kill_again_and_again() {
    let dir = TempDir::new().unwrap();
    let data: PathBuf = dir.path().join("data");
    let mut random = StdRng::from_os_rng();
    let mut answered = Answered::default();
    let mut writes = 0;
    let mut longest_micros = 200_000;
    for round in 0..ROUNDS {
        let child = Writing::start(&data, round);
        if round == 0 {
            assert!(matches!(Store::open_disk(&data, options()), Err(OpenError::Locked { .. })));
        }
        tokio::time::sleep(Duration::from_micros(random.random_range(0..longest_micros))).await;
        let answers = child.kill();
        writes += answers.len() as u64;
        // A busy machine gets more time, so that the end comes in the middle of work there too.
        if writes < ENOUGH_WRITES * (round + 1) / ROUNDS {
            longest_micros = (longest_micros * 2).min(10_000_000);
        }
        answered.add(round, answers);
        let store = Store::open_disk(&data, options()).unwrap();
        answered.check(&store);
        check_history(&store).await;
        store.close().await;
    }
    assert!(writes >= ENOUGH_WRITES, "only {writes} writes: too few to show anything");
    println!("{writes} answered writes over {ROUNDS} kills");
}
