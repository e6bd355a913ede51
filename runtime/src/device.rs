//! Where a layer runs.

use crate::embedding::Tables;
use crate::passes::Passes;

/// A device that runs the passes of an output layer and the lookups of an input layer: [`Cpu`](crate::Cpu) or
/// [`Gpu`](crate::Gpu).
///
/// Sealed: what it has to do is internal to this crate and changes with it.
pub trait Device: Passes + Tables {}

impl<D: Passes + Tables> Device for D {}
