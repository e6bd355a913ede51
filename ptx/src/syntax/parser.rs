//! Modules, entries and their bodies.

use std::collections::HashMap;

use super::cursor::Cursor;
use super::declaration::{integer, parameters, registers, variable};
use super::lexer::{Kind, Located, tokenize};
use super::operand::parse_operands;
use super::scope::{Scope, Symbol};
use super::statement::Statement;
use crate::error::{ParseError, ParseErrorKind};
use crate::isa::branch::Branch;
use crate::isa::joins::joins;
use crate::isa::{Guard, Instruction, Op, decode};
use crate::kernel::{Kernel, Module};

/// Most instructions of one kernel: the race detector keeps the index of an
/// instruction in sixteen bits.
const MAX_INSTRUCTIONS: usize = 1 << 16;

/// Deepest nesting of braces.
const MAX_SCOPES: usize = 1 << 16;

/// Parses a PTX text.
pub(crate) fn parse_module(text: &str) -> Result<Module, ParseError> {
    let parsed = tokenize(text).and_then(|tokens| {
        ModuleParser {
            cursor: Cursor::new(tokens),
            target: String::new(),
            globals: HashMap::new(),
            kernels: Vec::new(),
        }
        .run()
    });
    parsed.map_err(|(line, kind)| {
        let index = (line as usize).saturating_sub(1);
        let text = text.lines().nth(index).unwrap_or("").trim().to_owned();
        ParseError { line, text, kind }
    })
}

struct ModuleParser<'t> {
    cursor: Cursor<'t>,
    target: String,
    globals: HashMap<String, Symbol>,
    kernels: Vec<Kernel>,
}

impl<'t> ModuleParser<'t> {
    fn run(mut self) -> Result<Module, Located> {
        while self.cursor.peek().is_some() {
            let line = self.cursor.line();
            match self.cursor.word("a directive")? {
                ".version" => {
                    self.cursor.word("a version")?;
                }
                ".target" => {
                    self.target = self.cursor.word("a target")?.to_owned();
                    while self.cursor.take(',') {
                        self.cursor.word("a target option")?;
                    }
                }
                ".address_size" => {
                    if integer(&mut self.cursor)? != 64 {
                        return Err((line, ParseErrorKind::Expected("64-bit addresses")));
                    }
                }
                ".file" => self.cursor.skip_line(),
                ".visible" | ".weak" | ".extern" => {}
                ".shared" => self.shared_variable()?,
                ".entry" => self.entry()?,
                other => {
                    let kind = ParseErrorKind::UnsupportedDirective(other.to_owned());
                    return Err((line, kind));
                }
            }
        }
        Ok(Module { target: self.target, kernels: self.kernels })
    }

    fn shared_variable(&mut self) -> Result<(), Located> {
        let variable = variable(&mut self.cursor)?;
        self.cursor.expect(';', "a semicolon")?;
        let symbol = match variable.size {
            Some(size) => Symbol::ModuleShared { size, align: variable.align },
            None => Symbol::DynamicShared { align: variable.align },
        };
        self.globals.insert(variable.name.to_owned(), symbol);
        Ok(())
    }

    fn entry(&mut self) -> Result<(), Located> {
        let line = self.cursor.line();
        let name = self.cursor.word("a kernel name")?.to_owned();
        if self.kernels.iter().any(|k| k.name == name) {
            return Err((line, ParseErrorKind::DuplicateName(name)));
        }
        let parameters = parameters(&mut self.cursor)?;
        let mut scope = Scope::new(self.globals.clone());
        for parameter in &parameters {
            scope.declare(&parameter.name, Symbol::Address(parameter.offset as u64)).map_err(|kind| (line, kind))?;
        }
        let max_threads = self.performance_directives()?;
        self.cursor.expect('{', "the body of the kernel")?;
        let mut body = Body { cursor: &mut self.cursor, scope, code: Vec::new(), branches: Vec::new(), scopes: 0 };
        body.run()?;
        let (mut scope, code) = (body.scope, body.code);
        let parameter_size = parameters.last().map_or(0, |p| p.offset + p.size);
        self.kernels.push(Kernel {
            name,
            parameters,
            parameter_size,
            static_shared: scope.shared_size,
            dynamic_shared_base: scope.shared_size.next_multiple_of(scope.dynamic_align),
            shared_limit: shared_limit(&self.target),
            local_size: scope.local_size,
            max_threads,
            registers: scope.take_registers(),
            predicates: scope.predicate_count(),
            specials: scope.specials,
            joins: joins(&code),
            code,
        });
        Ok(())
    }

    /// Reads the directives between the parameters and the body and returns
    /// the largest block.
    fn performance_directives(&mut self) -> Result<Option<u32>, Located> {
        let mut max_threads = None;
        while let Some(Kind::Word(word)) = self.cursor.peek() {
            let line = self.cursor.line();
            self.cursor.advance();
            match word {
                ".maxntid" | ".reqntid" => {
                    let mut threads = integer(&mut self.cursor)?;
                    while self.cursor.take(',') {
                        threads = threads.saturating_mul(integer(&mut self.cursor)?);
                    }
                    max_threads = Some(u32::try_from(threads).unwrap_or(u32::MAX));
                }
                ".minnctapersm" | ".maxnreg" => {
                    integer(&mut self.cursor)?;
                }
                ".pragma" => pragma(&mut self.cursor)?,
                other => {
                    let kind = ParseErrorKind::UnsupportedDirective(other.to_owned());
                    return Err((line, kind));
                }
            }
        }
        Ok(max_threads)
    }
}

