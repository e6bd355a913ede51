//! dX for upstream gradients that are known only after C1.

use crate::batch::Upstreams;
use crate::check::expect;
use crate::gradient::{GradientMut, Part};
use crate::job::Job;
use crate::{Device, Dtype, Error, Result};
use half::{bf16, f16};
use std::sync::Arc;

/// The parts that dX is made of once its upstream gradients are known: f32 `[N, H]` for the loss, and as much again for lse.
/// Ranks of a process share them.
#[derive(Clone, Debug)]
pub struct InputGrad {
    /// `[parts][N, H]`.
    parts: Arc<Vec<f32>>,
    /// Rows of X that count; the others have no gradient.
    rows: Arc<Vec<u32>>,
    tokens: usize,
    hidden: usize,
    dtype: Dtype,
}

impl InputGrad {
    pub(crate) fn new<D: Device>(job: &Job<D>, parts: Arc<Vec<f32>>) -> InputGrad {
        let rows = Arc::new(job.rows.clone());
        InputGrad { parts, rows, tokens: job.tokens, hidden: job.hidden, dtype: job.dtype }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.parts.len() * size_of::<f32>()
    }

    /// Writes dX `[N, H]`, f32 or of the type of X, or adds it to what is there; each element is rounded once. Any number of
    /// times.
    ///
    /// # Errors
    /// [`Error::Shape`] for an output or upstream of the wrong length, [`Error::Dtype`] if dX is neither f32 nor of the type of
    /// X, [`Error::Option`] for an upstream gradient of lse that was not to come.
    pub fn write<'a>(&self, upstreams: impl Into<Upstreams<'a>>, mut dx: GradientMut<'_>) -> Result<()> {
        let upstreams = upstreams.into();
        let InputGrad { tokens, hidden, .. } = *self;
        let size = tokens * hidden;
        expect("dx", size, dx.len())?;
        if ![Dtype::F32, self.dtype].contains(&dx.dtype()) {
            return Err(Error::Dtype { tensor: "dx", expected: self.dtype, found: dx.dtype() });
        }
        upstreams.loss.check("upstream", tokens)?;
        if let Some(lse) = upstreams.lse {
            if self.parts.len() < 2 * size {
                let message = "expected none that comes late: the batch of pass S says which do".to_owned();
                return Err(Error::Option { option: "lse_upstream", message });
            }
            lse.check("lse_upstream", tokens)?;
        }
        dx.clear_from(0);
        for row in self.rows.iter().map(|row| *row as usize) {
            let part = |index: usize| &self.parts[index * size + row * hidden..][..hidden];
            let by_loss = f64::from(upstreams.loss.of(row));
            match upstreams.lse {
                Some(lse) => {
                    let by_lse = f64::from(lse.of(row));
                    let sum = |(g, l): (&f32, &f32)| by_loss * f64::from(*g) + by_lse * f64::from(*l);
                    add(&dx, row * hidden, part(0).iter().zip(part(1)).map(sum));
                }
                None => add(&dx, row * hidden, part(0).iter().map(|g| by_loss * f64::from(*g))),
            }
        }
        Ok(())
    }
}

/// Adds to the elements from `start`, rounding each once.
fn add(dx: &GradientMut<'_>, start: usize, values: impl ExactSizeIterator<Item = f64>) {
    // SAFETY: `dx` has N times H elements and is borrowed exclusively; rows are below N.
    match unsafe { dx.part(start, values.len()) } {
        Part::F32(to) => to.iter_mut().zip(values).for_each(|(to, v)| *to = (f64::from(*to) + v) as f32),
        Part::Bf16(to) => to.iter_mut().zip(values).for_each(|(to, v)| *to = bf16::from_f64(to.to_f64() + v)),
        Part::F16(to) => to.iter_mut().zip(values).for_each(|(to, v)| *to = f16::from_f64(to.to_f64() + v)),
    }
}
