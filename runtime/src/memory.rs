//! Memory that the passes of a device give back and take again.
//!
//! The system maps fresh memory page by page when it is first touched. For saved values that takes 6 % of a whole step, and
//! threads do not share the work. A trainer asks for the same sizes step after step, so regions are kept between steps.

use crate::buffer::{Buffer, Unit};
use bytemuck::Pod;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Regions up to this many units are left to the allocator, which has such at hand.
const SMALL: usize = (64 << 10) / size_of::<Unit>();

/// Whether buffers come filled with what is no number, so that tests see whoever reads first: in debug builds, and where
/// `VOCABFUSE_TEST_POISON` is set.
static POISONED: LazyLock<bool> = LazyLock::new(|| {
    cfg!(debug_assertions) || std::env::var_os("VOCABFUSE_TEST_POISON").is_some_and(|value| !value.is_empty())
});

/// Regions in use and regions kept. Clones share them.
///
/// Both together are never more than what was in use at some time, so that keeping regions does not raise the peak.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    regions: Arc<Mutex<Regions>>,
}

#[derive(Default)]
struct Regions {
    /// Those that nobody uses, the one given back first in front.
    kept: Vec<Vec<Unit>>,
    /// Units in use, and most of them at a time.
    used: usize,
    most: usize,
}

impl Memory {
    /// A buffer that holds any numbers: whoever takes it writes before reading.
    pub(crate) fn buffer<T: Pod>(&self, len: usize) -> Buffer<T> {
        let (mut buffer, _) = self.take(len);
        if *POISONED {
            bytemuck::cast_slice_mut::<T, u8>(buffer.as_mut()).fill(0xff);
        }
        buffer
    }

    /// A buffer of zeros.
    pub(crate) fn zeroed<T: Pod>(&self, len: usize) -> Buffer<T> {
        let (mut buffer, fresh) = self.take(len);
        if !fresh {
            buffer.as_mut().fill(T::zeroed());
        }
        buffer
    }

    /// Gives what is kept back to the system.
    pub(crate) fn release(&self) {
        let mut regions = self.lock();
        regions.most = regions.used;
        let kept = std::mem::take(&mut regions.kept);
        drop(regions);
        drop(kept);
    }

    /// Takes back the region of a buffer.
    pub(crate) fn give_back(&self, region: Vec<Unit>) {
        let mut regions = self.lock();
        regions.used -= region.len();
        regions.kept.push(region);
    }

    /// A buffer, and whether it is fresh: then it is zero.
    fn take<T: Pod>(&self, len: usize) -> (Buffer<T>, bool) {
        let units = Buffer::<T>::units(len);
        if units <= SMALL {
            return (Buffer::zeroed(len), true);
        }
        let (region, surplus) = self.lock().take(units);
        drop(surplus);
        let fresh = region.is_none();
        (Buffer::in_region(region.unwrap_or_else(|| Buffer::<T>::fresh(units)), len, Some(self.clone())), fresh)
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// A kept region with room for `units`, or none, in whose place one is to be allocated; and those that are too many then.
    fn take(&mut self, units: usize) -> (Option<Vec<Unit>>, Vec<Vec<Unit>>) {
        let fits = |region: &Vec<Unit>| (units..=units + units / 8).contains(&region.len());
        let best = (0..self.kept.len()).filter(|i| fits(&self.kept[*i])).min_by_key(|i| self.kept[*i].len());
        let region = best.map(|index| self.kept.remove(index));
        self.used += region.as_ref().map_or(units, Vec::len);
        self.most = self.most.max(self.used);
        let mut kept: usize = self.kept.iter().map(Vec::len).sum();
        let surplus = self.kept.iter().take_while(|region| {
            let too_many = self.used + kept > self.most;
            kept -= if too_many { region.len() } else { 0 };
            too_many
        });
        let surplus = surplus.count();
        (region, self.kept.drain(..surplus).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    fn address(buffer: &Buffer<f32>) -> usize {
        buffer.as_ref().as_ptr().addr()
    }

    fn kept(memory: &Memory) -> usize {
        memory.lock().kept.len()
    }

    #[test]
    fn a_region_is_taken_again_and_zeroed_if_wanted() {
        let memory = Memory::default();
        let mut first: Buffer<f32> = memory.buffer(LEN);
        first.as_mut().fill(1.0);
        let place = address(&first);
        drop(first);
        let again: Buffer<f32> = memory.zeroed(LEN - 100);
        assert_eq!((address(&again), again.len()), (place, LEN - 100));
        assert!(again.as_ref().iter().all(|v| *v == 0.0));
        let other: Buffer<f32> = memory.zeroed(LEN);
        assert_ne!(address(&other), place);
        let copy = other.clone();
        drop((again, other, copy));
        assert_eq!(kept(&memory), 3);
        memory.release();
        assert_eq!(kept(&memory), 0);
    }

    #[test]
    fn keeping_does_not_raise_the_peak() {
        let memory = Memory::default();
        let large: Buffer<f32> = memory.buffer(4 * LEN);
        drop(large);
        // Too small for the region: the two together would be more than was ever in use.
        let small: Buffer<f32> = memory.buffer(LEN);
        assert_eq!(kept(&memory), 0);
        drop(small);
        let large: Buffer<f32> = memory.buffer(4 * LEN);
        assert_eq!(kept(&memory), 0);
        drop(large);
        assert_eq!(memory.lock().used, 0);
    }

    #[test]
    fn small_buffers_are_left_to_the_allocator() {
        let memory = Memory::default();
        drop(memory.buffer::<f32>(10));
        assert_eq!(kept(&memory), 0);
    }
}
