//! One operator on random operands, run on every rank and through the compositions of `vocabfuse::operators`.

use crate::common::precision;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vocabfuse::bounds::{self, Arithmetic, Worst};
use vocabfuse::operators::{self, Answer, Gradients, Query, Raw, Real, Upstream};
use vocabfuse::{plain, ranks};
use vocabfuse_runtime::{
    Device, Distribution, DistributionGradients, Dtype, Element, Error, Ids, KlDirection, Local, Matrix, Operators,
    Precision, ShardLayout, Statistics, ValueGradients, Values,
};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Which {
    Logprobs,
    Entropy,
    Both,
    Forward,
    Reverse,
    TopK(usize),
    /// With a seed.
    Sample(u64),
}

impl Which {
    pub const DIFFERENTIABLE: [Which; 5] =
        [Which::Logprobs, Which::Entropy, Which::Both, Which::Forward, Which::Reverse];

    pub fn is_kl(self) -> bool {
        matches!(self, Which::Forward | Which::Reverse)
    }

    fn picks(self) -> bool {
        matches!(self, Which::TopK(_) | Which::Sample(_))
    }

    fn distributions(self) -> usize {
        if self.is_kl() { 2 } else { 1 }
    }
}

#[derive(Clone, Debug)]
pub struct Case {
    pub which: Which,
    pub tokens: usize,
    /// H of each distribution.
    pub hidden: [usize; 2],
    pub vocab: usize,
    pub bounds: Vec<usize>,
    pub dtypes: [Dtype; 2],
    /// That of the device, which `check` goes by.
    pub precision: Option<Precision>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub bias: bool,
    /// Whether logits are given.
    pub given: bool,
    pub spread: f32,
    pub per_token: usize,
    pub seed: u64,
}

impl Case {
    pub fn new(which: Which, tokens: usize, hidden: usize, vocab: usize) -> Case {
        Case {
            which,
            tokens,
            hidden: [hidden, hidden + 5],
            vocab,
            bounds: vec![0, vocab],
            dtypes: [Dtype::F32; 2],
            precision: None,
            scale: 1.0,
            softcap: None,
            bias: false,
            given: false,
            spread: 1.0,
            per_token: 3,
            seed: 1,
        }
    }

    /// The same in f32 from X and W, for a device of [`bf16x3`].
    pub fn bf16x3(&self) -> Case {
        Case { dtypes: [Dtype::F32; 2], precision: Some(Precision::Bf16x3), given: false, ..self.clone() }
    }
}

/// Operands, rounded to their dtypes.
#[derive(Clone, Debug)]
pub struct Data {
    pub x: [Vec<f32>; 2],
    pub w: [Vec<f32>; 2],
    pub logits: [Vec<f32>; 2],
    pub bias: [Vec<f32>; 2],
    pub ids: Vec<i64>,
    /// `[N, k]`
    pub slots: Vec<f32>,
    /// N
    pub rows: Vec<f32>,
}

pub const IGNORED: i64 = -7;

impl Data {
    pub fn random(case: &Case) -> Data {
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
        let mut values = |count: usize, scale: f32, dtype: Dtype| -> Vec<f32> {
            let mut values: Vec<f32> = (0..count)
                .map(|_| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>() * 0.866 * scale)
                .collect();
            plain::round(&mut values, dtype);
            values
        };
        let (n, v) = (case.tokens, case.vocab);
        let mut of = |count: fn(&Case, usize) -> usize, scale: fn(&Case, usize) -> f32, rounded: bool| {
            [0, 1].map(|i| {
                let dtype = if rounded { case.dtypes[i] } else { Dtype::F32 };
                values(count(case, i), scale(case, i), dtype)
            })
        };
        let x = of(|c, i| c.tokens * c.hidden[i], |_, _| 1.0, true);
        let w = of(|c, i| c.vocab * c.hidden[i], |c, i| c.spread / (c.hidden[i] as f32).sqrt(), true);
        let logits = of(|c, _| c.tokens * c.vocab, |c, _| c.spread, true);
        let bias = of(|c, _| c.vocab, |_, _| 0.5, false);
        let slots = values(n * case.per_token, 1.0, Dtype::F32);
        let rows = values(n, 1.0, Dtype::F32);
        // Some ids repeat within a token, some are ignored, and so are all of some tokens.
        let id = |i: usize, random: i64| match (i / case.per_token % 5, i % 4) {
            (3, _) | (_, 1) => IGNORED,
            (_, 2) => (v as i64 - 1).min(5),
            _ => random,
        };
        let ids = (0..n * case.per_token).map(|i| id(i, rng.random_range(0..v.max(1) as i64))).collect();
        let ids = if v == 0 { vec![IGNORED; n * case.per_token] } else { ids };
        Data { x, w, logits, bias, ids, slots, rows }
    }
}

