//! From instruction bytes to an AMX operation.
//!
//! All AMX instructions handled here are `VEX.128.{NP,66,F3,F2}.0F38.W0` with the three-byte VEX
//! prefix, which is the only one that reaches the map 0F38:
//!
//! | opcode | pp | ModRM        | instruction                     |
//! |--------|----|--------------|---------------------------------|
//! | 49     | NP | mem, reg = 0 | LDTILECFG                       |
//! | 49     | 66 | mem, reg = 0 | STTILECFG                       |
//! | 49     | NP | 11:000:000   | TILERELEASE                     |
//! | 49     | F2 | 11:ttt:000   | TILEZERO                        |
//! | 4B     | F2 | mem with SIB | TILELOADD                       |
//! | 4B     | 66 | mem with SIB | TILELOADDT1                     |
//! | 4B     | F3 | mem with SIB | TILESTORED                      |
//! | 5C     | F3 | 11:ddd:aaa   | TDPBF16PS, second source = vvvv |
//! | 5C     | F2 | 11:ddd:aaa   | TDPFP16PS, second source = vvvv |

use crate::product::Element;

/// One of the eight tile registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileId(u8);

impl TileId {
    /// `None` where `number` names no tile register.
    pub(crate) const fn new(number: u8) -> Option<Self> {
        if number < 8 { Some(Self(number)) } else { None }
    }

    /// The register number; the mask lets the compiler drop bounds checks on arrays of eight.
    pub(crate) const fn index(self) -> usize {
        (self.0 & 7) as usize
    }
}

/// A memory operand, before the registers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    base: Base,
    index: Option<u8>,
    scale: u8,
    displacement: i32,
    /// Address size 32, by the prefix 67.
    short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    None,
    Register(u8),
    /// The address of the next instruction.
    Rip,
}

/// The general registers in the order of their encoding, and the address of the next instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers {
    pub(crate) general: [u64; 16],
    pub(crate) next_rip: u64,
}

impl Registers {
    fn general(&self, number: u8) -> u64 {
        self.general[usize::from(number & 15)]
    }
}

impl Memory {
    /// `base + displacement + rows * (index << scale)`: with `rows` = 1 the address of an ordinary
    /// operand, otherwise the address of a tile row, for which the index register is the stride.
    pub(crate) fn address(&self, registers: &Registers, rows: u64) -> u64 {
        let base = match self.base {
            Base::None => 0,
            Base::Register(number) => registers.general(number),
            Base::Rip => registers.next_rip,
        };
        let stride = self.index.map_or(0, |number| registers.general(number) << self.scale);
        let address = base.wrapping_add_signed(i64::from(self.displacement)).wrapping_add(stride.wrapping_mul(rows));
        if self.short { address & 0xffff_ffff } else { address }
    }
}

/// An AMX operation with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    LoadConfig(Memory),
    StoreConfig(Memory),
    Release,
    Zero(TileId),
    Load {
        tile: TileId,
        from: Memory,
        /// The T1 form. A hint to the caches; it does the same.
        streaming: bool,
    },
    Store {
        tile: TileId,
        to: Memory,
    },
    Product {
        element: Element,
        accumulator: TileId,
        left: TileId,
        right: TileId,
    },
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) operation: Operation,
    /// Bytes it takes, prefixes included.
    pub(crate) length: u64,
}

/// Why bytes are no instruction for the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// They lie outside the opcodes of AMX: somebody else's business.
    Foreign,
    /// They lie within them, but no supported instruction has this encoding.
    Malformed(&'static str),
}

/// No x86 instruction is longer.
const MAX_LENGTH: u64 = 15;

/// Takes bytes one at a time, so that nothing behind the instruction is touched: it may end at the
/// last byte of a mapping.
struct Cursor<F> {
    fetch: F,
    taken: u64,
}

impl<F: FnMut(u64) -> u8> Cursor<F> {
    fn byte(&mut self) -> u8 {
        let byte = (self.fetch)(self.taken);
        self.taken += 1;
        byte
    }

