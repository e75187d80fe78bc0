//! The scripts: one file is one section, which runs in a namespace of its own.
//!
//! ```text
//! # a comment
//! $ cat > cm.yaml <<EOF          a command as typed into a shell, with its here-document
//! ...
//! EOF
//! $ kubectl get configmaps -w &  in the background
//! % until 2 lines                it has printed so many lines
//! $ kubectl create cm a
//! % stop after 3 lines           then it is ended, and its output belongs to the transcript
//! % until kubectl get widgets    again and again until it succeeds; leaves no trace
//! ```

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::{
    harness::{Finished, Running, Shell},
    normalise::normalise,
};

/// For what takes milliseconds on an idle machine; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Section {
    pub name: String,
    steps: Vec<Step>,
}

enum Step {
    Run(String),
    Background(String),
    UntilLines(usize),
    StopAfter(usize),
    UntilSucceeds(String),
}

/// One command and the lines it showed, normalised.
pub struct Record {
    pub command: String,
    pub lines: Vec<String>,
}

impl Record {
    /// The command without its here-document.
    pub fn title(&self) -> &str {
        self.command.lines().next().unwrap_or_default()
    }
}

/// All sections, in the order of their names.
pub fn load(dir: &Path) -> Vec<Section> {
    let mut files: Vec<_> =
        fs::read_dir(dir).expect("read tests/transcript").map(|entry| entry.expect("entry").path()).collect();
    files
        .retain(|path| path.extension().is_some_and(|extension| extension == "txt") && !path.ends_with("accepted.txt"));
    files.sort();
    files.iter().map(|path| parse(path)).collect()
}

fn parse(path: &Path) -> Section {
    let name = path.file_stem().expect("a file name").to_string_lossy().into_owned();
    let text = fs::read_to_string(path).expect("read a script");
    let mut steps = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let step = if let Some(command) = line.strip_prefix("$ ") {
            let mut command = command.to_owned();
            if command.contains("<<EOF") || command.contains("<<'EOF'") {
                for line in lines.by_ref() {
                    command += "\n";
                    command += line;
                    if line == "EOF" {
                        break;
                    }
                }
            }
            match command.strip_suffix(" &") {
                Some(command) => Step::Background(command.to_owned()),
                None => Step::Run(command),
            }
        } else {
            directive(line).unwrap_or_else(|| panic!("{name}: what is {line:?}?"))
        };
        steps.push(step);
    }
    Section { name, steps }
}

fn directive(line: &str) -> Option<Step> {
    let count = |text: &str| text.strip_suffix(" lines")?.parse().ok();
    let line = line.strip_prefix("% ")?;
    if let Some(rest) = line.strip_prefix("stop after ") {
        return count(rest).map(Step::StopAfter);
    }
    let rest = line.strip_prefix("until ")?;
    Some(count(rest).map_or_else(|| Step::UntilSucceeds(rest.to_owned()), Step::UntilLines))
}

impl Section {
    pub fn run(&self, shell: &Shell) -> Vec<Record> {
        let mut records = Vec::new();
        let mut background: Option<(String, Running)> = None;
        self.begin(shell, &mut records);
        for step in &self.steps {
            let began = Instant::now();
            match step {
                Step::Run(command) => records.push(self.record(command, shell.run(&self.name, command))),
                Step::Background(command) => {
                    background = Some((command.clone(), Running::start(shell.command(&self.name, command))));
                }
                Step::UntilLines(count) => {
                    let (_, running) = background.as_mut().expect("nothing runs in the background");
                    wait(|| running.stdout_lines() >= *count || !running.is_running());
                }
                Step::StopAfter(count) => {
                    let (command, mut running) = background.take().expect("nothing runs in the background");
                    wait(|| running.stdout_lines() >= *count || !running.is_running());
                    let ended = !running.is_running();
                    let mut finished = running.stop();
                    if !ended {
                        finished.code = Some(0);
                    }
                    records.push(self.record(&command, finished));
                }
                Step::UntilSucceeds(command) => self.until(command, shell, &mut records),
            }
            if began.elapsed() > Duration::from_secs(2) {
                let last = records.last().map_or("", Record::title);
                println!("{}: {:.1?} until after {last}", self.name, began.elapsed());
            }
        }
        records
    }

    /// A fresh namespace with what the controllers put into every namespace.
    fn begin(&self, shell: &Shell, records: &mut Vec<Record>) {
        let namespace = format!("t-{}", self.name);
        let created = shell.run(&self.name, &format!("kubectl create namespace {namespace}"));
        records.push(self.record("kubectl create namespace", created));
        shell.run(&self.name, &format!("kubectl config set-context --current --namespace={namespace}"));
        self.until("kubectl get serviceaccount/default configmap/kube-root-ca.crt", shell, records);
    }

    /// Success is not recorded, because how many attempts it took is chance.
    fn until(&self, command: &str, shell: &Shell, records: &mut Vec<Record>) {
        let mut last = None;
        wait(|| last.insert(shell.run(&self.name, command)).code == Some(0));
        // Recorded on both sides, so that the two transcripts stay in step.
        let lines = match last {
            Some(finished) if finished.code != Some(0) => self.record(command, finished).lines,
            _ => Vec::new(),
        };
        records.push(Record { command: format!("until {command}"), lines });
    }

    fn record(&self, command: &str, finished: Finished) -> Record {
        let mut lines = normalise(&finished.stdout);
        lines.extend(normalise(&finished.stderr).into_iter().map(|line| format!("! {line}").trim_end().to_owned()));
        match finished.code {
            Some(0) => {}
            Some(code) => lines.push(format!("[exit {code}]")),
            None => lines.push("[killed: no end in sight]".to_owned()),
        }
        Record { command: command.to_owned(), lines }
    }
}

fn wait(mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
}
