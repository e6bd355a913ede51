//! One warp and how its lanes run.

use super::access::Fault;
use super::barriers::Release;
use super::block::Context;
use super::copies::Copies;
use super::divergence::{Divergence, Divided};
use super::lanes::{Mask, WARP, lanes};
use super::registers::Registers;
use crate::check::{Accessor, Clock, FenceState, RaceKind};
use crate::error::Space;
use crate::isa::branch::Branch;
use crate::isa::joins::NOWHERE;
use crate::isa::{Gate, Instruction, Op};
use crate::kernel::Kernel;
use crate::memory::LocalMemory;

/// The state of one warp.
///
/// Lanes that stand at the same instruction run it together. Of several groups
/// the one furthest back runs first, so that the groups meet again.
pub(crate) struct Warp {
    /// Position in the block.
    pub(crate) number: usize,
    pub(crate) registers: Registers,
    pub(crate) local: LocalMemory,
    pub(crate) clock: Clock,
    pub(crate) fences: FenceState,
    pub(crate) copies: Copies,
    /// Lanes that wait at a barrier of the block.
    pub(crate) parked: Mask,
    /// Lanes that wait for other lanes of the warp at a collective instruction.
    pub(super) gated: Mask,
    /// Lanes that have not ended.
    pub(crate) alive: Mask,
    pub(super) pc: [u32; WARP],
    divergence: Divergence,
}

/// Lanes at one instruction.
struct Group {
    pc: u32,
    mask: Mask,
    /// Where another group waits further on.
    limit: u32,
}

impl Warp {
    pub(super) fn new(kernel: &Kernel, number: usize, threads: u32, clock: Clock) -> Self {
        let count = (threads as usize - number * WARP).min(WARP);
        Warp {
            number,
            registers: Registers::new(&kernel.registers, kernel.predicates),
            local: LocalMemory::new(kernel.local_size),
            clock,
            fences: FenceState::default(),
            copies: Copies::default(),
            parked: 0,
            gated: 0,
            alive: Mask::MAX >> (WARP - count),
            pc: [0; WARP],
            divergence: Divergence::default(),
        }
    }

    /// Linear index in the block of a lane's thread.
    pub(crate) fn thread(&self, lane: usize) -> u32 {
        (self.number * WARP + lane) as u32
    }

    /// Lanes that can run now.
    pub(super) fn runnable(&self) -> Mask {
        self.alive & !self.parked & !self.gated
    }

    /// Lets lanes go on past the barrier they wait at.
    pub(super) fn release(&mut self, code: &[Instruction], release: &Release) {
        self.clock.join(&release.clock);
        self.parked &= !release.lanes;
        for lane in lanes(release.lanes) {
            let at = &code[self.pc[lane] as usize];
            if let Op::Barrier(barrier) = &at.op {
                barrier.finish(&mut self.registers, 1 << lane, release.votes);
            }
            self.pc[lane] += 1;
        }
    }

    /// Runs until no lane can go on or `budget` is used up. The first group is
    /// the one of lane `prefer`, if there is one, so that a group that spins
    /// cannot keep the others from running.
    pub(super) fn run(
        &mut self,
        kernel: &Kernel,
        context: &mut Context<'_, '_>,
        budget: &mut u64,
        mut prefer: Option<usize>,
    ) -> Result<(), Fault> {
        while *budget > 0 {
            let Some(group) = self.next_group(prefer.take()) else {
                return Ok(());
            };
            self.run_group(kernel, context, budget, group)?;
        }
        Ok(())
    }

    fn next_group(&self, prefer: Option<usize>) -> Option<Group> {
        let runnable = self.runnable();
        let preferred = prefer.filter(|&lane| runnable >> lane & 1 == 1);
        let pc = match preferred {
            Some(lane) => self.pc[lane],
            None => lanes(runnable).map(|l| self.pc[l]).min()?,
        };
        let mut group = Group { pc, mask: 0, limit: u32::MAX };
        for lane in lanes(runnable) {
            if self.pc[lane] == pc {
                group.mask |= 1 << lane;
            } else if self.pc[lane] > pc {
                group.limit = group.limit.min(self.pc[lane]);
            }
        }
        Some(group)
    }

    fn set_pc(&mut self, mask: Mask, pc: u32) {
        for lane in lanes(mask) {
            self.pc[lane] = pc;
        }
    }

