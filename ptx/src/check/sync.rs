//! Order made by fences and atomics.
//!
//! As in the PTX memory model, a fence before an atomic or relaxed write
//! publishes what the warp knew at the fence, and a fence after an atomic or
//! relaxed read takes over what it found published there.

use std::collections::HashMap;

use super::clock::{Clock, Scope};

/// Steps of warps, with the scope at which each was published.
type Steps = HashMap<u32, (u32, Scope)>;

/// What was published at each location.
#[derive(Debug, Default)]
pub(crate) struct SyncTable {
    published: HashMap<Place, Steps>,
}

/// A location: the block for shared memory, nothing for global, and an address.
pub(crate) type Place = (Option<u32>, u64);

/// The part of a warp's state that fences and atomics act on.
#[derive(Clone, Debug, Default)]
pub(crate) struct FenceState {
    /// What later atomics publish.
    release: Vec<(u32, u32, Scope)>,
    /// What a later fence takes over.
    acquired: Steps,
}

impl SyncTable {
    /// A fence: knowledge from earlier atomics counts from here, and later
    /// atomics publish all that is known here.
    pub(crate) fn fence(clock: &mut Clock, state: &mut FenceState, scope: Scope) {
        for (warp, (step, reach)) in state.acquired.drain() {
            let reaches = clock.is_local(warp) || (reach == Scope::Device && scope == Scope::Device);
            if reaches {
                clock.learn(warp, step);
            }
        }
        // A fence of the block must not take back what a wider one gave.
        state.release.retain(|&(_, _, reach)| reach > scope);
        state.release.extend(clock.steps().map(|(warp, step)| (warp, step, scope)));
        clock.tick();
    }

    /// An atomic or relaxed write at `place`.
    pub(crate) fn publish(&mut self, place: Place, state: &FenceState) {
        if state.release.is_empty() {
            return;
        }
        let steps = self.published.entry(place).or_default();
        for &(warp, step, scope) in &state.release {
            let slot = steps.entry(warp).or_insert((0, scope));
            if (step, scope) > *slot {
                *slot = (step, scope);
            }
        }
    }

    /// An atomic or relaxed read at `place`.
    pub(crate) fn observe(&self, place: Place, state: &mut FenceState) {
        let Some(steps) = self.published.get(&place) else {
            return;
        };
        for (&warp, &found) in steps {
            let slot = state.acquired.entry(warp).or_insert(found);
            if found > *slot {
                *slot = found;
            }
        }
    }
}
