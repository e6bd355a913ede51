//! Runs a program in f64 on one tile: the definition that every lowering is tested against.

use super::{Binary, Compare, Input, Op, Output, Program, Reduce, Shape, Unary, ValueId};
use std::collections::BTreeMap;

/// The inputs of one tile. Matrices are row-major `[rows, columns]`.
#[derive(Clone, Debug, Default)]
pub struct Tile {
    /// Tokens.
    pub rows: usize,
    /// Vocabulary entries.
    pub columns: usize,
    /// [`Input::Logit`] of the first distribution, `rows * columns`.
    pub logit: Vec<f64>,
    /// That of the second one.
    pub second_logit: Vec<f64>,
    /// [`Input::Stored`], `rows * columns`.
    pub stored: Vec<f64>,
    /// Shard-local id of the tile's first column.
    pub first_column: i64,
    /// [`Input::Classes`].
    pub classes: i64,
    /// [`Input::Target`], `rows`.
    pub target: Vec<i64>,
    /// [`Input::Reference`] of the first distribution, `rows`.
    pub reference: Vec<f64>,
    /// That of the second one.
    pub second_reference: Vec<f64>,
    /// Selected ids of each token, as columns of the shard, with their weights for [`Input::Selected`].
    pub selected: Vec<Vec<(i64, f64)>>,
    /// Number of columns of [`Output::Top`].
    pub top: usize,
    /// Seed of [`Input::Random`].
    pub seed: u64,
    /// Token of each row, for [`Input::Random`].
    pub token: Vec<u32>,
    /// Global id of the shard's first column, for [`Input::Random`].
    pub first_id: u32,
    /// Named inputs per token, `rows` each.
    pub row: BTreeMap<String, Vec<f64>>,
    /// Named inputs per vocabulary entry, `columns` each; an absent one is zero.
    pub column: BTreeMap<String, Vec<f64>>,
    /// Named scalars.
    pub uniform: BTreeMap<String, f64>,
}

/// The outputs of one tile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interpretation {
    /// Named outputs per token.
    pub row: BTreeMap<String, Vec<f64>>,
    /// The stored tile, `rows * columns`; empty if the program stores none.
    pub store: Vec<f64>,
    /// Column gradients summed over the rows of the tile, `columns` each.
    pub column_gradient: BTreeMap<String, Vec<f64>>,
    /// Named values at the selected ids of each token, in their order.
    pub selected: BTreeMap<String, Vec<Vec<f64>>>,
    /// The largest columns of each token, at most [`Tile::top`].
    pub top: Vec<Vec<Pick>>,
}

/// A column of [`Output::Top`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pick {
    /// Column of the shard.
    pub column: i64,
    /// What is handed out.
    pub value: f64,
    /// What was added for the comparison.
    pub noise: f64,
}

impl Program {
    /// Runs the program on one tile.
    ///
    /// # Panics
    /// If an input that the program reads is missing from the tile or too short.
    pub fn interpret(&self, tile: &Tile) -> Interpretation {
        let values = Values::compute(self, tile);
        let mut out = Interpretation::default();
        for output in self.outputs() {
            let value = output.value();
            match output {
                Output::Row(name, _) => {
                    let row = (0..tile.rows).map(|r| values.get(self, value.index(), r, 0)).collect();
                    out.row.insert(name.clone(), row);
                }
                Output::Store(_) => {
                    out.store = (0..tile.rows * tile.columns)
                        .map(|i| values.get(self, value.index(), i / tile.columns, i % tile.columns))
                        .collect();
                }
                Output::ColumnGradient(name, _) => {
                    let column = |c| (0..tile.rows).map(|r| values.get(self, value.index(), r, c)).sum();
                    out.column_gradient.insert(name.clone(), (0..tile.columns).map(column).collect());
                }
                Output::Selected(name, _) => {
                    let at = |row: usize, id: i64| match usize::try_from(id - tile.first_column) {
                        Ok(column) if column < tile.columns => values.get(self, value.index(), row, column),
                        _ => 0.0,
                    };
                    let rows = tile.selected.iter().enumerate();
                    let rows = rows.map(|(row, ids)| ids.iter().map(|(id, _)| at(row, *id)).collect()).collect();
                    out.selected.insert(name.clone(), rows);
                }
                Output::Top { value, noise } => {
                    out.top = (0..tile.rows).map(|row| values.top(self, row, *value, *noise)).collect();
                }
            }
        }
        out
    }
}

struct Values<'a> {
    tile: &'a Tile,
    values: Vec<Vec<f64>>,
}

impl<'a> Values<'a> {
    fn extent(shape: Shape, tile: &Tile) -> (usize, usize) {
        match shape {
            Shape::Uniform => (1, 1),
            Shape::Row => (tile.rows, 1),
            Shape::Column => (1, tile.columns),
            Shape::Element => (tile.rows, tile.columns),
        }
    }

    fn get(&self, program: &Program, value: usize, row: usize, column: usize) -> f64 {
        let (rows, columns) = Self::extent(program.types[value].shape, self.tile);
        self.values[value][row.min(rows - 1) * columns + column.min(columns - 1)]
    }

