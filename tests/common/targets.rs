//! Which targets the tests of this process run on: the one that `VOCABFUSE_ISA` names, else the fastest of the machine and,
//! besides, AMX on the emulator where there is no AMX.
//!
//! `cargo xtask test` runs the tests once without the variable and then once for each other target of the machine.

use super::nvrtc;
use std::path::Path;
use vocabfuse_runtime::{Cpu, Gpu, Precision, Ptx, Target};
use vocabfuse_testing::{Need, skipped};

/// Set where the tests of a target are to take about a minute.
const SMOKE: &str = "VOCABFUSE_TEST_SMOKE";

fn set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// Cases of a property test: an eighth of `all` in a smoke test.
pub fn cases(all: u32) -> u32 {
    if set(SMOKE) { all.div_ceil(8) } else { all }
}

/// The target under test. Tests that compare several targets ask for [`Cpu::available_targets`].
pub fn devices(threads: usize) -> Vec<Cpu> {
    vec![Cpu::new(Some(threads)).expect("VOCABFUSE_ISA names a target of this machine")]
}

/// AMX tiles on the emulator, beside a target under test that is not AMX; none where that is forced.
pub fn amx(threads: usize) -> Option<Cpu> {
    if set("VOCABFUSE_ISA") || Cpu::available_targets().contains(&Target::Amx) {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    if Cpu::available_targets().contains(&Target::Avx512Bf16) && vocabfuse_amx_emulator::install().is_ok() {
        // SAFETY: the emulator executes the tile instructions, the processor all others.
        return unsafe { Cpu::with_target_unchecked(Target::Amx, Some(threads)) }.ok();
    }
    skipped(Need::Amx, "no AMX here, and no AVX-512 BF16 to emulate it on");
    None
}

/// Devices under test that multiply f32 in bf16x3.
pub fn bf16x3(threads: usize) -> Vec<Cpu> {
    let pairs: Vec<Cpu> = devices(threads).into_iter().filter(|cpu| !cpu.target().multiplies_f32()).collect();
    if pairs.is_empty() && !set("VOCABFUSE_ISA") {
        skipped(Need::Avx512Bf16, "no target here multiplies pairs of bf16");
    }
    pairs.into_iter().map(|cpu| cpu.with_precision(Some(Precision::Bf16x3))).collect()
}

/// As [`amx`], in bf16x3.
pub fn amx_bf16x3(threads: usize) -> Option<Cpu> {
    amx(threads).map(|cpu| cpu.with_precision(Some(Precision::Bf16x3)))
}

/// The PTX interpreter in the place of a GPU, and the device over it, if kernels can be compiled for it.
pub fn interpreter() -> Option<(Ptx, Gpu)> {
    if !nvrtc() {
        return None;
    }
    let ptx = Ptx::new("sm_80").unwrap();
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let gpu = Gpu::ptx(&ptx).unwrap().with_cache(Path::new(cache));
    Some((ptx, gpu))
}
