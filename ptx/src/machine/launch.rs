//! The entry point: arguments, shape and the run of a grid.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::grid::Grid;
use super::lanes::WARP;
use super::scheduler::Scheduler;
use crate::check::{Epoch, GlobalShadow, SyncTable};
use crate::error::LaunchError;
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::report::{Recorder, Report};

/// Shape and schedule of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of the `extern .shared` array.
    pub dynamic_shared: usize,
    /// Chooses the order of blocks and warps, the length of time slices and the
    /// arrival of asynchronous copies. The same seed gives the same run.
    pub seed: u64,
    /// Blocks that run interleaved; more than one finds kernels whose blocks
    /// wait for each other or interfere.
    pub resident_blocks: usize,
    /// Warp instructions after which the launch counts as endless.
    pub instruction_limit: u64,
    /// What to look for.
    pub checks: Checks,
    /// How matrix multiplications add up.
    pub accumulation: Accumulation,
}

impl Default for Launch {
    /// One block of one warp, all checks on, sums as tensor cores form them.
    fn default() -> Self {
        Launch {
            grid: [1; 3],
            block: [WARP as u32, 1, 1],
            dynamic_shared: 0,
            seed: 0,
            resident_blocks: 1,
            instruction_limit: 1 << 30,
            checks: Checks::default(),
            accumulation: Accumulation::default(),
        }
    }
}

impl Launch {
    pub(super) fn blocks(&self) -> u64 {
        product(self.grid)
    }

    pub(super) fn threads(&self) -> u64 {
        product(self.block)
    }

    pub(super) fn warps(&self) -> usize {
        self.threads().div_ceil(WARP as u64) as usize
    }

    fn check(&self, kernel: &Kernel) -> Result<(), LaunchError> {
        let [_, gy, gz] = self.grid;
        let [_, _, bz] = self.block;
        if self.grid.contains(&0) || self.block.contains(&0) {
            return Err(LaunchError::Shape("a dimension is zero"));
        }
        if gy > 65535 || gz > 65535 {
            return Err(LaunchError::Shape("the grid is too long along y or z"));
        }
        if self.threads() > 1024 || bz > 64 {
            return Err(LaunchError::Shape("a block has too many threads"));
        }
        if kernel.max_threads.is_some_and(|max| self.threads() > u64::from(max)) {
            return Err(LaunchError::Shape("a block has more threads than the kernel was compiled for"));
        }
        if self.blocks().saturating_mul(self.warps() as u64) > Epoch::MAX_WARPS {
            return Err(LaunchError::Shape("the grid has too many warps to track"));
        }
        let requested = kernel.dynamic_shared_base.saturating_add(self.dynamic_shared);
        let limit = kernel.shared_limit;
        if requested > limit {
            return Err(LaunchError::SharedMemory { requested, limit });
        }
        Ok(())
    }
}

fn product(dimensions: [u32; 3]) -> u64 {
    let sizes = dimensions.into_iter().map(u64::from);
    sizes.fold(1, u64::saturating_mul)
}

/// What a launch looks for beside faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Accesses that nothing orders.
    pub races: bool,
    /// Reads of shared and global memory that nothing wrote.
    pub uninitialized: bool,
}

impl Default for Checks {
    /// Everything.
    fn default() -> Self {
        Checks { races: true, uninitialized: true }
    }
}

/// How matrix multiplications (`mma`) add products to their accumulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accumulation {
    /// As the tensor cores of compute capability 8.x do, by what is publicly known of them: 8 products of 16-bit
    /// factors, or 4 of TF32, and the accumulator are cut below the 24th binary place under the largest exponent among
    /// them, added up, and the result is cut to f32. Errors point towards zero, so they add up in long sums, while those
    /// of rounding largely cancel. Newer tensor cores keep more.
    ///
    /// Sources: Fasi, Higham, Mikaitis and Pranesh, PeerJ Computer Science 7:e330 (2021); the models of arXiv:2511.10909
    /// and arXiv:2512.07004, which were compared with hardware bit by bit.
    #[default]
    Truncated,
    /// In f32, each addition rounded to nearest. A kernel that is right with this and wrong otherwise loses its digits
    /// in the sums of the tensor cores.
    Rounded,
}

/// One kernel argument.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Arg {
    /// A device address.
    Pointer(u64),
    /// A 32-bit integer.
    U32(u32),
    /// A signed 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    U64(u64),
    /// A signed 64-bit integer.
    I64(i64),
    /// A single-precision float.
    F32(f32),
    /// A structure passed by value, or any other type by its bytes.
    Bytes(Vec<u8>),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::Pointer(value) | Arg::U64(value) => value.to_le_bytes().to_vec(),
            Arg::I64(value) => value.to_le_bytes().to_vec(),
            Arg::U32(value) => value.to_le_bytes().to_vec(),
            Arg::I32(value) => value.to_le_bytes().to_vec(),
            Arg::F32(value) => value.to_le_bytes().to_vec(),
            Arg::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// Runs a kernel to its end.
///
/// # Errors
///
/// The launch does not fit the kernel or the device, or a thread faults, or no
/// thread can go on. Races and reads of unwritten memory are no errors: the
/// report holds them.
pub fn launch(kernel: &Kernel, launch: &Launch, arguments: &[Arg], memory: &mut Memory) -> Result<Report, LaunchError> {
    launch.check(kernel)?;
    let parameters = pack(kernel, arguments)?;
    let grid = Grid {
        shadow: GlobalShadow::new(memory.len()),
        memory,
        sync: SyncTable::default(),
        recorder: Recorder::new(&kernel.code, launch.warps() as u32),
        rng: ChaCha8Rng::seed_from_u64(launch.seed),
        checks: launch.checks,
        accumulation: launch.accumulation,
        parameters,
    };
    let grid = Scheduler::new(kernel, launch, grid).run()?;
    Ok(grid.recorder.finish(&kernel.code))
}

/// Lays the arguments out as the kernel's parameters.
fn pack(kernel: &Kernel, arguments: &[Arg]) -> Result<Vec<u8>, LaunchError> {
    if arguments.len() != kernel.parameters.len() {
        return Err(LaunchError::ArgumentCount { expected: kernel.parameters.len(), found: arguments.len() });
    }
    let mut packed = vec![0; kernel.parameter_size];
    for (index, (parameter, argument)) in kernel.parameters.iter().zip(arguments).enumerate() {
        let bytes = argument.bytes();
        if bytes.len() != parameter.size {
            return Err(LaunchError::ArgumentSize { index, expected: parameter.size, found: bytes.len() });
        }
        packed[parameter.offset..parameter.offset + bytes.len()].copy_from_slice(&bytes);
    }
    Ok(packed)
}
