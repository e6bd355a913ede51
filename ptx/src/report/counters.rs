//! Counters of a launch.

use crate::check::{Race, UninitializedRead};

/// Everything that a finished launch found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counters of every instruction that ran, in the order of the text.
    pub lines: Vec<LineCounters>,
    /// Sums over all lines.
    pub classes: ClassCounts,
    /// Shared memory traffic of all lines.
    pub shared: SharedCounters,
    /// Global memory traffic of all lines.
    pub global: GlobalCounters,
    /// Instructions run, counted once per warp and group of convergent lanes.
    pub warp_instructions: u64,
    /// Instructions run, counted once per lane.
    pub lane_instructions: u64,
    /// Accesses that nothing orders.
    pub races: Vec<Race>,
    /// Reads of memory that nothing wrote.
    pub uninitialized: Vec<UninitializedRead>,
}

impl Report {
    /// Whether no race and no read of unwritten memory was found.
    pub fn is_clean(&self) -> bool {
        self.races.is_empty() && self.uninitialized.is_empty()
    }

    /// Counters of the instructions on one PTX line that ran.
    pub fn at_line(&self, line: u32) -> impl Iterator<Item = &LineCounters> {
        self.lines.iter().filter(move |l| l.line == line)
    }
}

/// Counters of one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineCounters {
    /// Line of the text.
    pub line: u32,
    /// Class of the instruction.
    pub class: Class,
    /// Runs, counted once per warp and group of convergent lanes.
    pub warps: u64,
    /// Runs, counted once per lane.
    pub lanes: u64,
    /// Shared memory traffic.
    pub shared: SharedCounters,
    /// Global memory traffic.
    pub global: GlobalCounters,
}

/// Shared memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedCounters {
    /// Passes through the banks.
    pub transactions: u64,
    /// Passes that the same accesses would need without bank conflicts.
    pub ideal: u64,
}

impl SharedCounters {
    /// Passes that bank conflicts add.
    pub fn conflicts(&self) -> u64 {
        self.transactions - self.ideal
    }

    pub(super) fn add(&mut self, other: &SharedCounters) {
        self.transactions += other.transactions;
        self.ideal += other.ideal;
    }
}

/// Global memory traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalCounters {
    /// Warp-wide requests.
    pub requests: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
    /// Sectors of 32 bytes that the requests touched.
    pub sectors: u64,
    /// Widest access of a lane, in bytes.
    pub width: u32,
}

impl GlobalCounters {
    /// Share of the moved bytes that lanes asked for. It is above one where
    /// lanes share bytes, and one where nothing was moved.
    pub fn efficiency(&self) -> f64 {
        match self.sectors {
            0 => 1.0,
            sectors => self.bytes as f64 / (32 * sectors) as f64,
        }
    }

    pub(super) fn add(&mut self, other: &GlobalCounters) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.width = self.width.max(other.width);
    }
}

/// Class of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Integer, float, logic, comparison, conversion and moves.
    Alu,
    /// Transcendental functions and roots.
    Math,
    /// Branches and exits.
    Control,
    /// Loads from global memory.
    LoadGlobal,
    /// Stores to global memory.
    StoreGlobal,
    /// Loads from shared memory.
    LoadShared,
    /// Stores to shared memory.
    StoreShared,
    /// Accesses to local memory, parameters and generic addresses.
    OtherMemory,
    /// Atomics and reductions in memory.
    Atomic,
    /// Asynchronous copies to shared memory.
    AsyncCopy,
    /// Commits of and waits for asynchronous copies.
    AsyncWait,
    /// Barriers and fences.
    Barrier,
    /// Shuffles, votes and other exchanges in a warp.
    Shuffle,
    /// Matrix loads from shared memory.
    MatrixLoad,
    /// Matrix multiplications.
    MatrixMultiply,
}

/// Warp instructions by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts {
    counts: [u64; 15],
}

impl ClassCounts {
    /// Warp instructions of one class.
    pub fn get(&self, class: Class) -> u64 {
        self.counts[class as usize]
    }

    pub(super) fn add(&mut self, class: Class, count: u64) {
        self.counts[class as usize] += count;
    }
}
