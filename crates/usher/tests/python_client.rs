//! Runs `tests/python` with the Python client: list, watch, patch, apply, delete
//! and errors as a program sees them that nobody here wrote.

mod harness;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

#[test]
fn the_python_client_works_unchanged() {
    let python = need!(environment());
    let server = need!(harness::server());
    let mut command = Command::new(python);
    command.arg(harness::repository().join("tests/python/test_client.py")).arg("--verbose");
    command.env("KUBECONFIG", server.kubeconfig()).env("PYTHONDONTWRITEBYTECODE", "1");
    let finished = harness::run(command, Duration::from_secs(300));
    assert_eq!(finished.code, Some(0), "{}{}", finished.stdout, finished.stderr);
}

/// A virtual environment with the client, made once for each set of requirements.
fn environment() -> Result<PathBuf, String> {
    let requirements = harness::repository().join("tests/python/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).expect("read the requirements");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let (python, stamp) = (directory.join("bin/python"), directory.join("installed.txt"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let step = |what: &str, command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{what} failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{what} failed: {error}")),
    };
    step("python3 -m venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(&directory))?;
    step("pip install", Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(&requirements))?;
    std::fs::write(&stamp, wanted).expect("note what is installed");
    Ok(python)
}
