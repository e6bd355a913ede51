//! A PTX interpreter: runs CUDA kernels on a CPU and checks them.
//!
//! [`Module::parse`] takes the PTX text that NVRTC emits, [`launch`] runs one of
//! its kernels on a [`Memory`], and the [`Report`] tells what the run cost and
//! which accesses raced. Tensor core instructions, asynchronous copies, barriers
//! and warp collectives are executed as the PTX ISA defines them; each seed of
//! [`Launch`] is another legal schedule.
//!
//! ```
//! use vocabfuse_ptx::{Arg, Launch, Memory, Module, launch};
//!
//! let text = "
//! .version 8.8
//! .target sm_80
//! .address_size 64
//! .visible .entry twice(.param .u64 data)
//! {
//!     .reg .b32 %r<3>;
//!     .reg .b64 %rd<4>;
//!     ld.param.u64 %rd1, [data];
//!     mov.u32 %r1, %tid.x;
//!     mul.wide.u32 %rd2, %r1, 4;
//!     add.s64 %rd3, %rd1, %rd2;
//!     ld.global.u32 %r2, [%rd3];
//!     shl.b32 %r2, %r2, 1;
//!     st.global.u32 [%rd3], %r2;
//!     ret;
//! }";
//! let module = Module::parse(text)?;
//! let kernel = module.kernel("twice").ok_or("no such kernel")?;
//! let mut memory = Memory::new();
//! let data = memory.alloc_with(&[3; 128])?;
//! let report = launch(kernel, &Launch::default(), &[Arg::Pointer(data)], &mut memory)?;
//! assert!(report.is_clean());
//! let mut result = [0; 128];
//! memory.read(data, &mut result)?;
//! assert_eq!(result, [6; 128]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod check;
mod error;
mod isa;
mod kernel;
mod machine;
mod memory;
mod report;
mod syntax;

pub use check::{Race, RaceKind, Site, UninitializedRead};
pub use error::{LaunchError, Location, MemoryError, ParseError, ParseErrorKind, Space, Wait};
pub use kernel::{Kernel, Module, Parameter};
pub use machine::{Accumulation, Arg, Checks, Launch, launch};
pub use memory::Memory;
pub use report::{Class, ClassCounts, GlobalCounters, LineCounters, Report, SharedCounters};
