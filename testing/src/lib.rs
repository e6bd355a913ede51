//! What tests need of a machine, and how they say that it is missing.
//!
//! A test that cannot run somewhere, or that has to leave something out there, calls [`skipped`] and returns. Nothing passes in
//! silence: the line `skipped: reason` appears in its output, `cargo xtask test` counts such lines, and where
//! `VOCABFUSE_REQUIRE` names what is missing the test fails.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;

/// Names what must be there, separated by commas: a test that has to do without it fails.
pub const REQUIRE: &str = "VOCABFUSE_REQUIRE";

/// A file to which tests append what they leave out, a line each: need, reason and test, separated by tabs.
pub const LIST: &str = "VOCABFUSE_TEST_SKIPPED";

/// What a test may need that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 BF16.
    Avx512Bf16,
    /// AMX tiles, executed by the processor or by the emulator.
    Amx,
    /// The emulator in the place of the processor: where AMX is executed by the processor, it has nothing to do.
    AmxEmulator,
    /// A second CPU target beside the scalar one.
    SecondTarget,
    /// NVIDIA's run-time compiler.
    Nvrtc,
    /// NVIDIA's disassembler.
    Nvdisasm,
    /// A system without a compiler of its own, beside the one that tests install.
    BareSystem,
    /// The system call `fork`.
    Fork,
    /// The files of the workspace beside those of the package.
    Workspace,
}

impl Need {
    /// All of them.
    pub const ALL: [Need; 11] = [
        Need::Avx2,
        Need::Avx512,
        Need::Avx512Bf16,
        Need::Amx,
        Need::AmxEmulator,
        Need::SecondTarget,
        Need::Nvrtc,
        Need::Nvdisasm,
        Need::BareSystem,
        Need::Fork,
        Need::Workspace,
    ];

    /// Its name in `VOCABFUSE_REQUIRE`; that of the target for one of the CPU.
    pub fn as_str(self) -> &'static str {
        match self {
            Need::Avx2 => "avx2",
            Need::Avx512 => "avx512",
            Need::Avx512Bf16 => "avx512bf16",
            Need::Amx => "amx",
            Need::AmxEmulator => "amx-emulator",
            Need::SecondTarget => "second-target",
            Need::Nvrtc => "nvrtc",
            Need::Nvdisasm => "nvdisasm",
            Need::BareSystem => "bare-system",
            Need::Fork => "fork",
            Need::Workspace => "workspace",
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name in `VOCABFUSE_REQUIRE` that nothing has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownNeed(String);

impl fmt::Display for UnknownNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Need::ALL.map(Need::as_str).join(", ");
        write!(f, "{REQUIRE} has {:?}; expected some of: {known}", self.0)
    }
}

impl std::error::Error for UnknownNeed {}

impl FromStr for Need {
    type Err = UnknownNeed;

    fn from_str(name: &str) -> Result<Need, UnknownNeed> {
        Need::ALL.into_iter().find(|need| need.as_str() == name).ok_or_else(|| UnknownNeed(name.to_owned()))
    }
}

/// The needs of a list like that of `VOCABFUSE_REQUIRE`; none in an empty one.
///
/// # Errors
/// If a name is unknown.
pub fn parse(list: &str) -> Result<Vec<Need>, UnknownNeed> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::parse).collect()
}

/// Says that the test of this thread leaves something out, and why.
///
/// # Panics
/// If `VOCABFUSE_REQUIRE` names the need, or something unknown: the test then fails. If the list of skipped tests cannot be
/// written.
pub fn skipped(need: Need, reason: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let required = parse(&std::env::var(REQUIRE).unwrap_or_default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(!required.contains(&need), "{REQUIRE} asks for {need}, which is missing: {reason}");
    eprintln!("{test}: skipped: {reason} ({need})");
    if let Some(path) = std::env::var_os(LIST).filter(|path| !path.is_empty()).map(PathBuf::from) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let line = format!("{need}\t{reason}\t{test}\n");
        // In one write, or lines of tests that run at the same time might mix.
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skipped tests can be written");
    }
}

/// Whether something that a test needs is there; says that the test is skipped if not.
///
/// # Panics
/// As [`skipped`] does.
pub fn has(there: bool, need: Need, reason: &str) -> bool {
    if !there {
        skipped(need, reason);
    }
    there
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Set in a copy of this program that leaves something out.
    const CHILD: &str = "VOCABFUSE_TESTING_CHILD";

    #[test]
    fn the_environment_names_what_exists() {
        let required = std::env::var(REQUIRE).unwrap_or_default();
        assert!(parse(&required).is_ok(), "{}", parse(&required).unwrap_err());
    }

    #[test]
    fn names_are_read_back_and_unknown_ones_refused() {
        for need in Need::ALL {
            assert_eq!(need.as_str().parse(), Ok(need));
        }
        assert_eq!(parse(" amx,,nvrtc "), Ok(vec![Need::Amx, Need::Nvrtc]));
        assert_eq!(parse(""), Ok(vec![]));
        let error = parse("amx,avx-512").unwrap_err().to_string();
        assert!(error.contains("\"avx-512\"") && error.contains("avx512, avx512bf16, amx"), "{error}");
    }

    #[test]
    fn what_is_missing_is_said_counted_and_a_failure_if_required() {
        if std::env::var_os(CHILD).is_some() {
            assert!(!has(false, Need::Fork, "one reason") && has(true, Need::Avx2, "no reason"));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("skipped");
        let child = |required: &str| -> (Output, String) {
            let test = std::thread::current().name().unwrap().to_owned();
            let mut copy = Command::new(std::env::current_exe().unwrap());
            copy.args(["--exact", &test, "--nocapture"]).env(CHILD, "1").env(LIST, &list).env(REQUIRE, required);
            let output = copy.output().unwrap();
            let text = [&*output.stdout, &*output.stderr].concat();
            (output, String::from_utf8_lossy(&text).into_owned())
        };
        for required in ["", "avx2,nvrtc"] {
            let (output, text) = child(required);
            assert!(output.status.success() && text.contains("skipped: one reason (fork)"), "{text}");
        }
        let said = "fork\tone reason\ttests::what_is_missing_is_said_counted_and_a_failure_if_required\n";
        assert_eq!(std::fs::read_to_string(&list).unwrap(), said.repeat(2));
        for (required, why) in [
            ("avx2,fork", "VOCABFUSE_REQUIRE asks for fork, which is missing: one reason"),
            ("spoon", "VOCABFUSE_REQUIRE has \"spoon\""),
        ] {
            let (output, text) = child(required);
            assert!(!output.status.success() && text.contains(why), "{text}");
        }
        assert_eq!(std::fs::read_to_string(&list).unwrap(), said.repeat(2), "a failure is not counted as skipped");
    }
}
