//! Fused, vocabulary-parallel output layers for language models.

mod matmul;
pub mod plain;
pub mod problem;
pub mod reference;
