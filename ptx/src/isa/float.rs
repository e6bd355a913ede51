//! Float arithmetic: add, sub, mul, fma, div, min, max, abs, neg, copysign.

use super::types::Type;
use super::{Operand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// A float operation of single or double precision.
#[derive(Clone, Debug)]
pub(crate) struct Float {
    operation: Operation,
    double: bool,
    /// Subnormal sources and results become zero.
    flush: bool,
    /// The result is clamped to [0, 1].
    saturate: bool,
    /// Rounding other than to nearest.
    directed: Option<Direction>,
    d: Reg,
    sources: [Operand; 3],
}

/// Where a directed rounding goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Direction {
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Min {
        nan: bool,
    },
    Max {
        nan: bool,
    },
    Abs,
    Neg,
    /// The magnitude of the second source with the sign of the first.
    CopySign,
}

const DIRECTIONS: [(&str, Direction); 3] = [("rz", Direction::Zero), ("rm", Direction::Down), ("rp", Direction::Up)];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Float, ParseErrorKind> {
    use Operation::*;
    let mut operation = match s.head() {
        "add" => Add,
        "sub" => Sub,
        "mul" => Mul,
        "fma" | "mad" => Fma,
        "div" => Div,
        "min" => Min { nan: false },
        "max" => Max { nan: false },
        "abs" => Abs,
        "neg" => Neg,
        "copysign" => CopySign,
        _ => return Err(s.unsupported()),
    };
    let directed = match operation {
        Add | Sub | Mul | Fma => s.choose(&DIRECTIONS),
        _ => None,
    };
    match operation {
        _ if directed.is_some() => {}
        Fma => s.require("rn")?,
        // The approximate divisions are within two units in the last place;
        // the exact quotient is one of their permitted results.
        Div => s.select(&[("rn", ()), ("approx", ()), ("full", ())], "a rounding")?,
        Add | Sub | Mul => {
            s.take("rn");
        }
        _ => {}
    }
    let flush = s.take("ftz");
    if s.take("NaN") {
        operation = match operation {
            Min { .. } => Min { nan: true },
            Max { .. } => Max { nan: true },
            _ => return Err(ParseErrorKind::UnsupportedModifier("NaN".to_owned())),
        };
    }
    let saturate = matches!(operation, Add | Sub | Mul | Fma) && s.take("sat");
    let ty = s.ty_of(&[Type::F32, Type::F64])?;
    let double = ty == Type::F64;
    if double && (flush || saturate || directed.is_some()) {
        return Err(ParseErrorKind::UnsupportedModifier("f64".to_owned()));
    }
    let d = s.destination(ty)?;
    let mut sources = [Operand::Imm(0); 3];
    let count = match operation {
        Abs | Neg => 1,
        Fma => 3,
        _ => 2,
    };
    for source in &mut sources[..count] {
        *source = s.source(ty)?;
    }
    Ok(Float { operation, double, flush, saturate, directed, d, sources })
}

impl Float {
    #[inline]
    pub(crate) fn execute(&self, registers: &mut Registers, mask: Mask) {
        if let Some(direction) = self.directed {
            self.run_directed(registers, mask, direction);
        } else if self.double {
            self.run::<f64>(registers, mask, |x| x, |x| x);
        } else if self.flush || self.saturate {
            let saturate = self.saturate;
            let input = if self.flush { flush } else { |x| x };
            self.run::<f32>(registers, mask, input, |x| {
                let x = input(x);
                if saturate { saturated(x) } else { x }
            });
        } else {
            self.run::<f32>(registers, mask, |x| x, |x| x);
        }
    }

    /// Every operation that can be directed is a fused multiply-add.
    fn run_directed(&self, registers: &mut Registers, mask: Mask, direction: Direction) {
        let [a, b, c] = self.sources;
        let one = Operand::Imm(u64::from(1f32.to_bits()));
        let minus_one = Operand::Imm(u64::from((-1f32).to_bits()));
        let minus_zero = Operand::Imm(u64::from((-0f32).to_bits()));
        let sources = match self.operation {
            Operation::Add => [b, one, a],
            Operation::Sub => [b, minus_one, a],
            Operation::Mul => [a, b, minus_zero],
            _ => [a, b, c],
        };
        let (on_off, saturate) = (self.flush, self.saturate);
        let round = |x: f32| if on_off { flush(x) } else { x };
        registers.map3(self.d, sources, mask, |a, b, c| {
            let [a, b, c] = [a, b, c].map(|x| round(f32::from_bits(x as u32)));
            let y = round(direction.multiply_add(a, b, c));
            let y = if saturate { saturated(y) } else { y };
            u64::from(y.to_bits())
        });
    }

