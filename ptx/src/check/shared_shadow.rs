//! History of shared memory.

use super::epoch::{Accessor, Epoch};
use super::race::{Conflict, Hazard};

/// Last write of every cell, and last read of every cell by every warp.
///
/// Cells begin as words of four bytes; the first narrower access splits all of
/// them, so kernels without one do not pay for it.
#[derive(Clone, Debug)]
pub(crate) struct SharedShadow {
    /// Cells are `1 << shift` bytes.
    shift: u32,
    warps: usize,
    writes: Vec<Epoch>,
    reads: Vec<Epoch>,
}

impl SharedShadow {
    pub(crate) fn new(bytes: usize, warps: usize) -> Self {
        let cells = bytes.div_ceil(4);
        SharedShadow {
            shift: 2,
            warps,
            writes: vec![Epoch::default(); cells],
            reads: vec![Epoch::default(); cells * warps],
        }
    }

    /// The cells of a range, split first if they are too coarse for it.
    #[inline]
    fn cells(&mut self, offset: usize, bytes: usize) -> std::ops::Range<usize> {
        while (offset | bytes) & ((1 << self.shift) - 1) != 0 {
            self.shift -= 1;
            self.writes = double(&self.writes, 1);
            self.reads = double(&self.reads, self.warps);
        }
        offset >> self.shift..(offset + bytes) >> self.shift
    }

    /// Records a read by warp `warp` of the block.
    #[inline]
    pub(crate) fn read(&mut self, offset: usize, bytes: usize, warp: usize, access: Accessor<'_>) -> Option<Conflict> {
        let mut conflict = None;
        for cell in self.cells(offset, bytes) {
            let write = self.writes[cell];
            if write.is_pending() {
                conflict = conflict.or(found(Hazard::Pending, write));
            } else if !access.follows(write) {
                conflict = conflict.or(found(Hazard::ReadAfterWrite, write));
            }
            let slot = &mut self.reads[cell * self.warps + warp];
            *slot = match slot.same_step(access.epoch) {
                true => slot.merge(access.epoch),
                false => access.epoch,
            };
        }
        conflict
    }

    /// Records a write.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: usize, access: Accessor<'_>) -> Option<Conflict> {
        let mut conflict = None;
        for cell in self.cells(offset, bytes) {
            let write = self.writes[cell];
            if write.is_pending() {
                conflict = conflict.or(found(Hazard::Pending, write));
            } else if !access.follows(write) {
                conflict = conflict.or(found(Hazard::WriteAfterWrite, write));
            }
            let first = cell * self.warps;
            for &read in &self.reads[first..first + self.warps] {
                if !access.follows(read) {
                    conflict = conflict.or(found(Hazard::WriteAfterRead, read));
                }
            }
            self.writes[cell] = access.epoch;
        }
        conflict
    }

    /// Turns a pending copy into a plain write made now.
    pub(crate) fn complete(&mut self, offset: usize, bytes: usize, access: Accessor<'_>) {
        for cell in self.cells(offset, bytes) {
            self.writes[cell] = access.epoch;
        }
    }
}

/// Each group of `width` entries twice.
fn double(entries: &[Epoch], width: usize) -> Vec<Epoch> {
    let groups = entries.chunks(width.max(1));
    groups.flat_map(|g| [g, g]).flatten().copied().collect()
}

#[inline]
fn found(kind: Hazard, earlier: Epoch) -> Option<Conflict> {
    Some(Conflict { kind, earlier })
}
