//! The gradient filter of a pass, and what it left out.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tiles of tokens by vocabulary entries that the gradient filter looked at; none where there is no filter, or where
/// a device leaves nothing out.
///
/// A tile is the least that a product can leave out, and all are the same amount of work but at ragged ends. With vector
/// instructions that is one step of the inner dimension of a register tile: for dX some tokens (at most 14 with AVX-512, 6
/// with AVX2, 4 without, and a panel of 32 with AVX-512 BF16) by one entry, for dW one token by at most 14, 6 or 4 entries;
/// with AVX-512 BF16 two entries or two tokens. With AMX it is 32 tokens by 32 entries, on a GPU a tile of a block of
/// threads. Where a product has little to leave out it leaves out nothing, which counts so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// All of them.
    pub tiles: u64,
    /// Those whose products were left out.
    pub skipped: u64,
}

impl Filtered {
    /// The share of tiles that were left out, 0 to 1; 0 of none.
    pub fn share(self) -> f64 {
        if self.tiles == 0 { 0.0 } else { self.skipped as f64 / self.tiles as f64 }
    }
}

impl std::ops::AddAssign for Filtered {
    fn add_assign(&mut self, other: Filtered) {
        self.tiles += other.tiles;
        self.skipped += other.skipped;
    }
}

/// The threshold, and a count over all threads of a pass.
#[derive(Debug)]
pub struct Filter {
    /// Share of a token's mass, see [`crate::Policy::filter`].
    pub(crate) threshold: f32,
    tiles: AtomicU64,
    skipped: AtomicU64,
}

impl Filter {
    pub(crate) fn new(threshold: f32) -> Filter {
        Filter { threshold, tiles: AtomicU64::new(0), skipped: AtomicU64::new(0) }
    }

    /// Adds to the count.
    pub(crate) fn add(&self, tiles: u64, skipped: u64) {
        self.tiles.fetch_add(tiles, Ordering::Relaxed);
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
    }

    /// The count so far.
    pub(crate) fn count(&self) -> Filtered {
        Filtered { tiles: self.tiles.load(Ordering::Relaxed), skipped: self.skipped.load(Ordering::Relaxed) }
    }
}
