//! Shared memory of one block.

use super::{Refusal, Written};

/// The shared memory of one block.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) data: Vec<u8>,
    pub(crate) written: Written,
}

impl SharedMemory {
    /// Unwritten memory; the pattern is a NaN in every float format.
    pub(crate) fn new(bytes: usize) -> Self {
        SharedMemory { data: vec![0xff; bytes], written: Written::new(bytes) }
    }

    /// The offset of an aligned access, if it is inside the memory.
    #[inline]
    pub(crate) fn locate(&self, address: u64, bytes: usize) -> Result<usize, Refusal> {
        if !address.is_multiple_of(bytes as u64) {
            return Err(Refusal::Misaligned);
        }
        match address.checked_add(bytes as u64) {
            Some(end) if end <= self.data.len() as u64 => Ok(address as usize),
            _ => Err(Refusal::OutOfBounds),
        }
    }
}
