//! The CPU as a device: a target, its kernels and a pool of threads.

#[cfg(target_arch = "x86_64")]
mod amx;
mod cache;
mod family;
mod isa;
mod lookup;
mod operator;
mod pack;
mod passes;
mod rows;
mod s_pass;
mod t_pass;
mod tables;
mod threads;
mod working_set;

use crate::memory::Memory;
use crate::{Error, Result};
use cache::Caches;
use family::Family;
use std::sync::Arc;
use threads::Threads;
use vocabfuse_codegen::{Precision, Target};
use vocabfuse_kernels::Registry;
use vocabfuse_kernels::abi::{Blocking, Geometry};

/// The processors of this machine. Clones share the threads, and the memory that is kept from step to step.
///
/// After a `fork` the child can go on with what the parent made: a pass in the child starts threads of its own, as many as
/// the parent has, once, and gives the same results. Not supported is a fork while another thread is in a call of this
/// crate: the child's copy of what that thread had locked stays locked. Nor do the other ranks of a group exist in the
/// child, if they are threads of the parent: it makes a [`Local::group`](crate::Local::group) of its own.
#[derive(Clone)]
pub struct Cpu {
    target: Target,
    precision: Option<Precision>,
    registry: Arc<Registry>,
    threads: Arc<Threads>,
    caches: Caches,
    memory: Memory,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cpu({})", self.name())
    }
}

impl Cpu {
    /// The fastest target that the machine can run, or the one that `VOCABFUSE_ISA` forces; `threads` or one a
    /// processor.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Option`] for what `VOCABFUSE_ISA` or `VOCABFUSE_ISA_LIMIT` asks; [`Error::Device`] if the threads
    /// cannot be started.
    pub fn new(threads: Option<usize>) -> Result<Cpu> {
        Cpu::build(isa::choose()?, threads)
    }

    /// A target of choice.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the machine cannot run it.
    pub fn with_target(target: Target, threads: Option<usize>) -> Result<Cpu> {
        isa::check(target)?;
        Cpu::build(target, threads)
    }

    /// A target of choice, without asking the machine.
    ///
    /// # Safety
    /// The machine, or an emulator that is installed in this process, executes the target's instructions.
    ///
    /// # Errors
    /// [`Error::Device`] if the threads cannot be started.
    pub unsafe fn with_target_unchecked(target: Target, threads: Option<usize>) -> Result<Cpu> {
        Cpu::build(target, threads)
    }

    /// The same threads with a precision for matrix products of f32, which are exact without one. What cannot have it, a
    /// target that does not multiply bf16 or tensors of another dtype, is an error when a layer or an operator is made.
    pub fn with_precision(mut self, precision: Option<Precision>) -> Cpu {
        self.precision = precision;
        self
    }

    /// The same threads with another set of kernels.
    pub fn with_registry(mut self, registry: Registry) -> Cpu {
        self.registry = Arc::new(registry);
        self
    }

    /// Targets that this machine can run, the fastest last. `VOCABFUSE_ISA_LIMIT` leaves out those beyond the one that it
    /// names: the machine is taken for one without them, as tests do.
    pub fn available_targets() -> Vec<Target> {
        isa::available()
    }

    fn build(target: Target, threads: Option<usize>) -> Result<Cpu> {
        if threads == Some(0) {
            return Err(Error::Option { option: "threads", message: "expected at least 1, got 0".to_owned() });
        }
        Ok(Cpu {
            target,
            precision: None,
            registry: Arc::new(Registry::default()),
            threads: Arc::new(Threads::start(threads)?),
            caches: Caches::of_this_machine(),
            memory: Memory::default(),
        })
    }

    /// The target.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// For reports: target, precision if there is one, and threads.
    pub fn name(&self) -> String {
        format!("cpu {}{} ({} threads)", self.target, self.precision_note(), self.threads())
    }

    fn precision_note(&self) -> String {
        self.precision.map_or(String::new(), |p| format!(", precision {p}"))
    }

    /// Gives the memory that is kept from step to step back to the system: at most what the passes had in use at a time.
    pub fn release_memory(&self) {
        self.memory.release();
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// How much kernels take at a time, for a chunk and the padded H.
    pub(crate) fn blocking_of(&self, geometry: &Geometry, chunk: usize, width: usize) -> Blocking {
        self.caches.blocking(geometry, chunk, width)
    }

    pub(crate) fn blocking(&self, family: &Family, hidden: usize) -> Blocking {
        self.caches.blocking(&family.geometry, family.chunk, family.padded_hidden(hidden))
    }

    /// Does work on the threads.
    pub(crate) fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        Ok(self.threads.pool()?.install(work))
    }
}