/// What all ranks got.
pub struct Run {
    pub answer: Answer<f32>,
    pub kernels: Vec<&'static str>,
}

/// The elements of a tensor in their own type.
enum Typed {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Typed {
    fn new(values: &[f32], dtype: Dtype) -> Typed {
        match dtype {
            Dtype::F32 => Typed::F32(values.to_vec()),
            Dtype::Bf16 => Typed::Bf16(values.iter().map(|v| bf16::from_f32(*v)).collect()),
            Dtype::F16 => Typed::F16(values.iter().map(|v| f16::from_f32(*v)).collect()),
        }
    }

    /// Columns `first..first + columns` of a matrix with rows `stride` apart.
    fn matrix(&self, rows: usize, first: usize, columns: usize, stride: usize) -> Matrix<'_> {
        fn of<T: Element>(data: &[T], rows: usize, first: usize, columns: usize, stride: usize) -> Matrix<'_> {
            let data = if rows == 0 { &data[..0] } else { &data[first..] };
            Matrix::with_stride(data, rows, columns, stride).expect("the case is well-formed")
        }
        match self {
            Typed::F32(data) => of(data, rows, first, columns, stride),
            Typed::Bf16(data) => of(data, rows, first, columns, stride),
            Typed::F16(data) => of(data, rows, first, columns, stride),
        }
    }
}

/// The distributions as the caller of an operator orders them: the student is the first.
fn caller(case: &Case) -> std::ops::Range<usize> {
    0..case.which.distributions()
}