    fn top(&self, program: &Program, row: usize, value: ValueId, noise: ValueId) -> Vec<Pick> {
        let at = |v: ValueId, column| self.get(program, v.index(), row, column);
        let pick =
            |c: usize| Pick { column: self.tile.first_column + c as i64, value: at(value, c), noise: at(noise, c) };
        let mut picks: Vec<Pick> = (0..self.tile.columns).map(pick).collect();
        // Measured from the largest value, a common offset of the values has no part in the order.
        let largest = picks.iter().map(|pick| pick.value).filter(|v| v.is_finite()).fold(f64::NEG_INFINITY, f64::max);
        let key = |pick: &Pick| {
            let distance = if largest.is_finite() { pick.value - largest } else { pick.value };
            distance + pick.noise + 0.0
        };
        // A stable order: of equal keys, 0 and -0 among them, the lowest column comes first.
        picks.sort_by(|a, b| key(b).total_cmp(&key(a)));
        picks.truncate(self.tile.top);
        picks
    }

    fn compute(program: &Program, tile: &'a Tile) -> Values<'a> {
        let mut all = Values { tile, values: vec![] };
        for (index, op) in program.ops().iter().enumerate() {
            let (rows, columns) = Self::extent(program.types[index].shape, tile);
            let mut out = Vec::with_capacity(rows * columns);
            for row in 0..rows {
                for column in 0..columns {
                    out.push(all.element(program, op, row, column));
                }
            }
            all.values.push(out);
        }
        all
    }

    fn element(&self, program: &Program, op: &Op, row: usize, column: usize) -> f64 {
        let tile = self.tile;
        let at = |v: super::ValueId| self.get(program, v.index(), row, column);
        let truth = |b: bool| if b { 1.0 } else { 0.0 };
        match op {
            Op::Input(input) => match input {
                Input::Logit(index) => [&tile.logit, &tile.second_logit][*index][row * tile.columns + column],
                Input::Stored => tile.stored[row * tile.columns + column],
                Input::ColumnId => (tile.first_column + column as i64) as f64,
                Input::Classes => tile.classes as f64,
                Input::Target => tile.target[row] as f64,
                Input::Reference(index) => [&tile.reference, &tile.second_reference][*index][row],
                Input::Selected => {
                    let here = tile.first_column + column as i64;
                    tile.selected[row].iter().filter(|(id, _)| *id == here).map(|(_, weight)| weight).sum()
                }
                Input::Random => {
                    let id = tile.first_id + (tile.first_column + column as i64) as u32;
                    f64::from(super::uniform(tile.seed, tile.token[row], id))
                }
                Input::Row(name) => tile.row[name][row],
                Input::Column(name) => tile.column.get(name).map_or(0.0, |c| c[column]),
                Input::Uniform(name) => tile.uniform[name],
            },
            Op::Const(value) => f64::from(*value),
            Op::Unary(op, a) => {
                let a = at(*a);
                match op {
                    Unary::Neg => -a,
                    Unary::Exp => a.exp(),
                    Unary::Ln => a.ln(),
                    Unary::Ln1p => a.ln_1p(),
                    Unary::Tanh => a.tanh(),
                    // An id is exact in f64.
                    Unary::Float => a,
                }
            }
            Op::Binary(op, a, b) => {
                let (a, b) = (at(*a), at(*b));
                match op {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                    Binary::Max => larger(a, b),
                    Binary::Min => -larger(-a, -b),
                    Binary::Above => a - super::place(b),
                    Binary::ExpAbove => (a - super::place(b)).exp(),
                }
            }
            Op::MulAdd(a, b, c) => at(*a) * at(*b) + at(*c),
            Op::Compare(Compare::Eq, a, b) => truth(at(*a) == at(*b)),
            Op::Compare(Compare::Lt, a, b) => truth(at(*a) < at(*b)),
            Op::Select(c, a, b) => {
                if at(*c) != 0.0 {
                    at(*a)
                } else {
                    at(*b)
                }
            }
            Op::Reduce(op, a) => {
                let columns = (0..tile.columns).map(|c| self.get(program, a.index(), row, c));
                match op {
                    Reduce::Sum => columns.sum(),
                    Reduce::Max => columns.fold(f64::NEG_INFINITY, larger),
                }
            }
            Op::Divergence { p, q, log_ratio } => {
                let at = |v: &ValueId, c| self.get(program, v.index(), row, c);
                let sum = |v: &ValueId| (0..tile.columns).map(|c| at(v, c)).sum::<f64>();
                divergence((0..tile.columns).map(|c| [at(p, c), at(q, c), at(log_ratio, c)]), sum(p), sum(q))
            }
            Op::ArgMax(key, id) => {
                let at = |v: super::ValueId, c| self.get(program, v.index(), row, c);
                let best = (0..tile.columns).fold((f64::NEG_INFINITY, -1.0), |best, c| {
                    let key = at(*key, c);
                    if key > best.0 { (key, at(*id, c)) } else { best }
                });
                best.1
            }
        }
    }
}

// `f64::max` drops a NaN; a kernel must not, so neither does the definition.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

// See [`Op::Divergence`]; nothing where one of the sums is nothing.
fn divergence(terms: impl Iterator<Item = [f64; 3]>, p_sum: f64, q_sum: f64) -> f64 {
    if p_sum == 0.0 || q_sum == 0.0 {
        return 0.0;
    }
    let all = (q_sum / p_sum).ln();
    let term = |[p, q, log_ratio]: [f64; 3]| {
        let u = log_ratio - all;
        if p == 0.0 {
            q * p_sum / q_sum
        } else if u.abs() < 0.5 {
            p * (u.exp_m1() - u)
        } else {
            q * p_sum / q_sum - p - p * u
        }
    };
    terms.map(term).sum()
}
