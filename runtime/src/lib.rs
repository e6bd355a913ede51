//! Runs vocabfuse kernels: the passes S, C1 and T of an output layer whose vocabulary is split over ranks.
//!
//! The mathematics is Algorithm 2 of vocabulary parallelism: pass S is local, one combined collective C1 gives loss
//! and dX, pass T adds the weight gradient any time later. The order is in the types: [`OutputLayer::s_pass`] gives a
//! [`Partial`], [`Partial::start_combine`] a [`Merging`], [`Merging::wait`] a [`Done`] with the ticket
//! [`WeightGrad`] that [`OutputLayer::t_pass`] takes. [`InputLayer`] is the embedding on the same shards.

mod algorithm;
mod batch;
mod buffer;
mod check;
mod comm;
mod cpu;
mod debug;
mod device;
mod embedding;
mod error;
mod filter;
mod gpu;
mod gradient;
mod input_grad;
mod job;
mod layer;
mod layout;
mod loss;
mod matrix;
mod memory;
mod operator;
mod passes;
mod plans;
mod policy;
mod sums;
mod ticket;

pub use batch::{Batch, Gradients, Later, Operands, Shard, Upstream, Upstreams};
pub use comm::{Counters, Local};
pub use cpu::Cpu;
pub use device::Device;
pub use embedding::{Embedded, InputLayer, Lookup, Selecting, TableGrad};
pub use error::Error;
pub use filter::Filtered;
pub use gpu::{Accumulation, DeviceTensor, Gpu, Ptx, PtxReport, Step, StepOptions, Traffic};
pub use gradient::GradientMut;
pub use input_grad::InputGrad;
pub use layer::{Done, Merging, OutputLayer, Partial};
pub use layout::ShardLayout;
pub use loss::{CrossEntropy, Reduction, RowLoss};
pub use matrix::{Element, Matrix, OwnedMatrix};
pub use operator::{
    Distribution, DistributionGradients, Evaluated, Evaluating, Ids, InputGradients, KlDirection, Operators, Source,
    Statistics, SummingInputs, Ticket, ValueGradients, Values,
};
pub use policy::{Algorithm, DEFAULT_MEMORY_BUDGET, Policy, Save};
pub use ticket::{Spent, WeightGrad};
pub use vocabfuse_codegen::{Bundle, Dtype, Precision, Target};
pub use vocabfuse_kernels::Registry;

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