pub fn run<D: Device>(device: &D, case: &Case, data: &Data) -> Result<Run, Error> {
    let layout = ShardLayout::from_bounds(&case.bounds)?;
    let typed = |values: &[Vec<f32>; 2]| [0, 1].map(|i| Typed::new(&values[i], case.dtypes[i]));
    let (x, w, logits) = (typed(&data.x), typed(&data.w), typed(&data.logits));
    let parts = ranks::each(Local::group(layout.ranks()), |rank, comm| {
        let range = layout.range(rank);
        let layer = Operators::new(device, &layout, rank)?;
        let of = |i: usize| {
            let bare = if case.given {
                Distribution::logits(logits[i].matrix(case.tokens, range.start, range.len(), case.vocab))
            } else {
                let h = case.hidden[i];
                let weight = w[i].matrix(case.vocab, 0, h, h).row_range(range.clone()).expect("a shard");
                Distribution::linear(x[i].matrix(case.tokens, 0, h, h), weight)
            };
            Distribution {
                bias: case.bias.then(|| &data.bias[i][range.clone()]),
                logit_scale: case.scale,
                softcap: case.softcap,
                ..bare
            }
        };
        let ids = Ids { ids: &data.ids, per_token: case.per_token, ignore_index: Some(IGNORED) };
        let statistics: Statistics<D> = match case.which {
            Which::Logprobs => layer.logprobs(&comm, of(0), ids)?,
            Which::Entropy => layer.entropy(&comm, of(0))?,
            Which::Both => layer.logprobs_and_entropy(&comm, of(0), ids)?,
            Which::Forward => layer.kl_divergence(&comm, of(0), of(1), KlDirection::Forward)?,
            Which::Reverse => layer.kl_divergence(&comm, of(0), of(1), KlDirection::Reverse)?,
            Which::TopK(k) => layer.top_k(&comm, of(0), k)?,
            Which::Sample(seed) => layer.sample(&comm, of(0), seed)?,
        };
        let kernels = statistics.kernels();
        let done = statistics.start_combine().wait()?;
        assert_eq!(comm.counters().barriers, 1, "one barrier forward");
        if case.which.picks() {
            return Ok((done.values, vec![], vec![], kernels));
        }
        let mut own: Vec<Gradients<f32>> = caller(case)
            .map(|i| Gradients {
                logits: vec![f32::NAN; if case.given { case.tokens * range.len() } else { 0 }],
                w: vec![0.0; if case.given { 0 } else { range.len() * case.hidden[i] }],
                bias: vec![0.0; if case.bias { range.len() } else { 0 }],
                x: vec![],
            })
            .collect();
        let wanted = own.iter_mut().map(|g| DistributionGradients {
            dx: !case.given,
            dw: (!case.given).then_some(g.w.as_mut_slice()),
            dbias: case.bias.then_some(g.bias.as_mut_slice()),
            dlogits: case.given.then_some(g.logits.as_mut_slice()),
        });
        let upstream = ValueGradients {
            logprobs: matches!(case.which, Which::Logprobs | Which::Both).then_some(&data.slots),
            entropy: matches!(case.which, Which::Entropy | Which::Both).then_some(&data.rows),
            divergence: case.which.is_kl().then_some(&data.rows),
        };
        let distributions: Vec<Distribution<'_>> = caller(case).map(of).collect();
        let gradients = layer.backward(&comm, &done.ticket, &distributions, upstream, wanted.collect())?;
        let dx = gradients.start_combine().wait()?;
        assert_eq!(comm.counters().barriers, if case.given { 1 } else { 2 }, "at most one barrier backward");
        Ok::<_, Error>((done.values, own, dx, kernels))
    })?;
    let (values, _, dx, kernels) = &parts[0];
    for (other, _, other_dx, ..) in &parts {
        assert!(format!("{other:?}") == format!("{values:?}"), "ranks got different values");
        assert!(format!("{other_dx:?}") == format!("{dx:?}"), "ranks got different gradients of x");
    }
    let gradients = (0..dx.len()).map(|i| {
        let shards = || parts.iter().map(|part| &part.1[i]);
        let row = |token: usize| {
            shards().enumerate().flat_map(move |(rank, g)| {
                let width = case.bounds[rank + 1] - case.bounds[rank];
                g.logits[token * width..][..width].to_vec()
            })
        };
        Gradients {
            x: dx[i].clone().unwrap_or_default(),
            w: shards().flat_map(|g| g.w.clone()).collect(),
            bias: shards().flat_map(|g| g.bias.clone()).collect(),
            logits: if case.given { (0..case.tokens).flat_map(row).collect() } else { vec![] },
        }
    });
    let Values { logprobs, entropy, divergence, ids, logits } = values.clone();
    let answer = Answer { logprobs, entropy, divergence, ids, logits, gradients: gradients.collect() };
    Ok(Run { answer, kernels: kernels.clone() })
}

/// Draws for all tokens, over some shards.
pub fn draws<D: Device>(device: &D, logits: &[f32], vocab: usize, bounds: &[usize], seed: u64) -> Vec<Values> {
    let layout = ShardLayout::from_bounds(bounds).unwrap();
    let tokens = logits.len() / vocab;
    ranks::each(Local::group(layout.ranks()), |rank, comm| {
        let range = layout.range(rank);
        let shard = Matrix::with_stride(&logits[range.start..], tokens, range.len(), vocab)?;
        let layer = Operators::new(device, &layout, rank)?;
        Ok::<_, Error>(layer.sample(&comm, Distribution::logits(shard), seed)?.start_combine().wait()?.values)
    })
    .unwrap()
}

