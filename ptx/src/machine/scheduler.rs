//! Which warp runs when.

use rand::RngExt;
use rand::seq::SliceRandom;

use super::barriers::Barriers;
use super::block::{BlockState, Context};
use super::grid::Grid;
use super::lanes::{WARP, lanes};
use super::launch::Launch;
use super::warp::Warp;
use crate::check::{Clock, Epoch, SharedShadow};
use crate::error::{LaunchError, Wait};
use crate::isa::special::Special;
use crate::isa::{Gate, Op, Operand};
use crate::kernel::Kernel;
use crate::memory::SharedMemory;

/// Lengths of a time slice in instructions. Short ones interleave warps finely,
/// long ones let a warp run far ahead of the others.
const SLICES: [u64; 3] = [24, 200, 4000];

/// A block that runs.
struct Resident {
    state: BlockState,
    warps: Vec<Warp>,
}

/// Runs all blocks of a grid.
pub(super) struct Scheduler<'k, 'm> {
    kernel: &'k Kernel,
    launch: &'k Launch,
    grid: Grid<'m>,
    /// Blocks not yet started, the next one last.
    queue: Vec<u32>,
    resident: Vec<Resident>,
    budget: u64,
}

impl<'k, 'm> Scheduler<'k, 'm> {
    pub(super) fn new(kernel: &'k Kernel, launch: &'k Launch, mut grid: Grid<'m>) -> Self {
        let mut queue: Vec<u32> = (0..launch.blocks() as u32).collect();
        queue.shuffle(&mut grid.rng);
        Scheduler { kernel, launch, grid, queue, resident: Vec::new(), budget: launch.instruction_limit }
    }

