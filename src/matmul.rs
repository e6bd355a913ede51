//! Safe matrix products over the parts of the `gemm` crate, whose functions take pointers.

use gemm_common::Parallelism;

/// `C = read_C * alpha * C + beta * A B`: the sizes m, n and k; C, A and B, each with its strides from a column and from a row to
/// the next, C with `read_C` behind it; alpha and beta; three flags of complex numbers. C is column-major.
type Product<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

/// What matrices hold.
pub trait Scalar: Copy + 'static {
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;

    /// The product for this processor.
    #[doc(hidden)]
    fn kernel() -> Product<Self>;
}

impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn kernel() -> Product<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn kernel() -> Product<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// A borrowed matrix of any strides.
#[derive(Clone, Copy)]
pub struct View<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Scalar> View<'a, T> {
    /// `rows` times `columns` values, row-major without gaps.
    ///
    /// # Panics
    /// If `data` has another length.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> View<'a, T> {
        assert_eq!(data.len(), rows * columns, "a {rows} x {columns} matrix");
        View { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The transpose, of the same data.
    pub fn t(self) -> View<'a, T> {
        View {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// `out = factor a b`, or `out += factor a b`; `out` is row-major without gaps. Runs on the current rayon pool.
///
/// # Panics
/// If the shapes do not fit.
pub fn product<T: Scalar>(out: &mut [T], a: View<'_, T>, b: View<'_, T>, factor: T, accumulate: bool) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "inner size of a product");
    assert_eq!(out.len(), m * n, "a {m} x {n} product");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            out.fill(T::ZERO);
        }
        return;
    }
    // The product is one of column-major matrices, which transposes of row-major ones are: outᵀ = bᵀ aᵀ.
    // SAFETY: the views were checked to hold rows x columns values at their strides when they were made, `out` holds
    // m x n values and is borrowed for writing, so it overlaps neither operand.
    unsafe {
        T::kernel()(
            n,
            m,
            k,
            out.as_mut_ptr(),
            n as isize,
            1,
            accumulate,
            b.data.as_ptr(),
            b.row_stride as isize,
            b.column_stride as isize,
            a.data.as_ptr(),
            a.row_stride as isize,
            a.column_stride as isize,
            T::ONE,
            factor,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_transposes() {
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, -1.0, 0.5, 2.0]);
        let mut out = [1.0; 6];
        product(&mut out, View::new(&a, 2, 3).t(), View::new(&b, 2, 2).t(), 2.0, true);
        // aᵀ = [1 4; 2 5; 3 6], bᵀ = [1 0.5; -1 2]
        assert_eq!(out, [1.0 - 6.0, 1.0 + 17.0, 1.0 - 6.0, 1.0 + 22.0, 1.0 - 6.0, 1.0 + 27.0]);
    }

    #[test]
    fn an_empty_sum_is_zero() {
        let mut out = [7.0; 2];
        product(&mut out, View::new(&[0.0; 0], 1, 0), View::new(&[], 0, 2), 1.0, false);
        assert_eq!(out, [0.0; 2]);
    }
}
