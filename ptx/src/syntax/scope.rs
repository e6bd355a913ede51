//! Names of a kernel and what they stand for.

use std::collections::HashMap;

use crate::error::ParseErrorKind;
use crate::isa::special::Special;
use crate::isa::types::Type;
use crate::isa::{Operand, Predicate, Reg};

/// Most registers of one kernel; keeps a hostile declaration from exhausting memory.
const MAX_REGISTERS: usize = 1 << 15;

/// What a declared name stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Symbol {
    Register(Reg, Type),
    Predicate(Predicate),
    /// A constant address in the shared, local or parameter space.
    Address(u64),
    /// A variable of the module, placed when a kernel first names it.
    ModuleShared {
        size: usize,
        align: usize,
    },
    /// The `extern .shared` array, placed after all static variables.
    DynamicShared {
        align: usize,
    },
}

#[derive(Debug, Default)]
struct Frame {
    parent: Option<usize>,
    names: HashMap<String, Symbol>,
    /// `%r<n>`: prefix to type and count.
    ranges: HashMap<String, (Type, u64)>,
    labels: HashMap<String, u32>,
}

/// Nested name scopes of one kernel, with its storage as it grows.
#[derive(Debug)]
pub(crate) struct Scope {
    frames: Vec<Frame>,
    current: usize,
    module: HashMap<String, Symbol>,
    /// Widths in bits of all registers.
    registers: Vec<u32>,
    predicates: usize,
    sink: Option<Reg>,
    sink_predicate: Option<Predicate>,
    pub(super) specials: Vec<(Special, Reg)>,
    pub(super) shared_size: usize,
    pub(super) dynamic_align: usize,
    pub(super) local_size: usize,
}

impl Scope {
    pub(super) fn new(module: HashMap<String, Symbol>) -> Self {
        Scope {
            frames: vec![Frame::default()],
            current: 0,
            module,
            registers: Vec::new(),
            predicates: 0,
            sink: None,
            sink_predicate: None,
            specials: Vec::new(),
            shared_size: 0,
            dynamic_align: 1,
            local_size: 0,
        }
    }

