//! The emulator, where there can be one: all but the counters of the process, which are a program of their own.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[path = "../common/mod.rs"]
#[macro_use]
mod common;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod addressing;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod faults;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod instructions;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod kernels;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
#[test]
fn tiles() {
    vocabfuse_testing::skipped(vocabfuse_testing::Need::Amx, "AMX is emulated on Linux on x86-64 only");
}
