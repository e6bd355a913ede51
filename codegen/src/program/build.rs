//! Builds row programs with ordinary arithmetic.

use super::{Binary, Compare, Input, Op, Output, Program, ProgramError, Reduce, Unary, ValueId};
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A program under construction.
///
/// ```
/// use vocabfuse_codegen::program::Graph;
/// let g = Graph::new("total");
/// let y = g.logit() * g.uniform("scale");
/// let e = y.exp_above(g.reference());
/// g.row_output("sum", e.sum());
/// g.store(e);
/// let program = g.finish().unwrap();
/// assert_eq!(program.uniforms(), ["scale"]);
/// ```
pub struct Graph {
    name: String,
    parts: RefCell<(Vec<Op>, Vec<Output>)>,
}

/// A value of a [`Graph`]. Arithmetic on it adds operations.
#[derive(Clone, Copy)]
pub struct Expr<'g> {
    graph: &'g Graph,
    id: ValueId,
}

/// Something that can stand in arithmetic beside an [`Expr`]: another one, or a number.
pub trait Operand<'g> {
    /// The value, added to the graph if need be.
    fn value(self, graph: &'g Graph) -> ValueId;
}

impl<'g> Operand<'g> for Expr<'g> {
    fn value(self, _: &'g Graph) -> ValueId {
        self.id
    }
}

impl<'g> Operand<'g> for f32 {
    fn value(self, graph: &'g Graph) -> ValueId {
        graph.push(Op::Const(self)).id
    }
}

impl Graph {
    /// An empty program.
    pub fn new(name: &str) -> Graph {
        Graph { name: name.to_owned(), parts: RefCell::default() }
    }

    // Equal operations share one value, so a program that says the same thing twice computes it once.
    fn push(&self, op: Op) -> Expr<'_> {
        let mut parts = self.parts.borrow_mut();
        let same = |known: &Op| match (known, &op) {
            (Op::Const(a), Op::Const(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        };
        let index = parts.0.iter().position(same).unwrap_or_else(|| {
            parts.0.push(op);
            parts.0.len() - 1
        });
        Expr { graph: self, id: ValueId(index as u32) }
    }

    fn input(&self, input: Input) -> Expr<'_> {
        self.push(Op::Input(input))
    }

    /// [`Input::Logit`] of the first distribution.
    pub fn logit(&self) -> Expr<'_> {
        self.logit_of(0)
    }

    /// [`Input::Logit`].
    pub fn logit_of(&self, distribution: usize) -> Expr<'_> {
        self.input(Input::Logit(distribution))
    }

    /// [`Input::Stored`].
    pub fn stored(&self) -> Expr<'_> {
        self.input(Input::Stored)
    }

    /// [`Input::ColumnId`].
    pub fn column_id(&self) -> Expr<'_> {
        self.input(Input::ColumnId)
    }

    /// [`Input::Classes`].
    pub fn classes(&self) -> Expr<'_> {
        self.input(Input::Classes)
    }

    /// [`Input::Target`].
    pub fn target(&self) -> Expr<'_> {
        self.input(Input::Target)
    }

    /// [`Input::Reference`] of the first distribution.
    pub fn reference(&self) -> Expr<'_> {
        self.reference_of(0)
    }

    /// [`Input::Reference`].
    pub fn reference_of(&self, distribution: usize) -> Expr<'_> {
        self.input(Input::Reference(distribution))
    }

    /// [`Input::Selected`].
    pub fn selected(&self) -> Expr<'_> {
        self.input(Input::Selected)
    }

    /// [`Input::Random`].
    pub fn random(&self) -> Expr<'_> {
        self.input(Input::Random)
    }

    /// [`Input::Row`].
    pub fn row(&self, name: &str) -> Expr<'_> {
        self.input(Input::Row(name.to_owned()))
    }

    /// [`Input::Column`].
    pub fn column(&self, name: &str) -> Expr<'_> {
        self.input(Input::Column(name.to_owned()))
    }

    /// [`Input::Uniform`].
    pub fn uniform(&self, name: &str) -> Expr<'_> {
        self.input(Input::Uniform(name.to_owned()))
    }

    /// A constant.
    pub fn constant(&self, value: f32) -> Expr<'_> {
        self.push(Op::Const(value))
    }

    fn output(&self, output: Output) {
        self.parts.borrow_mut().1.push(output);
    }

    /// Hands out a value per token.
    pub fn row_output(&self, name: &str, value: Expr<'_>) {
        self.output(Output::Row(name.to_owned(), value.id));
    }

    /// Keeps a value per element: the operand of the matrix product that follows.
    pub fn store(&self, value: Expr<'_>) {
        self.output(Output::Store(value.id));
    }

    /// Hands out the derivative with respect to a column input.
    pub fn column_gradient(&self, name: &str, value: Expr<'_>) {
        self.output(Output::ColumnGradient(name.to_owned(), value.id));
    }

    /// [`Output::Selected`].
    pub fn selected_output(&self, name: &str, value: Expr<'_>) {
        self.output(Output::Selected(name.to_owned(), value.id));
    }

    /// [`Output::Top`].
    pub fn top(&self, value: Expr<'_>, noise: Expr<'_>) {
        self.output(Output::Top { value: value.id, noise: noise.id });
    }

    /// Verifies and closes the program.
    ///
    /// # Errors
    /// See [`ProgramError`].
    pub fn finish(self) -> Result<Program, ProgramError> {
        let (ops, outputs) = self.parts.into_inner();
        Program::new(&self.name, ops, outputs)
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => { $(
        impl<'g, R: Operand<'g>> $trait<R> for Expr<'g> {
            type Output = Expr<'g>;
            fn $method(self, right: R) -> Expr<'g> {
                let right = right.value(self.graph);
                self.graph.push(Op::Binary(Binary::$trait, self.id, right))
            }
        }
    )* };
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl<'g> Neg for Expr<'g> {
    type Output = Expr<'g>;
    fn neg(self) -> Expr<'g> {
        self.unary(Unary::Neg)
    }
}

