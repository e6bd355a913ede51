//! The PTX interpreter as a driver: the kernels of a GPU on any machine, checked while they run.

use super::driver::{Argument, Driver, Graph, Handle, Operation, Shape};
use super::meter::Meter;
use crate::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vocabfuse_codegen::compile::capability::Capability;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_ptx::{Accumulation, Arg, Class, Launch, Memory, Module, Report, launch};

/// Warp instructions after which a launch counts as endless.
const INSTRUCTION_LIMIT: u64 = 1 << 36;

/// The interpreter. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Ptx {
    architecture: Architecture,
    state: Arc<Mutex<State>>,
    meter: Arc<Meter>,
}

#[derive(Debug)]
struct State {
    memory: Memory,
    modules: Vec<(String, Module)>,
    seed: u64,
    accumulation: Accumulation,
    report: PtxReport,
}

/// What the interpreter found in the launches since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtxReport {
    /// Launches.
    pub launches: u64,
    /// Warp instructions.
    pub instructions: u64,
    /// Matrix multiplications of a warp.
    pub products: u64,
    /// Accesses that nothing orders, with the kernel.
    pub races: Vec<String>,
    /// Reads of memory that nothing wrote, with the kernel.
    pub uninitialized: Vec<String>,
    /// Passes that bank conflicts add to matrix loads and to asynchronous copies.
    pub bank_conflicts: u64,
    /// Bytes that asynchronous copies asked for.
    pub copied_bytes: u64,
    /// Sectors of 32 bytes that they touched.
    pub copied_sectors: u64,
}

impl PtxReport {
    /// Whether no race and no read of unwritten memory was found.
    pub fn is_clean(&self) -> bool {
        self.races.is_empty() && self.uninitialized.is_empty()
    }

    fn add(&mut self, kernel: &str, report: &Report) {
        self.launches += 1;
        self.instructions += report.warp_instructions;
        self.products += report.classes.get(Class::MatrixMultiply);
        self.races.extend(report.races.iter().map(|race| format!("{kernel}: {race:?}")));
        self.uninitialized.extend(report.uninitialized.iter().map(|read| format!("{kernel}: {read:?}")));
        for line in &report.lines {
            if matches!(line.class, Class::MatrixLoad | Class::AsyncCopy) {
                self.bank_conflicts += line.shared.conflicts();
            }
            if line.class == Class::AsyncCopy {
                self.copied_bytes += line.global.bytes;
                self.copied_sectors += line.global.sectors;
            }
        }
    }
}

impl Ptx {
    /// An interpreter for kernels of an architecture such as `sm_80`.
    ///
    /// # Errors
    /// [`Error::Option`] for an architecture that it cannot run.
    pub fn new(architecture: &str) -> Result<Ptx> {
        let known = Architecture::parse(architecture).filter(|a| !a.specific);
        let Some(architecture) = known else {
            let names: Vec<String> = Architecture::general().map(|a| format!("ptx:{}", a.name())).collect();
            let message = format!("expected one of {}, got ptx:{architecture}", names.join(", "));
            return Err(Error::Option { option: "device", message });
        };
        let (memory, modules, report) = (Memory::new(), vec![], PtxReport::default());
        let state = State { memory, modules, seed: 0, accumulation: Accumulation::default(), report };
        let state = Arc::new(Mutex::new(state));
        Ok(Ptx { architecture, state, meter: Arc::default() })
    }

    /// Chooses another schedule of blocks, warps and copies for the launches to come.
    ///
    /// Launches of one rank with the same seed run alike; those of several ranks come in the order of their threads.
    pub fn reseed(&self, seed: u64) {
        self.state().seed = seed;
    }

    /// Chooses how the matrix products of the launches to come add up.
    ///
    /// Without a call they do it as tensor cores do, [`Accumulation::Truncated`]: the pessimistic of the two, and the same in every
    /// run whatever the seed is, so that an error that only truncation shows is found at once and found again.
    /// [`Accumulation::Rounded`] tells whether an error comes from that.
    pub fn accumulate(&self, accumulation: Accumulation) {
        self.state().accumulation = accumulation;
    }

    /// What was found since the last call.
    pub fn take_report(&self) -> PtxReport {
        std::mem::take(&mut self.state().report)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fault(error: &impl std::fmt::Display) -> Error {
    Error::Device(format!("interpreter: {error}"))
}

impl Driver for Ptx {
    fn name(&self) -> String {
        format!("ptx:{}", self.architecture.name())
    }

    fn capability(&self) -> Capability {
        Capability { number: self.architecture.number, cubins: false }
    }

    fn load(&self, name: &str, code: &[u8]) -> Result<Handle> {
        let refused = |e: &dyn std::fmt::Display| Error::Compile(format!("kernel {name}: {e}"));
        let text = std::str::from_utf8(code).map_err(|e| refused(&e))?;
        let module = Module::parse(text).map_err(|e| refused(&e))?;
        if module.kernel(name).is_none() {
            return Err(refused(&"its PTX has no entry of that name"));
        }
        let mut state = self.state();
        state.modules.push((name.to_owned(), module));
        Ok(Handle(state.modules.len() - 1))
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        self.state().memory.alloc(bytes).map_err(|e| fault(&e))
    }

    fn free(&self, address: u64) {
        // Only what was allocated is freed, and once.
        let freed = self.state().memory.free(address);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.meter.upload();
        self.state().memory.write(to, from).map_err(|e| fault(&e))
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.meter.download();
        self.state().memory.read(from, to).map_err(|e| fault(&e))
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        let mut values = vec![0; bytes];
        let memory = &mut self.state().memory;
        memory.read(from, &mut values).and_then(|()| memory.write(to, &values)).map_err(|e| fault(&e))
    }

    fn launch(&self, kernel: Handle, shape: Shape, arguments: &[Argument]) -> Result<()> {
        let arguments: Vec<Arg> = arguments
            .iter()
            .map(|argument| match *argument {
                Argument::Pointer(address) => Arg::Pointer(address),
                Argument::I32(value) => Arg::I32(value),
                Argument::I64(value) => Arg::I64(value),
                Argument::F32(value) => Arg::F32(value),
            })
            .collect();
        let state = &mut *self.state();
        let (name, module) = &state.modules[kernel.0];
        let Some(kernel) = module.kernel(name) else { return Err(fault(&format!("no kernel {name}"))) };
        let seed = state.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(state.report.launches);
        let launched = Launch {
            grid: [shape.blocks, 1, 1],
            block: [shape.threads, 1, 1],
            dynamic_shared: shape.shared,
            seed,
            resident_blocks: 1 + state.seed as usize % 2,
            instruction_limit: INSTRUCTION_LIMIT,
            accumulation: state.accumulation,
            ..Launch::default()
        };
        let report = launch(kernel, &launched, &arguments, &mut state.memory)
            .map_err(|e| Error::Device(format!("interpreter, kernel {name}: {e}")))?;
        state.report.add(name, &report);
        Ok(())
    }

    fn graph(&self, operations: Vec<Operation>) -> Result<Box<dyn Graph>> {
        Ok(Box::new(Recorded { ptx: self.clone(), operations }))
    }

    // Every launch ends before the call does.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Operations that the interpreter runs one after the other.
#[derive(Debug)]
struct Recorded {
    ptx: Ptx,
    operations: Vec<Operation>,
}

impl Graph for Recorded {
    fn run(&self) -> Result<()> {
        self.operations.iter().try_for_each(|operation| operation.issue(&self.ptx))
    }
}
