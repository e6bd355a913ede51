//! Which instruction sets this machine has.

use crate::{Error, Result};
use vocabfuse_codegen::Target;

/// Environment variable that forces a target.
pub(crate) const VARIABLE: &str = "VOCABFUSE_ISA";
/// Environment variable that hides what the machine has beyond a target: it is then taken for one without.
const LIMIT: &str = "VOCABFUSE_ISA_LIMIT";

/// Targets that can run here, the fastest last.
pub(crate) fn available() -> Vec<Target> {
    let mut targets: Vec<Target> = Target::cpus().filter(|t| missing(*t).is_none()).collect();
    targets.sort_by_key(|t| rank(*t, fast_pairs()));
    targets
}

// Position in the order of speed. Where dot products of pairs are not faster than f32, they are slower than f32.
fn rank(target: Target, fast_pairs: bool) -> u32 {
    let slow = !fast_pairs && target.cpu().is_some_and(|cpu| cpu.pairs);
    // Just below the vectors of the same processor.
    if slow { target.row().values.row().priority.saturating_sub(1) } else { target.row().priority }
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
    let target = Target::cpus().find(|t| t.as_str() == text).ok_or_else(|| {
        let names: Vec<&str> = Target::cpus().map(Target::as_str).collect();
        let message = format!("{text:?} is no CPU target; expected one of {}", names.join(", "));
        Error::Option { option: variable, message }
    })?;
    Ok(Some(target))
}

/// Whether a target is beyond the one that the environment limits the machine to. Of a name that is none, nothing is.
fn hidden(target: Target) -> bool {
    named(LIMIT).ok().flatten().is_some_and(|limit| target.row().priority > limit.row().priority)
}

fn missing(target: Target) -> Option<String> {
    if hidden(target) { Some("VOCABFUSE_ISA_LIMIT hides it".to_owned()) } else { lacking(target) }
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
fn lacking(target: Target) -> Option<String> {
    let Some(cpu) = target.cpu() else { return Some("it is no CPU target".to_owned()) };
    let lacked: Vec<&str> = cpu.features.iter().copied().filter(|feature| !has(feature)).collect();
    match (lacked.is_empty(), target) {
        (false, _) => Some(format!("the processor lacks {}", lacked.join(", "))),
        #[cfg(target_arch = "x86_64")]
        (true, Target::Amx) => super::amx::missing().map(str::to_owned),
        _ => None,
    }
}

/// Whether the processor has a feature, in the spelling of `target_feature`.
#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512bf16" => is_x86_feature_detected!("avx512bf16"),
        _ => false,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(_: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fastest(fast_pairs: bool, targets: &[Target]) -> Option<Target> {
        targets.iter().copied().max_by_key(|t| rank(*t, fast_pairs))
    }

    #[test]
    fn pairs_are_chosen_only_where_they_are_fast() {
        let all: Vec<Target> = Target::cpus().collect();
        let without_tiles = [Target::Scalar, Target::Avx2, Target::Avx512, Target::Avx512Bf16];
        assert_eq!(fastest(true, &without_tiles), Some(Target::Avx512Bf16));
        assert_eq!(fastest(false, &without_tiles), Some(Target::Avx512));
        assert_eq!(fastest(true, &all), Some(Target::Amx));
        assert_eq!(fastest(false, &all), Some(Target::Amx));
    }
}
