//! Where `run` runs.

use anyhow::anyhow;
use vocabfuse::{Cpu, Error, Gpu, Precision, Ptx};

/// A device by its spelling on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Cpu,
    /// The CUDA device of an ordinal.
    Cuda(usize),
    /// The interpreter, for an architecture.
    Ptx(String),
}

const SPELLINGS: &str = "expected cpu, cuda:N with the number of a GPU, or ptx:sm_80 for the PTX interpreter";

/// `cpu`, `cuda:0` or `ptx:sm_80`.
pub fn parse(text: &str) -> Result<Choice, String> {
    let choice = match text.split_once(':') {
        None if text == "cpu" => Some(Choice::Cpu),
        Some(("cuda", ordinal)) => ordinal.parse().ok().map(Choice::Cuda),
        Some(("ptx", architecture)) => Some(Choice::Ptx(architecture.to_owned())),
        _ => None,
    };
    choice.ok_or_else(|| SPELLINGS.to_owned())
}

/// A precision; `None` is exact.
pub fn precision(text: &str) -> Result<Option<Precision>, String> {
    match Precision::ALL.iter().find(|p| p.as_str() == text) {
        _ if text == "exact" => Ok(None),
        Some(precision) => Ok(Some(*precision)),
        None => {
            let names: Vec<&str> = Precision::ALL.iter().map(|p| p.as_str()).collect();
            Err(format!("expected exact or {}", names.join(", ")))
        }
    }
}

/// A device that is ready.
pub enum Opened {
    Cpu(Cpu),
    Cuda(Gpu),
    /// With the interpreter, which tells what it found.
    Ptx(Gpu, Ptx),
}

impl Choice {
    /// Starts the device.
    pub fn open(&self, threads: Option<usize>, precision: Option<Precision>) -> anyhow::Result<Opened> {
        Ok(match self {
            Choice::Cpu => Opened::Cpu(Cpu::new(threads)?.with_precision(precision)),
            Choice::Cuda(ordinal) => {
                // One that is not there is no fault of a device, which has an exit code of its own.
                let gpu = Gpu::cuda(*ordinal).map_err(|error| anyhow!("{error}"))?;
                Opened::Cuda(gpu.with_precision(precision))
            }
            Choice::Ptx(architecture) => {
                let ptx = Ptx::new(architecture).map_err(|error| match error {
                    Error::Option { message, .. } => anyhow!("option --device: {message}"),
                    other => other.into(),
                })?;
                Opened::Ptx(Gpu::ptx(&ptx)?.with_precision(precision), ptx)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_precisions_have_one_spelling() {
        assert_eq!(parse("cpu"), Ok(Choice::Cpu));
        assert_eq!(parse("cuda:3"), Ok(Choice::Cuda(3)));
        assert_eq!(parse("ptx:sm_80"), Ok(Choice::Ptx("sm_80".to_owned())));
        for text in ["", "cuda", "cuda:", "cuda:-1", "gpu:0", "cpu:0"] {
            assert_eq!(parse(text), Err(SPELLINGS.to_owned()), "{text}");
        }
        assert_eq!(precision("exact"), Ok(None));
        assert_eq!(precision("tf32x3"), Ok(Some(Precision::Tf32x3)));
        assert_eq!(precision("bf16x3"), Ok(Some(Precision::Bf16x3)));
        assert_eq!(precision("f64"), Err("expected exact or tf32, tf32x3, bf16x3".to_owned()));
    }
}
