//! The machine that runs a kernel: launch, blocks, warps and their registers.

mod access;
mod barriers;
mod block;
mod copies;
mod divergence;
mod grid;
mod lanes;
mod launch;
mod registers;
mod scheduler;
mod warp;

pub(crate) use access::{Access, Fault, Strength};
pub(crate) use barriers::Arrival;
pub(crate) use block::Context;
pub(crate) use copies::Batch;
pub(crate) use lanes::{Mask, WARP, lanes};
pub use launch::{Accumulation, Arg, Checks, Launch, launch};
pub(crate) use registers::{Lanes, Registers};
pub(crate) use warp::Warp;
