//! The interpreter: one program, of which each part is a file.

mod arithmetic;
mod async_copy;
mod collectives;
mod counters;
mod divergence;
mod functions;
mod matmul;
mod matrix_load;
mod matrix_multiply;
mod memory;
mod mutations;
mod parser;
mod rowstats;
mod schedules;
mod support;
