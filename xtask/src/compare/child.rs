//! A child process that answers one line of JSON with another.

use super::Options;
use anyhow::{Context, Result, anyhow, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than any compilation or run of a sensible size; a child that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(1800);

/// A running child.
pub struct Child {
    process: Process,
    requests: ChildStdin,
    replies: Receiver<String>,
    /// What it writes to stderr, for the message when it dies.
    log: PathBuf,
}

impl Child {
    /// Starts a command; its stderr goes to `log`.
    pub fn start(mut command: Command, log: &Path) -> Result<Child> {
        // The name only: the message may end up in a report, where folders of this machine have no place.
        let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let requests = process.stdin.take().context("stdin of a child")?;
        let stdout = process.stdout.take().context("stdout of a child")?;
        let (sender, replies) = channel();
        // A thread of its own, because a read from a pipe cannot time out. It ends with the pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Child { process, requests, replies, log: log.to_owned() })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// If the child reports an error, dies, hangs, or answers with something else than a `T`.
    pub fn ask<T: DeserializeOwned>(&mut self, request: &Value) -> Result<T> {
        // A child that is gone shows below, with its last words.
        let _ = writeln!(self.requests, "{request}").and_then(|()| self.requests.flush());
        let line = match self.replies.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("no answer for {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("{}", self.last_words()),
        };
        let reply: Value = serde_json::from_str(&line).with_context(|| format!("an answer that is no JSON: {line}"))?;
        if let Some(error) = reply.get("error").and_then(Value::as_str) {
            return Err(anyhow!("{error}"));
        }
        serde_json::from_value(reply).context("an answer of another form")
    }

    fn last_words(&mut self) -> String {
        let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        format!("the process ended with {status}: {last}")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Nothing it could still do is wanted, and it may hang.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command with the same number of threads, by whatever name a library knows it.
pub fn pinned(program: impl AsRef<Path>, options: &Options, scratch: &Path) -> Command {
    let threads = options.threads.to_string();
    let mut command = Command::new(program.as_ref());
    for (name, _) in std::env::vars_os() {
        // Settings of another BLAS would hold for some competitors only.
        if name.to_string_lossy().starts_with("OPENBLAS_") {
            command.env_remove(name);
        }
    }
    command
        .env("OMP_NUM_THREADS", &threads)
        .env("OMP_DYNAMIC", "false")
        .env("MKL_NUM_THREADS", &threads)
        .env("MKL_DYNAMIC", "FALSE")
        .env("RAYON_NUM_THREADS", &threads)
        // Compilation in processes of its own would leave them running beside the measurements.
        .env("TORCHINDUCTOR_COMPILE_THREADS", "1")
        .env("TORCHINDUCTOR_CACHE_DIR", scratch.join("inductor"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shell(script: &str) -> (tempfile::TempDir, Child) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let child = Child::start(command, &folder.path().join("log")).unwrap();
        (folder, child)
    }

    #[test]
    fn answers_and_errors() {
        let script = r#"read a; echo "{\"got\":$a}"; read b; echo '{"error":"no"}'; read c; echo dying >&2; exit 3"#;
        let (_folder, mut child) = shell(script);
        let reply: Value = child.ask(&json!({ "op": 1 })).unwrap();
        assert_eq!(reply["got"]["op"], 1);
        assert_eq!(child.ask::<Value>(&json!({})).unwrap_err().to_string(), "no");
        let error = child.ask::<Value>(&json!({})).unwrap_err().to_string();
        assert!(error.contains("exit status: 3: dying"), "{error}");
        assert!(child.ask::<Value>(&json!({})).is_err(), "a dead child stays dead");
    }
}