/// What `with` makes of the query of a case and its upstream gradients, in the type of a computation.
fn in_type<T: Real, R>(case: &Case, data: &Data, with: impl FnOnce(&Query<'_, T>, &Upstream<'_, T>) -> R) -> R {
    let typed = |v: &[f32]| -> Vec<T> { v.iter().map(|v| T::from_f64(f64::from(*v))).collect() };
    let both = |values: &[Vec<f32>; 2]| [typed(&values[0]), typed(&values[1])];
    let (x, w, logits, bias) = (both(&data.x), both(&data.w), both(&data.logits), both(&data.bias));
    let (slots, rows) = (typed(&data.slots), typed(&data.rows));
    let of = |i: usize| operators::Distribution {
        raw: if case.given {
            Raw::Logits(&logits[i])
        } else {
            Raw::Linear { x: &x[i], w: &w[i], hidden: case.hidden[i] }
        },
        bias: case.bias.then_some(bias[i].as_slice()),
        logit_scale: f64::from(case.scale),
        softcap: case.softcap.map(f64::from),
    };
    let logprobs = |entropy| Query::Logprobs {
        of: of(0),
        ids: &data.ids,
        per_token: case.per_token,
        ignore_index: Some(IGNORED),
        entropy,
    };
    let query = match case.which {
        Which::Logprobs => logprobs(false),
        Which::Both => logprobs(true),
        Which::Entropy => Query::Entropy(of(0)),
        Which::Forward => Query::KlDivergence { p: of(1), q: of(0) },
        Which::Reverse => Query::KlDivergence { p: of(0), q: of(1) },
        Which::TopK(k) => Query::TopK(of(0), k),
        Which::Sample(seed) => Query::Sample(of(0), seed),
    };
    with(&query, &Upstream { logprobs: Some(&slots), entropy: Some(&rows), divergence: Some(&rows) })
}

/// An answer with the distributions in the order of the caller, the student first.
fn ordered<T>(case: &Case, mut answer: Answer<T>) -> Answer<T> {
    if case.which == Which::Forward {
        answer.gradients.reverse();
    }
    answer
}

/// The same by materialised logits.
pub fn composition<T: Real>(case: &Case, data: &Data) -> Answer<T> {
    let answer =
        in_type(case, data, |query, upstream| operators::evaluate(query, upstream, case.vocab, case.dtypes[0]));
    ordered(case, answer)
}

/// Every row has an error of at most twice that of the plain composition, and a bound on the roundings of its terms; ids
/// are judged by their logits.
pub fn check_rows(case: &Case, data: &Data, got: &Answer<f32>, plain: &Answer<f32>) -> Result<(), String> {
    let arithmetic = Arithmetic { dtype: case.dtypes[0], precision: case.precision, filter: None };
    let (truth, bounds) = in_type(case, data, |query, upstream| {
        let truth = operators::evaluate(query, upstream, case.vocab, case.dtypes[0]);
        let bounds = bounds::operator(query, upstream, case.vocab, &truth, arithmetic);
        (truth, bounds)
    });
    let (truth, bounds) = (ordered(case, truth), ordered(case, bounds));
    let one = |name: &str, got: &[f32], plain: &[f32], truth: &[f64], bounds: &[f64]| {
        let Worst { row, excess } = bounds::worst(got, plain, truth, bounds);
        let bound = bounds.get(row).copied().unwrap_or_default();
        if excess <= 1.0 {
            Ok(())
        } else {
            Err(format!("{name}: row {row} is {excess:.3} times what it may be off by, bound {bound:e}, in {case:?}"))
        }
    };
    if case.which.picks() {
        let picks = in_type(case, data, |query, _| bounds::picks(query, case.vocab, &got.ids, arithmetic, |_| true));
        let exact = |values: &[f64]| values.iter().map(|v| *v as f32).collect::<Vec<_>>();
        if !picks.worst.passes() {
            return Err(format!("ids: {:?} in {case:?}", picks.worst));
        }
        one("logits", &got.logits, &exact(&picks.logits), &picks.logits, &picks.of_logits)?;
        return one("logprobs", &got.logprobs, &exact(&picks.logprobs), &picks.logprobs, &picks.of_logprobs);
    }
    one("logprobs", &got.logprobs, &plain.logprobs, &truth.logprobs, &bounds.logprobs)?;
    one("entropy", &got.entropy, &plain.entropy, &truth.entropy, &bounds.entropy)?;
    one("divergence", &got.divergence, &plain.divergence, &truth.divergence, &bounds.divergence)?;
    for (i, got) in got.gradients.iter().enumerate() {
        let (plain, truth, bounds) = (&plain.gradients[i], &truth.gradients[i], &bounds.gradients[i]);
        one(&format!("dx {i}"), &got.x, &plain.x, &truth.x, &bounds.x)?;
        one(&format!("dw {i}"), &got.w, &plain.w, &truth.w, &bounds.w)?;
        one(&format!("dbias {i}"), &got.bias, &plain.bias, &truth.bias, &bounds.bias)?;
        if case.given {
            one(&format!("dlogits {i}"), &got.logits, &plain.logits, &truth.logits, &bounds.logits)?;
        }
    }
    Ok(())
}

