//! One cross-entropy problem, run through the layer on every rank and through the f64 reference.

pub mod embedding;
pub mod filter;
mod nvrtc;
pub mod precision;
pub mod targets;

pub use nvrtc::nvrtc;
pub use targets::{amx, amx_bf16x3, bf16x3, cases, devices, interpreter};

use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vocabfuse::bounds::{self, Arithmetic, Worst};
use vocabfuse::operators::Query;
use vocabfuse::problem::{Options, Outputs, Problem};
use vocabfuse::{plain, reference};
use vocabfuse_runtime::{
    Batch, Counters, CrossEntropy, Device, Dtype, Element, Error, Filtered, Gradients, Local, Matrix, Operands,
    OutputLayer, Policy, Precision, Shard, ShardLayout, Upstream,
};

/// A problem of random tensors, and how to run it.
#[derive(Clone, Debug)]
pub struct Case {
    pub tokens: usize,
    pub hidden: usize,
    pub vocab: usize,
    /// Bounds of the shards; rows beyond the vocabulary are padding.
    pub bounds: Vec<usize>,
    pub dtype: Dtype,
    /// That of the device, which `check` goes by.
    pub precision: Option<Precision>,
    pub policy: Policy,
    pub loss: CrossEntropy,
    pub bias: bool,
    pub upstream: bool,
    /// Upstream gradients of lse, weights of tokens, weights of classes.
    pub extras: [bool; 3],
    /// Standard deviation of the logits.
    pub spread: f32,
    pub seed: u64,
}

impl Case {
    pub fn new(tokens: usize, hidden: usize, vocab: usize) -> Case {
        Case {
            tokens,
            hidden,
            vocab,
            bounds: vec![0, vocab],
            dtype: Dtype::F32,
            precision: None,
            policy: Policy::default(),
            loss: CrossEntropy::default(),
            bias: false,
            upstream: false,
            extras: [false; 3],
            spread: 1.0,
            seed: 1,
        }
    }

    /// The same in f32 for a device of [`bf16x3`], whose kernels have one chunk.
    pub fn bf16x3(&self) -> Case {
        let policy = Policy { chunk: None, ..self.policy };
        Case { dtype: Dtype::F32, precision: Some(Precision::Bf16x3), policy, ..self.clone() }
    }
}

/// The tensors of a case, already rounded to its dtype.
#[derive(Clone, Debug)]
pub struct Tensors {
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub targets: Vec<i64>,
    pub bias: Option<Vec<f32>>,
    pub upstream: Option<Vec<f32>>,
    pub lse_upstream: Option<Vec<f32>>,
    pub token_weights: Option<Vec<f32>>,
    pub class_weights: Option<Vec<f32>>,
}

impl Tensors {
    pub fn random(case: &Case) -> Tensors {
        let mut rng = ChaCha8Rng::seed_from_u64(case.seed);
        let mut values = |count: usize, scale: f32| -> Vec<f32> {
            let mut values: Vec<f32> = (0..count)
                .map(|_| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>() * 0.866 * scale)
                .collect();
            plain::round(&mut values, case.dtype);
            values
        };
        let scale = case.spread / (case.hidden.max(1) as f32).sqrt();
        let x = values(case.tokens * case.hidden, 1.0);
        let w = values(case.vocab * case.hidden, scale);
        let bias = case.bias.then(|| values(case.vocab, 0.5));
        let upstream = case.upstream.then(|| values(case.tokens, 1.0));
        let [by_lse, by_token, by_class] = case.extras;
        let lse_upstream = by_lse.then(|| values(case.tokens, 0.3));
        let mut weights = |count| values(count, 1.0).into_iter().map(f32::abs).collect();
        let token_weights = by_token.then(|| weights(case.tokens));
        let class_weights = by_class.then(|| weights(case.vocab));
        let targets = (0..case.tokens)
            .map(|i| match case.loss.ignore_index {
                Some(ignored) if i % 5 == 3 => ignored,
                _ => rng.random_range(0..case.vocab.max(1) as i64),
            })
            .collect();
        Tensors { x, w, targets, bias, upstream, lse_upstream, token_weights, class_weights }
    }
}

/// Outputs of the layer, with what every rank communicated and the kernels used.
#[derive(Clone, Debug)]
pub struct Run {
    pub out: Outputs<f32>,
    pub counters: Vec<Counters>,
    pub kernels: Vec<&'static str>,
    /// Tiles of dX and dW that the gradient filter left out, over all ranks.
    pub filtered: [Filtered; 2],
}

fn convert<T: Element>(values: &[f32], from: fn(f32) -> T) -> Vec<T> {
    values.iter().map(|v| from(*v)).collect()
}

