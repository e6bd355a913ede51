//! The race detector.
//!
//! Every warp has a vector clock, every cell of memory remembers its last write
//! and its last reads as epochs, and an access that is not ordered after a
//! conflicting one by barriers, fences and atomics is a race. Lanes of one warp
//! are ordered only by barriers of the block or the warp.

mod clock;
mod epoch;
mod global_shadow;
mod race;
mod shared_shadow;
mod sync;

pub(crate) use clock::{Clock, Scope};
pub(crate) use epoch::{Accessor, Epoch};
pub(crate) use global_shadow::GlobalShadow;
pub(crate) use race::{Conflict, Hazard, Races};
pub use race::{Race, RaceKind, Site, UninitializedRead};
pub(crate) use shared_shadow::SharedShadow;
pub(crate) use sync::{FenceState, SyncTable};

#[cfg(test)]
mod tests;