    fn run<T: Real>(&self, registers: &mut Registers, mask: Mask, input: impl Fn(T) -> T, output: impl Fn(T) -> T) {
        let d = self.d;
        let [a, b, _] = self.sources;
        let two = [a, b];
        let of = |bits| input(T::of(bits));
        let to = |value: T| output(value).bits();
        match self.operation {
            Operation::Add => registers.map2(d, two, mask, |a, b| to(of(a).add(of(b)))),
            Operation::Sub => registers.map2(d, two, mask, |a, b| to(of(a).add(of(b).negate()))),
            Operation::Mul => registers.map2(d, two, mask, |a, b| to(of(a).mul(of(b)))),
            Operation::Fma => registers.map3(d, self.sources, mask, |a, b, c| to(of(a).fma(of(b), of(c)))),
            Operation::Div => registers.map2(d, two, mask, |a, b| to(of(a).div(of(b)))),
            Operation::Min { nan } => {
                registers.map2(d, two, mask, |a, b| to(of(a).negate().larger(of(b).negate(), nan).negate()))
            }
            Operation::Max { nan } => {
                registers.map2(d, two, mask, |a, b| to(of(a).larger(of(b), nan)));
            }
            Operation::Abs => registers.map1(d, a, mask, |a| to(of(a).sign_of(T::of(0)))),
            Operation::Neg => registers.map1(d, a, mask, |a| to(of(a).negate())),
            Operation::CopySign => {
                registers.map2(d, two, mask, |a, b| to(T::of(b).sign_of(T::of(a))));
            }
        }
    }
}

impl Direction {
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        // The product is exact, and `error` is what the sum leaves out.
        let (p, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = p + c;
        let part = sum - p;
        let error = (p - (sum - part)) + (c - part);
        let nearest = sum as f32;
        let wide = f64::from(nearest);
        let (above, below) = match wide == sum {
            true => (error < 0.0, error > 0.0),
            false => (wide > sum, wide < sum),
        };
        match self {
            Direction::Down | Direction::Zero if above && (self == Direction::Down || sum > 0.0) => nearest.next_down(),
            Direction::Up | Direction::Zero if below && (self == Direction::Up || sum < 0.0) => nearest.next_up(),
            _ => nearest,
        }
    }
}

/// Clamped to [0, 1], with zero for a NaN.
fn saturated(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
}

/// A subnormal as the zero of its sign.
#[inline]
pub(super) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

trait Real: Copy {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn fma(self, factor: Self, addend: Self) -> Self;
    fn negate(self) -> Self;
    /// This magnitude with the sign of `other`.
    fn sign_of(self, other: Self) -> Self;
    /// The larger of two, with -0 < +0; a NaN loses unless `nan` is set.
    fn larger(self, other: Self, nan: bool) -> Self;
}

macro_rules! real {
    ($real:ty, $bits:ty) => {
        impl Real for $real {
            #[inline]
            fn of(bits: u64) -> Self {
                <$real>::from_bits(bits as $bits)
            }
            #[inline]
            fn bits(self) -> u64 {
                self.to_bits() as u64
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline]
            fn fma(self, factor: Self, addend: Self) -> Self {
                self.mul_add(factor, addend)
            }
            #[inline]
            fn negate(self) -> Self {
                -self
            }
            #[inline]
            fn sign_of(self, other: Self) -> Self {
                self.copysign(other)
            }
            #[inline]
            fn larger(self, other: Self, nan: bool) -> Self {
                if self.is_nan() || other.is_nan() {
                    return match (nan, self.is_nan()) {
                        (false, true) => other,
                        (false, false) => self,
                        (true, _) => <$real>::NAN,
                    };
                }
                if self > other || (self == other && self.is_sign_positive()) { self } else { other }
            }
        }
    };
}

real!(f32, u32);
real!(f64, u64);