impl<'g> Expr<'g> {
    fn unary(self, op: Unary) -> Expr<'g> {
        self.graph.push(Op::Unary(op, self.id))
    }

    fn binary(self, op: Binary, right: impl Operand<'g>) -> Expr<'g> {
        let right = right.value(self.graph);
        self.graph.push(Op::Binary(op, self.id, right))
    }

    /// e^self
    pub fn exp(self) -> Expr<'g> {
        self.unary(Unary::Exp)
    }

    /// Natural logarithm.
    pub fn ln(self) -> Expr<'g> {
        self.unary(Unary::Ln)
    }

    /// ln(1 + self)
    pub fn ln_1p(self) -> Expr<'g> {
        self.unary(Unary::Ln1p)
    }

    /// Hyperbolic tangent.
    pub fn tanh(self) -> Expr<'g> {
        self.unary(Unary::Tanh)
    }

    /// An i32 as f32.
    pub fn float(self) -> Expr<'g> {
        self.unary(Unary::Float)
    }

    /// Absolute value.
    pub fn magnitude(self) -> Expr<'g> {
        self.max(-self)
    }

    /// The larger of both.
    pub fn max(self, other: impl Operand<'g>) -> Expr<'g> {
        self.binary(Binary::Max, other)
    }

    /// The smaller of both.
    pub fn min(self, other: impl Operand<'g>) -> Expr<'g> {
        self.binary(Binary::Min, other)
    }

    /// The distance from the place of a reference, see [`Binary::Above`].
    pub fn above(self, reference: impl Operand<'g>) -> Expr<'g> {
        self.binary(Binary::Above, reference)
    }

    /// e to the distance from the place of a reference, see [`Binary::ExpAbove`].
    pub fn exp_above(self, reference: impl Operand<'g>) -> Expr<'g> {
        self.binary(Binary::ExpAbove, reference)
    }

    /// self * factor + addend.
    pub fn mul_add(self, factor: impl Operand<'g>, addend: impl Operand<'g>) -> Expr<'g> {
        let (factor, addend) = (factor.value(self.graph), addend.value(self.graph));
        self.graph.push(Op::MulAdd(self.id, factor, addend))
    }

    fn compare(self, op: Compare, other: impl Operand<'g>) -> Expr<'g> {
        let other = other.value(self.graph);
        self.graph.push(Op::Compare(op, self.id, other))
    }

    /// self == other
    pub fn equals(self, other: impl Operand<'g>) -> Expr<'g> {
        self.compare(Compare::Eq, other)
    }

    /// self < other
    pub fn less_than(self, other: impl Operand<'g>) -> Expr<'g> {
        self.compare(Compare::Lt, other)
    }

    /// `yes` where self holds, else `no`.
    pub fn select(self, yes: impl Operand<'g>, no: impl Operand<'g>) -> Expr<'g> {
        let (yes, no) = (yes.value(self.graph), no.value(self.graph));
        self.graph.push(Op::Select(self.id, yes, no))
    }

    /// Sum over the columns of the row.
    pub fn sum(self) -> Expr<'g> {
        self.graph.push(Op::Reduce(Reduce::Sum, self.id))
    }

    /// `id` at the column where self is largest, see [`Op::ArgMax`].
    pub fn id_of_largest(self, id: Expr<'g>) -> Expr<'g> {
        self.graph.push(Op::ArgMax(self.id, id.id))
    }

    /// The divergence of weights self from weights q, see [`Op::Divergence`].
    pub fn divergence(self, q: Expr<'g>, log_ratio: Expr<'g>) -> Expr<'g> {
        self.graph.push(Op::Divergence { p: self.id, q: q.id, log_ratio: log_ratio.id })
    }

    /// Maximum over the columns of the row.
    pub fn largest(self) -> Expr<'g> {
        self.graph.push(Op::Reduce(Reduce::Max, self.id))
    }
}
