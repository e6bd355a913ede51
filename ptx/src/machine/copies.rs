//! Asynchronous copies in flight.

use super::block::Context;
use super::lanes::{Mask, WARP, lanes};
use crate::check::{Accessor, Clock};
use crate::memory::{read_bytes, write_bytes};

/// One `cp.async` of a warp.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) instruction: u32,
    /// Bytes written to shared memory by each lane.
    pub(crate) bytes: usize,
    /// Lanes whose copy was not waited for.
    pub(crate) open: Mask,
    /// Lanes whose data has not reached shared memory.
    pub(crate) in_flight: Mask,
    /// Offsets in shared memory.
    pub(crate) to: [usize; WARP],
    /// Allocation and offset in it.
    pub(crate) from: [(usize, usize); WARP],
    /// Bytes read; the rest is filled with zeros.
    pub(crate) take: [usize; WARP],
    /// Number of the group, by lane.
    pub(crate) group: [u32; WARP],
}

/// The copies of one warp.
///
/// Hardware may complete a copy at any time between its issue and the wait for
/// it, so data arrives here at a time that the seed chooses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    batches: Vec<Batch>,
    /// Number of the group that collects new copies, by lane.
    group: [u32; WARP],
}

impl Copies {
    /// Number of the group that collects new copies.
    pub(crate) fn groups(&self) -> [u32; WARP] {
        self.group
    }

    pub(crate) fn push(&mut self, batch: Batch) {
        self.batches.push(batch);
    }

    /// Closes the current group of the lanes.
    pub(crate) fn commit(&mut self, mask: Mask) {
        for lane in lanes(mask) {
            self.group[lane] += 1;
        }
    }

    /// Completes all groups of the lanes but the last `keep`.
    pub(crate) fn wait(&mut self, context: &mut Context<'_, '_>, clock: &Clock, mask: Mask, keep: u64) {
        for batch in &mut self.batches {
            let ready = lanes(batch.open & mask).fold(0, |ready, lane| {
                let closed = u64::from(batch.group[lane]) + keep < u64::from(self.group[lane]);
                ready | Mask::from(closed) << lane
            });
            batch.deliver(context, ready);
            batch.open &= !ready;
            if context.grid.checks.races {
                for lane in lanes(ready) {
                    let accessor = Accessor::new(clock, Some(lane), batch.instruction);
                    let (to, bytes) = (batch.to[lane], batch.bytes);
                    context.block.shadow.complete(to, bytes, accessor);
                }
            }
        }
        self.batches.retain(|batch| batch.open != 0);
    }

    /// Lets the data of one copy in flight arrive, chosen by `pick`.
    pub(crate) fn deliver_one(&mut self, context: &mut Context<'_, '_>, pick: u32) {
        if let Some(index) = (pick as usize).checked_rem(self.batches.len()) {
            let batch = &mut self.batches[index];
            batch.deliver(context, batch.in_flight);
        }
    }

    /// Whether any copy was not waited for.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Copies of the lanes that were not waited for.
    pub(crate) fn unfinished(&self, mask: Mask) -> impl Iterator<Item = &Batch> {
        self.batches.iter().filter(move |b| b.open & mask != 0)
    }
}

impl Batch {
    /// Moves the data of the lanes that are still in flight.
    pub(crate) fn deliver(&mut self, context: &mut Context<'_, '_>, mask: Mask) {
        let shared = &mut context.block.shared;
        for lane in lanes(mask & self.in_flight) {
            let (index, offset) = self.from[lane];
            let take = self.take[lane];
            let value = match take {
                0 => 0,
                _ => {
                    let data = &context.grid.memory.allocation(index).data;
                    read_bytes(&data[offset..offset + take])
                }
            };
            let to = self.to[lane];
            write_bytes(&mut shared.data[to..to + self.bytes], value);
            shared.written.mark(to, self.bytes);
        }
        self.in_flight &= !mask;
    }
}
