//! Aligned buffers, and pointers into them for kernels that run on several threads.

use crate::memory::Memory;
use bytemuck::Pod;

/// Alignment of buffers in bytes: a cache line.
const LINE: usize = 64;
/// What memory is allocated in. The allocator has zeroed memory at hand only for alignments up to this one's; beyond, it
/// would write the zeros itself.
pub(crate) type Unit = u128;

/// Memory of plain numbers, aligned to a cache line.
pub(crate) struct Buffer<T> {
    units: Vec<Unit>,
    /// First unit that begins a line.
    first: usize,
    len: usize,
    /// Who takes the memory back.
    home: Option<Memory>,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Zeros.
    pub(crate) fn zeroed(len: usize) -> Buffer<T> {
        Buffer::in_region(Buffer::<T>::fresh(Buffer::<T>::units(len)), len, None)
    }

    /// Units that hold `len` elements wherever the first line begins.
    pub(crate) fn units(len: usize) -> usize {
        ((len * size_of::<T>()).next_multiple_of(LINE) + LINE) / size_of::<Unit>() - 1
    }

    /// Zeroed units.
    pub(crate) fn fresh(units: usize) -> Vec<Unit> {
        let mut units = bytemuck::allocation::zeroed_vec(units);
        prefer_huge_pages(&mut units);
        units
    }

    /// The first `len` elements of a region that has room for them, which goes to `home` in the end.
    pub(crate) fn in_region(units: Vec<Unit>, len: usize, home: Option<Memory>) -> Buffer<T> {
        let address = units.as_ptr().addr();
        let first = (address.next_multiple_of(LINE) - address) / size_of::<Unit>();
        Buffer { units, first, len, home, element: std::marker::PhantomData }
    }

    /// Another buffer from where this one is from, of any numbers.
    pub(crate) fn another(&self, len: usize) -> Buffer<T> {
        self.home.as_ref().map_or_else(|| Buffer::zeroed(len), |home| home.buffer(len))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn pointer(&mut self) -> SharedPointer<T> {
        SharedPointer(self.as_mut().as_mut_ptr())
    }
}

/// Asks the system to back large memory with huge pages. Fresh memory is mapped when it is first touched, and 4 KB at a
/// time that takes longer than the kernel that writes saved values has left.
#[cfg(target_os = "linux")]
fn prefer_huge_pages(units: &mut [Unit]) {
    const HUGE_PAGE: usize = 2 << 20;
    let address = units.as_ptr().addr();
    let skipped = address.next_multiple_of(HUGE_PAGE) - address;
    let whole = size_of_val(units).saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if whole >= HUGE_PAGE {
        // SAFETY: the range lies within `units`, and the advice changes nothing about its contents. Where the system
        // has no huge pages the call fails, and nothing depends on it.
        unsafe { libc::madvise(units.as_mut_ptr().cast::<u8>().add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
fn prefer_huge_pages(_: &mut [Unit]) {}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(std::mem::take(&mut self.units));
        }
    }
}

impl<T: Pod> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        let mut copy = self.another(self.len);
        copy.as_mut().copy_from_slice(self.as_ref());
        copy
    }
}

impl<T: Pod> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.units[self.first..])[..self.len]
    }
}

impl<T: Pod> AsMut<[T]> for Buffer<T> {
    fn as_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.units[self.first..])[..self.len]
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
