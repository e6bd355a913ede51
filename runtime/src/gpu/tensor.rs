//! Tensors that live on a device.

use super::Gpu;
use super::buffer::Buffer;
use crate::{Error, Result};
use std::marker::PhantomData;
use std::sync::Arc;

/// A matrix `[rows, columns]` in the memory of a device; a vector is a matrix of one row. Clones are the same memory.
///
/// Rows begin as many elements apart as the step wants that the tensor is for; what lies between them is zero.
#[derive(Clone, Debug)]
pub struct DeviceTensor<T> {
    pub(super) buffer: Arc<Buffer>,
    rows: usize,
    columns: usize,
    stride: usize,
    element: PhantomData<T>,
}

impl<T: bytemuck::Pod> DeviceTensor<T> {
    /// Zeros, with rows `stride` elements apart.
    pub(super) fn zeros(gpu: &Gpu, rows: usize, columns: usize, stride: usize) -> Result<DeviceTensor<T>> {
        let buffer = Arc::new(Buffer::with(gpu.library.driver(), &vec![T::zeroed(); rows * stride])?);
        Ok(DeviceTensor { buffer, rows, columns, stride, element: PhantomData })
    }

    /// Zeros, contiguous.
    pub(super) fn vector(gpu: &Gpu, len: usize) -> Result<DeviceTensor<T>> {
        DeviceTensor::zeros(gpu, 1, len, len)
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.stride
    }

    /// Writes all values, row-major without gaps.
    ///
    /// # Errors
    /// [`Error::Shape`] if `values` has another length.
    pub fn upload(&self, values: &[T]) -> Result<()> {
        if values.len() != self.rows * self.columns {
            return Err(Error::Shape {
                tensor: "tensor",
                expected: format!("{} x {} elements", self.rows, self.columns),
                found: values.len().to_string(),
            });
        }
        let (columns, stride) = (self.columns.max(1), self.row_stride());
        let mut spread = vec![T::zeroed(); self.rows * stride];
        for (to, from) in spread.chunks_mut(stride.max(1)).zip(values.chunks(columns)) {
            to[..columns].copy_from_slice(from);
        }
        self.buffer.write(bytemuck::cast_slice(&spread))
    }

    /// Reads all values, row-major without gaps; waits for everything that writes them.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn download(&self) -> Result<Vec<T>> {
        let mut spread = vec![T::zeroed(); self.rows * self.row_stride()];
        self.buffer.read(bytemuck::cast_slice_mut(&mut spread))?;
        Ok(spread.chunks(self.row_stride().max(1)).flat_map(|row| row[..self.columns].to_vec()).collect())
    }
}
