//! Errors: one line each, naming the tensor or option and what was expected.

use vocabfuse_codegen::{Dtype, Target};

/// Why a pass, a layout or a device could not be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor of the wrong extent.
    #[error("tensor {tensor}: expected {expected}, got {found}")]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// What was expected.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A tensor of the wrong element type.
    #[error("tensor {tensor}: expected dtype {expected}, got {found}")]
    Dtype {
        /// Name of the tensor.
        tensor: &'static str,
        /// What was expected.
        expected: Dtype,
        /// What was given.
        found: Dtype,
    },
    /// A target that names no vocabulary entry and is not ignored.
    #[error("tensor targets: row {row} has {target}; expected an id in 0..{vocab}{ignored}")]
    Target {
        /// Row of the target.
        row: usize,
        /// The target.
        target: i64,
        /// V.
        vocab: usize,
        /// `" or the ignore_index N"`, or nothing.
        ignored: String,
    },
    /// An id that names no row of a table.
    #[error("tensor {tensor}: position {position} has {id}; expected an id in 0..{vocab}")]
    Id {
        /// Name of the tensor.
        tensor: &'static str,
        /// Position of the id.
        position: usize,
        /// The id.
        id: i64,
        /// V.
        vocab: usize,
    },
    /// A shard layout with a gap, an overlap or no rank.
    #[error("shard layout: {0}")]
    Layout(String),
    /// An option with an unusable value.
    #[error("option {option}: {message}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What was expected and given.
        message: String,
    },
    /// No kernel in the registry.
    #[error("no kernel {kernel} for {target}, dtype {dtype}: {message}")]
    Kernel {
        /// Kernel looked for.
        kernel: String,
        /// Target.
        target: Target,
        /// Element type.
        dtype: Dtype,
        /// What there is instead, or what the kernel needs.
        message: String,
    },
    /// The machine cannot run the instructions asked for.
    #[error("target {target} is not available on this machine: {missing}; available: {available}")]
    Unavailable {
        /// Target asked for.
        target: Target,
        /// What is missing.
        missing: String,
        /// Targets that can run.
        available: String,
    },
    /// The memory budget is too small for every way of running that the policy allows.
    #[error(
        "option memory_budget: {budget} bytes are too few; with this policy the shape needs at least {needed} bytes over \
         inputs and outputs"
    )]
    Budget {
        /// Bytes allowed.
        budget: usize,
        /// Bytes that the most frugal of them needs.
        needed: usize,
    },
    /// Ranks that do not run the same job.
    #[error("ranks disagree: rank {rank} has {found}, rank 0 has {expected}")]
    Disagreement {
        /// The rank that differs from rank 0.
        rank: usize,
        /// Its job.
        found: String,
        /// The job of rank 0.
        expected: String,
    },
    /// A rank left before a collective was complete.
    #[error("rank {rank} left before the collective was complete")]
    RankGone {
        /// The rank.
        rank: usize,
    },
    /// A rank of a group on a thread of a rayon pool.
    #[error(
        "a rank that waits for others is on a thread of a rayon pool, which may begin the work of another rank before it \
         ends that of this one; expected a thread of its own for each rank, for example from std::thread::scope"
    )]
    RankInPool,
    /// A library that a device needs is not installed: what is missing and how to get it.
    #[error("{0}")]
    Missing(String),
    /// A kernel could not be generated or compiled.
    #[error("{0}")]
    Compile(String),
    /// A device could not be started or used.
    #[error("device: {0}")]
    Device(String),
}
