//! What a GPU, or an interpreter in its place, does for the passes.

use super::meter::Meter;
use crate::Result;
use std::fmt::Debug;
use vocabfuse_codegen::compile::capability::Capability;

/// A kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A device address; 0 is null.
    Pointer(u64),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// A float.
    F32(f32),
}

impl Argument {
    /// Whether a parameter of this type, as a manifest spells it, takes the argument.
    pub(super) fn fits(self, ty: &str) -> bool {
        match self {
            Argument::Pointer(_) => ty.starts_with('*'),
            Argument::I32(_) => ty == "i32",
            Argument::I64(_) => ty == "i64",
            Argument::F32(_) => ty == "f32",
        }
    }
}

/// Extent of a launch, along x.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

/// A kernel that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub usize);

/// Work of a device, by address.
#[derive(Clone, Debug)]
pub enum Operation {
    /// A kernel with all of its arguments.
    Launch {
        /// The kernel.
        kernel: Handle,
        /// Its extent.
        shape: Shape,
        /// Its arguments, of the types of its parameters.
        arguments: Vec<Argument>,
    },
    /// A copy within the device.
    Copy {
        /// Address of the source.
        from: u64,
        /// Address of the target.
        to: u64,
        /// Size.
        bytes: usize,
    },
}

impl Operation {
    /// Calls a driver.
    pub(super) fn issue(&self, driver: &dyn Driver) -> Result<()> {
        match self {
            Operation::Launch { kernel, shape, arguments } => driver.launch(*kernel, *shape, arguments),
            Operation::Copy { from, to, bytes } => driver.copy(*from, *to, *bytes),
        }
    }
}

/// Operations that a device runs again and again, each time in the order of the stream that it was made on.
pub trait Graph: Debug + Send + Sync + 'static {
    /// Runs all of them; does not wait.
    fn run(&self) -> Result<()>;
}

/// Memory, copies and launches, all in the order of the calls. Nothing waits but `download` and `synchronize`.
pub trait Driver: Debug + Send + Sync + 'static {
    /// For reports: `cuda:0` or `ptx:sm_80`.
    fn name(&self) -> String;
    /// Which code it runs.
    fn capability(&self) -> Capability;
    /// Loads a kernel from machine code or PTX. Its code was compiled, or checked against damage, in this process.
    fn load(&self, name: &str, code: &[u8]) -> Result<Handle>;
    /// At least one byte of memory, aligned to 256 bytes, with any content.
    fn alloc(&self, bytes: usize) -> Result<u64>;
    /// Frees what `alloc` gave, once all work before has ended.
    fn free(&self, address: u64);
    /// Copies to the device.
    fn upload(&self, to: u64, from: &[u8]) -> Result<()>;
    /// Copies from the device.
    fn download(&self, from: u64, to: &mut [u8]) -> Result<()>;
    /// Copies within the device.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()>;
    /// Launches a kernel with all of its arguments, of the types of its parameters.
    fn launch(&self, kernel: Handle, shape: Shape, arguments: &[Argument]) -> Result<()>;
    /// Makes operations ready to be run again and again. The memory that they name stays until the graph goes.
    fn graph(&self, operations: Vec<Operation>) -> Result<Box<dyn Graph>>;
    /// Waits for everything before.
    fn synchronize(&self) -> Result<()>;
    /// Memory that buffers hold.
    fn meter(&self) -> &Meter;
    /// Begins to measure time on the device.
    fn start_clock(&self) -> Result<()> {
        Ok(())
    }
    /// Waits for everything before. Milliseconds of the device since `start_clock`, without copies from and to the
    /// host; `None` if the device has no clock.
    fn stop_clock(&self) -> Result<Option<f64>> {
        self.synchronize().map(|()| None)
    }
}