    /// Hands over the widths in bits of all registers.
    pub(super) fn take_registers(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.registers)
    }

    pub(super) fn predicate_count(&self) -> usize {
        self.predicates
    }

    /// Identifier of the innermost scope.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    pub(super) fn open(&mut self) {
        self.frames.push(Frame { parent: Some(self.current), ..Frame::default() });
        self.current = self.frames.len() - 1;
    }

    /// Leaves the innermost scope; false if it is the body of the kernel.
    pub(super) fn close(&mut self) -> bool {
        match self.frames[self.current].parent {
            Some(parent) => {
                self.current = parent;
                true
            }
            None => false,
        }
    }

    pub(super) fn declare(&mut self, name: &str, symbol: Symbol) -> Result<(), ParseErrorKind> {
        let names = &mut self.frames[self.current].names;
        match names.insert(name.to_owned(), symbol) {
            None => Ok(()),
            Some(_) => Err(ParseErrorKind::DuplicateName(name.to_owned())),
        }
    }

    /// Declares registers `prefix0` to `prefix<count - 1>`.
    pub(super) fn declare_range(&mut self, prefix: &str, ty: Type, count: u64) -> Result<(), ParseErrorKind> {
        let ranges = &mut self.frames[self.current].ranges;
        match ranges.insert(prefix.to_owned(), (ty, count)) {
            None => Ok(()),
            Some(_) => Err(ParseErrorKind::DuplicateName(prefix.to_owned())),
        }
    }

    pub(super) fn declare_register(&mut self, name: &str, ty: Type) -> Result<(), ParseErrorKind> {
        let symbol = self.fresh(ty)?;
        self.declare(name, symbol)
    }

    /// Reserves `size` bytes of static shared memory.
    pub(super) fn place_shared(&mut self, size: usize, align: usize) -> Result<u64, ParseErrorKind> {
        place(&mut self.shared_size, size, align, 1 << 24)
    }

    /// Reserves `size` bytes of each thread's local memory.
    pub(super) fn place_local(&mut self, size: usize, align: usize) -> Result<u64, ParseErrorKind> {
        place(&mut self.local_size, size, align, 1 << 19)
    }

    fn fresh(&mut self, ty: Type) -> Result<Symbol, ParseErrorKind> {
        if ty == Type::Pred {
            return self.fresh_predicate().map(Symbol::Predicate);
        }
        Ok(Symbol::Register(self.fresh_register(ty.bits())?, ty))
    }

    fn fresh_register(&mut self, bits: u32) -> Result<Reg, ParseErrorKind> {
        if self.registers.len() >= MAX_REGISTERS {
            return Err(ParseErrorKind::TooMany("registers"));
        }
        self.registers.push(bits);
        Ok(Reg(self.registers.len() as u32 - 1))
    }

    fn fresh_predicate(&mut self) -> Result<Predicate, ParseErrorKind> {
        if self.predicates >= MAX_REGISTERS {
            return Err(ParseErrorKind::TooMany("predicates"));
        }
        self.predicates += 1;
        Ok(Predicate(self.predicates as u32 - 1))
    }

    /// The register behind the destination `_`.
    pub(super) fn sink(&mut self) -> Result<Reg, ParseErrorKind> {
        if let Some(reg) = self.sink {
            return Ok(reg);
        }
        let reg = self.fresh_register(64)?;
        self.sink = Some(reg);
        Ok(reg)
    }

    /// The predicate behind the destination `_`.
    pub(super) fn sink_predicate(&mut self) -> Result<Predicate, ParseErrorKind> {
        if let Some(predicate) = self.sink_predicate {
            return Ok(predicate);
        }
        let predicate = self.fresh_predicate()?;
        self.sink_predicate = Some(predicate);
        Ok(predicate)
    }

    /// The register that holds a special value during a launch.
    pub(crate) fn special(&mut self, special: Special) -> Result<Reg, ParseErrorKind> {
        if let Some(&(_, reg)) = self.specials.iter().find(|(s, _)| *s == special) {
            return Ok(reg);
        }
        let reg = self.fresh_register(64)?;
        self.specials.push((special, reg));
        Ok(reg)
    }

    /// What `name` stands for here.
    pub(super) fn lookup(&mut self, name: &str) -> Result<Symbol, ParseErrorKind> {
        let mut at = Some(self.current);
        while let Some(index) = at {
            if let Some(&symbol) = self.frames[index].names.get(name) {
                return Ok(symbol);
            }
            if let Some(ty) = self.frames[index].in_range(name) {
                let symbol = self.fresh(ty)?;
                self.frames[index].names.insert(name.to_owned(), symbol);
                return Ok(symbol);
            }
            at = self.frames[index].parent;
        }
        if let Some((special, ty)) = Special::parse(name) {
            return Ok(Symbol::Register(self.special(special)?, ty));
        }
        match self.module.get(name).copied() {
            Some(Symbol::ModuleShared { size, align }) => {
                let symbol = Symbol::Address(self.place_shared(size, align)?);
                self.module.insert(name.to_owned(), symbol);
                Ok(symbol)
            }
            Some(symbol) => Ok(symbol),
            None => Err(ParseErrorKind::UndefinedName(name.to_owned())),
        }
    }

    /// The address that a variable's name stands for.
    pub(super) fn address(&mut self, symbol: Symbol) -> Result<Option<Operand>, ParseErrorKind> {
        Ok(match symbol {
            Symbol::Address(value) => Some(Operand::Imm(value)),
            Symbol::DynamicShared { align } => {
                self.dynamic_align = self.dynamic_align.max(align);
                Some(Operand::Reg(self.special(Special::DynamicSharedBase)?))
            }
            _ => None,
        })
    }

    pub(super) fn label(&mut self, name: &str, target: u32) -> Result<(), ParseErrorKind> {
        let labels = &mut self.frames[self.current].labels;
        match labels.insert(name.to_owned(), target) {
            None => Ok(()),
            Some(_) => Err(ParseErrorKind::DuplicateName(name.to_owned())),
        }
    }

    /// The instruction that label `name` marks, seen from scope `from`.
    pub(super) fn find_label(&self, from: usize, name: &str) -> Option<u32> {
        let mut at = Some(from);
        while let Some(index) = at {
            let frame = &self.frames[index];
            if let Some(&target) = frame.labels.get(name) {
                return Some(target);
            }
            at = frame.parent;
        }
        None
    }
}

impl Frame {
    fn in_range(&self, name: &str) -> Option<Type> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let (ty, count) = self.ranges.get(prefix)?;
        let digits = &name[prefix.len()..];
        let index: u64 = digits.parse().ok()?;
        let canonical = digits == "0" || !digits.starts_with('0');
        (canonical && index < *count).then_some(*ty)
    }
}

/// Advances `used` over an aligned variable and returns its offset.
fn place(used: &mut usize, size: usize, align: usize, limit: usize) -> Result<u64, ParseErrorKind> {
    let offset = used.next_multiple_of(align.max(1));
    let end = offset.saturating_add(size);
    if end > limit {
        return Err(ParseErrorKind::TooMany("bytes of variables"));
    }
    *used = end;
    Ok(offset as u64)
}
