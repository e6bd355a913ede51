//! One lookup, run through the input layer on every rank and through the f64 reference.

use super::{amx, devices, interpreter};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vocabfuse::problem::embedding::{Embedded, Embedding};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::{bounds, plain, reference};
use vocabfuse_runtime::{Counters, Cpu, Device, Dtype, Element, Error, InputLayer, Local, Matrix, ShardLayout};

/// A table and ids, and how to run them.
#[derive(Clone, Debug)]
pub struct Case {
    pub ids: Vec<i64>,
    pub hidden: usize,
    pub layout: ShardLayout,
    pub dtype: Dtype,
    /// Element type of the upstream gradient.
    pub gradient: Dtype,
    pub padding: Option<i64>,
    /// Ranks that want no gradient of the table.
    pub frozen: bool,
    pub seed: u64,
}

impl Case {
    /// Ids that repeat, over shards of these bounds.
    pub fn new(tokens: usize, hidden: usize, bounds: &[usize]) -> Case {
        let layout = ShardLayout::from_bounds(bounds).unwrap();
        let vocab = layout.vocab() as i64;
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        // Half of the tokens share a few ids, as in a text.
        let id = |i| if i % 2 == 0 { rng.random_range(0..vocab.min(4)) } else { rng.random_range(0..vocab) };
        let ids = (0..tokens).map(id).collect();
        Case { ids, hidden, layout, dtype: Dtype::F32, gradient: Dtype::F32, padding: None, frozen: false, seed: 1 }
    }

    pub fn tensors(&self) -> Tensors {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut values = |rows: usize, dtype| {
            let mut values: Vec<f32> = (0..rows * self.hidden).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            plain::round(&mut values, dtype);
            values
        };
        let mut w = values(self.layout.vocab(), self.dtype);
        let dy = values(self.ids.len(), self.gradient);
        // What pads the vocabulary is poison.
        w.resize(self.layout.stored() * self.hidden, f32::NAN);
        Tensors { w, dy, before: 0.0 }
    }
}

/// The tensors of a case, already rounded to their dtypes.
#[derive(Clone, Debug)]
pub struct Tensors {
    /// With the rows that pad the vocabulary.
    pub w: Vec<f32>,
    pub dy: Vec<f32>,
    /// What dW holds before the gradient is added.
    pub before: f32,
}

/// Outputs of the layer, with what every rank communicated.
#[derive(Clone, Debug)]
pub struct Run {
    pub y: Vec<f32>,
    pub dw: Vec<f32>,
    pub counters: Vec<Counters>,
}

/// Values in a type of their own, for as long as the borrow of a matrix lasts.
enum Stored {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Stored {
    /// Rows `gap` elements apart, with poison between them.
    fn new(values: &[f32], hidden: usize, gap: usize, dtype: Dtype) -> Stored {
        let mut apart = vec![];
        for row in values.chunks(hidden) {
            apart.extend_from_slice(row);
            apart.resize(apart.len() + gap, f32::NAN);
        }
        match dtype {
            Dtype::F32 => Stored::F32(apart),
            Dtype::Bf16 => Stored::Bf16(apart.into_iter().map(bf16::from_f32).collect()),
            Dtype::F16 => Stored::F16(apart.into_iter().map(f16::from_f32).collect()),
        }
    }

    fn matrix(&self, rows: usize, hidden: usize, gap: usize) -> Matrix<'_> {
        fn of<T: Element>(values: &[T], rows: usize, hidden: usize, gap: usize) -> Matrix<'_> {
            Matrix::with_stride(values, rows, hidden, hidden + gap).unwrap()
        }
        match self {
            Stored::F32(v) => of(v, rows, hidden, gap),
            Stored::Bf16(v) => of(v, rows, hidden, gap),
            Stored::F16(v) => of(v, rows, hidden, gap),
        }
    }
}

/// Runs the lookup and its gradient on every rank of the case.
pub fn run<D: Device>(device: &D, case: &Case, tensors: &Tensors) -> Result<Run, Error> {
    let Case { ids, hidden, layout, .. } = case;
    let w = Stored::new(&tensors.w, *hidden, 3, case.dtype);
    let dy = Stored::new(&tensors.dy, *hidden, 1, case.gradient);
    let w = w.matrix(layout.stored(), *hidden, 3);
    let dy = dy.matrix(ids.len(), *hidden, 1);
    let mut dw = vec![tensors.before; layout.stored() * hidden];
    let parts = split_rows(&mut dw, *hidden, (0..layout.ranks()).map(|r| layout.range(r)));
    let items: Vec<_> = Local::group(layout.ranks()).into_iter().zip(parts).collect();
    let results = each(items, |rank, (comm, dw)| {
        let layer = InputLayer::new(device, layout, rank, case.padding)?;
        let lookup = layer.lookup(&comm, ids, w.row_range(layout.range(rank))?)?;
        let embedded = lookup.start_select().wait()?;
        if !case.frozen {
            layer.backward(&embedded.table_grad, dy, dw)?;
        }
        Ok::<_, Error>((embedded.x.to_f32(), comm.counters()))
    })?;
    assert!(results.iter().all(|(y, _)| super::same(y, &results[0].0)), "ranks got different rows");
    let counters = results.iter().map(|r| r.1).collect();
    Ok(Run { y: results[0].0.clone(), dw, counters })
}

