//! State shared by all blocks of a launch.

use rand_chacha::ChaCha8Rng;

use super::launch::{Accumulation, Checks};
use crate::check::{GlobalShadow, SyncTable};
use crate::memory::Memory;
use crate::report::Recorder;

/// What the blocks of a grid share.
pub(crate) struct Grid<'m> {
    pub(crate) memory: &'m mut Memory,
    pub(crate) shadow: GlobalShadow,
    pub(crate) sync: SyncTable,
    pub(crate) recorder: Recorder,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) checks: Checks,
    pub(crate) accumulation: Accumulation,
    /// Kernel arguments.
    pub(crate) parameters: Vec<u8>,
}
