//! Runs `tests/go` with client-go and controller-runtime: typed and dynamic clients, informers, leader election, apply
//! configurations, events, access, a manager with reconcilers, and webhooks, as programs see them that nobody here wrote.

mod harness;

use std::process::Command;
use std::time::Duration;

#[test]
fn client_go_and_controller_runtime_work_unchanged() {
    let tests = need!(compiled());
    let server = need!(harness::server());
    let mut command = Command::new(tests);
    command.args(["-test.v", "-test.timeout=10m"]).env("KUBECONFIG", server.kubeconfig());
    let finished = harness::run(command, Duration::from_secs(660));
    assert_eq!(finished.code, Some(0), "{}{}\n{}", finished.stdout, finished.stderr, server.log());
    let passed = finished.stdout.matches("--- PASS: Test").count();
    assert!(passed >= 15 && !finished.stdout.contains("--- SKIP"), "{}", finished.stdout);
}

/// The Go tests as a program. Go's own cache knows when there is nothing to do.
fn compiled() -> Result<std::path::PathBuf, String> {
    let module = harness::repository().join("tests/go");
    let program = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-clients.test");
    let mut go = Command::new("go");
    go.args(["test", "-c", "-o"]).arg(&program).arg(".").current_dir(module).env("GOWORK", "off");
    match go.output() {
        Ok(output) if output.status.success() => Ok(program),
        // Code of ours that does not compile is a failure, not something missing.
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            assert!(!said.contains("_test.go:"), "tests/go does not compile\n{said}");
            Err(format!("go test -c failed: {said}"))
        }
        Err(error) => Err(format!("Go is not installed: {error}")),
    }
}
