//! A compiled kernel as bytes that say what they are: in a cache, in a folder, or inside a program.
//!
//! A line that names the format, a line with a [`Label`] as JSON, a line with a checksum, then the code. What is damaged,
//! or belongs to another kernel or another interface, is told apart before anything of it is launched.

use super::occupancy::Architecture;
use super::{Form, options};
use crate::manifest::{Entry, hash};
use serde::{Deserialize, Serialize};

const MAGIC: &str = "vocabfuse kernel 2";

/// What the code of a kernel was made from and what its caller relies on, and, for information, what made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Name of the kernel.
    pub kernel: String,
    /// Hash of its interface: that of [`Entry::abi`].
    pub abi: String,
    /// Hash of its text.
    pub text: String,
    /// All options of the compiler, the architecture among them.
    pub options: Vec<String>,
    /// The compiler with its exact version. It does not matter to who launches the code; empty in what is looked for.
    pub compiler: String,
}

impl Label {
    /// The label of a kernel that nothing has compiled yet.
    pub fn of(entry: &Entry, text: &str, form: Form, on: Architecture) -> Label {
        Label {
            kernel: entry.name.clone(),
            abi: entry.abi.clone(),
            text: hash(text.as_bytes()),
            options: options(form, on),
            compiler: String::new(),
        }
    }

    /// Whether both are of one kernel, text, interface and set of options, whatever compiled them.
    pub fn is_of(&self, wanted: &Label) -> bool {
        let Label { kernel, abi, text, options, compiler: _ } = self;
        (kernel, abi, text, options) == (&wanted.kernel, &wanted.abi, &wanted.text, &wanted.options)
    }

    /// Name of a file for the code: it differs where [`Label::is_of`] says no.
    pub fn file_name(&self) -> String {
        let decides = serde_json::to_string(&(&self.abi, &self.text, &self.options)).unwrap_or_default();
        format!("{}-{}.bin", self.kernel, hash(decides.as_bytes()))
    }
}

/// Code with its label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// What the code is.
    pub label: Label,
    /// PTX text or a cubin.
    pub code: Vec<u8>,
}

/// Why an artifact is not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// It is not what was written.
    #[error("a compiled kernel is damaged")]
    Damaged,
    /// It takes other arguments than the caller gives.
    #[error("kernel {kernel} was compiled for interface {found}; expected {expected}: compile it anew")]
    Interface {
        /// Name of the kernel.
        kernel: String,
        /// Hash of the caller's interface.
        expected: String,
        /// Hash of its own.
        found: String,
    },
}

struct Parts<'a> {
    label: &'a [u8],
    sum: &'a [u8],
    code: &'a [u8],
}

fn parts(bytes: &[u8]) -> Result<Parts<'_>, ArtifactError> {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let mut next = || parts.next().ok_or(ArtifactError::Damaged);
    let (magic, label, sum, code) = (next()?, next()?, next()?, next()?);
    if magic == MAGIC.as_bytes() { Ok(Parts { label, sum, code }) } else { Err(ArtifactError::Damaged) }
}

fn read_label(label: &[u8]) -> Result<Label, ArtifactError> {
    serde_json::from_slice(label).map_err(|_| ArtifactError::Damaged)
}

fn checksum(label: &[u8], code: &[u8]) -> String {
    hash(&[label, b"\n", code].concat())
}

impl Artifact {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let label = serde_json::to_string(&self.label).unwrap_or_default();
        let head = format!("{MAGIC}\n{label}\n{}\n", checksum(label.as_bytes(), &self.code));
        [head.as_bytes(), &self.code].concat()
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`ArtifactError::Damaged`] unless they are what [`Artifact::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Artifact, ArtifactError> {
        let Parts { label, sum, code } = parts(bytes)?;
        if sum != checksum(label, code).as_bytes() {
            return Err(ArtifactError::Damaged);
        }
        Ok(Artifact { label: read_label(label)?, code: code.to_vec() })
    }

    /// What bytes say that they are. Whether they are undamaged is for [`Artifact::decode`] to find out.
    ///
    /// # Errors
    /// [`ArtifactError::Damaged`] if it cannot be read.
    pub fn label(bytes: &[u8]) -> Result<Label, ArtifactError> {
        read_label(parts(bytes)?.label)
    }

    /// Whether a caller that knows `entry` may launch the code.
    ///
    /// # Errors
    /// [`ArtifactError::Interface`] if the kernel takes other arguments.
    pub fn check(&self, entry: &Entry) -> Result<(), ArtifactError> {
        if self.label.abi == entry.abi && self.label.kernel == entry.name {
            return Ok(());
        }
        let Label { kernel, abi, .. } = self.label.clone();
        Err(ArtifactError::Interface { kernel, expected: entry.abi.clone(), found: abi })
    }
}
