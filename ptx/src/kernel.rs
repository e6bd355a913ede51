//! Parsed modules and kernels.

use crate::error::ParseError;
use crate::isa::special::Special;
use crate::isa::{Instruction, Reg};
use crate::syntax::parse_module;

/// The kernels of one PTX text.
#[derive(Clone, Debug)]
pub struct Module {
    pub(crate) target: String,
    pub(crate) kernels: Vec<Kernel>,
}

impl Module {
    /// Parses and decodes PTX text. Everything that the text contains is
    /// checked here, so a parsed kernel holds no unknown instruction.
    ///
    /// # Errors
    ///
    /// The first construct outside the supported subset, with its line.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        parse_module(text)
    }

    /// The `.target` of the text, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// All kernels in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// One `.entry` of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) parameter_size: usize,
    pub(crate) static_shared: usize,
    pub(crate) dynamic_shared_base: usize,
    pub(crate) shared_limit: usize,
    pub(crate) local_size: usize,
    pub(crate) max_threads: Option<u32>,
    /// Widths in bits of the data registers.
    pub(crate) registers: Vec<u32>,
    /// Number of predicate registers.
    pub(crate) predicates: usize,
    pub(crate) specials: Vec<(Special, Reg)>,
    pub(crate) code: Vec<Instruction>,
    /// Where the ways from each branch meet again.
    pub(crate) joins: Vec<u32>,
}

impl Kernel {
    /// The name of the entry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The layout of the parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Bytes of statically declared shared memory.
    pub fn static_shared(&self) -> usize {
        self.static_shared
    }

    /// Most threads of a block by `.maxntid` or `.reqntid`, if the text has one.
    pub fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }
}

/// Place of one kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the text.
    pub name: String,
    /// Offset in the parameter space.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}