/// Most shared memory of a block, by target.
fn shared_limit(target: &str) -> usize {
    let kib = match target.trim_start_matches("sm_") {
        "80" | "87" => 163,
        "86" | "89" => 99,
        t if t.starts_with("9") || t.starts_with("10") => 227,
        _ => 99,
    };
    kib * 1024
}

fn pragma(cursor: &mut Cursor<'_>) -> Result<(), Located> {
    if cursor.advance() != Some(Kind::Text) {
        return Err(cursor.expected("a quoted pragma"));
    }
    cursor.expect(';', "a semicolon")
}

/// A branch whose label is looked up when all labels are known.
struct Pending<'t> {
    instruction: usize,
    label: &'t str,
    scope: usize,
    line: u32,
}

struct Body<'c, 't> {
    cursor: &'c mut Cursor<'t>,
    scope: Scope,
    code: Vec<Instruction>,
    branches: Vec<Pending<'t>>,
    scopes: usize,
}

impl<'t> Body<'_, 't> {
    fn run(&mut self) -> Result<(), Located> {
        loop {
            let line = self.cursor.line();
            match self.cursor.peek() {
                None => return Err((line, ParseErrorKind::UnexpectedEnd)),
                Some(Kind::Mark('{')) => {
                    self.cursor.advance();
                    self.scopes += 1;
                    if self.scopes > MAX_SCOPES {
                        return Err((line, ParseErrorKind::TooMany("scopes")));
                    }
                    self.scope.open();
                }
                Some(Kind::Mark('}')) => {
                    self.cursor.advance();
                    if !self.scope.close() {
                        break;
                    }
                }
                // An empty statement, as inline assembly may leave one.
                Some(Kind::Mark(';')) => {
                    self.cursor.advance();
                }
                Some(Kind::Word(word)) if word.starts_with('.') => self.directive(word)?,
                Some(Kind::Word(word)) if self.cursor.peek_second() == Some(Kind::Mark(':')) => {
                    self.cursor.advance();
                    self.cursor.advance();
                    self.scope.label(word, self.code.len() as u32).map_err(|kind| (line, kind))?;
                }
                _ => self.instruction()?,
            }
        }
        // A body may fall off its end, and a label may stand there.
        let line = self.cursor.line();
        self.push(Instruction::new(None, Op::Branch(Branch::Exit), line), line)?;
        self.link()
    }

    fn directive(&mut self, word: &'t str) -> Result<(), Located> {
        let line = self.cursor.line();
        self.cursor.advance();
        match word {
            ".reg" => registers(self.cursor, &mut self.scope),
            ".shared" | ".local" => {
                let variable = variable(self.cursor)?;
                self.cursor.expect(';', "a semicolon")?;
                let size = variable.size.ok_or((line, ParseErrorKind::Missing("a size")))?;
                let place = match word {
                    ".shared" => self.scope.place_shared(size, variable.align),
                    _ => self.scope.place_local(size, variable.align),
                };
                place.and_then(|at| self.scope.declare(variable.name, Symbol::Address(at))).map_err(|kind| (line, kind))
            }
            ".pragma" => pragma(self.cursor),
            ".loc" => {
                self.cursor.skip_line();
                Ok(())
            }
            other => {
                let kind = ParseErrorKind::UnsupportedDirective(other.to_owned());
                Err((line, kind))
            }
        }
    }

    fn instruction(&mut self) -> Result<(), Located> {
        let line = self.cursor.line();
        let mut guard = None;
        if self.cursor.take('@') {
            let negated = self.cursor.take('!');
            guard = Some((self.cursor.word("a predicate")?, negated));
        }
        let line_of_opcode = self.cursor.line();
        let opcode = self.cursor.word("an instruction")?;
        let operands = parse_operands(self.cursor)?;
        let scope = self.scope.current();
        let mut statement = Statement::new(opcode, operands, &mut self.scope);
        let guard = match guard {
            Some((name, negated)) => {
                let predicate = statement.named_predicate(name).map_err(|kind| (line, kind))?;
                Some(Guard { predicate, negated })
            }
            None => None,
        };
        let mut label = None;
        let op = decode(&mut statement, &mut label)
            .and_then(|op| statement.finish().map(|()| op))
            .map_err(|kind| (line_of_opcode, kind))?;
        if let Some(label) = label {
            self.branches.push(Pending { instruction: self.code.len(), label, scope, line });
        }
        self.push(Instruction::new(guard, op, line_of_opcode), line)
    }

    fn push(&mut self, instruction: Instruction, line: u32) -> Result<(), Located> {
        if self.code.len() >= MAX_INSTRUCTIONS {
            return Err((line, ParseErrorKind::TooMany("instructions")));
        }
        self.code.push(instruction);
        Ok(())
    }

    fn link(&mut self) -> Result<(), Located> {
        for pending in &self.branches {
            let target = self.scope.find_label(pending.scope, pending.label).ok_or_else(|| {
                let kind = ParseErrorKind::UndefinedName(pending.label.to_owned());
                (pending.line, kind)
            })?;
            if let Op::Branch(Branch::Jump { target: to, .. }) = &mut self.code[pending.instruction].op {
                *to = target;
            }
        }
        Ok(())
    }
}
