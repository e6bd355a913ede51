//! What the detector reports.

use std::collections::HashMap;

use super::epoch::Epoch;
use crate::error::{Location, Space};

/// How two accesses conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RaceKind {
    /// A read that is not ordered after a write.
    ReadAfterWrite,
    /// A write that is not ordered after a read.
    WriteAfterRead,
    /// A write that is not ordered after another write.
    WriteAfterWrite,
    /// An access to bytes that an asynchronous copy in flight writes.
    PendingCopy,
    /// Two lanes of one instruction write different values to one place.
    LaneConflict,
    /// A thread ended with an asynchronous copy that it never waited for.
    CopyAtExit,
}

/// One side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Line of the PTX text.
    pub line: u32,
    /// Linear index of the block in the grid.
    pub block: u32,
    /// Warp of the block.
    pub warp: u32,
    /// The lane, if a single one made the access.
    pub lane: Option<u32>,
}

/// Two accesses that nothing orders. Races of one kind between one pair of
/// lines are reported once, with their number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// How the accesses conflict.
    pub kind: RaceKind,
    /// Memory space of both.
    pub space: Space,
    /// Address of the second access that was found first.
    pub address: u64,
    /// The access that came first in this schedule.
    pub first: Site,
    /// The access that found it.
    pub second: Site,
    /// How often this pair of lines raced.
    pub count: u64,
}

impl std::fmt::Display for Race {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} on {:?} address {:#x}: PTX line {} (block {}, warp {}) and line {} (block {}, warp {}), {} times",
            self.kind,
            self.space,
            self.address,
            self.first.line,
            self.first.block,
            self.first.warp,
            self.second.line,
            self.second.block,
            self.second.warp,
            self.count
        )
    }
}

/// A read of bytes that nothing ever wrote; reads of one line are reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UninitializedRead {
    /// Where it was first seen.
    pub at: Location,
    /// Memory space.
    pub space: Space,
    /// Address of the first one.
    pub address: u64,
    /// How many reads that line made.
    pub count: u64,
}

/// A conflict as a shadow memory finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) kind: Hazard,
    pub(crate) earlier: Epoch,
}

/// Kinds that a shadow memory can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hazard {
    ReadAfterWrite,
    WriteAfterRead,
    WriteAfterWrite,
    Pending,
}

impl From<Hazard> for RaceKind {
    fn from(hazard: Hazard) -> Self {
        match hazard {
            Hazard::ReadAfterWrite => RaceKind::ReadAfterWrite,
            Hazard::WriteAfterRead => RaceKind::WriteAfterRead,
            Hazard::WriteAfterWrite => RaceKind::WriteAfterWrite,
            Hazard::Pending => RaceKind::PendingCopy,
        }
    }
}

type RaceKey = (RaceKind, Space, u32, u32);

/// Collects races, one for each pair of lines.
#[derive(Debug, Default)]
pub(crate) struct Races {
    found: Vec<Race>,
    index: HashMap<RaceKey, usize>,
}

impl Races {
    pub(crate) fn add(&mut self, race: Race) {
        let key = (race.kind, race.space, race.first.line, race.second.line);
        match self.index.get(&key) {
            Some(&i) => self.found[i].count += 1,
            None => {
                self.index.insert(key, self.found.len());
                self.found.push(race);
            }
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Race> {
        self.found
    }
}
