//! Matrices, borrowed and owned.

use crate::buffer::{Buffer, SharedPointer};
use crate::{Error, Result};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use vocabfuse_codegen::Dtype;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

/// Element types of matrices.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync {
    /// The element type as a value.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Element for half::bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}
impl Element for half::f16 {
    const DTYPE: Dtype = Dtype::F16;
}

/// A borrowed row-major matrix `[rows, columns]` whose rows may lie apart. Never written.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: *const u8,
    dtype: Dtype,
    rows: usize,
    columns: usize,
    row_stride: usize,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: a matrix is a shared borrow of plain numbers, like `&[f32]`.
unsafe impl Send for Matrix<'_> {}
// SAFETY: as above.
unsafe impl Sync for Matrix<'_> {}

impl<'a> Matrix<'a> {
    /// A contiguous matrix.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` has not exactly `rows * columns` elements.
    pub fn new<T: Element>(data: &'a [T], rows: usize, columns: usize) -> Result<Matrix<'a>> {
        if rows.checked_mul(columns) != Some(data.len()) {
            return Err(Error::Shape {
                tensor: "data",
                expected: format!("{rows} x {columns} elements"),
                found: data.len().to_string(),
            });
        }
        Matrix::with_stride(data, rows, columns, columns)
    }

    /// A matrix whose rows begin `row_stride` elements apart.
    ///
    /// # Errors
    /// [`Error::Shape`] if rows would overlap or `data` is too short.
    pub fn with_stride<T: Element>(
        data: &'a [T],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Result<Matrix<'a>> {
        if rows > 1 && row_stride < columns {
            return Err(Error::Shape {
                tensor: "matrix",
                expected: format!("a row stride of at least {columns}"),
                found: row_stride.to_string(),
            });
        }
        let needed =
            if rows == 0 { Some(0) } else { (rows - 1).checked_mul(row_stride).and_then(|n| n.checked_add(columns)) };
        if needed.is_none_or(|n| n > data.len()) {
            return Err(Error::Shape {
                tensor: "data",
                expected: format!("{rows} rows of {columns} elements, {row_stride} apart"),
                found: format!("{} elements", data.len()),
            });
        }
        Ok(Matrix { data: data.as_ptr().cast(), dtype: T::DTYPE, rows, columns, row_stride, borrow: PhantomData })
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Some of the rows.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range reaches beyond the rows.
    pub fn row_range(&self, range: Range<usize>) -> Result<Matrix<'a>> {
        if range.start > range.end || range.end > self.rows {
            return Err(Error::Shape {
                tensor: "matrix",
                expected: format!("a range of rows within 0..{}", self.rows),
                found: format!("{range:?}"),
            });
        }
        Ok(Matrix { data: self.row_pointer(range.start), rows: range.len(), ..*self })
    }

    /// The first rows, none.
    pub(crate) fn no_rows(&self) -> Matrix<'a> {
        Matrix { rows: 0, ..*self }
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The bytes of a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn row_bytes(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row lies in the borrowed memory, and plain numbers have no bytes that are not initialised.
        unsafe { std::slice::from_raw_parts(self.row_pointer(row), self.columns * self.dtype.size()) }
    }

    /// First element of a row; of one past the end if there is none.
    pub(crate) fn row_pointer(&self, row: usize) -> *const u8 {
        self.data.wrapping_add(row * self.row_stride * self.dtype.size())
    }
}

/// A row-major matrix `[rows, columns]` without gaps, in memory of its own.
#[derive(Clone)]
pub struct OwnedMatrix {
    data: Buffer<u8>,
    dtype: Dtype,
    rows: usize,
    columns: usize,
}

impl OwnedMatrix {
    /// Zeros.
    pub(crate) fn zeros(dtype: Dtype, rows: usize, columns: usize) -> OwnedMatrix {
        OwnedMatrix { data: Buffer::zeroed(rows * columns * dtype.size()), dtype, rows, columns }
    }

    /// Where it begins.
    pub(crate) fn pointer(&mut self) -> SharedPointer<u8> {
        self.data.pointer()
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The elements, row-major; `None` if they are of another type.
    pub fn elements<T: Element>(&self) -> Option<&[T]> {
        // Memory of a buffer begins at a cache line, so it is aligned for any element.
        (T::DTYPE == self.dtype).then(|| bytemuck::cast_slice(self.data.as_ref()))
    }

    /// The elements as f32, which holds all of them exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.data.as_ref();
        match self.dtype {
            Dtype::F32 => bytemuck::cast_slice(bytes).to_vec(),
            Dtype::Bf16 => bytemuck::cast_slice(bytes).iter().map(|e: &half::bf16| e.to_f32()).collect(),
            Dtype::F16 => bytemuck::cast_slice(bytes).iter().map(|e: &half::f16| e.to_f32()).collect(),
        }
    }

    /// As a borrowed matrix.
    pub fn view(&self) -> Matrix<'_> {
        Matrix {
            data: self.data.as_ref().as_ptr(),
            dtype: self.dtype,
            rows: self.rows,
            columns: self.columns,
            row_stride: self.columns,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for OwnedMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedMatrix {{ {}, {} x {} }}", self.dtype, self.rows, self.columns)
    }
}
