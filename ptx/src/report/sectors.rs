//! Coalescing of global memory accesses.

use super::GlobalCounters;
use crate::machine::{Lanes, Mask, lanes};

/// Bytes of a sector, the unit in which memory is moved.
const SECTOR: u64 = 32;

/// Traffic of one warp-wide access of `bytes` bytes per lane.
pub(super) fn traffic(addresses: &Lanes, mask: Mask, bytes: usize) -> GlobalCounters {
    let mut sectors = [0u64; 32];
    let mut count = 0;
    // Accesses are aligned and no wider than a sector, so each touches one.
    for lane in lanes(mask) {
        sectors[count] = addresses[lane] / SECTOR;
        count += 1;
    }
    let sectors = &mut sectors[..count];
    if !sectors.is_sorted() {
        sectors.sort_unstable();
    }
    let distinct = sectors.chunk_by(|a, b| a == b).count();
    GlobalCounters { requests: 1, bytes: (count * bytes) as u64, sectors: distinct as u64, width: bytes as u32 }
}
