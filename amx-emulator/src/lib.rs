//! Runs Intel AMX kernels on machines that have no AMX.
//!
//! An AMX instruction raises `SIGILL` where the processor lacks the extension. After [`install`],
//! the signal is caught, the instruction at the interrupted address is decoded and executed in
//! software on tile registers kept per thread, and the thread continues behind it. Kernels written
//! as inline `asm!` thus run unchanged in tests, at the price of a trap, some microseconds, for each
//! AMX instruction.
//!
//! ```
//! use vocabfuse_amx_emulator::install;
//!
//! match install() {
//!     Ok(backend) => println!("AMX kernels may run: {backend:?}"),
//!     Err(error) => println!("AMX kernels must be skipped: {error}"),
//! }
//! ```
//!
//! # What is emulated
//!
//! `LDTILECFG`, `STTILECFG`, `TILERELEASE`, `TILEZERO`, `TILELOADD`, `TILELOADDT1`, `TILESTORED`,
//! `TDPBF16PS` and `TDPFP16PS`, with every addressing form except `fs:` and `gs:`, for palettes 0
//! and 1. A thread starts unconfigured, as it does on hardware.
//!
//! The two tile products keep one partial sum for the even and one for the odd elements of the
//! pairs, add the two at the end and add that to the accumulator, as the Software Developer's
//! Manual defines it; they round to nearest even, read single-precision denormals as zero and flush
//! them to zero. The one result that the manual leaves open, which NaN comes out of several, is the
//! host's own.
//!
//! # Errors in the emulated program
//!
//! Where hardware would raise `#UD` or `#GP` for an AMX instruction (a tile used before
//! `LDTILECFG`, operands whose shapes do not match, a reserved encoding, an invalid configuration),
//! the emulator writes one line to standard error and aborts: a test then names its cause instead
//! of dying with a bare signal. Every other `SIGILL` goes to the handler that was installed before,
//! or has its default effect. A tile load or store outside mapped memory raises `SIGSEGV` as usual,
//! but from inside the emulator, and cannot be restarted.
//!
//! # Machines with AMX
//!
//! On such a machine [`install`] asks the kernel for permission to use the tile registers, installs
//! nothing and returns [`Backend::Native`]: the instructions execute natively, and the counters stay
//! at zero.

#![warn(missing_docs)]

mod counters;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod decode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod product;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod report;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod state;

pub use counters::{Counters, counters, reset_counters, thread_counters};

/// Who executes the AMX instructions of this process, as [`install`] found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The `SIGILL` handler of this crate.
    Emulated,
    /// The processor. Nothing was installed and the counters stay at zero.
    Native,
}

/// Why AMX instructions cannot be emulated in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The emulator knows the signal frames of x86-64 Linux only.
    #[error("AMX emulation needs x86-64 Linux")]
    UnsupportedTarget,
    /// The processor lacks an instruction set that the emulator itself is built on.
    #[error("AMX emulation needs a processor with {0}")]
    MissingFeature(&'static str),
    /// The operating system refused the signal handler.
    #[error("cannot install the SIGILL handler")]
    Sigaction(#[source] std::io::Error),
}

/// Makes AMX instructions executable in this process: natively where the machine has AMX with
/// bfloat16 products, in software elsewhere.
///
/// Safe to call from several threads and any number of times; only the first success has an effect.
/// The handler covers all threads, also those started before. It runs on the stack of the
/// interrupted thread, so a kernel needs some 32 KiB to spare there. A `SIGILL` handler that is to
/// receive other illegal instructions has to be in place before this call.
///
/// # Errors
///
/// See [`InstallError`]; on targets other than x86-64 Linux it is always
/// [`InstallError::UnsupportedTarget`].
pub fn install() -> Result<Backend, InstallError> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return handler::install();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    return Err(InstallError::UnsupportedTarget);
}
