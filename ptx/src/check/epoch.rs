//! Epochs: one access, packed into a word.

use super::clock::Clock;

/// Lane number that stands for more than one lane.
const SEVERAL: u64 = 32;

const CLOCK_BITS: u32 = 20;
const WARP_BITS: u32 = 20;
const LANE_SHIFT: u32 = 18;
const WARP_SHIFT: u32 = LANE_SHIFT + 6;
const CLOCK_SHIFT: u32 = WARP_SHIFT + WARP_BITS;
const INSTRUCTION_SHIFT: u32 = 2;
const PENDING: u64 = 2;
const STRONG: u64 = 1;

/// Who accessed a cell and when: clock, warp of the grid, lane, instruction.
/// Zero stands for no access, as clocks begin at one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// Largest clock that fits.
    pub(crate) const MAX_CLOCK: u32 = (1 << CLOCK_BITS) - 1;
    /// Number of warps of a grid that can be told apart.
    pub(crate) const MAX_WARPS: u64 = 1 << WARP_BITS;

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn clock(self) -> u32 {
        (self.0 >> CLOCK_SHIFT) as u32
    }

    /// Warp number in the grid.
    #[inline]
    pub(crate) fn warp(self) -> u32 {
        (self.0 >> WARP_SHIFT) as u32 & ((1 << WARP_BITS) - 1)
    }

    /// The lane, if it was a single one.
    pub(crate) fn lane(self) -> Option<u32> {
        let lane = self.0 >> LANE_SHIFT & 63;
        (lane != SEVERAL).then_some(lane as u32)
    }

    pub(crate) fn instruction(self) -> u32 {
        (self.0 >> INSTRUCTION_SHIFT) as u32 & 0xffff
    }

    /// An asynchronous copy that was not waited for.
    #[inline]
    pub(crate) fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// An atomic or relaxed access, which does not race with its like.
    #[inline]
    pub(crate) fn is_strong(self) -> bool {
        self.0 & STRONG != 0
    }

    /// This access, and a later one of the same warp at the same clock.
    #[inline]
    pub(crate) fn merge(self, later: Epoch) -> Epoch {
        let weak = (self.0 & later.0 & STRONG) ^ STRONG;
        let mut merged = later.0 & !weak;
        if (self.0 ^ later.0) >> LANE_SHIFT & 63 != 0 {
            merged = merged & !(63 << LANE_SHIFT) | SEVERAL << LANE_SHIFT;
        }
        Epoch(merged)
    }

    /// Whether both are of one warp with no synchronisation between.
    #[inline]
    pub(crate) fn same_step(self, other: Epoch) -> bool {
        self.0 >> WARP_SHIFT == other.0 >> WARP_SHIFT
    }

    #[inline]
    fn same_lane(self, other: Epoch) -> bool {
        let lane = self.0 >> LANE_SHIFT & 63;
        lane != SEVERAL && lane == other.0 >> LANE_SHIFT & 63
    }
}

/// An access being made, with what its warp knows of others.
#[derive(Clone, Copy)]
pub(crate) struct Accessor<'c> {
    pub(crate) epoch: Epoch,
    clock: &'c Clock,
}

impl<'c> Accessor<'c> {
    /// An access by one lane, or by several as one if `lane` is nothing.
    #[inline]
    pub(crate) fn new(clock: &'c Clock, lane: Option<usize>, instruction: u32) -> Self {
        let lane = lane.map_or(SEVERAL, |l| l as u64);
        let epoch = u64::from(clock.now()) << CLOCK_SHIFT
            | u64::from(clock.warp()) << WARP_SHIFT
            | lane << LANE_SHIFT
            | u64::from(instruction) << INSTRUCTION_SHIFT;
        Accessor { epoch: Epoch(epoch), clock }
    }

    /// The same access as an atomic one.
    pub(crate) fn strong(mut self) -> Self {
        self.epoch.0 |= STRONG;
        self
    }

    /// The same access as the start of an asynchronous copy.
    pub(crate) fn pending(mut self) -> Self {
        self.epoch.0 |= PENDING;
        self
    }

    /// Whether `earlier` happened before this access or cannot race with it.
    #[inline]
    pub(crate) fn follows(&self, earlier: Epoch) -> bool {
        if earlier.is_none() || (earlier.is_strong() && self.epoch.is_strong()) {
            return true;
        }
        if earlier.warp() == self.clock.warp() {
            return earlier.clock() < self.clock.now() || self.epoch.same_lane(earlier);
        }
        earlier.clock() <= self.clock.of(earlier.warp())
    }
}
