//! Matrix multiplication of a warp: mma.sync.
//!
//! With `g = lane / 4` and `q = lane % 4`, register `i` of a lane holds
//!
//! - of A (16 x K, row-major): row `g + 8 (i & 1)`, the elements that start at
//!   column `q * per + (i >> 1) * 4 * per`, `per` elements to a register;
//! - of B (K x 8, column-major): column `g`, the elements that start at row
//!   `q * per + i * 4 * per`;
//! - of C and D (16 x 8, f32): row `g + 8 (i >> 1)`, column `2 q + (i & 1)`.
//!
//! How the products are added up is the launch's choice, see [`Accumulation`].

use half::f16;

use super::fused_sum::{COLUMNS, Line, Number, add_products};
use super::types::Type;
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Accumulation, Lanes, Mask, Registers, WARP};
use crate::syntax::Statement;

const ROWS: usize = 16;
/// Longest inner dimension.
const DEPTH: usize = 16;

/// `D = A B + C` with single-precision accumulation.
#[derive(Clone, Debug)]
pub(crate) struct MatrixMultiply {
    input: Input,
    /// Inner dimension.
    k: usize,
    d: [Reg; 4],
    a: Vec<Operand>,
    b: Vec<Operand>,
    c: [Operand; 4],
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Bf16,
    F16,
    Tf32,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<MatrixMultiply, ParseErrorKind> {
    s.require("sync")?;
    s.require("aligned")?;
    let shapes = [("m16n8k16", 16), ("m16n8k8", 8), ("m16n8k4", 4)];
    let k = s.select(&shapes, "a shape")?;
    s.require("row")?;
    s.require("col")?;
    s.require("f32")?;
    let input = s.ty_of(&[Type::Bf16, Type::F16, Type::Tf32])?;
    s.ty_of(&[input])?;
    s.require("f32")?;
    let input = match (input, k) {
        (Type::Bf16, 8 | 16) => Input::Bf16,
        (Type::F16, 8 | 16) => Input::F16,
        (Type::Tf32, 4 | 8) => Input::Tf32,
        _ => return Err(s.unsupported()),
    };
    let d = s.destination_array(Type::F32)?;
    let (a, b) = (s.sources(Type::B32)?, s.sources(Type::B32)?);
    let c = s.source_array(Type::F32)?;
    let registers = ROWS * k / input.per_register() / WARP;
    if a.len() != registers || b.len() != registers / 2 {
        return Err(ParseErrorKind::WrongOperand("a vector of that length"));
    }
    Ok(MatrixMultiply { input, k, d, a, b, c })
}

impl Input {
    fn per_register(self) -> usize {
        match self {
            Input::Bf16 | Input::F16 => 2,
            Input::Tf32 => 1,
        }
    }

    /// Products of one sum of a tensor core.
    fn products_at_once(self) -> usize {
        match self {
            Input::Bf16 | Input::F16 => 8,
            Input::Tf32 => 4,
        }
    }

    /// The exponent of subnormal numbers.
    fn least_exponent(self) -> i32 {
        match self {
            Input::Bf16 | Input::Tf32 => -126,
            Input::F16 => -14,
        }
    }

    /// Element `e` of a register.
    #[inline]
    fn element(self, register: u64, e: usize) -> f32 {
        let half = (register >> (16 * e)) as u16;
        match self {
            Input::Bf16 => f32::from_bits(u32::from(half) << 16),
            Input::F16 => f16::from_bits(half).to_f32(),
            // The low bits of a TF32 register are not read.
            Input::Tf32 => f32::from_bits(register as u32 & !0x1fff),
        }
    }
}

/// Results, or what they start from.
type Tile = [[f32; COLUMNS]; ROWS];

impl MatrixMultiply {
    pub(crate) fn execute(&self, r: &mut Registers, accumulation: Accumulation) {
        let a = self.gather(r, &self.a, |i| (8 * (i & 1), i >> 1));
        let b = self.gather(r, &self.b, |i| (0, i));
        // B with its columns innermost, so that sums are over vectors.
        let mut by_depth = [[0f32; COLUMNS]; DEPTH];
        for (column, values) in b.iter().take(COLUMNS).enumerate() {
            for (k, &value) in values.iter().enumerate() {
                by_depth[k][column] = value;
            }
        }
        let mut d = [[0f32; COLUMNS]; ROWS];
        for i in 0..4 {
            let c = r.get(self.c[i]);
            for (lane, &value) in c.iter().enumerate() {
                let (row, column) = place(i, lane);
                d[row][column] = f32::from_bits(value as u32);
            }
        }
        match accumulation {
            Accumulation::Rounded => self.add_rounded(&mut d, &a, &by_depth),
            Accumulation::Truncated => self.add_truncated(&mut d, &a, &by_depth),
        }
        for i in 0..4 {
            let out: Lanes = std::array::from_fn(|lane| {
                let (row, column) = place(i, lane);
                u64::from(d[row][column].to_bits())
            });
            r.set(self.d[i], &out, Mask::MAX);
        }
    }

    /// Adds up the products in f32, then adds that to what is there.
    fn add_rounded(&self, d: &mut Tile, a: &[[f32; DEPTH]; ROWS], b: &[[f32; COLUMNS]; DEPTH]) {
        for (row, factors) in d.iter_mut().zip(a) {
            let mut sums = [0f32; COLUMNS];
            for (&factor, values) in factors.iter().zip(b).take(self.k) {
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum += factor * value;
                }
            }
            row.iter_mut().zip(sums).for_each(|(d, sum)| *d += sum);
        }
    }

    /// Adds products to what is there as tensor cores do.
    fn add_truncated(&self, d: &mut Tile, a: &[[f32; DEPTH]; ROWS], b: &[[f32; COLUMNS]; DEPTH]) {
        let least = self.input.least_exponent();
        let lines = b.map(|values| Line::new(&values, least));
        for (sums, factors) in d.iter_mut().zip(a) {
            let factors = factors.map(|value| Number::new(value, least));
            let at_once = self.input.products_at_once();
            for (row, lines) in factors[..self.k].chunks(at_once).zip(lines.chunks(at_once)) {
                add_products(sums, row, lines);
            }
        }
    }

    /// Rows of A or columns of B. `place` gives the offset of a register's row
    /// and the number of its group of columns.
    #[inline]
    fn gather(
        &self,
        r: &Registers,
        registers: &[Operand],
        place: impl Fn(usize) -> (usize, usize),
    ) -> [[f32; DEPTH]; ROWS] {
        let per = self.input.per_register();
        let mut matrix = [[0f32; DEPTH]; ROWS];
        for (i, &register) in registers.iter().enumerate() {
            let values = r.get(register);
            let (row, group) = place(i);
            for (lane, &value) in values.iter().enumerate() {
                let line = &mut matrix[row + lane / 4];
                let column = (lane % 4 + 4 * group) * per;
                for e in 0..per {
                    line[column + e] = self.input.element(value, e);
                }
            }
        }
        matrix
    }
}

/// Row and column of register `i` of a lane's results.
fn place(i: usize, lane: usize) -> (usize, usize) {
    (lane / 4 + 8 * (i >> 1), 2 * (lane % 4) + (i & 1))
}
