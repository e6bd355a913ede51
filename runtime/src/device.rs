//! Where a layer runs.

use crate::embedding::Tables;
use crate::operator::RowPasses;
use crate::passes::Passes;

/// A device that runs the passes of an output layer, the lookups of an input layer and operators: [`Cpu`](crate::Cpu) or
/// [`Gpu`](crate::Gpu).
///
/// Sealed: what it has to do is internal to this crate and changes with it.
pub trait Device: Passes + Tables + RowPasses {}

impl<D: Passes + Tables + RowPasses> Device for D {}
