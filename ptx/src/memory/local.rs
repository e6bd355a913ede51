//! Local memory of the lanes of a warp.

use super::{Refusal, read_bytes, write_bytes};
use crate::machine::WARP;

/// Private memory, `bytes` for each lane.
#[derive(Clone, Debug)]
pub(crate) struct LocalMemory {
    data: Vec<u8>,
    bytes: usize,
}

impl LocalMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        LocalMemory { data: vec![0xff; bytes * WARP], bytes }
    }

    fn range(&self, lane: usize, address: u64, bytes: usize) -> Result<usize, Refusal> {
        if !address.is_multiple_of(bytes as u64) {
            return Err(Refusal::Misaligned);
        }
        match address.checked_add(bytes as u64) {
            Some(end) if end <= self.bytes as u64 => Ok(lane * self.bytes + address as usize),
            _ => Err(Refusal::OutOfBounds),
        }
    }

    pub(crate) fn load(&self, lane: usize, address: u64, bytes: usize) -> Result<u128, Refusal> {
        let at = self.range(lane, address, bytes)?;
        Ok(read_bytes(&self.data[at..at + bytes]))
    }

    pub(crate) fn store(&mut self, lane: usize, address: u64, bytes: usize, value: u128) -> Result<(), Refusal> {
        let at = self.range(lane, address, bytes)?;
        write_bytes(&mut self.data[at..at + bytes], value);
        Ok(())
    }
}
