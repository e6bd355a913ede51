//! Registers of one warp.

use std::array::from_fn;

use super::lanes::{Mask, WARP, lanes};
use crate::isa::types::low_bits;
use crate::isa::{Guard, Operand, Predicate, PredicateOperand, Reg};

/// One value per lane.
pub(crate) type Lanes = [u64; WARP];

/// Dense register file: data registers hold a value per lane, zero-extended to
/// sixty-four bits, and predicates one bit per lane.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    values: Vec<Lanes>,
    predicates: Vec<Mask>,
}

impl Registers {
    /// Registers of the given widths, with a pattern that is a NaN in every float
    /// format, so that the use of an unset register shows in results.
    pub(crate) fn new(widths: &[u32], predicates: usize) -> Self {
        let unset = |&bits: &u32| [0x7fff_7fff_7fff_7fff & low_bits(bits); WARP];
        Registers { values: widths.iter().map(unset).collect(), predicates: vec![0; predicates] }
    }

    #[inline]
    pub(crate) fn get(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::Reg(reg) => self.values[reg.0 as usize],
            Operand::Imm(value) => [value; WARP],
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, reg: Reg, values: &Lanes, mask: Mask) {
        let slot = &mut self.values[reg.0 as usize];
        if mask == Mask::MAX {
            *slot = *values;
        } else {
            for lane in lanes(mask) {
                slot[lane] = values[lane];
            }
        }
    }

    #[inline]
    pub(crate) fn lane(&self, operand: Operand, lane: usize) -> u64 {
        match operand {
            Operand::Reg(reg) => self.values[reg.0 as usize][lane],
            Operand::Imm(value) => value,
        }
    }

    #[inline]
    pub(crate) fn set_lane(&mut self, reg: Reg, lane: usize, value: u64) {
        self.values[reg.0 as usize][lane] = value;
    }

    /// Lanes in which the guard holds.
    #[inline]
    pub(crate) fn guard(&self, guard: Guard) -> Mask {
        let bits = self.predicates[guard.predicate.0 as usize];
        if guard.negated { !bits } else { bits }
    }

    #[inline]
    pub(crate) fn predicate(&self, operand: PredicateOperand) -> Mask {
        match operand {
            PredicateOperand::Register { predicate, negated } => self.guard(Guard { predicate, negated }),
            PredicateOperand::Constant(true) => Mask::MAX,
            PredicateOperand::Constant(false) => 0,
        }
    }

    #[inline]
    pub(crate) fn set_predicate(&mut self, predicate: Predicate, bits: Mask, mask: Mask) {
        let slot = &mut self.predicates[predicate.0 as usize];
        *slot = (*slot & !mask) | (bits & mask);
    }

    #[inline]
    pub(crate) fn map1(&mut self, d: Reg, a: Operand, mask: Mask, f: impl Fn(u64) -> u64) {
        let a = self.get(a);
        self.set(d, &from_fn(|l| f(a[l])), mask);
    }

    #[inline]
    pub(crate) fn map2(&mut self, d: Reg, [a, b]: [Operand; 2], mask: Mask, f: impl Fn(u64, u64) -> u64) {
        let (a, b) = (self.get(a), self.get(b));
        self.set(d, &from_fn(|l| f(a[l], b[l])), mask);
    }

    #[inline]
    pub(crate) fn map3(&mut self, d: Reg, [a, b, c]: [Operand; 3], mask: Mask, f: impl Fn(u64, u64, u64) -> u64) {
        let (a, b, c) = (self.get(a), self.get(b), self.get(c));
        self.set(d, &from_fn(|l| f(a[l], b[l], c[l])), mask);
    }

    /// Lanes in which `f` holds for the two sources.
    #[inline]
    pub(crate) fn test(&self, [a, b]: [Operand; 2], f: impl Fn(u64, u64) -> bool) -> Mask {
        let (a, b) = (self.get(a), self.get(b));
        (0..WARP).fold(0, |bits, l| bits | Mask::from(f(a[l], b[l])) << l)
    }
}
