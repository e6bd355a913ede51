//! Comparison and selection: setp, set, selp, slct, testp.

use super::float::flush;
use super::logic::Binary;
use super::types::{Type, sign_extend};
use super::{Operand, Predicate, PredicateOperand, Reg};
use crate::error::ParseErrorKind;
use crate::machine::{Mask, Registers};
use crate::syntax::Statement;

/// A comparison or a selection.
#[derive(Clone, Debug)]
pub(crate) enum Compare {
    /// Writes the result, and its negation to a second predicate.
    SetPredicate { test: Test, combine: Option<(Binary, PredicateOperand)>, p: Predicate, q: Option<Predicate> },
    /// Writes all ones, or 1.0 for a float destination, where the test holds.
    Set { test: Test, one: u64, d: Reg },
    /// The first source where the predicate holds, else the second.
    Select { d: Reg, sources: [Operand; 2], condition: PredicateOperand },
    /// The first source where the third is not negative, else the second.
    SelectBySign { float: bool, d: Reg, sources: [Operand; 3] },
    /// Whether a float is of some kind.
    Kind { kind: FloatKind, double: bool, p: Predicate, a: Operand },
}

/// A relation of two values of one type.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    relation: Relation,
    ty: Type,
    flush: bool,
    sources: [Operand; 2],
}

/// Which of the four outcomes of a comparison make it true.
#[derive(Clone, Copy, Debug)]
struct Relation {
    less: bool,
    equal: bool,
    greater: bool,
    /// One source is a NaN.
    unordered: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatKind {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}

const fn relation(less: bool, equal: bool, greater: bool, unordered: bool) -> Relation {
    Relation { less, equal, greater, unordered }
}

const RELATIONS: [(&str, Relation); 18] = [
    ("eq", relation(false, true, false, false)),
    ("ne", relation(true, false, true, false)),
    ("lt", relation(true, false, false, false)),
    ("le", relation(true, true, false, false)),
    ("gt", relation(false, false, true, false)),
    ("ge", relation(false, true, true, false)),
    ("lo", relation(true, false, false, false)),
    ("ls", relation(true, true, false, false)),
    ("hi", relation(false, false, true, false)),
    ("hs", relation(false, true, true, false)),
    ("equ", relation(false, true, false, true)),
    ("neu", relation(true, false, true, true)),
    ("ltu", relation(true, false, false, true)),
    ("leu", relation(true, true, false, true)),
    ("gtu", relation(false, false, true, true)),
    ("geu", relation(false, true, true, true)),
    ("num", relation(true, true, true, false)),
    ("nan", relation(false, false, false, true)),
];

const COMBINE: [(&str, Binary); 3] = [("and", Binary::And), ("or", Binary::Or), ("xor", Binary::Xor)];

pub(super) fn decode(s: &mut Statement<'_, '_>) -> Result<Compare, ParseErrorKind> {
    match s.head() {
        "setp" => {
            let relation = s.select(&RELATIONS, "a comparison")?;
            let combine = s.choose(&COMBINE);
            let flush = s.take("ftz");
            let ty = compared(s)?;
            let (p, q) = s.predicate_pair()?;
            let sources = [s.source(ty)?, s.source(ty)?];
            let combine = match combine {
                Some(operation) => Some((operation, s.predicate_source()?)),
                None => None,
            };
            Ok(Compare::SetPredicate { test: Test { relation, ty, flush, sources }, combine, p, q })
        }
        "set" => {
            let relation = s.select(&RELATIONS, "a comparison")?;
            let flush = s.take("ftz");
            let result = s.ty_of(&[Type::U32, Type::S32, Type::F32])?;
            let ty = compared(s)?;
            Ok(Compare::Set {
                d: s.destination(result)?,
                one: match result {
                    Type::F32 => u64::from(1f32.to_bits()),
                    _ => 0xffff_ffff,
                },
                test: Test { relation, ty, flush, sources: [s.source(ty)?, s.source(ty)?] },
            })
        }
        "selp" => {
            let ty = s.ty()?;
            Ok(Compare::Select {
                d: s.destination(ty)?,
                sources: [s.source(ty)?, s.source(ty)?],
                condition: s.predicate_source()?,
            })
        }
        "slct" => {
            s.take("ftz");
            let ty = s.ty()?;
            let sign = s.ty_of(&[Type::S32, Type::F32])?;
            Ok(Compare::SelectBySign {
                float: sign == Type::F32,
                d: s.destination(ty)?,
                sources: [s.source(ty)?, s.source(ty)?, s.source(sign)?],
            })
        }
        "testp" => {
            let kinds = [
                ("finite", FloatKind::Finite),
                ("infinite", FloatKind::Infinite),
                ("number", FloatKind::Number),
                ("notanumber", FloatKind::NotANumber),
                ("normal", FloatKind::Normal),
                ("subnormal", FloatKind::Subnormal),
            ];
            let kind = s.select(&kinds, "a kind of float")?;
            let ty = s.ty_of(&[Type::F32, Type::F64])?;
            Ok(Compare::Kind { kind, double: ty == Type::F64, p: s.predicate()?, a: s.source(ty)? })
        }
        _ => Err(s.unsupported()),
    }
}

fn compared(s: &mut Statement<'_, '_>) -> Result<Type, ParseErrorKind> {
    s.ty_of(&[
        Type::B16,
        Type::B32,
        Type::B64,
        Type::U16,
        Type::U32,
        Type::U64,
        Type::S16,
        Type::S32,
        Type::S64,
        Type::F32,
        Type::F64,
    ])
}

impl Relation {
    #[inline]
    fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        (self.less & (a < b))
            | (self.equal & (a == b))
            | (self.greater & (a > b))
            | (self.unordered & (a.partial_cmp(&b).is_none()))
    }
}