    fn run_group(
        &mut self,
        kernel: &Kernel,
        context: &mut Context<'_, '_>,
        budget: &mut u64,
        group: Group,
    ) -> Result<(), Fault> {
        let Group { mut pc, mut mask, limit } = group;
        while *budget > 0 && pc < limit {
            *budget -= 1;
            // The parser ends every kernel with an exit, so this cannot be past the end.
            let instruction = &kernel.code[pc as usize];
            context.instruction = pc;
            self.divergence.arrive(pc, mask);
            let active = match instruction.guard {
                None => mask,
                Some(guard) => mask & self.registers.guard(guard),
            };
            context.grid.recorder.executed(pc, active);
            if active == 0 {
                pc += 1;
                continue;
            }
            match &instruction.op {
                Op::Branch(Branch::Jump { target, .. }) if active == mask => pc = *target,
                Op::Branch(Branch::Jump { uniform: true, .. }) => {
                    let lane = active.trailing_zeros() as usize;
                    return Err(Fault::Illegal { rule: "a branch with .uni goes both ways", lane });
                }
                Op::Branch(Branch::Jump { target, .. }) => {
                    let join = kernel.joins[pc as usize];
                    if join != NOWHERE {
                        self.divergence.split(pc, join, [active, mask & !active]);
                    }
                    self.set_pc(active, *target);
                    self.set_pc(mask & !active, pc + 1);
                    return Ok(());
                }
                Op::Branch(Branch::Exit) => {
                    self.exit(context, active);
                    mask &= !active;
                    if mask == 0 {
                        return Ok(());
                    }
                    pc += 1;
                }
                Op::Branch(Branch::Trap) => {
                    return Err(Fault::Illegal { rule: "the kernel trapped", lane: active.trailing_zeros() as usize });
                }
                op => {
                    if op.is_aligned() && active != mask {
                        return Err(Fault::Divergent {
                            here: active,
                            elsewhere: mask & !active,
                            ended: 0,
                            branch: None,
                        });
                    }
                    if !self.is_open(op.gate(), active) {
                        self.set_pc(mask & !active, pc + 1);
                        return self.wait_at_gate(op, context, active, pc);
                    }
                    self.together(op, active)?;
                    self.execute(op, context, active)?;
                    if self.parked & active != 0 {
                        self.set_pc(active, pc);
                        self.set_pc(mask & !active, pc + 1);
                        return Ok(());
                    }
                    pc += 1;
                }
            }
        }
        self.set_pc(mask, pc);
        Ok(())
    }

    /// Whether the lanes of `active` are just those that a gate asks for.
    #[inline]
    fn is_open(&self, gate: Gate, active: Mask) -> bool {
        match gate {
            Gate::None => true,
            Gate::Full => active == Mask::MAX,
            Gate::Alive => active == self.alive,
            Gate::Members(members) => lanes(active).all(|lane| self.registers.lane(members, lane) as Mask == active),
        }
    }

    /// Lanes that the gate wants with `lane`.
    fn wanted(&self, gate: Gate, lane: usize) -> Mask {
        match gate {
            Gate::None => 1 << lane,
            Gate::Full => Mask::MAX,
            Gate::Alive => self.alive,
            Gate::Members(members) => self.registers.lane(members, lane) as Mask,
        }
    }

    /// Adds lanes to those that wait at a collective instruction and runs it
    /// for every complete set.
    fn wait_at_gate(&mut self, op: &Op, context: &mut Context<'_, '_>, arriving: Mask, pc: u32) -> Result<(), Fault> {
        self.set_pc(arriving, pc);
        self.gated |= arriving;
        let gate = op.gate();
        for lane in lanes(arriving) {
            // The lane may have run with a set that one before it completed.
            if self.gated >> lane & 1 == 0 {
                continue;
            }
            let set = self.wanted(gate, lane);
            if set >> lane & 1 == 0 {
                return Err(Fault::Illegal { rule: "a lane is not in its own member mask", lane });
            }
            let complete =
                lanes(set).all(|l| self.gated >> l & 1 == 1 && self.pc[l] == pc && self.wanted(gate, l) == set);
            if complete {
                self.gated &= !set;
                self.together(op, set)?;
                self.execute(op, context, set)?;
                let gone = set & !self.parked;
                self.set_pc(gone, pc + 1);
            }
        }
        if self.gated == self.alive {
            return Err(self.stuck(op, context, arriving, pc));
        }
        Ok(())
    }

