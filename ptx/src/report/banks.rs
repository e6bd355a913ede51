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
    // Most accesses meet no bank with two words, which needs less bookkeeping.
    let mut first = [None; BANKS];
    for word in words(addresses, mask, bytes) {
        let slot = &mut first[word as usize % BANKS];
        if *slot.get_or_insert(word) != word {
            return conflicting(addresses, mask, bytes);
        }
    }
    1
}

/// Passes of a phase in which some bank meets two words.
fn conflicting(addresses: &Lanes, mask: Mask, bytes: usize) -> u64 {
    let mut distinct: Vec<u64> = words(addresses, mask, bytes).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let mut depth = [0; BANKS];
    for word in distinct {
        depth[word as usize % BANKS] += 1;
    }
    depth.into_iter().max().unwrap_or(0)
}

/// The words that lanes touch.
fn words(addresses: &Lanes, mask: Mask, bytes: usize) -> impl Iterator<Item = u64> {
    let count = bytes.div_ceil(4) as u64;
    lanes(mask).flat_map(move |lane| (0..count).map(move |i| addresses[lane] / 4 + i))
}
