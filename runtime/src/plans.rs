//! Kernels that a layer finds once.

use crate::{Device, Dtype, Result};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The kernels of a layer for each dtype, found when a batch first has it. Clones share them.
pub(crate) struct Plans<D: Device>(Arc<[OnceLock<Arc<D::Kernels>>; Dtype::ALL.len()]>);

impl<D: Device> Plans<D> {
    /// The kernels for a dtype, which `find` gives for the first time.
    pub(crate) fn get(&self, dtype: Dtype, find: impl FnOnce() -> Result<D::Kernels>) -> Result<Arc<D::Kernels>> {
        let known = &self.0[dtype as usize];
        if let Some(kernels) = known.get() {
            return Ok(Arc::clone(kernels));
        }
        let found = Arc::new(find()?);
        Ok(Arc::clone(known.get_or_init(|| found)))
    }
}

impl<D: Device> Clone for Plans<D> {
    fn clone(&self) -> Self {
        Plans(Arc::clone(&self.0))
    }
}

impl<D: Device> Default for Plans<D> {
    fn default() -> Self {
        Plans(Arc::default())
    }
}

impl<D: Device> fmt::Debug for Plans<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Dtype::ALL.iter().filter(|dtype| self.0[**dtype as usize].get().is_some());
        f.debug_list().entries(known).finish()
    }
}
