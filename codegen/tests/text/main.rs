//! What the generator writes and reads without a compiler: one program, of which each part is a file.

mod artifact;
mod compile;
mod coverage;
mod drift;
mod emission;
mod operators;
mod optional;
mod programs;
