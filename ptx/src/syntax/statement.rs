//! One instruction while an instruction family decodes it.

use super::operand::Raw;
use super::scope::{Scope, Symbol};
use crate::error::ParseErrorKind;
use crate::isa::types::Type;
use crate::isa::{Address, Operand, Predicate, PredicateOperand, Reg};

/// Modifiers and operands of an instruction, consumed from left to right.
///
/// A family takes what it knows; whatever is left over makes
/// [`Statement::finish`] fail, so nothing is ever silently ignored.
pub(crate) struct Statement<'s, 't> {
    opcode: &'t str,
    modifiers: Vec<&'t str>,
    operands: std::vec::IntoIter<Raw<'t>>,
    scope: &'s mut Scope,
}

type Decoded<T> = Result<T, ParseErrorKind>;

impl<'s, 't> Statement<'s, 't> {
    pub(super) fn new(opcode: &'t str, operands: Vec<Raw<'t>>, scope: &'s mut Scope) -> Self {
        let mut modifiers: Vec<&str> = opcode.split('.').skip(1).collect();
        modifiers.reverse();
        Statement { opcode, modifiers, operands: operands.into_iter(), scope }
    }

    /// The first part of the opcode.
    pub(crate) fn head(&self) -> &'t str {
        self.opcode.split('.').next().unwrap_or("")
    }

    /// The whole opcode.
    pub(crate) fn opcode(&self) -> &'t str {
        self.opcode
    }

    // Modifiers

    /// The next modifier, not consumed.
    pub(crate) fn peek(&self) -> Option<&'t str> {
        self.modifiers.last().copied()
    }

    /// Consumes the next modifier.
    pub(crate) fn modifier(&mut self, what: &'static str) -> Decoded<&'t str> {
        self.modifiers.pop().ok_or(ParseErrorKind::Missing(what))
    }

    /// Consumes the next modifier if it is `name`.
    pub(crate) fn take(&mut self, name: &str) -> bool {
        let found = self.peek() == Some(name);
        if found {
            self.modifiers.pop();
        }
        found
    }

    /// Consumes the next modifier, which must be `name`.
    pub(crate) fn require(&mut self, name: &'static str) -> Decoded<()> {
        if self.take(name) {
            return Ok(());
        }
        Err(match self.peek() {
            Some(other) => ParseErrorKind::UnsupportedModifier(other.to_owned()),
            None => ParseErrorKind::Missing(name),
        })
    }

    /// Consumes the next modifier if it is in the table, and gives its value.
    pub(crate) fn choose<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let next = self.peek()?;
        let &(_, value) = table.iter().find(|(name, _)| *name == next)?;
        self.modifiers.pop();
        Some(value)
    }

    /// Like [`Statement::choose`], but the modifier must be in the table.
    pub(crate) fn select<T: Copy>(&mut self, table: &[(&str, T)], what: &'static str) -> Decoded<T> {
        self.choose(table).ok_or_else(|| match self.peek() {
            Some(other) => ParseErrorKind::UnsupportedModifier(other.to_owned()),
            None => ParseErrorKind::Missing(what),
        })
    }

    /// Consumes the next modifier, which must be a type.
    pub(crate) fn ty(&mut self) -> Decoded<Type> {
        let name = self.modifier("a type")?;
        Type::parse(name).ok_or_else(|| ParseErrorKind::UnsupportedModifier(name.to_owned()))
    }

    /// Consumes the next modifier, which must be one of `types`.
    pub(crate) fn ty_of(&mut self, types: &[Type]) -> Decoded<Type> {
        let name = self.peek().unwrap_or("").to_owned();
        let ty = self.ty()?;
        if types.contains(&ty) { Ok(ty) } else { Err(ParseErrorKind::UnsupportedModifier(name)) }
    }

    // Operands

    /// Number of operands not yet consumed.
    pub(crate) fn remaining(&self) -> usize {
        self.operands.len()
    }

    fn operand(&mut self) -> Decoded<Raw<'t>> {
        self.operands.next().ok_or(ParseErrorKind::OperandCount)
    }

    /// Whether the next operand is a vector.
    pub(crate) fn next_is_vector(&self) -> bool {
        matches!(self.operands.as_slice().first(), Some(Raw::Vector(_)))
    }

    /// Whether the next operand is a predicate register.
    pub(crate) fn next_is_predicate(&mut self) -> bool {
        match self.operands.as_slice().first() {
            Some(Raw::Not(_)) => true,
            Some(&Raw::Name(name)) => matches!(self.scope.lookup(name), Ok(Symbol::Predicate(_))),
            _ => false,
        }
    }

    /// A destination register exactly as wide as `ty`.
    pub(crate) fn destination(&mut self, ty: Type) -> Decoded<Reg> {
        let raw = self.operand()?;
        Ok(self.register(&raw, ty, false)?.0)
    }

    /// A destination register at least as wide as `ty`, and its width in bits.
    pub(crate) fn wide_destination(&mut self, ty: Type) -> Decoded<(Reg, u32)> {
        let raw = self.operand()?;
        self.register(&raw, ty, true)
    }

    /// A vector of destinations at least as wide as `ty`, or a single one.
    pub(crate) fn destinations(&mut self, ty: Type) -> Decoded<Vec<(Reg, u32)>> {
        match self.operand()? {
            Raw::Vector(elements) => elements.iter().map(|raw| self.register(raw, ty, true)).collect(),
            raw => Ok(vec![self.register(&raw, ty, true)?]),
        }
    }

    /// A vector of exactly `N` destinations as wide as `ty`.
    pub(crate) fn destination_array<const N: usize>(&mut self, ty: Type) -> Decoded<[Reg; N]> {
        let registers = self.destinations(ty)?;
        let registers: Vec<Reg> = registers.into_iter().map(|(reg, _)| reg).collect();
        registers.try_into().map_err(|_| ParseErrorKind::WrongOperand("a vector of that length"))
    }

    /// A source of type `ty`.
    pub(crate) fn source(&mut self, ty: Type) -> Decoded<Operand> {
        let raw = self.operand()?;
        self.value(&raw, ty, false)
    }

    /// A source whose register may be wider than `ty`.
    pub(crate) fn wide_source(&mut self, ty: Type) -> Decoded<Operand> {
        let raw = self.operand()?;
        self.value(&raw, ty, true)
    }

    /// A vector of sources that may be wider than `ty`, or a single one.
    pub(crate) fn sources(&mut self, ty: Type) -> Decoded<Vec<Operand>> {
        match self.operand()? {
            Raw::Vector(elements) => elements.iter().map(|raw| self.value(raw, ty, true)).collect(),
            raw => Ok(vec![self.value(&raw, ty, true)?]),
        }
    }

    /// A vector of exactly `N` sources.
    pub(crate) fn source_array<const N: usize>(&mut self, ty: Type) -> Decoded<[Operand; N]> {
        let sources = self.sources(ty)?;
        sources.try_into().map_err(|_| ParseErrorKind::WrongOperand("a vector of that length"))
    }

    /// A literal integer.
    pub(crate) fn literal(&mut self) -> Decoded<u64> {
        match self.operand()? {
            Raw::Number(number) => number.bits(Type::B64),
            _ => Err(ParseErrorKind::WrongOperand("a literal")),
        }
    }

    /// A destination predicate.
    pub(crate) fn predicate(&mut self) -> Decoded<Predicate> {
        match self.operand()? {
            Raw::Name(name) => self.named_predicate(name),
            _ => Err(ParseErrorKind::WrongOperand("a predicate")),
        }
    }

    /// One or two destination predicates, `p` or `p|q`.
    pub(crate) fn predicate_pair(&mut self) -> Decoded<(Predicate, Option<Predicate>)> {
        match self.operand()? {
            Raw::Name(name) => Ok((self.named_predicate(name)?, None)),
            Raw::Pair(p, q) => Ok((self.named_predicate(p)?, Some(self.named_predicate(q)?))),
            _ => Err(ParseErrorKind::WrongOperand("a predicate")),
        }
    }

    /// A destination register and an optional predicate, `d` or `d|p`.
    pub(crate) fn destination_with_predicate(&mut self, ty: Type) -> Decoded<(Reg, Option<Predicate>)> {
        match self.operand()? {
            Raw::Pair(d, p) => {
                let reg = self.register(&Raw::Name(d), ty, false)?.0;
                Ok((reg, Some(self.named_predicate(p)?)))
            }
            raw => Ok((self.register(&raw, ty, false)?.0, None)),
        }
    }

    /// A source predicate, possibly negated, or a literal truth value.
    pub(crate) fn predicate_source(&mut self) -> Decoded<PredicateOperand> {
        let (name, negated) = match self.operand()? {
            Raw::Name(name) => (name, false),
            Raw::Not(name) => (name, true),
            Raw::Number(number) => {
                return Ok(PredicateOperand::Constant(number.bits(Type::B64)? != 0));
            }
            _ => return Err(ParseErrorKind::WrongOperand("a predicate")),
        };
        let predicate = self.named_predicate(name)?;
        Ok(PredicateOperand::Register { predicate, negated })
    }

    /// An address in brackets.
    pub(crate) fn address(&mut self) -> Decoded<Address> {
        let Raw::Address { base, offset } = self.operand()? else {
            return Err(ParseErrorKind::WrongOperand("an address"));
        };
        let Some(name) = base else {
            return Ok(Address { base: Operand::Imm(offset as u64), offset: 0 });
        };
        let symbol = self.scope.lookup(name)?;
        let base = match (symbol, self.scope.address(symbol)?) {
            (_, Some(operand)) => operand,
            (Symbol::Register(reg, ty), None) if ty.bits() >= 32 => Operand::Reg(reg),
            _ => return Err(ParseErrorKind::WrongOperand("an address")),
        };
        Ok(Address { base, offset })
    }

    /// A branch target.
    pub(crate) fn label(&mut self) -> Decoded<&'t str> {
        match self.operand()? {
            Raw::Name(name) => Ok(name),
            _ => Err(ParseErrorKind::WrongOperand("a label")),
        }
    }

    fn register(&mut self, raw: &Raw<'t>, ty: Type, wider: bool) -> Decoded<(Reg, u32)> {
        let &Raw::Name(name) = raw else {
            return Err(ParseErrorKind::WrongOperand("a register"));
        };
        if name == "_" {
            return Ok((self.scope.sink()?, ty.bits()));
        }
        match self.scope.lookup(name)? {
            Symbol::Register(reg, declared) => {
                check_width(name, declared, ty, wider)?;
                Ok((reg, declared.bits()))
            }
            _ => Err(ParseErrorKind::WrongOperand("a register")),
        }
    }

    fn value(&mut self, raw: &Raw<'t>, ty: Type, wider: bool) -> Decoded<Operand> {
        match raw {
            Raw::Number(number) => Ok(Operand::Imm(number.bits(ty)?)),
            Raw::Name(name) => {
                let symbol = self.scope.lookup(name)?;
                if let Some(address) = self.scope.address(symbol)? {
                    return Ok(address);
                }
                let (reg, _) = self.register(raw, ty, wider)?;
                Ok(Operand::Reg(reg))
            }
            _ => Err(ParseErrorKind::WrongOperand("a value")),
        }
    }

    pub(super) fn named_predicate(&mut self, name: &str) -> Decoded<Predicate> {
        if name == "_" {
            return self.scope.sink_predicate();
        }
        match self.scope.lookup(name)? {
            Symbol::Predicate(predicate) => Ok(predicate),
            _ => Err(ParseErrorKind::WrongOperand("a predicate")),
        }
    }

    /// Fails if a modifier or an operand was not consumed.
    pub(crate) fn finish(&self) -> Decoded<()> {
        if let Some(modifier) = self.peek() {
            return Err(ParseErrorKind::UnsupportedModifier(modifier.to_owned()));
        }
        if self.remaining() > 0 {
            return Err(ParseErrorKind::OperandCount);
        }
        Ok(())
    }

    /// The error for an opcode that its family does not know.
    pub(crate) fn unsupported(&self) -> ParseErrorKind {
        ParseErrorKind::UnsupportedInstruction(self.opcode.to_owned())
    }
}

fn check_width(name: &str, declared: Type, ty: Type, wider: bool) -> Decoded<()> {
    let (found, expected) = (declared.bits(), ty.bits());
    if found == expected || (wider && found > expected) {
        return Ok(());
    }
    Err(ParseErrorKind::WrongWidth { name: name.to_owned(), found, expected })
}