/// Runs S, C1 and T on every rank of the case. dW and dbias begin at zero.
pub fn run<D: Device>(device: &D, case: &Case, tensors: &Tensors) -> Result<Run, Error> {
    match case.dtype {
        Dtype::F32 => run_as::<f32, D>(device, case, tensors, |v| v),
        Dtype::Bf16 => run_as::<bf16, D>(device, case, tensors, bf16::from_f32),
        Dtype::F16 => run_as::<f16, D>(device, case, tensors, f16::from_f32),
    }
}

fn run_as<T: Element, D: Device>(device: &D, case: &Case, tensors: &Tensors, from: fn(f32) -> T) -> Result<Run, Error> {
    // What lies beyond the vocabulary is padding, and poison.
    let ranges: Vec<_> = case.bounds.windows(2).map(|bounds| bounds[0]..bounds[1]).collect();
    let layout = ShardLayout::from_ranges(&ranges, case.vocab)?;
    let stored = layout.stored();
    // Rows lie apart, and what lies between them is poison.
    let (x_stride, w_stride) = (case.hidden + 3, case.hidden + 1);
    let spread = |values: &[f32], rows: usize, stride: usize| -> Vec<f32> {
        let mut out = vec![f32::NAN; rows * stride];
        for row in 0..values.len() / case.hidden.max(1) {
            out[row * stride..][..case.hidden].copy_from_slice(&values[row * case.hidden..][..case.hidden]);
        }
        out
    };
    let x = convert(&spread(&tensors.x, case.tokens, x_stride), from);
    let w = convert(&spread(&tensors.w, stored, w_stride), from);
    let x = Matrix::with_stride(&x, case.tokens, case.hidden, x_stride)?;
    let w = Matrix::with_stride(&w, stored, case.hidden, w_stride)?;
    let mut dw = vec![0.0; stored * case.hidden];
    let bias = tensors.bias.clone().map(|mut bias| {
        bias.resize(stored, f32::NAN);
        bias
    });
    let mut dbias = bias.as_ref().map(|b| vec![0.0; b.len()]);

    let dw_parts = vocabfuse::ranks::split_rows(&mut dw, case.hidden, ranges.iter().cloned());
    let dbias_parts: Vec<Option<&mut [f32]>> = match &mut dbias {
        Some(d) => vocabfuse::ranks::split_rows(d, 1, ranges.iter().cloned()).into_iter().map(Some).collect(),
        None => ranges.iter().map(|_| None).collect(),
    };
    let items: Vec<_> = Local::group(layout.ranks()).into_iter().zip(dw_parts).zip(dbias_parts).collect();
    let results = vocabfuse::ranks::each(items, |rank, ((comm, dw), dbias)| {
        let layer = OutputLayer::new(device, &layout, rank, case.loss, case.policy)?;
        let range = layout.range(rank);
        let batch = Batch {
            upstream: tensors.upstream.as_deref(),
            lse_upstream: tensors.lse_upstream.as_deref(),
            token_weights: tensors.token_weights.as_deref(),
            class_weights: tensors.class_weights.as_deref(),
            ..Batch::new(x, &tensors.targets)
        };
        let shard = Shard { weight: w.row_range(range.clone())?, bias: bias.as_deref().map(|b| &b[range]) };
        let partial = layer.s_pass(&comm, batch, shard)?;
        let kernels = partial.kernels();
        let done = partial.start_combine().wait()?;
        let filtered = [
            done.filtered,
            layer.t_pass(
                done.weight_grad,
                Operands::new(x, shard),
                Gradients { dw: dw.into(), dbias },
                Upstream::One,
            )?,
        ];
        let (loss, lse, dx, argmax) = (done.loss, done.lse, done.dx, done.argmax.unwrap_or_default());
        Ok::<_, Error>((loss, lse, dx, comm.counters(), kernels, argmax, filtered))
    })?;
    let (loss, lse, dx, _, kernels, argmax, _) = results[0].clone();
    let mut filtered = [Filtered::default(); 2];
    for (of_rank, all) in results.iter().flat_map(|r| r.6).zip((0..2).cycle()) {
        filtered[all] += of_rank;
    }
    for (other_loss, other_lse, other_dx, ..) in &results {
        assert!(same(&loss, other_loss) && same(&lse, other_lse) && same(&dx, other_dx), "ranks got different results");
    }
    let counters = results.iter().map(|r| r.3).collect();
    let mut padding = dw.split_off(case.vocab * case.hidden);
    padding.extend(dbias.iter_mut().flat_map(|dbias| dbias.split_off(case.vocab)));
    assert!(padding.iter().all(|value| *value == 0.0), "padding is written");
    Ok(Run { out: Outputs { loss, lse, argmax, dx: dx.to_vec(), dw, dbias }, counters, kernels, filtered })
}

