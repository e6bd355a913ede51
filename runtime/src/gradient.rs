//! Where weight gradients go: memory of the caller in f32 or a narrower type.

use crate::Element;
use crate::buffer::SharedPointer;
use half::{bf16, f16};
use std::marker::PhantomData;
use vocabfuse_codegen::Dtype;

/// A weight gradient in memory of the caller, `[V_d, H]` row-major without gaps, which pass T adds to or overwrites.
///
/// Sums are f32 whatever its type: a narrower element is rounded once a pass.
#[derive(Debug)]
pub struct GradientMut<'a> {
    data: SharedPointer<u8>,
    len: usize,
    dtype: Dtype,
    overwrite: bool,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a, T: Element> From<&'a mut [T]> for GradientMut<'a> {
    /// A gradient that is added to.
    fn from(values: &'a mut [T]) -> GradientMut<'a> {
        GradientMut {
            data: SharedPointer(values.as_mut_ptr().cast()),
            len: values.len(),
            dtype: T::DTYPE,
            overwrite: false,
            borrow: PhantomData,
        }
    }
}

impl<'a, T: Element> From<&'a mut Vec<T>> for GradientMut<'a> {
    /// A gradient that is added to.
    fn from(values: &'a mut Vec<T>) -> GradientMut<'a> {
        values.as_mut_slice().into()
    }
}

impl GradientMut<'_> {
    /// The same, but what is there before does not count.
    pub fn overwriting(self) -> Self {
        GradientMut { overwrite: true, ..self }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The elements from `start`, to be changed by one of several threads.
    ///
    /// # Safety
    /// `start + len` lies within, and nobody else uses these elements while the part exists.
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> Part<'_> {
        // SAFETY: the caller's; the memory is borrowed for as long as `self` is, and properly aligned.
        unsafe {
            let data = self.data.get().add(start * self.dtype.size());
            match self.dtype {
                Dtype::F32 => Part::F32(std::slice::from_raw_parts_mut(data.cast(), len)),
                Dtype::Bf16 => Part::Bf16(std::slice::from_raw_parts_mut(data.cast(), len)),
                Dtype::F16 => Part::F16(std::slice::from_raw_parts_mut(data.cast(), len)),
            }
        }
    }

    /// Where element `start` is.
    pub(crate) fn pointer(&self, start: usize) -> *mut u8 {
        self.data.get().wrapping_add(start * self.dtype.size())
    }

    /// Zeros from element `start` on, if what is there does not count.
    pub(crate) fn clear_from(&mut self, start: usize) {
        assert!(start <= self.len, "element {start} of {}", self.len);
        if self.overwrite {
            let size = self.dtype.size();
            // SAFETY: within, by the assertion; exclusively borrowed. Zero bytes are zeros of all types.
            unsafe { self.data.get().add(start * size).write_bytes(0, (self.len - start) * size) }
        }
    }

    /// Whether what is there before does not count.
    pub(crate) fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// Adds to the elements from `start`, or overwrites them.
    pub(crate) fn put(&mut self, start: usize, values: &[f32]) {
        assert!(start + values.len() <= self.len, "elements {start}.. of {}", self.len);
        // SAFETY: within, by the assertion; exclusively borrowed.
        unsafe { self.part(start, values.len()) }.put(values, self.overwrite);
    }
}

/// Some elements of a gradient.
pub(crate) enum Part<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
}

impl Part<'_> {
    /// Adds f32 sums, or puts them in the place of what is there.
    pub(crate) fn put(self, values: &[f32], overwrite: bool) {
        match self {
            Part::F32(to) => put(to, values, overwrite, |v| v, |v| v),
            Part::Bf16(to) => put(to, values, overwrite, bf16::to_f32, bf16::from_f32),
            Part::F16(to) => put(to, values, overwrite, f16::to_f32, f16::from_f32),
        }
    }
}

#[inline]
fn put<T: Copy>(to: &mut [T], values: &[f32], overwrite: bool, wide: impl Fn(T) -> f32, round: impl Fn(f32) -> T) {
    if overwrite {
        to.iter_mut().zip(values).for_each(|(to, value)| *to = round(*value));
    } else {
        to.iter_mut().zip(values).for_each(|(to, value)| *to = round(wide(*to) + *value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_once() {
        // In bf16, 256 + 1 is 256, so that adding the two halves one after the other would lose both.
        let mut values = [bf16::from_f32(256.0); 3];
        GradientMut::from(&mut values[..]).put(1, &[2.0]);
        assert_eq!(values.map(bf16::to_f32), [256.0, 258.0, 256.0]);
        let gradient = GradientMut::from(&mut values[..]);
        assert_eq!((gradient.len(), gradient.dtype(), gradient.is_empty()), (3, Dtype::Bf16, false));
        gradient.overwriting().put(0, &[1.5, f32::NAN]);
        assert!(values[0].to_f32() == 1.5 && values[1].is_nan());
        let mut plain = vec![1.0_f32];
        GradientMut::from(&mut plain).put(0, &[2.0]);
        assert_eq!(plain, [3.0]);
        let mut half = [f16::from_f32(0.5)];
        GradientMut::from(&mut half[..]).put(0, &[0.25]);
        assert_eq!(half[0].to_f32(), 0.75);
    }
}
