//! State shared by the warps of a block.

use super::barriers::Barriers;
use super::grid::Grid;
use crate::check::SharedShadow;
use crate::memory::SharedMemory;

/// What the warps of a block share.
pub(crate) struct BlockState {
    pub(crate) index: [u32; 3],
    /// Position in the grid in row-major order, x fastest.
    pub(crate) linear: u32,
    pub(crate) shared: SharedMemory,
    pub(crate) shadow: SharedShadow,
    pub(crate) barriers: Barriers,
}

/// Where an instruction runs.
pub(crate) struct Context<'a, 'm> {
    pub(crate) block: &'a mut BlockState,
    pub(crate) grid: &'a mut Grid<'m>,
    /// Index of the instruction.
    pub(crate) instruction: u32,
}
