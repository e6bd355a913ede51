//! Aligned buffers, and pointers into them for kernels that run on several threads.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 bytes without padding; any bit pattern is valid.
unsafe impl Zeroable for Line {}
// SAFETY: as above.
unsafe impl Pod for Line {}

/// Zeroed memory of plain numbers, aligned to a cache line.
#[derive(Clone)]
pub(crate) struct Buffer<T> {
    lines: Vec<Line>,
    len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn zeroed(len: usize) -> Buffer<T> {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        Buffer { lines: bytemuck::allocation::zeroed_vec(lines), len, element: std::marker::PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pointer(&mut self) -> SharedPointer<T> {
        SharedPointer(self.as_mut().as_mut_ptr())
    }
}

impl<T: Pod> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// A pointer that kernels on several threads write disjoint parts through.
#[derive(Debug)]
pub struct SharedPointer<T>(pub(crate) *mut T);

impl<T> Clone for SharedPointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedPointer<T> {}

// SAFETY: only an address; every use states which part of the buffer it owns.
unsafe impl<T> Send for SharedPointer<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedPointer<T> {}

impl<T> SharedPointer<T> {
    // A method, so that closures capture the wrapper and not the bare pointer.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}
