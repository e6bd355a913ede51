//! `cargo xtask time`: where the time of a cold build goes.
//!
//! This program takes the place of the compiler's wrapper, so that each call of the compiler is measured by itself: how long it
//! took, and how much of a processor, which is the same whatever else the machine does. Build scripts are compiled, and their
//! runs are not measured.

use crate::check::root;
use crate::test;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A file to which calls of the compiler are appended: set where this program is the wrapper.
const LOG: &str = "VOCABFUSE_TIME_LOG";

/// Packages that are shown.
const ROWS: usize = 20;

/// What is built, and where.
#[derive(Args)]
pub struct Options {
    /// Build the tests in a fresh folder too: without it they find there what the first command of the README has built
    #[arg(long)]
    apart: bool,
    /// A folder for what is built, which must not exist; it is removed again
    #[arg(long, value_name = "DIR", default_value = "target/time")]
    folder: PathBuf,
}

/// One call of the compiler.
#[derive(Serialize, Deserialize)]
struct Unit {
    package: String,
    /// What of the package: its library or program, its tests, its build script.
    part: String,
    seconds: f64,
    /// Seconds of a processor; zero where the system does not say.
    cpu: f64,
}

/// Builds the release binary and then the tests, and prints what that took.
pub fn time(options: &Options) -> Result<()> {
    let folder = root().join(&options.folder);
    ensure!(!folder.exists(), "--folder: {} exists; remove it, or name another one", folder.display());
    build("the command line, as `cargo run --release` does", &["build", "--release"], &folder)?;
    if options.apart {
        std::fs::remove_dir_all(&folder)?;
    }
    build("the tests, as `cargo xtask test` does", &test::building(), &folder)?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

fn build(what: &str, arguments: &[&str], folder: &Path) -> Result<()> {
    let log = tempfile::NamedTempFile::new()?;
    let began = Instant::now();
    let status = Command::new("cargo")
        .args(arguments)
        .current_dir(root())
        .env("CARGO_TARGET_DIR", folder)
        .env("CARGO_INCREMENTAL", "0")
        .env("RUSTC_WRAPPER", std::env::current_exe()?)
        .env(LOG, log.path())
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo {} failed with {status}", arguments.join(" "));
    let wall = began.elapsed().as_secs_f64();
    let text = std::fs::read_to_string(log.path())?;
    let units: Vec<Unit> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    println!("\n{what}: {wall:.0} s, {} units, {:.1} GB in the folder", units.len(), size(folder)? as f64 / 1e9);
    println!("{:>8} {:>8}  of", "unit s", "CPU s");
    let sum = |units: &mut dyn Iterator<Item = &Unit>| {
        units.fold((0.0, 0.0), |(seconds, cpu), unit| (seconds + unit.seconds, cpu + unit.cpu))
    };
    let (seconds, cpu) = sum(&mut units.iter());
    println!("{seconds:8.1} {cpu:8.1}  all");
    let mut rows: BTreeMap<String, Vec<&Unit>> = BTreeMap::new();
    units.iter().for_each(|unit| rows.entry(format!("{}{}", unit.package, unit.part)).or_default().push(unit));
    let mut rows: Vec<_> = rows.into_iter().map(|(name, units)| (sum(&mut units.into_iter()), name)).collect();
    rows.sort_by(|a, b| b.0.0.total_cmp(&a.0.0));
    for ((seconds, cpu), name) in rows.into_iter().take(ROWS) {
        println!("{seconds:8.1} {cpu:8.1}  {name}");
    }
    Ok(())
}

/// Bytes of all files below a folder, each once.
fn size(folder: &Path) -> Result<u64> {
    let (mut folders, mut seen, mut bytes) = (vec![folder.to_owned()], BTreeSet::new(), 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let data = entry.metadata()?;
            if data.is_dir() {
                folders.push(entry.path());
            } else if seen.insert(identity(&entry.path(), &data)) {
                bytes += data.len();
            }
        }
    }
    Ok(bytes)
}

/// What files with two names share.
#[cfg(unix)]
fn identity(_: &Path, data: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (data.dev(), data.ino())
}

#[cfg(not(unix))]
fn identity(path: &Path, _: &std::fs::Metadata) -> PathBuf {
    path.to_owned()
}

/// Runs a compiler if this program is called as its wrapper.
pub fn wrapper() -> Option<ExitCode> {
    let log = std::env::var_os(LOG)?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let code = wrapped(&arguments, Path::new(&log)).unwrap_or_else(|error| {
        eprintln!("{error:#}");
        1
    });
    Some(ExitCode::from(code))
}

fn wrapped(arguments: &[OsString], log: &Path) -> Result<u8> {
    let (compiler, arguments) = arguments.split_first().context("called as a wrapper without a compiler")?;
    let began = Instant::now();
    let status = Command::new(compiler).args(arguments).status().context("cannot run the compiler")?;
    let seconds = began.elapsed().as_secs_f64();
    let texts: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let part = part(&texts.iter().map(|text| &**text).collect::<Vec<_>>());
    if let (Ok(package), Some(part)) = (std::env::var("CARGO_PKG_NAME"), part) {
        let unit = Unit { package, part: part.to_owned(), seconds, cpu: processor_seconds() };
        let line = serde_json::to_string(&unit)? + "\n";
        std::fs::OpenOptions::new().append(true).open(log)?.write_all(line.as_bytes())?;
    }
    Ok(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1))
}

/// What of a package a call of the compiler makes; nothing if cargo asks what compiler it is.
fn part(arguments: &[&str]) -> Option<&'static str> {
    let after = |name: &str| arguments.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
    match after("--crate-name") {
        None | Some("___") => None,
        Some(name) if name.starts_with("build_script_") => Some(": build script"),
        Some(_) if arguments.contains(&"--test") => Some(": tests"),
        Some(_) if after("--crate-type") == Some("bin") => Some(": program"),
        Some(_) => Some(""),
    }
}

/// What children that have ended took of processors.
#[cfg(unix)]
fn processor_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a place for the answer, for which zero is a value too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(not(unix))]
fn processor_seconds() -> f64 {
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart_by_arguments() {
        let part = |arguments: &str| super::part(&arguments.split(' ').collect::<Vec<_>>());
        assert_eq!(part("--crate-name a --crate-type lib --emit=link"), Some(""));
        assert_eq!(part("--crate-name a --crate-type bin"), Some(": program"));
        assert_eq!(part("--crate-name a --emit=link --test"), Some(": tests"));
        assert_eq!(part("--crate-name build_script_build --crate-type bin"), Some(": build script"));
        assert_eq!((part("-vV"), part("- --crate-name ___ --print=cfg")), (None, None));
    }

    #[test]
    fn files_count_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deeper")).unwrap();
        std::fs::write(folder.path().join("deeper/a"), [0; 100]).unwrap();
        std::fs::write(folder.path().join("b"), [0; 10]).unwrap();
        assert_eq!(size(folder.path()).unwrap(), 110);
        if cfg!(unix) {
            std::fs::hard_link(folder.path().join("b"), folder.path().join("c")).unwrap();
            assert_eq!(size(folder.path()).unwrap(), 110);
        }
    }
}