/// Equal bit for bit.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The same problem in f64.
pub fn truth(case: &Case, tensors: &Tensors) -> Outputs<f64> {
    in_f64(case, tensors, |problem| reference::cross_entropy(problem).expect("the case is well-formed"))
}

/// What each row of the outputs may be off by.
fn bounds(case: &Case, tensors: &Tensors, truth: &Outputs<f64>) -> Outputs<f64> {
    let filter = case.policy.filter.map(f64::from);
    let arithmetic = Arithmetic { dtype: case.dtype, precision: case.precision, filter };
    in_f64(case, tensors, |problem| bounds::cross_entropy(problem, truth, arithmetic))
}

fn in_f64<T>(case: &Case, tensors: &Tensors, with: impl FnOnce(&Problem<'_, f64>) -> T) -> T {
    let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| f64::from(*v)).collect() };
    let optional = |v: &Option<Vec<f32>>| v.as_deref().map(wide);
    let (x, w) = (wide(&tensors.x), wide(&tensors.w));
    let [bias, upstream, lse_upstream, token_weights, class_weights] =
        [&tensors.bias, &tensors.upstream, &tensors.lse_upstream, &tensors.token_weights, &tensors.class_weights]
            .map(optional);
    let problem = Problem {
        bias: bias.as_deref(),
        upstream: upstream.as_deref(),
        lse_upstream: lse_upstream.as_deref(),
        token_weights: token_weights.as_deref(),
        class_weights: class_weights.as_deref(),
        vocab: case.vocab,
        ..Problem::new(&x, &w, &tensors.targets, case.hidden, Options::from(case.loss))
    };
    with(&problem)
}

/// The same problem as a plain composition in the dtype of the case.
pub fn composition(case: &Case, tensors: &Tensors) -> Outputs<f32> {
    plain::cross_entropy(&problem(case, tensors), case.dtype).expect("the case is well-formed")
}

/// The problem of a case.
pub fn problem<'a>(case: &'a Case, tensors: &'a Tensors) -> Problem<'a, f32> {
    Problem {
        bias: tensors.bias.as_deref(),
        upstream: tensors.upstream.as_deref(),
        lse_upstream: tensors.lse_upstream.as_deref(),
        token_weights: tensors.token_weights.as_deref(),
        class_weights: tensors.class_weights.as_deref(),
        vocab: case.vocab,
        ..Problem::new(&tensors.x, &tensors.w, &tensors.targets, case.hidden, Options::from(case.loss))
    }
}

/// Checks every output: its error is at most twice that of the plain composition in the same dtype, and a floor. For bf16x3
/// the plain composition has the factors of [`precision::narrowed`].
pub fn check(case: &Case, tensors: &Tensors, run: &Run) -> Result<(), String> {
    let truth = truth(case, tensors);
    let plain = if case.precision.is_some() {
        let [x, w] = [&tensors.x, &tensors.w].map(|values| precision::narrowed(values));
        composition(case, &Tensors { x, w, ..tensors.clone() })
    } else {
        composition(case, tensors)
    };
    // A few roundings of f32: at tiny sizes the plain composition can be exact by luck.
    // Where logits reach a cap, derivatives depend on how a dot product of size `spread` was rounded.
    let logits = if case.loss.softcap.is_some() { f64::from(case.spread).max(1.0) } else { 1.0 };
    // Among few terms, roundings of a narrow type cancel by luck: a quarter of one is what luck may make up.
    let narrow = match case.dtype {
        // E and Q have two parts as well, which those of the plain composition have not.
        Dtype::F32 if case.precision.is_some() => precision::BF16X3,
        Dtype::F32 => 0.0,
        Dtype::Bf16 => 2.0f64.powi(-10),
        Dtype::F16 => 2.0f64.powi(-13),
    };
    let luck = if case.tokens < 32 { narrow } else { 0.0 };
    let floor = 8.0 * logits * f64::from(f32::EPSILON) + luck;
    let one = |name: &str, got: &[f32], plain: &[f32], truth: &[f64]| {
        let error = reference::largest_error(got, truth);
        let allowed = 2.0 * reference::largest_error(plain, truth) + floor;
        if error.is_finite() && error <= allowed {
            Ok(())
        } else {
            Err(format!("{name}: error {error:e}, allowed {allowed:e} in {case:?}"))
        }
    };
    one("loss", &run.out.loss, &plain.loss, &truth.loss)?;
    one("lse", &run.out.lse, &plain.lse, &truth.lse)?;
    one("dx", &run.out.dx, &plain.dx, &truth.dx)?;
    one("dw", &run.out.dw, &plain.dw, &truth.dw)?;
    if case.loss.argmax {
        check_argmax(case, tensors, run)?;
    }
    if let (Some(got), Some(plain), Some(truth)) = (&run.out.dbias, &plain.dbias, &truth.dbias) {
        one("dbias", got, plain, truth)?;
    }
    Yardstick { case, bounds: bounds(case, tensors, &truth), truth, plain }.check(run)
}