    /// The fault of a warp in which every lane waits for another one: none will ever come. Those that a branch has led to
    /// where they wait are at fault before those that `arriving` lanes miss at `op`.
    fn stuck(&self, op: &Op, context: &mut Context<'_, '_>, arriving: Mask, pc: u32) -> Fault {
        let at = |mask: Mask, pc: u32| lanes(mask).filter(|&l| self.pc[l] == pc).fold(0, |m: Mask, l| m | 1 << l);
        if let Some(Divided { here, elsewhere, branch }) = self.divergence.among(self.gated, self.alive) {
            context.instruction = self.pc[here.trailing_zeros() as usize];
            return Fault::Divergent { here: at(here, context.instruction), elsewhere, ended: 0, branch: Some(branch) };
        }
        let wanted = lanes(arriving).fold(arriving, |all, lane| all | self.wanted(op.gate(), lane));
        let here = at(wanted & self.gated, pc);
        Fault::Divergent { here, elsewhere: wanted & self.alive & !here, ended: wanted & !self.alive, branch: None }
    }

    /// Refuses an aligned instruction in code that only some lanes of the warp run.
    #[inline]
    fn together(&self, op: &Op, set: Mask) -> Result<(), Fault> {
        if !op.is_aligned() {
            return Ok(());
        }
        match self.divergence.among(set, self.alive) {
            None => Ok(()),
            Some(Divided { here, elsewhere, branch }) => {
                Err(Fault::Divergent { here, elsewhere, ended: 0, branch: Some(branch) })
            }
        }
    }

    /// What lane `lane`, which waits at `op`, is missing.
    pub(super) fn missing(&self, op: &Op, lane: usize) -> String {
        let wanted = self.wanted(op.gate(), lane);
        let (ended, pc) = (wanted & !self.alive, self.pc[lane]);
        let elsewhere = lanes(wanted & self.alive).filter(|&l| self.pc[l] != pc).fold(0, |m: Mask, l| m | 1 << l);
        format!("lanes {elsewhere:#010x} are elsewhere and lanes {ended:#010x} have ended")
    }

    fn exit(&mut self, context: &mut Context<'_, '_>, mask: Mask) {
        self.alive &= !mask;
        self.divergence.exit(mask);
        context.block.barriers.leave(mask.count_ones());
        // Whoever waits for all lanes of the warp has to look again.
        self.gated = 0;
        if self.copies.is_empty() {
            return;
        }
        for batch in self.copies.unfinished(mask) {
            // A copy of no bytes leaves nothing that anyone could miss.
            for lane in lanes(batch.open & mask).filter(|&l| batch.take[l] > 0).take(1) {
                let copy = Accessor::new(&self.clock, Some(lane), batch.instruction).epoch;
                let exit = Accessor::new(&self.clock, Some(lane), context.instruction).epoch;
                let address = batch.to[lane] as u64;
                let events = context.grid.recorder.events();
                events.race(RaceKind::CopyAtExit, Space::Shared, address, copy, exit);
            }
        }
    }

    fn execute(&mut self, op: &Op, context: &mut Context<'_, '_>, mask: Mask) -> Result<(), Fault> {
        let registers = &mut self.registers;
        match op {
            Op::Integer(op) => op.execute(registers, mask),
            Op::Float(op) => op.execute(registers, mask),
            Op::Math(op) => op.execute(registers, mask),
            Op::Logic(op) => op.execute(registers, mask),
            Op::Bits(op) => op.execute(registers, mask),
            Op::Compare(op) => op.execute(registers, mask),
            Op::Convert(op) => op.execute(registers, mask),
            Op::Move(op) => op.execute(registers, mask),
            Op::MatrixMultiply(op) => op.execute(registers, context.grid.accumulation),
            Op::Vote(op) => op.execute(registers, mask),
            Op::Shuffle(op) => op.execute(registers, mask)?,
            Op::Memory(op) => op.execute(self, context, mask)?,
            Op::Atomic(op) => op.execute(self, context, mask)?,
            Op::Fence(op) => op.execute(self),
            Op::AsyncCopy(op) => op.execute(self, context, mask)?,
            Op::Barrier(op) => op.execute(self, context, mask)?,
            Op::MatrixLoad(op) => op.execute(self, context)?,
            // Branches change program counters and are handled by the caller.
            Op::Branch(_) => {}
        }
        Ok(())
    }
}
