//! Fused, vocabulary-parallel output layers for language models.
//!
//! The last layer of a language model multiplies N hidden states by a vocabulary of V rows, and its cross-entropy needs
//! all N x V logits. This crate computes loss and gradients without ever storing them, with the vocabulary split over
//! ranks, by generated kernels. A training step has three passes, whose order is in the types:
//!
//! | pass | does | communicates |
//! |---|---|---|
//! | S | statistics of the softmax and its product with W, of the rank's own rows | nothing |
//! | C1 | merges them: loss and the gradient of X | one combined collective |
//! | T | adds the gradient of W, now or any time later | nothing |
//!
//! ```
//! use vocabfuse::{
//!     Batch, Cpu, CrossEntropy, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Shard, ShardLayout, Upstream,
//! };
//!
//! # fn main() -> Result<(), vocabfuse::Error> {
//! let (tokens, hidden, vocab) = (4, 8, 100);
//! let x = vec![0.5_f32; tokens * hidden];
//! let w = vec![0.1_f32; vocab * hidden];
//! let targets = [3, 99, 42, -100]; // -100 is ignored
//!
//! // One rank holds the whole vocabulary; with more, each runs this on its own rows of w.
//! let layout = ShardLayout::even(vocab, 1)?;
//! let layer = OutputLayer::new(&Cpu::new(None)?, &layout, 0, CrossEntropy::default(), Policy::default())?;
//! let comm = Local::group(1).remove(0);
//!
//! let batch = Batch::new(Matrix::new(&x, tokens, hidden)?, &targets);
//! let shard = Shard { weight: Matrix::new(&w, vocab, hidden)?, bias: None };
//! let partial = layer.s_pass(&comm, batch, shard)?; // S
//! let done = partial.start_combine().wait()?; // C1
//! assert!((done.loss[0] - 100_f32.ln()).abs() < 1e-5);
//! assert_eq!(done.dx.len(), tokens * hidden);
//!
//! let mut dw = vec![0.0; vocab * hidden];
//! let out = Gradients { dw: (&mut dw).into(), dbias: None };
//! layer.t_pass(done.weight_grad, Operands::new(batch.x, shard), out, Upstream::One)?; // T
//! # Ok(())
//! # }
//! ```
//!
//! [`Operators`] computes what else a trainer asks of such a layer, with gradients: log-probabilities of ids, entropy, divergence
//! from a teacher, the largest logits, samples.
//!
//! [`codegen`] describes kernels and emits their text, also from the build script of another crate; [`kernels`] are
//! those generated for this crate; [`runtime`] runs them. [`reference`](mod@reference) and [`plain`] are what they are
//! compared with, and [`calibrate`] measures what the machine could do.

pub mod bounds;
pub mod calibrate;
pub mod matmul;
pub mod operators;
pub mod plain;
pub mod problem;
pub mod ranks;
pub mod reference;
pub mod tensors;

pub use vocabfuse_codegen as codegen;
pub use vocabfuse_kernels as kernels;
pub use vocabfuse_runtime as runtime;

pub use codegen::{Builder, KernelKind, KernelSpec};
pub use runtime::{
    Algorithm, Batch, Bundle, Counters, Cpu, CrossEntropy, Device, Distribution, DistributionGradients, Done, Dtype,
    Element, Embedded, Error, Evaluated, Filtered, Gpu, GradientMut, Gradients, Ids, InputGrad, InputLayer,
    KlDirection, Later, Local, Lookup, Matrix, Merging, Operands, Operators, OutputLayer, OwnedMatrix, Partial, Policy,
    Precision, Ptx, PtxReport, Reduction, Registry, Result, Save, Selecting, Shard, ShardLayout, Source, Spent,
    Statistics, TableGrad, Target, Upstream, Upstreams, ValueGradients, Values, WeightGrad,
};