/// What rows are judged by.
pub struct Yardstick<'a> {
    case: &'a Case,
    pub truth: Outputs<f64>,
    plain: Outputs<f32>,
    bounds: Outputs<f64>,
}

impl<'a> Yardstick<'a> {
    /// That of a case, with a plain composition in `dtype`: f32 where a narrow one could not hold the logits.
    pub fn new(case: &'a Case, tensors: &Tensors, dtype: Dtype) -> Yardstick<'a> {
        let truth = truth(case, tensors);
        let plain = composition(&Case { dtype, ..case.clone() }, tensors);
        Yardstick { case, bounds: bounds(case, tensors, &truth), truth, plain }
    }

    /// Checks every row of every output.
    pub fn check(&self, run: &Run) -> Result<(), String> {
        let Yardstick { case, truth, plain, bounds } = self;
        check_rows("loss", [&run.out.loss, &plain.loss], &truth.loss, &bounds.loss)
            .and_then(|()| check_rows("lse", [&run.out.lse, &plain.lse], &truth.lse, &bounds.lse))
            .and_then(|()| check_rows("dx", [&run.out.dx, &plain.dx], &truth.dx, &bounds.dx))
            .and_then(|()| check_rows("dw", [&run.out.dw, &plain.dw], &truth.dw, &bounds.dw))
            .and_then(|()| match (&run.out.dbias, &plain.dbias, &truth.dbias, &bounds.dbias) {
                (Some(got), Some(plain), Some(truth), Some(bounds)) => check_rows("dbias", [got, plain], truth, bounds),
                _ => Ok(()),
            })
            .map_err(|e| format!("{e} in {case:?}"))
    }
}

/// Checks that each argmax is the class of the largest logit, or of one that f32 cannot tell from it.
pub fn check_argmax(case: &Case, tensors: &Tensors, run: &Run) -> Result<(), String> {
    let arithmetic = Arithmetic { dtype: case.dtype, precision: case.precision, filter: None };
    let picks = in_f64(case, tensors, |problem| {
        let largest = Query::TopK(problem.distribution(), 1);
        let takes_part = |token| problem.target(token).is_some();
        bounds::picks(&largest, case.vocab, &run.out.argmax, arithmetic, takes_part)
    });
    if picks.worst.passes() { Ok(()) } else { Err(format!("argmax: {:?} in {case:?}", picks.worst)) }
}

/// The error of the worst row as a part of that row's largest value, or of `floor` where that is larger: a row of small values
/// may be wholly wrong without a trace in the error of the whole tensor.
pub fn worst_row<A: Copy + Into<f64>, B: Copy + Into<f64>>(got: &[A], want: &[B], width: usize, floor: f64) -> f64 {
    if got.len() != want.len() || !want.len().is_multiple_of(width) {
        return f64::INFINITY;
    }
    let of_row = |(got, want): (&[A], &[B])| {
        let difference = reference::largest_difference(got, want);
        let finite = want.iter().map(|want| (*want).into().abs()).filter(|want| want.is_finite());
        if difference == 0.0 { 0.0 } else { difference / finite.fold(floor, f64::max) }
    };
    got.chunks(width).zip(want.chunks(width)).map(of_row).fold(0.0, f64::max)
}

/// Checks that the error of each row is at most twice that of the plain composition, and its bound.
pub fn check_rows(name: &str, [got, plain]: [&[f32]; 2], truth: &[f64], bounds: &[f64]) -> Result<(), String> {
    let Worst { row, excess } = bounds::worst(got, plain, truth, bounds);
    if excess <= 1.0 {
        return Ok(());
    }
    let width = truth.len() / bounds.len().max(1);
    let error = |values: &[f32]| match (
        values.get(row * width..(row + 1) * width),
        truth.get(row * width..(row + 1) * width),
    ) {
        (Some(values), Some(truth)) => reference::largest_difference(values, truth),
        _ => f64::INFINITY,
    };
    let (own, plain, bound) = (error(got), error(plain), bounds.get(row).copied().unwrap_or_default());
    Err(format!(
        "{name}: row {row} is off by {own:e}, {excess:.3} times what it may be; plain {plain:e}, bound {bound:e}"
    ))
}
