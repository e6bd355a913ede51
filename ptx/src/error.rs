//! Errors of parsing and launching.

use thiserror::Error;

/// PTX text that this crate cannot run, with the place where it was found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("PTX line {line}: {kind}: `{text}`")]
pub struct ParseError {
    /// Line of the text, counted from one.
    pub line: u32,
    /// That line, trimmed.
    pub text: String,
    /// What is wrong with it.
    pub kind: ParseErrorKind,
}

/// What is wrong with a line of PTX.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// A token other than the grammar allows here.
    #[error("expected {0}")]
    Expected(&'static str),
    /// The text ends inside a statement or a body.
    #[error("unexpected end of text")]
    UnexpectedEnd,
    /// A character that belongs to no token.
    #[error("unexpected character {0:?}")]
    UnexpectedCharacter(char),
    /// A directive outside the supported subset.
    #[error("unsupported directive {0}")]
    UnsupportedDirective(String),
    /// An instruction outside the supported subset.
    #[error("unsupported instruction {0}")]
    UnsupportedInstruction(String),
    /// A modifier or a type that the instruction does not support.
    #[error("unsupported modifier .{0}")]
    UnsupportedModifier(String),
    /// A modifier or a type that the instruction needs is missing.
    #[error("missing {0}")]
    Missing(&'static str),
    /// A name that no declaration in scope defines.
    #[error("undefined name {0}")]
    UndefinedName(String),
    /// A name declared twice in one scope.
    #[error("duplicate name {0}")]
    DuplicateName(String),
    /// An operand of another kind than the instruction takes.
    #[error("operand is not {0}")]
    WrongOperand(&'static str),
    /// A register whose width differs from the instruction's type.
    #[error("register {name} is {found} bits wide, the instruction takes {expected}")]
    WrongWidth {
        /// The register.
        name: String,
        /// Width by its declaration.
        found: u32,
        /// Width by the instruction.
        expected: u32,
    },
    /// More or fewer operands than the instruction takes.
    #[error("wrong number of operands")]
    OperandCount,
    /// A number that does not parse or is out of range.
    #[error("bad number {0}")]
    BadNumber(String),
    /// A kernel beyond the limits of the interpreter.
    #[error("too many {0}")]
    TooMany(&'static str),
}

/// A fault of [`Memory`](crate::Memory) calls made by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The host cannot provide that many bytes.
    #[error("cannot allocate {0} bytes")]
    OutOfMemory(usize),
    /// The range is not inside one live allocation.
    #[error("{bytes} bytes at {address:#x} are not inside one allocation")]
    OutOfBounds {
        /// First byte of the range.
        address: u64,
        /// Length of the range.
        bytes: usize,
    },
    /// The address is not the start of a live allocation.
    #[error("{0:#x} is not the start of an allocation")]
    NotAnAllocation(u64),
}

/// A memory space of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory, shared by the grid.
    Global,
    /// Memory of one block.
    Shared,
    /// Memory of one thread.
    Local,
    /// Kernel arguments.
    Param,
}

/// Where in a launch something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Line of the PTX text.
    pub line: u32,
    /// Block index.
    pub block: [u32; 3],
    /// Linear thread index in the block.
    pub thread: u32,
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "PTX line {}, block ({x}, {y}, {z}), thread {}", self.line, self.thread)
    }
}

/// What lanes of a warp wait for in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Block index.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// The waiting lanes, one bit each.
    pub lanes: u32,
    /// Line of the instruction that they wait at.
    pub line: u32,
    /// What would let them go on.
    pub reason: String,
}

/// Why a launch could not start or did not finish.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Grid or block dimensions outside the limits of the device or the kernel.
    #[error("bad launch shape: {0}")]
    Shape(&'static str),
    /// More shared memory than a block of the target can have.
    #[error("{requested} bytes of shared memory, the target has {limit}")]
    SharedMemory {
        /// Static plus dynamic size.
        requested: usize,
        /// Limit of the target.
        limit: usize,
    },
    /// Another number of arguments than the kernel has parameters.
    #[error("{found} arguments for {expected} parameters")]
    ArgumentCount {
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments given.
        found: usize,
    },
    /// An argument whose size differs from its parameter.
    #[error("argument {index} has {found} bytes, the parameter has {expected}")]
    ArgumentSize {
        /// Position of the argument.
        index: usize,
        /// Bytes of the parameter.
        expected: usize,
        /// Bytes of the argument.
        found: usize,
    },
    /// An access outside every allocation or variable of its space.
    #[error("{at}: {bytes} bytes at {space:?} address {address:#x} are out of bounds")]
    OutOfBounds {
        /// Where.
        at: Location,
        /// Space of the access.
        space: Space,
        /// First byte.
        address: u64,
        /// Length.
        bytes: usize,
    },
    /// An access whose address is no multiple of its size.
    #[error("{at}: {space:?} address {address:#x} is not a multiple of {bytes}")]
    Misaligned {
        /// Where.
        at: Location,
        /// Space of the access.
        space: Space,
        /// First byte.
        address: u64,
        /// Length.
        bytes: usize,
    },
    /// An operation whose operands break a rule of the instruction.
    #[error("{at}: {rule}")]
    Illegal {
        /// Where.
        at: Location,
        /// The broken rule.
        rule: &'static str,
    },
    /// An instruction that several lanes of a warp have to run together, without all of them: one with `.aligned` where
    /// a branch or a predicate has divided the warp, or one whose member mask names lanes that never come to it.
    #[error("{at}: lanes {here:#010x} run what other lanes have to run with them; {}", missing(*.elsewhere, *.ended, *.branch))]
    Divergent {
        /// Where.
        at: Location,
        /// The lanes that came to it, one bit each.
        here: u32,
        /// Lanes that are missing and went another way.
        elsewhere: u32,
        /// Lanes that are missing and have ended, or never were.
        ended: u32,
        /// Line of the branch that divided them, if the lanes are in code that depends on it.
        branch: Option<u32>,
    },
    /// No thread of the resident blocks can go on.
    #[error("deadlock: {}", describe(.waits))]
    Deadlock {
        /// What each group of lanes waits for.
        waits: Vec<Wait>,
    },
    /// The launch ran longer than [`Launch::instruction_limit`](crate::Launch).
    #[error("more than {0} warp instructions")]
    InstructionLimit(u64),
    /// More synchronisation than the race detector can number.
    #[error("too many synchronisation steps in one warp")]
    SynchronisationLimit,
}

fn missing(elsewhere: u32, ended: u32, branch: Option<u32>) -> String {
    let lanes = format!("lanes {elsewhere:#010x} are elsewhere and lanes {ended:#010x} have ended");
    match branch {
        Some(line) => format!("{lanes}, divided by the branch of PTX line {line}"),
        None => lanes,
    }
}

fn describe(waits: &[Wait]) -> String {
    let texts: Vec<String> = waits
        .iter()
        .map(|w| {
            let [x, y, z] = w.block;
            format!(
                "block ({x}, {y}, {z}) warp {} lanes {:#010x} at PTX line {}: {}",
                w.warp, w.lanes, w.line, w.reason
            )
        })
        .collect();
    texts.join("; ")
}
