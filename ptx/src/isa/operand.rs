//! Resolved operands.

/// Index of a data register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(pub(crate) u32);

/// Index of a predicate register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predicate(pub(crate) u32);

/// A source: a register or a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operand {
    Reg(Reg),
    Imm(u64),
}

/// A source predicate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PredicateOperand {
    Register { predicate: Predicate, negated: bool },
    Constant(bool),
}

/// The condition under which a lane runs an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Guard {
    pub(crate) predicate: Predicate,
    pub(crate) negated: bool,
}

/// A memory address: base plus constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Address {
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}
