//! Checked accesses of lanes to memory.

use super::block::Context;
use super::lanes::Mask;
use super::warp::Warp;
use crate::check::{Accessor, Conflict, Hazard, RaceKind};
use crate::error::{LaunchError, Location, Space};
use crate::memory::{Refusal, read_bytes, write_bytes};

/// One access by one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) address: u64,
    /// 1, 2, 4, 8 or 16.
    pub(crate) bytes: usize,
    pub(crate) lane: usize,
    pub(crate) strength: Strength,
}

/// How an access takes part in races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    /// A plain access of one lane.
    Weak,
    /// An atomic, relaxed or volatile access.
    Strong,
    /// A plain access that a warp makes as a whole.
    Collective,
}

/// Why a lane cannot go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Refused {
        refusal: Refusal,
        space: Space,
        address: u64,
        bytes: usize,
        lane: usize,
    },
    Illegal {
        rule: &'static str,
        lane: usize,
    },
    /// Lanes that run something for which others are missing.
    Divergent {
        here: Mask,
        elsewhere: Mask,
        ended: Mask,
        branch: Option<u32>,
    },
}

impl Fault {
    fn lane(&self) -> usize {
        match *self {
            Fault::Refused { lane, .. } | Fault::Illegal { lane, .. } => lane,
            Fault::Divergent { here, .. } => here.trailing_zeros() as usize,
        }
    }
}

impl Access {
    pub(crate) fn refused(&self, refusal: Refusal) -> Fault {
        Fault::Refused { refusal, space: self.space, address: self.address, bytes: self.bytes, lane: self.lane }
    }

    fn accessor<'w>(&self, warp: &'w Warp, instruction: u32) -> Accessor<'w> {
        match self.strength {
            Strength::Weak => Accessor::new(&warp.clock, Some(self.lane), instruction),
            Strength::Strong => Accessor::new(&warp.clock, Some(self.lane), instruction).strong(),
            Strength::Collective => Accessor::new(&warp.clock, None, instruction),
        }
    }
}

impl Context<'_, '_> {
    /// Reads the bytes of an access as a little-endian number.
    #[inline]
    pub(crate) fn load(&mut self, warp: &Warp, access: &Access) -> Result<u128, Fault> {
        match access.space {
            Space::Global => self.load_global(warp, access),
            Space::Shared => self.load_shared(warp, access),
            Space::Local => {
                warp.local.load(access.lane, access.address, access.bytes).map_err(|refusal| access.refused(refusal))
            }
            Space::Param => self.load_parameter(access),
        }
    }

    fn load_global(&mut self, warp: &Warp, access: &Access) -> Result<u128, Fault> {
        let (index, offset) = self.check_global_read(warp, access)?;
        let data = &self.grid.memory.allocation(index).data;
        Ok(read_bytes(&data[offset..offset + access.bytes]))
    }

    /// Checks a read of global memory and returns its allocation and offset.
    pub(crate) fn check_global_read(&mut self, warp: &Warp, access: &Access) -> Result<(usize, usize), Fault> {
        let located = self.grid.memory.locate(access.address, access.bytes);
        let (index, offset) = located.map_err(|refusal| access.refused(refusal))?;
        let allocation = self.grid.memory.allocation(index);
        let size = allocation.data.len();
        let unwritten = !allocation.written.all(offset, access.bytes);
        if unwritten && self.grid.checks.uninitialized {
            self.report_uninitialized(warp, access);
        }
        if self.grid.checks.races {
            let accessor = access.accessor(warp, self.instruction);
            let shadow = self.grid.shadow.of(index, size);
            let conflict = shadow.read(offset, access.bytes, accessor);
            self.report_conflict(access, accessor, conflict, true);
        }
        Ok((index, offset))
    }

    fn load_shared(&mut self, warp: &Warp, access: &Access) -> Result<u128, Fault> {
        let located = self.block.shared.locate(access.address, access.bytes);
        let offset = located.map_err(|refusal| access.refused(refusal))?;
        let unwritten = !self.block.shared.written.all(offset, access.bytes);
        if unwritten && self.grid.checks.uninitialized {
            self.report_uninitialized(warp, access);
        }
        if self.grid.checks.races {
            let accessor = access.accessor(warp, self.instruction);
            let shadow = &mut self.block.shadow;
            let conflict = shadow.read(offset, access.bytes, warp.number, accessor);
            self.report_conflict(access, accessor, conflict, true);
        }
        Ok(read_bytes(&self.block.shared.data[offset..offset + access.bytes]))
    }