/// Every output has an error of at most three times that of the plain composition in the same dtype, and a floor: a few roundings
/// of f32 of its largest value, and two of the terms it is a difference of, or of the exponents these are powers with. At
/// tiny sizes the plain composition can be exact by luck, and with one class it always is. For bf16x3 the plain composition has the factors of [`precision::narrowed`].
pub fn check(case: &Case, data: &Data, run: &Run) -> Result<(), String> {
    const ROUNDING: f64 = f32::EPSILON as f64;
    let narrowed = |values: &[Vec<f32>; 2]| [0, 1].map(|i| precision::narrowed(&values[i]));
    let truth = composition::<f64>(case, data);
    let (plain, parts) = match case.precision {
        Some(_) => {
            let data = Data { x: narrowed(&data.x), w: narrowed(&data.w), ..data.clone() };
            (composition::<f32>(case, &data), precision::BF16X3)
        }
        None => (composition::<f32>(case, data), 0.0),
    };
    // A logit y is rounded by a fraction of y, and so is the exponent of all that e^y is in.
    let exponent = f64::from(case.scale.abs() * case.spread).max(1.0);
    let roundings = (4.0 * exponent).max(16.0);
    let one = |name: &str, terms: f64, got: &[f32], plain: &[f32], truth: &[f64]| {
        let size = largest(truth.iter().map(|v| v.abs()));
        // Q has two parts as well, which that of the plain composition has not.
        let floor = ROUNDING * roundings * size + (2.0 * ROUNDING + parts) * exponent * terms;
        let (error, allowed) = (difference(got, truth), 3.0 * difference(plain, truth) + floor);
        if error <= allowed { Ok(()) } else { Err(format!("{name}: error {error:e}, allowed {allowed:e} in {case:?}")) }
    };
    let (got, scale) = (&run.answer, f64::from(case.scale.abs()));
    one("logprobs", 1.0, &got.logprobs, &plain.logprobs, &truth.logprobs)?;
    one("entropy", 1.0, &got.entropy, &plain.entropy, &truth.entropy)?;
    one("divergence", 1.0, &got.divergence, &plain.divergence, &truth.divergence)?;
    one("logits", 0.0, &got.logits, &plain.logits, &truth.logits)?;
    let size = |values: &[f32]| largest(values.iter().map(|v| f64::from(v.abs())));
    // p, and 1 - p, are rounded; what they are multiplied by is not small.
    let upstream = size(&data.rows).max(size(&data.slots) * case.per_token as f64);
    for (i, got) in got.gradients.iter().enumerate() {
        let (plain, truth) = (&plain.gradients[i], &truth.gradients[i]);
        one(&format!("dx {i}"), scale * upstream * size(&data.w[i]), &got.x, &plain.x, &truth.x)?;
        one(&format!("dw {i}"), scale * upstream * size(&data.x[i]), &got.w, &plain.w, &truth.w)?;
        one(&format!("dbias {i}"), upstream, &got.bias, &plain.bias, &truth.bias)?;
        if case.given {
            one(&format!("dlogits {i}"), scale * upstream, &got.logits, &plain.logits, &truth.logits)?;
        }
    }
    check_rows(case, data, got, &plain)
}

/// The largest difference; two NaN and two equal infinities count as equal, all else that is no number as infinitely far.
fn difference(got: &[f32], want: &[f64]) -> f64 {
    let one = |(got, want): (&f32, &f64)| {
        let got = f64::from(*got);
        let difference = (got - want).abs();
        if got == *want || (got.is_nan() && want.is_nan()) {
            0.0
        } else if difference.is_nan() {
            f64::INFINITY
        } else {
            difference
        }
    };
    if got.len() == want.len() { got.iter().zip(want).map(one).fold(0.0, f64::max) } else { f64::INFINITY }
}

/// The largest finite value.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|v| v.is_finite()).fold(0.0, f64::max)
}
