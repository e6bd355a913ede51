//! History of global memory.

use super::epoch::{Accessor, Epoch};
use super::race::{Conflict, Hazard};

/// Shadows of all allocations, made when first touched.
#[derive(Debug, Default)]
pub(crate) struct GlobalShadow {
    allocations: Vec<Option<Shadow>>,
}

impl GlobalShadow {
    pub(crate) fn new(allocations: usize) -> Self {
        GlobalShadow { allocations: (0..allocations).map(|_| None).collect() }
    }

    /// The shadow of allocation `index`, which has `bytes` bytes.
    #[inline]
    pub(crate) fn of(&mut self, index: usize, bytes: usize) -> &mut Shadow {
        self.allocations[index].get_or_insert_with(|| Shadow::new(bytes))
    }
}

/// Last write and two last reads of every cell of one allocation.
///
/// Any warp of the grid may read a cell, so not all readers are kept: of two
/// unordered readers at least one is unordered with any later writer, unless
/// that writer synchronised with just these two and no third.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// Cells are `1 << shift` bytes.
    shift: u32,
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Epoch,
    reads: [Epoch; 2],
}

impl Shadow {
    fn new(bytes: usize) -> Self {
        Shadow { shift: 2, cells: vec![Cell::default(); bytes.div_ceil(4)] }
    }

    #[inline]
    fn cells(&mut self, offset: usize, bytes: usize) -> &mut [Cell] {
        while (offset | bytes) & ((1 << self.shift) - 1) != 0 {
            self.shift -= 1;
            self.cells = self.cells.iter().flat_map(|&c| [c, c]).collect();
        }
        &mut self.cells[offset >> self.shift..(offset + bytes) >> self.shift]
    }

    /// Records a read.
    #[inline]
    pub(crate) fn read(&mut self, offset: usize, bytes: usize, access: Accessor<'_>) -> Option<Conflict> {
        let mut conflict = None;
        for cell in self.cells(offset, bytes) {
            if !access.follows(cell.write) {
                let kind = Hazard::ReadAfterWrite;
                let earlier = cell.write;
                conflict = conflict.or(Some(Conflict { kind, earlier }));
            }
            cell.note_read(access);
        }
        conflict
    }

    /// Records a write.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: usize, access: Accessor<'_>) -> Option<Conflict> {
        let mut conflict = None;
        for cell in self.cells(offset, bytes) {
            if !access.follows(cell.write) {
                let kind = Hazard::WriteAfterWrite;
                let earlier = cell.write;
                conflict = conflict.or(Some(Conflict { kind, earlier }));
            }
            for earlier in cell.reads {
                if !access.follows(earlier) {
                    let kind = Hazard::WriteAfterRead;
                    conflict = conflict.or(Some(Conflict { kind, earlier }));
                }
            }
            cell.write = access.epoch;
        }
        conflict
    }
}

impl Cell {
    #[inline]
    fn note_read(&mut self, access: Accessor<'_>) {
        let epoch = access.epoch;
        let [first, second] = &mut self.reads;
        if first.same_step(epoch) {
            *first = first.merge(epoch);
        } else if second.same_step(epoch) {
            *second = second.merge(epoch);
        } else if access.follows(*first) {
            // Whoever follows this read also follows the one it replaces.
            *first = epoch;
        } else {
            *second = epoch;
        }
    }
}
