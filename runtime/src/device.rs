//! Where a layer runs.

use crate::passes::Passes;

/// A device that runs the passes of an output layer: [`Cpu`](crate::Cpu) or [`Gpu`](crate::Gpu).
///
/// Sealed: what it has to do is internal to this crate and changes with it.
pub trait Device: Passes {}

impl<D: Passes> Device for D {}
