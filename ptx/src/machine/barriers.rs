//! Barriers of a block.

use std::rc::Rc;

use super::access::Fault;
use super::lanes::{Mask, WARP};
use super::warp::Warp;
use crate::check::Clock;
use crate::isa::barrier::Votes;

/// Barriers that hardware gives a block.
const COUNT: usize = 16;

/// The sixteen barriers of a block.
#[derive(Debug)]
pub(crate) struct Barriers {
    warps: usize,
    /// Threads that have not ended.
    live: u32,
    pending: [Option<Pending>; COUNT],
    released: Vec<Release>,
}

/// A barrier at which some but not all threads arrived.
#[derive(Debug)]
struct Pending {
    /// Nothing for a barrier of the whole block, which waits for all threads
    /// that have not ended.
    expected: Option<u32>,
    /// Threads that arrived, counted as the barrier counts them.
    arrived: u32,
    clock: Clock,
    votes: Votes,
    waiters: Vec<(usize, Mask)>,
}

/// Lanes that a completed barrier lets go on.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) warp: usize,
    pub(super) lanes: Mask,
    /// What all threads knew when they arrived.
    pub(super) clock: Rc<Clock>,
    /// What all threads voted.
    pub(super) votes: Votes,
}

/// What lanes bring to a barrier.
pub(crate) struct Arrival {
    pub(crate) lanes: Mask,
    pub(crate) votes: Votes,
    pub(crate) barrier: u64,
    /// Threads that the barrier waits for; nothing for the whole block.
    pub(crate) threads: Option<u64>,
    /// Whether the lanes wait.
    pub(crate) waits: bool,
}

impl Barriers {
    pub(crate) fn new(warps: usize, threads: u32) -> Self {
        Barriers { warps, live: threads, pending: [const { None }; COUNT], released: Vec::new() }
    }

    /// Lanes of `warp` arrive at a barrier.
    pub(crate) fn arrive(&mut self, warp: &mut Warp, arrival: Arrival) -> Result<(), Fault> {
        let lane = arrival.lanes.trailing_zeros() as usize;
        let illegal = |rule| Fault::Illegal { rule, lane };
        let slot = self
            .pending
            .get_mut(arrival.barrier as usize)
            .filter(|_| arrival.barrier < COUNT as u64)
            .ok_or(illegal("barriers are numbered 0 to 15"))?;
        let block = (self.warps * WARP) as u64;
        let whole = |&t: &u64| t > 0 && t <= block && t.is_multiple_of(WARP as u64);
        if !arrival.threads.iter().all(whole) {
            return Err(illegal("a barrier counts whole warps, and no more than the block has"));
        }
        let expected = arrival.threads.map(|t| t as u32);
        // An explicit count is in whole warps, whatever lanes they lack.
        let threads = match expected {
            Some(_) if arrival.lanes == warp.alive => WARP as u32,
            _ => arrival.lanes.count_ones(),
        };
        let pending = slot.get_or_insert_with(|| Pending {
            expected,
            arrived: 0,
            clock: warp.clock.clone(),
            votes: Votes::default(),
            waiters: Vec::new(),
        });
        if pending.expected != expected {
            return Err(illegal("a barrier is used with different thread counts"));
        }
        pending.arrived += threads;
        pending.votes.yes += arrival.votes.yes;
        pending.votes.no += arrival.votes.no;
        pending.clock.join(&warp.clock);
        // What the warp does from here on is not covered by this arrival.
        warp.clock.tick();
        if arrival.waits {
            pending.waiters.push((warp.number, arrival.lanes));
            warp.parked |= arrival.lanes;
        }
        if pending.arrived > pending.expected.unwrap_or(self.live) {
            return Err(illegal("more threads arrive at a barrier than it counts"));
        }
        self.complete(arrival.barrier as usize);
        Ok(())
    }

    /// Threads end, and no barrier of the whole block waits for them any more.
    pub(super) fn leave(&mut self, threads: u32) {
        self.live -= threads;
        for barrier in 0..COUNT {
            self.complete(barrier);
        }
    }

    /// Lets the waiters of a barrier go on if all threads have arrived.
    fn complete(&mut self, barrier: usize) {
        let live = self.live;
        let full = |p: &mut Pending| p.arrived == p.expected.unwrap_or(live);
        let Some(pending) = self.pending[barrier].take_if(full) else {
            return;
        };
        let clock = Rc::new(pending.clock);
        let (waiters, votes) = (pending.waiters.into_iter(), pending.votes);
        self.released.extend(waiters.map(|(warp, lanes)| Release { warp, lanes, clock: Rc::clone(&clock), votes }));
    }

    /// Takes the lanes that may go on.
    pub(super) fn take_released(&mut self) -> Vec<Release> {
        std::mem::take(&mut self.released)
    }

    /// Threads that arrived at and are expected by a barrier.
    pub(super) fn progress(&self, barrier: u64) -> Option<(u32, u32)> {
        let pending = self.pending.get(barrier as usize)?.as_ref()?;
        Some((pending.arrived, pending.expected.unwrap_or(self.live)))
    }
}
