//! Blocking heuristics, one file a kind of target.

pub mod cpu;
pub mod sm80;
