//! The instruction set: one file per family, each with the typed form of its
//! instructions, their decoding and their execution.
//!
//! A new family is a file here with `decode` and `execute`, a variant of [`Op`]
//! with its class and gate, its names in [`decode`], and an arm in the `execute`
//! of a warp.

pub(crate) mod async_copy;
pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod bits;
pub(crate) mod branch;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod fence;
pub(crate) mod float;
mod fused_sum;
pub(crate) mod integer;
pub(crate) mod joins;
pub(crate) mod load_store;
pub(crate) mod logic;
pub(crate) mod math;
pub(crate) mod matrix_load;
pub(crate) mod matrix_multiply;
pub(crate) mod movement;
pub(crate) mod operand;
pub(crate) mod shuffle;
pub(crate) mod special;
pub(crate) mod types;
pub(crate) mod vote;

pub(crate) use operand::{Address, Guard, Operand, Predicate, PredicateOperand, Reg};

use crate::error::ParseErrorKind;
use crate::report::Class;
use crate::syntax::Statement;

/// A decoded instruction with everything that the machine asks for.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    /// Line of the text.
    pub(crate) line: u32,
}

impl Instruction {
    pub(crate) fn new(guard: Option<Guard>, op: Op, line: u32) -> Self {
        Instruction { guard, op, line }
    }
}

/// An operation of one of the families.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Integer(integer::Integer),
    Float(float::Float),
    Math(math::Math),
    Logic(logic::Logic),
    Bits(bits::Bits),
    Compare(compare::Compare),
    Convert(convert::Convert),
    Move(movement::Move),
    Branch(branch::Branch),
    Memory(load_store::LoadStore),
    Atomic(atomic::Atomic),
    Fence(fence::Fence),
    AsyncCopy(async_copy::AsyncCopy),
    Barrier(barrier::Barrier),
    Shuffle(shuffle::Shuffle),
    Vote(vote::Vote),
    MatrixLoad(matrix_load::MatrixLoad),
    MatrixMultiply(matrix_multiply::MatrixMultiply),
}

/// Which lanes must stand at an instruction before it can run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gate {
    /// Each lane runs on its own.
    None,
    /// The lanes of a member mask.
    Members(Operand),
    /// All lanes that have not ended.
    Alive,
    /// All thirty-two lanes.
    Full,
}

impl Op {
    /// Whether all lanes of a warp have to run it together (`.aligned`), so that code where lanes diverge must not have it.
    pub(crate) fn is_aligned(&self) -> bool {
        match self {
            Op::Barrier(barrier) => barrier.is_aligned(),
            Op::MatrixLoad(_) | Op::MatrixMultiply(_) => true,
            _ => false,
        }
    }

    pub(crate) fn gate(&self) -> Gate {
        match self {
            Op::Barrier(barrier) => barrier.gate(),
            Op::Shuffle(shuffle) => Gate::Members(shuffle.members),
            Op::Vote(vote) => vote.gate(),
            Op::MatrixLoad(_) | Op::MatrixMultiply(_) => Gate::Full,
            _ => Gate::None,
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            Op::Integer(_)
            | Op::Float(_)
            | Op::Logic(_)
            | Op::Bits(_)
            | Op::Compare(_)
            | Op::Convert(_)
            | Op::Move(_) => Class::Alu,
            Op::Math(_) => Class::Math,
            Op::Branch(_) => Class::Control,
            Op::Memory(memory) => memory.class(),
            Op::Atomic(_) => Class::Atomic,
            Op::Fence(_) => Class::Barrier,
            Op::AsyncCopy(copy) => copy.class(),
            Op::Barrier(_) => Class::Barrier,
            Op::Shuffle(_) | Op::Vote(_) => Class::Shuffle,
            Op::MatrixLoad(_) => Class::MatrixLoad,
            Op::MatrixMultiply(_) => Class::MatrixMultiply,
        }
    }
}

/// Decodes one statement; a branch leaves its label in `label`.
pub(crate) fn decode<'t>(statement: &mut Statement<'_, 't>, label: &mut Option<&'t str>) -> Result<Op, ParseErrorKind> {
    let s = statement;
    match s.head() {
        "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "abs" | "neg" | "fma" | "copysign" => {
            decode_arithmetic(s)
        }
        "ex2" | "lg2" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "tanh" => math::decode(s).map(Op::Math),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "lop3" | "shf" => logic::decode(s).map(Op::Logic),
        "bfe" | "bfi" | "prmt" | "popc" | "clz" | "brev" | "bfind" => bits::decode(s).map(Op::Bits),
        "setp" | "selp" | "slct" | "set" | "testp" => compare::decode(s).map(Op::Compare),
        "cvt" => convert::decode(s).map(Op::Convert),
        "mov" | "cvta" | "createpolicy" => movement::decode(s).map(Op::Move),
        "bra" => branch::decode(s, label).map(Op::Branch),
        "ret" | "exit" | "trap" => branch::decode(s, label).map(Op::Branch),
        "ld" | "ldu" | "st" => load_store::decode(s).map(Op::Memory),
        "atom" | "red" => atomic::decode(s).map(Op::Atomic),
        "membar" | "fence" | "prefetch" | "nanosleep" => fence::decode(s).map(Op::Fence),
        "cp" => async_copy::decode(s).map(Op::AsyncCopy),
        "bar" | "barrier" => barrier::decode(s).map(Op::Barrier),
        "shfl" => shuffle::decode(s).map(Op::Shuffle),
        "vote" | "activemask" | "match" | "redux" => vote::decode(s).map(Op::Vote),
        "ldmatrix" => matrix_load::decode(s).map(Op::MatrixLoad),
        "mma" => matrix_multiply::decode(s).map(Op::MatrixMultiply),
        _ => Err(s.unsupported()),
    }
}

/// `add` and its like exist for integers and floats; the type comes last.
fn decode_arithmetic(s: &mut Statement<'_, '_>) -> Result<Op, ParseErrorKind> {
    let last = s.opcode().rsplit('.').next().unwrap_or("");
    match types::Type::parse(last) {
        Some(ty) if ty.is_integer() => integer::decode(s).map(Op::Integer),
        Some(_) => float::decode(s).map(Op::Float),
        None => Err(s.unsupported()),
    }
}
