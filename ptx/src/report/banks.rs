//! Bank conflicts of shared memory.

use super::SharedCounters;
use crate::machine::{Lanes, Mask, WARP, lanes};

const BANKS: usize = 32;

/// Passes through the banks that one warp-wide access needs.
///
/// Lanes are served in phases of at most 128 bytes: all of them for accesses of
/// up to four bytes, halves for eight, quarters for sixteen. In a phase each
/// bank gives one word of four bytes per pass, to any number of lanes.
pub(super) fn transactions(addresses: &Lanes, mask: Mask, bytes: usize) -> SharedCounters {
    let per_phase = match bytes {
        16 => 8,
        8 => 16,
        _ => WARP,
    };
    let mut counters = SharedCounters::default();
    for phase in 0..WARP / per_phase {
        let members = Mask::MAX >> (WARP - per_phase) << (phase * per_phase);
        if mask & members != 0 {
            counters.ideal += 1;
            counters.transactions += passes(addresses, mask & members, bytes);
        }
    }
    counters
}

fn passes(addresses: &Lanes, mask: Mask, bytes: usize) -> u64 {
    // Distinct words seen so far in each bank; a phase has at most 32 words.
    let mut words = [[0u64; WARP]; BANKS];
    let mut depth = [0usize; BANKS];
    for lane in lanes(mask) {
        for word in 0..bytes.div_ceil(4) as u64 {
            let word = addresses[lane] / 4 + word;
            let bank = word as usize % BANKS;
            if !words[bank][..depth[bank]].contains(&word) && depth[bank] < WARP {
                words[bank][depth[bank]] = word;
                depth[bank] += 1;
            }
        }
    }
    depth.into_iter().max().unwrap_or(0) as u64
}
