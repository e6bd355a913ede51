//! Device memory.

use super::{Refusal, Written};
use crate::error::MemoryError;

/// Alignment of allocations, as `cudaMalloc` gives it.
const ALIGN: u64 = 256;

/// Unmapped bytes between allocations, more than any tile overruns.
const GAP: u64 = 1 << 20;

/// First address given out.
const FIRST: u64 = 0x7000_0000_0000;

/// Device memory: separate allocations in a 64-bit address space.
///
/// Addresses of freed allocations are never given out again, so a stale pointer
/// always faults.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Ordered by address.
    allocations: Vec<Allocation>,
    next: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    base: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) written: Written,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Memory without allocations.
    pub fn new() -> Self {
        Memory { allocations: Vec::new(), next: FIRST }
    }

    /// Reserves `bytes` bytes, whose contents count as never written.
    ///
    /// # Errors
    ///
    /// The host has no room for them.
    pub fn alloc(&mut self, bytes: usize) -> Result<u64, MemoryError> {
        let mut data = Vec::new();
        data.try_reserve_exact(bytes).map_err(|_| MemoryError::OutOfMemory(bytes))?;
        // A NaN in every float format, so that stray reads show in results.
        data.resize(bytes, 0xff);
        let base = self.next;
        self.next = (base + bytes as u64 + GAP).next_multiple_of(ALIGN);
        self.allocations.push(Allocation { base, data, written: Written::new(bytes) });
        Ok(base)
    }

    /// Reserves room for `bytes` and writes them.
    ///
    /// # Errors
    ///
    /// The host has no room for them.
    pub fn alloc_with(&mut self, bytes: &[u8]) -> Result<u64, MemoryError> {
        let address = self.alloc(bytes.len())?;
        self.write(address, bytes)?;
        Ok(address)
    }

    /// Releases the allocation that starts at `address`.
    ///
    /// # Errors
    ///
    /// No live allocation starts there.
    pub fn free(&mut self, address: u64) -> Result<(), MemoryError> {
        let index = self
            .allocations
            .binary_search_by_key(&address, |a| a.base)
            .map_err(|_| MemoryError::NotAnAllocation(address))?;
        self.allocations.remove(index);
        Ok(())
    }

    /// Copies `bytes` to the device.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (index, offset) = self.range(address, bytes.len())?;
        let allocation = &mut self.allocations[index];
        allocation.data[offset..offset + bytes.len()].copy_from_slice(bytes);
        allocation.written.mark(offset, bytes.len());
        Ok(())
    }

    /// Copies from the device to `bytes`.
    ///
    /// # Errors
    ///
    /// The range is not inside one live allocation.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let (index, offset) = self.range(address, bytes.len())?;
        bytes.copy_from_slice(&self.allocations[index].data[offset..offset + bytes.len()]);
        Ok(())
    }

    fn range(&self, address: u64, bytes: usize) -> Result<(usize, usize), MemoryError> {
        self.find(address, bytes).ok_or(MemoryError::OutOfBounds { address, bytes })
    }

    /// Index of the allocation that holds the range, and the offset in it.
    fn find(&self, address: u64, bytes: usize) -> Option<(usize, usize)> {
        let index = self.allocations.partition_point(|a| a.base <= address).checked_sub(1)?;
        let allocation = &self.allocations[index];
        let offset = usize::try_from(address - allocation.base).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= allocation.data.len()).then_some((index, offset))
    }

    /// Like [`Memory::range`] for an aligned access of a kernel.
    #[inline]
    pub(crate) fn locate(&self, address: u64, bytes: usize) -> Result<(usize, usize), Refusal> {
        if !address.is_multiple_of(bytes as u64) {
            return Err(Refusal::Misaligned);
        }
        self.find(address, bytes).ok_or(Refusal::OutOfBounds)
    }

    pub(crate) fn allocation(&self, index: usize) -> &Allocation {
        &self.allocations[index]
    }

    pub(crate) fn allocation_mut(&mut self, index: usize) -> &mut Allocation {
        &mut self.allocations[index]
    }

    /// Number of live allocations.
    pub(crate) fn len(&self) -> usize {
        self.allocations.len()
    }
}
