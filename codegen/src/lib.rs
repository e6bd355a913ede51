//! Describes fused kernels for the vocabulary layers of language models and emits their text.
//!
//! A [`Loss`] is a few [`Program`]s over a tile of logits; a [`KernelSpec`] says what to build for which machine;
//! [`emit`](emit::emit) lowers the programs, puts them into a template and returns source text. [`Builder`] does this
//! for whole sets of kernels, also from the build script of another crate.

pub mod builder;
pub mod bundle;
pub mod compile;
pub mod cuda;
pub mod emit;
pub mod error;
pub mod logits;
pub mod loss;
pub mod lower;
pub mod manifest;
pub mod operator;
pub mod place;
pub mod program;
pub mod render;
pub mod spec;

pub use builder::Builder;
pub use bundle::Bundle;
pub use compile::occupancy::Architecture;
pub use error::{Error, SpecError};
pub use logits::LogitsForm;
pub use loss::{CrossEntropyForm, Loss, cross_entropy};
pub use operator::Operator;
pub use place::Place;
pub use program::Program;
pub use spec::{Dtype, KernelKind, KernelSpec, Precision, Target};