impl Test {
    #[inline]
    fn run(&self, r: &Registers) -> Mask {
        let (relation, sources) = (self.relation, self.sources);
        match self.ty {
            Type::F32 if self.flush => r.test(sources, |a, b| {
                let of = |bits: u64| flush(f32::from_bits(bits as u32));
                relation.holds(of(a), of(b))
            }),
            Type::F32 => r.test(sources, |a, b| relation.holds(f32::from_bits(a as u32), f32::from_bits(b as u32))),
            Type::F64 => r.test(sources, |a, b| relation.holds(f64::from_bits(a), f64::from_bits(b))),
            ty if ty.is_signed() => {
                let bits = ty.bits();
                let of = |x| sign_extend(x, bits) as i64;
                r.test(sources, |a, b| relation.holds(of(a), of(b)))
            }
            _ => r.test(sources, |a, b| relation.holds(a, b)),
        }
    }
}

impl Compare {
    #[inline]
    pub(crate) fn execute(&self, r: &mut Registers, mask: Mask) {
        match self {
            Compare::SetPredicate { test, combine, p, q } => {
                let outcome = test.run(r);
                let with = |r: &Registers, bits| match combine {
                    Some((operation, c)) => operation.masks(bits, r.predicate(*c)),
                    None => bits,
                };
                let (yes, no) = (with(r, outcome), with(r, !outcome));
                r.set_predicate(*p, yes, mask);
                if let Some(q) = q {
                    r.set_predicate(*q, no, mask);
                }
            }
            Compare::Set { test, one, d } => {
                let bits = test.run(r);
                let out = std::array::from_fn(|l| if bits >> l & 1 == 1 { *one } else { 0 });
                r.set(*d, &out, mask);
            }
            Compare::Select { d, sources: [a, b], condition } => {
                let bits = r.predicate(*condition);
                let (a, b) = (r.get(*a), r.get(*b));
                let out = std::array::from_fn(|l| if bits >> l & 1 == 1 { a[l] } else { b[l] });
                r.set(*d, &out, mask);
            }
            Compare::SelectBySign { float, d, sources } => {
                let float = *float;
                r.map3(*d, *sources, mask, |a, b, c| {
                    let first = match float {
                        true => f32::from_bits(c as u32) >= 0.0,
                        false => c as i32 >= 0,
                    };
                    if first { a } else { b }
                });
            }
            Compare::Kind { kind, double, p, a } => {
                let double = *double;
                let bits = r.test([*a, *a], |a, _| {
                    let x = match double {
                        true => f64::from_bits(a),
                        false => f64::from(f32::from_bits(a as u32)),
                    };
                    let tiny = match double {
                        true => x.is_subnormal(),
                        false => f32::from_bits(a as u32).is_subnormal(),
                    };
                    kind.holds(x, tiny)
                });
                r.set_predicate(*p, bits, mask);
            }
        }
    }
}

impl FloatKind {
    fn holds(self, x: f64, subnormal: bool) -> bool {
        match self {
            FloatKind::Finite => x.is_finite(),
            FloatKind::Infinite => x.is_infinite(),
            FloatKind::Number => !x.is_nan(),
            FloatKind::NotANumber => x.is_nan(),
            FloatKind::Normal => x.is_finite() && x != 0.0 && !subnormal,
            FloatKind::Subnormal => subnormal,
        }
    }
}
