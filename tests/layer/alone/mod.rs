//! Tests that need a process of their own: each runs in a copy of this program, in which no other test does.

mod budget;
#[cfg(unix)]
mod fork;

use std::process::Command;

/// Set in the copy that runs a test.
const CHILD: &str = "VOCABFUSE_TEST_ALONE";

/// Runs `work` as the test of this thread in a process of its own.
fn alone(work: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return work();
    }
    let test = std::thread::current().name().expect("a thread of the test harness").to_owned();
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program).args(["--exact", &test, "--nocapture"]).env(CHILD, "1").output();
    let output = output.expect("a copy of this program");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    eprint!("{errors}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

#[cfg(not(unix))]
#[test]
fn fork() {
    vocabfuse_testing::skipped(vocabfuse_testing::Need::Fork, "this system has no fork");
}
