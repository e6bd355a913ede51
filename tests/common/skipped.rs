//! Where tests say what they leave out on a machine that cannot run it.

use std::io::Write;

/// A file to which tests append what they leave out, a line each, for the table that `cargo xtask test` ends with.
const FILE: &str = "VOCABFUSE_TEST_SKIPPED";

/// Says that the test of this thread leaves out a target, and why.
pub fn skipped(target: &str, reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("{test}: {target} is left out: {reason}");
    if let Some(path) = std::env::var_os(FILE) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let line = format!("{target}\t{reason}\t{test}\n");
        // In one write, or lines of tests that run at the same time might mix.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests can be written");
    }
}