    /// Runs the grid and returns what its blocks shared.
    pub(super) fn run(mut self) -> Result<Grid<'m>, LaunchError> {
        let limit = self.launch.resident_blocks.max(1);
        loop {
            while self.resident.len() < limit {
                match self.queue.pop() {
                    Some(block) => {
                        let resident = self.start(block);
                        self.resident.push(resident);
                    }
                    None => break,
                }
            }
            if self.resident.is_empty() {
                return Ok(self.grid);
            }
            let (block, warp) = self.pick()?;
            self.slice(block, warp)?;
            let done = self.resident[block].warps.iter().all(|w| w.alive == 0);
            if done {
                self.resident.swap_remove(block);
            }
        }
    }

    /// A warp that can run, chosen at random.
    fn pick(&mut self) -> Result<(usize, usize), LaunchError> {
        let blocks = self.resident.iter().enumerate();
        let ready: Vec<(usize, usize)> = blocks
            .flat_map(|(b, resident)| {
                let warps = resident.warps.iter().enumerate();
                warps.filter(|(_, warp)| warp.runnable() != 0).map(move |(w, _)| (b, w))
            })
            .collect();
        if ready.is_empty() {
            return Err(self.deadlock());
        }
        Ok(ready[self.grid.rng.random_range(0..ready.len())])
    }

    fn slice(&mut self, block: usize, warp: usize) -> Result<(), LaunchError> {
        let slice = SLICES[self.grid.rng.random_range(0..SLICES.len())].min(self.budget);
        if slice == 0 {
            return Err(LaunchError::InstructionLimit(self.launch.instruction_limit));
        }
        let prefer = self.grid.rng.random_range(0..8 * WARP);
        let arrival: u32 = self.grid.rng.random();
        let Resident { state, warps } = &mut self.resident[block];
        let mut context = Context { block: state, grid: &mut self.grid, instruction: 0 };
        let warp = &mut warps[warp];
        if arrival & 3 == 0 {
            warp.copies.deliver_one(&mut context, arrival >> 2);
        }
        let mut left = slice;
        let prefer = (prefer < WARP).then_some(prefer);
        warp.run(self.kernel, &mut context, &mut left, prefer).map_err(|fault| context.locate_fault(warp, fault))?;
        self.budget -= slice - left;
        if warp.clock.now() >= Epoch::MAX_CLOCK {
            return Err(LaunchError::SynchronisationLimit);
        }
        for release in state.barriers.take_released() {
            warps[release.warp].release(&self.kernel.code, &release);
        }
        Ok(())
    }

    fn start(&mut self, linear: u32) -> Resident {
        let [x, y, _] = self.launch.grid;
        let index = [linear % x, linear / x % y, linear / x / y];
        let count = self.launch.warps();
        let bytes = self.kernel.dynamic_shared_base + self.launch.dynamic_shared;
        let shadow_bytes = if self.grid.checks.races { bytes } else { 0 };
        let mut resident = Resident {
            state: BlockState {
                index,
                linear,
                shared: SharedMemory::new(bytes),
                shadow: SharedShadow::new(shadow_bytes, count),
                barriers: Barriers::new(count, self.launch.threads() as u32),
            },
            warps: Vec::with_capacity(count),
        };
        for number in 0..count {
            let clock = Clock::new(linear * count as u32, number, count);
            let threads = self.launch.threads() as u32;
            let mut warp = Warp::new(self.kernel, number, threads, clock);
            self.fill_specials(&mut warp, index);
            resident.warps.push(warp);
        }
        resident
    }

    /// Writes the special registers that the kernel reads.
    fn fill_specials(&self, warp: &mut Warp, block: [u32; 3]) {
        for &(special, reg) in &self.kernel.specials {
            for lane in 0..WARP {
                let value = self.special(special, warp, lane, block);
                warp.registers.set_lane(reg, lane, value);
            }
        }
    }

    fn special(&self, special: Special, warp: &Warp, lane: usize, block: [u32; 3]) -> u64 {
        let launch = self.launch;
        let [x, y, _] = launch.block;
        let thread = warp.thread(lane);
        let bit = 1u32 << lane;
        let value = match special {
            Special::Tid(0) => thread % x,
            Special::Tid(1) => thread / x % y,
            Special::Tid(_) => thread / x / y,
            Special::Ntid(axis) => launch.block[axis],
            Special::Ctaid(axis) => block[axis],
            Special::Nctaid(axis) => launch.grid[axis],
            Special::LaneId => lane as u32,
            Special::WarpId => warp.number as u32,
            Special::NWarpId => launch.warps() as u32,
            Special::SmId | Special::GridId => 0,
            Special::NSmId => 1,
            Special::LaneMaskEq => bit,
            Special::LaneMaskLt => bit - 1,
            Special::LaneMaskLe => bit | (bit - 1),
            Special::LaneMaskGt => !(bit | (bit - 1)),
            Special::LaneMaskGe => !(bit - 1),
            Special::DynamicSharedSize => launch.dynamic_shared as u32,
            Special::TotalSharedSize => (self.kernel.dynamic_shared_base + launch.dynamic_shared) as u32,
            Special::DynamicSharedBase => self.kernel.dynamic_shared_base as u32,
        };
        u64::from(value)
    }

    fn deadlock(&self) -> LaunchError {
        let mut waits = Vec::new();
        for resident in &self.resident {
            for warp in &resident.warps {
                let mut left = warp.alive;
                while left != 0 {
                    let lane = left.trailing_zeros() as usize;
                    let together =
                        lanes(left).filter(|&l| warp.pc[l] == warp.pc[lane]).fold(0, |mask, l| mask | 1 << l);
                    left &= !together;
                    waits.push(self.wait(resident, warp, lane, together));
                }
            }
        }
        LaunchError::Deadlock { waits }
    }

    fn wait(&self, resident: &Resident, warp: &Warp, lane: usize, together: u32) -> Wait {
        let instruction = &self.kernel.code[warp.pc[lane] as usize];
        let reason = match &instruction.op {
            Op::Barrier(barrier) if warp.parked >> lane & 1 == 1 => {
                let id = match barrier.id() {
                    Some(Operand::Reg(reg)) => warp.registers.lane(Operand::Reg(reg), lane),
                    Some(Operand::Imm(id)) => id,
                    None => 0,
                };
                let (arrived, expected) = resident.state.barriers.progress(id).unwrap_or((0, 0));
                format!("{arrived} of {expected} threads arrived at barrier {id}")
            }
            op if op.gate() != Gate::None => warp.missing(op, lane),
            _ => "can run".to_owned(),
        };
        Wait { block: resident.state.index, warp: warp.number as u32, lanes: together, line: instruction.line, reason }
    }
}
