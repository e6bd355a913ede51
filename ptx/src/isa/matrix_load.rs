//! Matrix loads from shared memory: ldmatrix.

use super::load_store::addresses;
use super::types::Type;
use super::{Address, Reg};
use crate::error::{ParseErrorKind, Space};
use crate::machine::{Access, Context, Fault, Mask, Strength, Warp};
use crate::syntax::Statement;

/// Bytes of a matrix row.
const ROW: usize = 16;

/// One, two or four matrices of eight rows of eight 16-bit elements.
///
/// Lane `8 m + r` gives the address of row `r` of matrix `m`. Lane `l` receives
/// elements `2 (l % 4)` and the next of row `l / 4` of each matrix, or of its
/// transpose.
#[derive(Clone, Debug)]
pub(crate) struct MatrixLoad {
    transposed: bool,
    /// One destination per matrix.
    d: Vec<Reg>,
    address: Address,
}

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<MatrixLoad, ParseErrorKind> {
    s.require("sync")?;
    s.require("aligned")?;
    s.require("m8n8")?;
    let count = s.select(&[("x1", 1), ("x2", 2), ("x4", 4)], "x1, x2 or x4")?;
    let transposed = s.take("trans");
    s.select(&[("shared", ()), ("shared::cta", ())], "shared")?;
    s.require("b16")?;
    let d: Vec<Reg> = s.destinations(Type::B32)?.into_iter().map(|(r, _)| r).collect();
    if d.len() != count {
        return Err(ParseErrorKind::WrongOperand("a vector of that length"));
    }
    Ok(MatrixLoad { transposed, d, address: s.address()? })
}

impl MatrixLoad {
    pub(crate) fn execute(&self, warp: &mut Warp, context: &mut Context<'_, '_>) -> Result<(), Fault> {
        let addresses = addresses(&warp.registers, self.address);
        // Each matrix is one pass of 8 x 16 bytes, as a quarter of a warp reads them.
        let lanes = Mask::MAX >> (32 - 8 * self.d.len());
        let (recorder, at) = (&mut context.grid.recorder, context.instruction);
        recorder.shared_access(at, &addresses, lanes, ROW);
        for (matrix, &d) in self.d.iter().enumerate() {
            let mut rows = [0; 8];
            for (r, row) in rows.iter_mut().enumerate() {
                let lane = 8 * matrix + r;
                let access = Access {
                    space: Space::Shared,
                    address: addresses[lane],
                    bytes: ROW,
                    lane,
                    strength: Strength::Collective,
                };
                *row = context.load(warp, &access)?;
            }
            let element = |row: usize, column: usize| (rows[row] >> (16 * column)) as u64 & 0xffff;
            let fragment = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, 2 * (lane % 4));
                match self.transposed {
                    false => element(row, column) | element(row, column + 1) << 16,
                    true => element(column, row) | element(column + 1, row) << 16,
                }
            });
            warp.registers.set(d, &fragment, Mask::MAX);
        }
        Ok(())
    }
}
