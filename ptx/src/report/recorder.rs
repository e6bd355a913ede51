//! Collects what happens during a launch.

use super::banks;
use super::counters::{Class, GlobalCounters, LineCounters, Report, SharedCounters};
use super::sectors;
use crate::check::{Epoch, Race, RaceKind, Races, Site, UninitializedRead};
use crate::error::{Location, Space};
use crate::isa::Instruction;
use crate::machine::{Lanes, Mask};

/// Counters of one instruction while it runs.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    warps: u64,
    lanes: u64,
    shared: SharedCounters,
    global: GlobalCounters,
}

/// Counters and events of a launch.
#[derive(Debug)]
pub(crate) struct Recorder {
    counters: Vec<Counters>,
    events: Events,
}

/// Events that the checks find.
#[derive(Debug)]
pub(crate) struct Events {
    lines: Vec<u32>,
    warps_per_block: u32,
    races: Races,
    uninitialized: Vec<UninitializedRead>,
}

impl Recorder {
    pub(crate) fn new(code: &[Instruction], warps_per_block: u32) -> Self {
        Recorder {
            counters: vec![Counters::default(); code.len()],
            events: Events {
                lines: code.iter().map(|i| i.line).collect(),
                warps_per_block,
                races: Races::default(),
                uninitialized: Vec::new(),
            },
        }
    }

    /// One run of an instruction by the lanes of `mask`.
    #[inline]
    pub(crate) fn executed(&mut self, instruction: u32, mask: Mask) {
        let counters = &mut self.counters[instruction as usize];
        counters.warps += 1;
        counters.lanes += u64::from(mask.count_ones());
    }

    /// One access to shared memory by the lanes of `mask`.
    pub(crate) fn shared_access(&mut self, instruction: u32, addresses: &Lanes, mask: Mask, bytes: usize) {
        if mask != 0 {
            let found = banks::transactions(addresses, mask, bytes);
            self.counters[instruction as usize].shared.add(&found);
        }
    }

    /// One access to global memory by the lanes of `mask`.
    pub(crate) fn global_access(&mut self, instruction: u32, addresses: &Lanes, mask: Mask, bytes: usize) {
        if mask != 0 {
            let found = sectors::traffic(addresses, mask, bytes);
            self.counters[instruction as usize].global.add(&found);
        }
    }

    pub(crate) fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// The report of everything recorded.
    pub(crate) fn finish(self, code: &[Instruction]) -> Report {
        let mut report = Report {
            races: self.events.races.into_vec(),
            uninitialized: self.events.uninitialized,
            ..Report::default()
        };
        for (counters, instruction) in self.counters.iter().zip(code) {
            if counters.warps > 0 {
                add_line(&mut report, counters, instruction.line, instruction.op.class());
            }
        }
        report
    }
}

fn add_line(report: &mut Report, counters: &Counters, line: u32, class: Class) {
    report.warp_instructions += counters.warps;
    report.lane_instructions += counters.lanes;
    report.classes.add(class, counters.warps);
    report.shared.add(&counters.shared);
    report.global.add(&counters.global);
    report.lines.push(LineCounters {
        line,
        class,
        warps: counters.warps,
        lanes: counters.lanes,
        shared: counters.shared,
        global: counters.global,
    });
}

impl Events {
    /// Line of an instruction.
    pub(crate) fn line(&self, instruction: u32) -> u32 {
        self.lines[instruction as usize]
    }

    fn site(&self, epoch: Epoch) -> Site {
        Site {
            line: self.line(epoch.instruction()),
            block: epoch.warp() / self.warps_per_block,
            warp: epoch.warp() % self.warps_per_block,
            lane: epoch.lane(),
        }
    }

    /// Two accesses that nothing orders.
    pub(crate) fn race(&mut self, kind: RaceKind, space: Space, address: u64, first: Epoch, second: Epoch) {
        let race = Race { kind, space, address, first: self.site(first), second: self.site(second), count: 1 };
        self.races.add(race);
    }

    /// A read of bytes that nothing wrote.
    pub(crate) fn uninitialized(&mut self, at: Location, space: Space, address: u64) {
        let known = self.uninitialized.iter_mut();
        match known.into_iter().find(|u| u.at.line == at.line && u.space == space) {
            Some(read) => read.count += 1,
            None => self.uninitialized.push(UninitializedRead { at, space, address, count: 1 }),
        }
    }
}