/// The same in f64; dW without what was there before.
pub fn truth(case: &Case, tensors: &Tensors) -> Embedded<f64> {
    in_f64(case, tensors, |problem| reference::embedding(problem).expect("the case is well-formed"))
}

fn in_f64<T>(case: &Case, tensors: &Tensors, with: impl FnOnce(&Embedding<'_, f64>) -> T) -> T {
    let wide = |v: &[f32]| -> Vec<f64> { v.iter().map(|v| f64::from(*v)).collect() };
    let (w, dy) = (wide(&tensors.w[..case.layout.vocab() * case.hidden]), wide(&tensors.dy));
    with(&problem(case, &w, &dy))
}

fn problem<'a, T>(case: &'a Case, w: &'a [T], dy: &'a [T]) -> Embedding<'a, T> {
    let vocab = case.layout.vocab();
    Embedding { w, ids: &case.ids, upstream: Some(dy), padding: case.padding, hidden: case.hidden, vocab }
}

/// dW from zero: sums in f64 in the order of tokens, rounded once.
fn rounded_sums(case: &Case, tensors: &Tensors) -> Vec<f32> {
    let mut sums = vec![0.0f64; case.layout.vocab() * case.hidden];
    for (id, dy) in case.ids.iter().zip(tensors.dy.chunks(case.hidden)).filter(|(id, _)| Some(**id) != case.padding) {
        let sums = &mut sums[*id as usize * case.hidden..][..case.hidden];
        sums.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += f64::from(*dy));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// Checks a run: rows are copies, bit by bit; dW is the sum in the order of tokens that is rounded once, bit by bit, with an
/// error of at most twice that of the plain composition.
pub fn check(case: &Case, tensors: &Tensors, run: &Run) -> Result<(), String> {
    let truth = truth(case, tensors);
    if run.y.iter().map(|v| f64::from(*v)).ne(truth.y.iter().copied()) {
        return Err(format!("y differs in {case:?}"));
    }
    let real = case.layout.vocab() * case.hidden;
    let plain = plain::embedding(&problem(case, &tensors.w[..real], &tensors.dy), case.dtype);
    if tensors.before == 0.0 && !super::same(&run.dw[..real], &rounded_sums(case, tensors)) {
        return Err(format!("dw: not the sum that is rounded once in {case:?}"));
    }
    let (plain, want) = (plain.unwrap().dw.unwrap(), truth.dw.unwrap());
    let got: Vec<f64> = run.dw[..real].iter().map(|v| f64::from(*v) - f64::from(tensors.before)).collect();
    let error = reference::largest_error(&got, &want);
    // What was there before costs a rounding of its size.
    let floor = 4.0 * f64::from(f32::EPSILON) * (1.0 + f64::from(tensors.before.abs()));
    let allowed = 2.0 * reference::largest_error(&plain, &want) + floor;
    if error > allowed || error.is_nan() {
        return Err(format!("dw: error {error:e}, allowed {allowed:e} in {case:?}"));
    }
    let rows = in_f64(case, tensors, bounds::embedding).dw.unwrap();
    // What was there before costs a rounding of its size.
    let before = 4.0 * f64::from(f32::EPSILON * tensors.before.abs());
    let rows: Vec<f64> = rows.into_iter().map(|row| row + before).collect();
    let got: Vec<f32> = got.into_iter().map(|v| v as f32).collect();
    super::check_rows("dw", [&got, &plain], &want, &rows).map_err(|e| format!("{e} in {case:?}"))?;
    if run.dw[real..].iter().any(|v| *v != tensors.before) {
        return Err(format!("dw: padding is written in {case:?}"));
    }
    Ok(())
}

/// The targets under test.
pub fn cpus(threads: usize, dtype: Dtype) -> Vec<Cpu> {
    let emulated = if dtype == Dtype::Bf16 { amx(threads) } else { None };
    devices(threads).into_iter().chain(emulated).collect()
}

/// Runs and checks a case on every device; they agree bit by bit.
pub fn everywhere(case: &Case, tensors: &Tensors) -> Run {
    let mut expected = interpreter().map(|(ptx, gpu)| {
        let run = run(&gpu, case, tensors).unwrap_or_else(|e| panic!("{e} in {case:?}"));
        let report = ptx.take_report();
        assert!(report.is_clean(), "{:#?} {:#?} in {case:?}", report.races, report.uninitialized);
        check(case, tensors, &run).unwrap();
        run
    });
    for cpu in cpus(2, case.dtype) {
        let run = run(&cpu, case, tensors).unwrap_or_else(|e| panic!("{e} in {case:?}"));
        let Some(expected) = &expected else {
            check(case, tensors, &run).unwrap();
            expected = Some(run);
            continue;
        };
        assert!(super::same(&run.y, &expected.y) && super::same(&run.dw, &expected.dw), "{} {case:?}", cpu.name());
        assert_eq!(run.counters, expected.counters, "{}", cpu.name());
    }
    expected.expect("there is a target")
}
