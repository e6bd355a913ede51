//! CUDA text to PTX and cubin, with gates on what the compiler made of it.
//!
//! [`artifact`] is what a compiled kernel is kept as, [`capability`] which of them a device runs. [`log`] reads the
//! assembler's report, [`occupancy`] counts the warps that fit on a multiprocessor, [`sass`] counts instructions of a
//! disassembled cubin and [`roofline`] the time they allow. With the feature `nvrtc`, the module `nvrtc`
//! loads the compiler, `tools` runs the disassembler, and `measure` puts what both tell of a kernel together.

pub mod artifact;
pub mod capability;
pub mod log;
#[cfg(feature = "nvrtc")]
pub mod measure;
#[cfg(feature = "nvrtc")]
pub mod nvrtc;
pub mod occupancy;
pub mod roofline;
pub mod sass;
#[cfg(feature = "nvrtc")]
pub mod tools;

use occupancy::Architecture;

/// Why a kernel was not compiled, or why its result is refused.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// NVRTC is not installed.
    #[error(
        "NVRTC was not found ({searched}); install it with `pip install --target target/nvrtc {WHEEL}`, \
         or let {VARIABLE} name a folder with libnvrtc.so.12"
    )]
    Missing {
        /// Where it was looked for.
        searched: String,
    },
    /// The compiler rejected the text.
    #[error("kernel {kernel} does not compile: {message}")]
    Rejected {
        /// Name of the kernel.
        kernel: String,
        /// Error and log of the compiler.
        message: String,
    },
    /// The compiled kernel breaks a rule: a spill, a warning of the assembler, too many registers.
    #[error("kernel {kernel} for {architecture}: {rule}")]
    Refused {
        /// Name of the kernel.
        kernel: String,
        /// Architecture compiled for.
        architecture: String,
        /// The rule, with the figure that breaks it.
        rule: String,
    },
    /// The compiler is older than the architecture.
    #[error("{compiler} does not know the architecture {architecture}; expected a newer one")]
    Architecture {
        /// Architecture asked for.
        architecture: String,
        /// The compiler with its exact version.
        compiler: String,
    },
    /// A tool that could not be run.
    #[error("{tool}: {message}")]
    Tool {
        /// The program.
        tool: String,
        /// What went wrong.
        message: String,
    },
}

/// What a kernel is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// PTX text.
    Ptx,
    /// Machine code of one architecture.
    Cubin,
}

/// All options that kernels are compiled with. The assembler reports what it made of them.
pub fn options(form: Form, on: Architecture) -> Vec<String> {
    let architecture = match form {
        Form::Ptx => on.name().replacen("sm_", "compute_", 1),
        Form::Cubin => on.name(),
    };
    let fixed = ["--std=c++17", "-w", "-Xptxas", "-v"].map(str::to_owned);
    std::iter::once(format!("--gpu-architecture={architecture}")).chain(fixed).collect()
}

/// The package that brings NVRTC.
pub const WHEEL: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";

/// Environment variable that names the folder of NVRTC.
pub const VARIABLE: &str = "VOCABFUSE_NVRTC";