    fn dword(&mut self) -> i32 {
        i32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

/// The fields of a three-byte VEX prefix that matter here, with the inverted bits turned upright.
#[derive(Clone, Copy)]
struct Vex {
    extend_reg: u8,
    extend_index: u8,
    extend_base: u8,
    wide: bool,
    vvvv: u8,
    long: bool,
    pp: u8,
}

const NP: u8 = 0;
const P66: u8 = 1;
const PF3: u8 = 2;
const PF2: u8 = 3;

/// Decodes the instruction whose byte at offset `n` is `fetch(n)`.
pub(crate) fn decode(fetch: impl FnMut(u64) -> u8) -> Result<Instruction, Rejection> {
    let mut cursor = Cursor { fetch, taken: 0 };
    let (mut short, mut segment) = (false, false);
    let lead = loop {
        match cursor.byte() {
            0x67 => short = true,
            0x64 | 0x65 => segment = true,
            // Overrides of segments whose base is zero in 64-bit mode.
            0x26 | 0x2e | 0x36 | 0x3e => {}
            other => break other,
        }
        if cursor.taken >= MAX_LENGTH {
            return Err(Rejection::Foreign);
        }
    };
    if lead != 0xc4 {
        return Err(Rejection::Foreign);
    }
    let (first, second) = (cursor.byte(), cursor.byte());
    if first & 0x1f != 2 {
        return Err(Rejection::Foreign);
    }
    let vex = Vex {
        extend_reg: (!first >> 4) & 8,
        extend_index: (!first >> 3) & 8,
        extend_base: (!first >> 2) & 8,
        wide: second & 0x80 != 0,
        vvvv: (!second >> 3) & 15,
        long: second & 4 != 0,
        pp: second & 3,
    };
    let opcode = cursor.byte();
    match opcode {
        0x49 | 0x4b | 0x5c => {}
        0x5e => return Err(Rejection::Malformed("AMX-INT8 is not emulated")),
        0x6c => return Err(Rejection::Malformed("AMX-COMPLEX is not emulated")),
        _ => return Err(Rejection::Foreign),
    }
    if vex.wide || vex.long {
        return Err(Rejection::Malformed("reserved VEX.W or VEX.L"));
    }
    if segment {
        return Err(Rejection::Malformed("fs: and gs: are not emulated"));
    }
    let operation = match opcode {
        0x49 => configuration(&mut cursor, vex, short),
        0x4b => movement(&mut cursor, vex, short),
        _ => product(&mut cursor, vex),
    }?;
    if cursor.taken > MAX_LENGTH {
        return Err(Rejection::Malformed("longer than 15 bytes"));
    }
    Ok(Instruction { operation, length: cursor.taken })
}

/// Opcode 49.
fn configuration<F: FnMut(u64) -> u8>(cursor: &mut Cursor<F>, vex: Vex, short: bool) -> Result<Operation, Rejection> {
    if vex.vvvv != 0 {
        return Err(Rejection::Malformed("reserved VEX.vvvv"));
    }
    let modrm = cursor.byte();
    let (reg, rm) = ((modrm >> 3) & 7, modrm & 7);
    if modrm >= 0xc0 {
        return match (vex.pp, reg, rm | vex.extend_base) {
            (NP, 0, 0) if vex.extend_reg == 0 => Ok(Operation::Release),
            (PF2, _, 0) => tile(reg | vex.extend_reg).map(Operation::Zero),
            _ => Err(Rejection::Malformed("reserved register form of opcode 49")),
        };
    }
    match (vex.pp, reg) {
        (NP, 0) => Ok(Operation::LoadConfig(memory(cursor, vex, short, modrm))),
        (P66, 0) => Ok(Operation::StoreConfig(memory(cursor, vex, short, modrm))),
        _ => Err(Rejection::Malformed("reserved memory form of opcode 49")),
    }
}

/// Opcode 4B.
fn movement<F: FnMut(u64) -> u8>(cursor: &mut Cursor<F>, vex: Vex, short: bool) -> Result<Operation, Rejection> {
    if vex.vvvv != 0 {
        return Err(Rejection::Malformed("reserved VEX.vvvv"));
    }
    let modrm = cursor.byte();
    if modrm >= 0xc0 || modrm & 7 != 4 {
        return Err(Rejection::Malformed("tile moves need a SIB byte"));
    }
    let tile = tile((modrm >> 3) & 7 | vex.extend_reg)?;
    let operand = memory(cursor, vex, short, modrm);
    match vex.pp {
        PF2 | P66 => Ok(Operation::Load { tile, from: operand, streaming: vex.pp == P66 }),
        PF3 => Ok(Operation::Store { tile, to: operand }),
        _ => Err(Rejection::Malformed("reserved prefix of opcode 4B")),
    }
}

/// Opcode 5C.
fn product<F: FnMut(u64) -> u8>(cursor: &mut Cursor<F>, vex: Vex) -> Result<Operation, Rejection> {
    let element = match vex.pp {
        PF3 => Element::Bf16,
        PF2 => Element::Fp16,
        _ => return Err(Rejection::Malformed("reserved prefix of opcode 5C")),
    };
    let modrm = cursor.byte();
    if modrm < 0xc0 {
        return Err(Rejection::Malformed("tile products take registers only"));
    }
    Ok(Operation::Product {
        element,
        accumulator: tile((modrm >> 3) & 7 | vex.extend_reg)?,
        left: tile(modrm & 7 | vex.extend_base)?,
        right: tile(vex.vvvv)?,
    })
}

fn tile(number: u8) -> Result<TileId, Rejection> {
    TileId::new(number).ok_or(Rejection::Malformed("there are only eight tile registers"))
}

/// The memory operand of a ModRM byte whose mod field is not 3.
fn memory<F: FnMut(u64) -> u8>(cursor: &mut Cursor<F>, vex: Vex, short: bool, modrm: u8) -> Memory {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut operand =
        Memory { base: Base::Register(rm | vex.extend_base), index: None, scale: 0, displacement: 0, short };
    let mut wide_displacement = mode == 2;
    if rm == 4 {
        let sib = cursor.byte();
        let (index, base) = ((sib >> 3) & 7 | vex.extend_index, sib & 7);
        operand.scale = sib >> 6;
        // Number 4, which would be rsp, means "no index"; r12 is an index like any other.
        operand.index = (index != 4).then_some(index);
        // Base 5 without displacement means "no base", for r13 as for rbp.
        if mode == 0 && base == 5 {
            operand.base = Base::None;
            wide_displacement = true;
        } else {
            operand.base = Base::Register(base | vex.extend_base);
        }
    } else if mode == 0 && rm == 5 {
        operand.base = Base::Rip;
        wide_displacement = true;
    }
    if wide_displacement {
        operand.displacement = cursor.dword();
    } else if mode == 1 {
        operand.displacement = i32::from(cursor.byte().cast_signed());
    }
    operand
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