    fn load_parameter(&self, access: &Access) -> Result<u128, Fault> {
        if !access.address.is_multiple_of(access.bytes as u64) {
            return Err(access.refused(Refusal::Misaligned));
        }
        let end = access.address.checked_add(access.bytes as u64);
        match end {
            Some(end) if end <= self.grid.parameters.len() as u64 => {
                Ok(read_bytes(&self.grid.parameters[access.address as usize..end as usize]))
            }
            _ => Err(access.refused(Refusal::OutOfBounds)),
        }
    }

    /// Writes the low bytes of `value`.
    #[inline]
    pub(crate) fn store(&mut self, warp: &mut Warp, access: &Access, value: u128) -> Result<(), Fault> {
        let bytes = access.bytes;
        match access.space {
            Space::Global => {
                let located = self.grid.memory.locate(access.address, bytes);
                let (index, offset) = located.map_err(|refusal| access.refused(refusal))?;
                let allocation = self.grid.memory.allocation_mut(index);
                let size = allocation.data.len();
                allocation.written.mark(offset, bytes);
                let slot = &mut allocation.data[offset..offset + bytes];
                let changed = read_bytes(slot) != truncate(value, bytes);
                write_bytes(slot, value);
                if self.grid.checks.races {
                    let accessor = access.accessor(warp, self.instruction);
                    let conflict = self.grid.shadow.of(index, size).write(offset, bytes, accessor);
                    self.report_conflict(access, accessor, conflict, changed);
                }
            }
            Space::Shared => {
                let located = self.block.shared.locate(access.address, bytes);
                let offset = located.map_err(|refusal| access.refused(refusal))?;
                self.block.shared.written.mark(offset, bytes);
                let slot = &mut self.block.shared.data[offset..offset + bytes];
                let changed = read_bytes(slot) != truncate(value, bytes);
                write_bytes(slot, value);
                if self.grid.checks.races {
                    let accessor = access.accessor(warp, self.instruction);
                    let conflict = self.block.shadow.write(offset, bytes, accessor);
                    self.report_conflict(access, accessor, conflict, changed);
                }
            }
            Space::Local => warp
                .local
                .store(access.lane, access.address, bytes, value)
                .map_err(|refusal| access.refused(refusal))?,
            Space::Param => {
                return Err(Fault::Illegal { rule: "kernel parameters are read only", lane: access.lane });
            }
        }
        Ok(())
    }

    /// Reports a conflict; `changed` tells whether the access changed the
    /// bytes, without which lanes of one instruction may share a place.
    pub(crate) fn report_conflict(
        &mut self,
        access: &Access,
        accessor: Accessor<'_>,
        conflict: Option<Conflict>,
        changed: bool,
    ) {
        let Some(Conflict { kind, earlier }) = conflict else {
            return;
        };
        let one_instruction = kind == Hazard::WriteAfterWrite
            && earlier.same_step(accessor.epoch)
            && earlier.instruction() == accessor.epoch.instruction();
        let kind = match one_instruction {
            true if !changed => return,
            true => RaceKind::LaneConflict,
            false => kind.into(),
        };
        let (space, address) = (access.space, access.address);
        self.grid.recorder.events().race(kind, space, address, earlier, accessor.epoch);
    }

    fn report_uninitialized(&mut self, warp: &Warp, access: &Access) {
        let at = self.location(warp, access.lane);
        let events = self.grid.recorder.events();
        events.uninitialized(at, access.space, access.address);
    }

    fn location(&mut self, warp: &Warp, lane: usize) -> Location {
        Location {
            line: self.grid.recorder.events().line(self.instruction),
            block: self.block.index,
            thread: warp.thread(lane),
        }
    }

    /// The fault with the place where it happened.
    pub(crate) fn locate_fault(&mut self, warp: &Warp, fault: Fault) -> LaunchError {
        let at = self.location(warp, fault.lane());
        match fault {
            Fault::Illegal { rule, .. } => LaunchError::Illegal { at, rule },
            Fault::Divergent { here, elsewhere, ended, branch } => {
                let branch = branch.map(|pc| self.grid.recorder.events().line(pc));
                LaunchError::Divergent { at, here, elsewhere, ended, branch }
            }
            Fault::Refused { refusal: Refusal::OutOfBounds, space, address, bytes, .. } => {
                LaunchError::OutOfBounds { at, space, address, bytes }
            }
            Fault::Refused { refusal: Refusal::Misaligned, space, address, bytes, .. } => {
                LaunchError::Misaligned { at, space, address, bytes }
            }
        }
    }
}

fn truncate(value: u128, bytes: usize) -> u128 {
    match bytes {
        16.. => value,
        _ => value & ((1 << (8 * bytes)) - 1),
    }
}
