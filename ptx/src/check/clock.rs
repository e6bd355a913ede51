//! Vector clocks of warps.

use std::collections::BTreeMap;

/// How far a fence or an atomic reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Device,
}

/// What one warp knows of the progress of every warp.
///
/// Clocks of its own block are dense. Other blocks appear only when a kernel
/// synchronises between blocks, so they are kept apart in a map.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// Number in the grid of the first warp of the block.
    first: u32,
    /// Own position in `block`.
    own: usize,
    block: Vec<u32>,
    remote: BTreeMap<u32, u32>,
}

impl Clock {
    /// The clock of warp `own` of a block of `warps` warps at the start.
    pub(crate) fn new(first: u32, own: usize, warps: usize) -> Self {
        let mut block = vec![0; warps];
        block[own] = 1;
        Clock { first, own, block, remote: BTreeMap::new() }
    }

    /// Number of this warp in the grid.
    #[inline]
    pub(crate) fn warp(&self) -> u32 {
        self.first + self.own as u32
    }

    /// Its current step.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        self.block[self.own]
    }

    /// The last step of a warp of the grid that is ordered before now.
    #[inline]
    pub(crate) fn of(&self, warp: u32) -> u32 {
        match self.block.get(warp.wrapping_sub(self.first) as usize) {
            Some(&clock) => clock,
            None => self.remote.get(&warp).copied().unwrap_or(0),
        }
    }

    /// Begins the next step.
    pub(crate) fn tick(&mut self) {
        self.block[self.own] = self.block[self.own].saturating_add(1);
    }

    /// Learns all that `other`, of the same block, knows.
    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.block.iter_mut().zip(&other.block) {
            *mine = (*mine).max(*theirs);
        }
        for (&warp, &clock) in &other.remote {
            raise(&mut self.remote, warp, clock);
        }
    }

    /// All known steps by warp of the grid.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u32, u32)> {
        let block = self.block.iter().enumerate();
        let block = block.map(|(i, &clock)| (self.first + i as u32, clock));
        block.chain(self.remote.iter().map(|(&warp, &clock)| (warp, clock)))
    }

    /// Learns that `warp` of the grid reached `clock`.
    pub(crate) fn learn(&mut self, warp: u32, clock: u32) {
        match self.block.get_mut(warp.wrapping_sub(self.first) as usize) {
            Some(mine) => *mine = (*mine).max(clock),
            None => raise(&mut self.remote, warp, clock),
        }
    }

    /// Whether `warp` of the grid is in this block.
    pub(crate) fn is_local(&self, warp: u32) -> bool {
        (warp.wrapping_sub(self.first) as usize) < self.block.len()
    }
}

fn raise(map: &mut BTreeMap<u32, u32>, warp: u32, clock: u32) {
    let slot = map.entry(warp).or_insert(0);
    *slot = (*slot).max(clock);
}
