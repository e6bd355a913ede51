//! Which instruction sets this machine has.

use crate::{Error, Result};
use vocabfuse_codegen::Target;

/// Environment variable that forces a target.
pub(crate) const VARIABLE: &str = "VOCABFUSE_ISA";
/// Environment variable that hides what the machine has beyond a target: it is then taken for one without.
const LIMIT: &str = "VOCABFUSE_ISA_LIMIT";

/// Targets that can run here, the fastest last.
pub(crate) fn available() -> Vec<Target> {
    let mut targets: Vec<Target> = Target::CPU.iter().copied().filter(|t| missing(*t).is_none()).collect();
    targets.sort_by_key(|t| rank(*t, fast_pairs()));
    targets
}

// Position in the order of speed. Where dot products of pairs are not faster than f32, they are slower than f32.
fn rank(target: Target, fast_pairs: bool) -> usize {
    let position = |t: Target| Target::CPU.iter().position(|c| *c == t).unwrap_or(0) * 2;
    if target == Target::Avx512Bf16 && !fast_pairs { position(Target::Avx512) - 1 } else { position(target) }
}

/// Whether a dot product of bf16 pairs takes no longer than a multiplication of f32, which no flag of the processor
/// tells: so it is on all processors of AMD that have these instructions, while those of Intel take four times as long.
#[cfg(target_arch = "x86_64")]
fn fast_pairs() -> bool {
    static FAST: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *FAST.get_or_init(|| raw_cpuid::CpuId::new().get_vendor_info().is_some_and(|v| v.as_str() == "AuthenticAMD"))
}

#[cfg(not(target_arch = "x86_64"))]
fn fast_pairs() -> bool {
    false
}

/// The target to use: the one that the environment forces, else the fastest.
pub(crate) fn choose() -> Result<Target> {
    named(LIMIT)?;
    let Some(target) = named(VARIABLE)? else {
        return Ok(available().last().copied().unwrap_or(Target::Scalar));
    };
    check(target)?;
    Ok(target)
}

/// The target that an environment variable names, if it is set.
fn named(variable: &'static str) -> Result<Option<Target>> {
    let Some(text) = std::env::var(variable).ok().filter(|text| !text.is_empty()) else { return Ok(None) };
    let target = Target::CPU.iter().copied().find(|t| t.as_str() == text).ok_or_else(|| {
        let names: Vec<&str> = Target::CPU.iter().map(|t| t.as_str()).collect();
        let message = format!("{text:?} is no CPU target; expected one of {}", names.join(", "));
        Error::Option { option: variable, message }
    })?;
    Ok(Some(target))
}

/// Whether a target is beyond the one that the environment limits the machine to. Of a name that is none, nothing is.
fn hidden(target: Target) -> bool {
    let position = |t: Target| Target::CPU.iter().position(|c| *c == t);
    named(LIMIT).ok().flatten().is_some_and(|limit| position(target) > position(limit))
}

fn missing(target: Target) -> Option<&'static str> {
    if hidden(target) { Some("VOCABFUSE_ISA_LIMIT hides it") } else { lacking(target) }
}

/// An error unless the target can run here.
pub(crate) fn check(target: Target) -> Result<()> {
    match missing(target) {
        None => Ok(()),
        Some(missing) => {
            let available: Vec<&str> = available().into_iter().map(Target::as_str).collect();
            Err(Error::Unavailable { target, missing, available: available.join(", ") })
        }
    }
}

/// What the machine lacks for a target.
#[cfg(not(target_arch = "x86_64"))]
fn lacking(target: Target) -> Option<&'static str> {
    (target != Target::Scalar).then_some("it needs an x86-64 processor")
}

#[cfg(target_arch = "x86_64")]
fn lacking(target: Target) -> Option<&'static str> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match target {
        Target::Scalar => None,
        Target::Avx2 => (!avx2).then_some("the processor lacks AVX2, FMA or F16C"),
        Target::Avx512 => (!avx512).then_some("the processor lacks AVX-512 F, BW, DQ or VL"),
        Target::Avx512Bf16 if !avx512 || !is_x86_feature_detected!("avx512bf16") => {
            Some("the processor lacks AVX-512 with BF16")
        }
        Target::Avx512Bf16 => None,
        Target::Amx if !avx512 || !is_x86_feature_detected!("avx512bf16") => {
            Some("the processor lacks AVX-512 with BF16")
        }
        Target::Sm80 => Some("it is no CPU target"),
        Target::Amx => super::amx::missing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fastest(fast_pairs: bool, targets: &[Target]) -> Option<Target> {
        targets.iter().copied().max_by_key(|t| rank(*t, fast_pairs))
    }

    #[test]
    fn pairs_are_chosen_only_where_they_are_fast() {
        let without_tiles = [Target::Scalar, Target::Avx2, Target::Avx512, Target::Avx512Bf16];
        assert_eq!(fastest(true, &without_tiles), Some(Target::Avx512Bf16));
        assert_eq!(fastest(false, &without_tiles), Some(Target::Avx512));
        assert_eq!(fastest(true, Target::CPU), Some(Target::Amx));
        assert_eq!(fastest(false, Target::CPU), Some(Target::Amx));
    }
}
