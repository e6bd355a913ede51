//! Device memory that is freed when it is dropped.

use super::driver::{Argument, Driver};
use crate::{Matrix, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that go to the device at a time when rows have to be laid out anew.
const STAGING: usize = 8 << 20;

/// Device memory.
#[derive(Debug)]
pub struct Buffer {
    driver: Arc<dyn Driver>,
    address: u64,
    bytes: usize,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.driver.meter().remove(self.bytes);
            self.driver.free(self.address);
        }
    }
}

impl Buffer {
    /// Memory with any content.
    pub(super) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Buffer> {
        let address = if bytes == 0 { 0 } else { driver.alloc(bytes)? };
        driver.meter().add(bytes);
        Ok(Buffer { driver: Arc::clone(driver), address, bytes })
    }

    /// A copy of plain numbers.
    pub(super) fn with<T: bytemuck::NoUninit>(driver: &Arc<dyn Driver>, values: &[T]) -> Result<Buffer> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = Buffer::new(driver, bytes.len())?;
        if !bytes.is_empty() {
            driver.upload(buffer.address, bytes)?;
        }
        Ok(buffer)
    }

    /// A copy of a matrix whose rows are `width` elements apart, with zeros between them.
    pub(super) fn matrix(driver: &Arc<dyn Driver>, matrix: Matrix<'_>, width: usize) -> Result<Buffer> {
        Buffer::rows(driver, matrix.rows(), width * matrix.dtype().size(), |row| matrix.row_bytes(row))
    }

    /// A copy of rows that are no longer than `row_bytes`, which they are apart, with zeros between them.
    pub(super) fn rows<'a>(
        driver: &Arc<dyn Driver>,
        rows: usize,
        row_bytes: usize,
        row: impl Fn(usize) -> &'a [u8],
    ) -> Result<Buffer> {
        let buffer = Buffer::new(driver, rows * row_bytes)?;
        let rows_at_once = (STAGING / row_bytes.max(1)).max(1);
        let mut staging = vec![0u8; rows_at_once.min(rows) * row_bytes];
        for first in (0..rows).step_by(rows_at_once) {
            let count = rows_at_once.min(rows - first);
            for (index, to) in (first..first + count).zip(staging.chunks_mut(row_bytes)) {
                let from = row(index);
                to[..from.len()].copy_from_slice(from);
            }
            driver.upload(buffer.address + (first * row_bytes) as u64, &staging[..count * row_bytes])?;
        }
        Ok(buffer)
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of a byte.
    pub(super) fn at(&self, byte: usize) -> u64 {
        self.address + byte as u64
    }

    /// As argument, from a byte on.
    pub(super) fn from(&self, byte: usize) -> Argument {
        Argument::Pointer(self.at(byte))
    }

    /// Copies bytes of another buffer.
    pub(super) fn copy(&self, to: usize, other: &Buffer, from: usize, bytes: usize) -> Result<()> {
        if bytes == 0 { Ok(()) } else { self.driver.copy(other.at(from), self.at(to), bytes) }
    }

    /// Values from a byte on; waits for them.
    pub(super) fn floats(&self, byte: usize, count: usize) -> Result<Vec<f32>> {
        self.values(byte, count)
    }

    fn values<T: bytemuck::Pod>(&self, byte: usize, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); count];
        if count > 0 {
            self.driver.download(self.at(byte), bytemuck::cast_slice_mut(&mut values))?;
        }
        Ok(values)
    }

    /// Reads from the first byte on; waits for it.
    pub(super) fn read(&self, values: &mut [u8]) -> Result<()> {
        if values.is_empty() { Ok(()) } else { self.driver.download(self.address, values) }
    }

    /// Writes from the first byte on.
    pub(super) fn write(&self, values: &[u8]) -> Result<()> {
        if values.is_empty() { Ok(()) } else { self.driver.upload(self.address, values) }
    }

    /// Hands out the first rows of `width` floats in order, some at a time; waits for them.
    pub(super) fn each_row(&self, rows: usize, width: usize, take: impl FnMut(usize, &[f32])) -> Result<()> {
        self.each_row_of(0..rows, width, take)
    }

    /// Hands out rows of `width` values in order, some at a time; waits for them.
    pub(super) fn each_row_of<T: bytemuck::Pod>(
        &self,
        rows: Range<usize>,
        width: usize,
        mut take: impl FnMut(usize, &[T]),
    ) -> Result<()> {
        let rows_at_once = (STAGING / (size_of::<T>() * width).max(1)).max(1);
        for first in rows.clone().step_by(rows_at_once) {
            let count = rows_at_once.min(rows.end - first);
            let values = self.values(first * width * size_of::<T>(), count * width)?;
            values.chunks(width).enumerate().for_each(|(i, row)| take(first + i, row));
        }
        Ok(())
    }
}
