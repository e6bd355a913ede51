//! The fused layer against the plain composition on the same data, one rank.
//!
//! `cargo bench` compares passes S (with the combine), T, and the whole, with saved and with recomputed probabilities.
//! Sizes come from the environment: VOCABFUSE_BENCH_TOKENS, _HIDDEN, _VOCAB, _DTYPE (f32, bf16, f16) and _THREADS.
//! The plain composition runs on as many threads; it multiplies bf16 and f16 operands as f32.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::hint::black_box;
use std::str::FromStr;
use vocabfuse::plain::Composition;
use vocabfuse::problem::{Options, Outputs, Problem};
use vocabfuse::tensors::Elements;
use vocabfuse::{
    Batch, Cpu, CrossEntropy, Done, Dtype, Gradients, Local, Operands, OutputLayer, Policy, Save, Shard, ShardLayout,
    Upstream,
};

fn setting<T: FromStr>(name: &str, default: T) -> T {
    let name = format!("VOCABFUSE_BENCH_{name}");
    match std::env::var(&name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is not usable")),
        Err(_) => default,
    }
}

struct Data {
    tokens: usize,
    hidden: usize,
    vocab: usize,
    threads: usize,
    x: Elements,
    w: Elements,
    targets: Vec<i64>,
}

impl Data {
    fn new() -> Data {
        let tokens = setting("TOKENS", 512);
        let (hidden, vocab) = (setting("HIDDEN", 512), setting("VOCAB", 16384));
        let dtype = setting("DTYPE", Dtype::F32);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut matrix = |rows: usize, bound: f32| {
            let values = (0..rows * hidden).map(|_| random.random_range(-bound..bound)).collect();
            Elements::from_f32(values, dtype)
        };
        let (x, w) = (matrix(tokens, 1.7), matrix(vocab, 1.7 / (hidden as f32).sqrt()));
        let targets = (0..tokens).map(|_| random.random_range(0..vocab as i64)).collect();
        Data { tokens, hidden, vocab, threads: setting("THREADS", 1), x, w, targets }
    }
}

/// One rank that holds the whole vocabulary.
struct Fused<'a> {
    data: &'a Data,
    layer: OutputLayer,
    comm: Local,
    dw: Vec<f32>,
}

impl<'a> Fused<'a> {
    fn new(data: &'a Data, save: Save) -> Fused<'a> {
        let cpu = Cpu::new(Some(data.threads)).expect("a device");
        let layout = ShardLayout::even(data.vocab, 1).expect("a layout");
        let policy = Policy { save, ..Policy::default() };
        let layer = OutputLayer::new(&cpu, &layout, 0, CrossEntropy::default(), policy).expect("a layer");
        Fused { data, layer, comm: Local::group(1).remove(0), dw: vec![0.0; data.vocab * data.hidden] }
    }

    fn operands(&self) -> Operands<'a> {
        let Data { tokens, hidden, vocab, .. } = *self.data;
        let x = self.data.x.matrix(tokens, hidden).expect("x");
        let weight = self.data.w.matrix(vocab, hidden).expect("w");
        Operands::new(x, Shard { weight, bias: None })
    }

    fn pass_s(&self) -> Done {
        let Operands { x, shard } = self.operands();
        let batch = Batch::new(x, &self.data.targets);
        let partial = self.layer.s_pass(&self.comm, batch, shard.expect("w")).expect("pass S");
        partial.start_combine().wait().expect("combine")
    }

    fn pass_t(&mut self, done: Done) {
        let operands = self.operands();
        let out = Gradients { dw: (&mut self.dw).into(), dbias: None };
        self.layer.t_pass(done.weight_grad, operands, out, Upstream::One).expect("pass T");
    }
}

fn passes(c: &mut Criterion) {
    let data = Data::new();
    let (x, w) = (data.x.to_f32(), data.w.to_f32());
    let problem = Problem::new(&x, &w, &data.targets, data.hidden, Options::default());
    let pool = rayon::ThreadPoolBuilder::new().num_threads(data.threads).build().expect("threads");
    let mut plain = Composition::new(data.x.dtype());
    let mut out = Outputs::default();
    let forms = [("saved", Save::Yes), ("recomputed", Save::No)];
    let size = format!("{}x{}x{}_{}_{}t", data.tokens, data.hidden, data.vocab, data.x.dtype(), data.threads);
    // Multiplications and additions that cannot be saved: two products in pass S, one in T.
    let product = 2 * (data.tokens * data.hidden * data.vocab) as u64;

    let mut group = c.benchmark_group(format!("s_{size}"));
    group.sample_size(10).throughput(Throughput::Elements(2 * product));
    for (form, save) in forms {
        let fused = Fused::new(&data, save);
        group.bench_function(form, |b| b.iter(|| black_box(fused.pass_s().loss[0])));
    }
    group.bench_function("plain", |b| {
        b.iter(|| pool.install(|| plain.input_gradient(&problem, &mut out).expect("plain")));
    });
    group.finish();

    let mut group = c.benchmark_group(format!("t_{size}"));
    group.sample_size(10).throughput(Throughput::Elements(product));
    for (form, save) in forms {
        let mut fused = Fused::new(&data, save);
        let setup = Fused::new(&data, save);
        group.bench_function(form, |b| {
            b.iter_batched(|| setup.pass_s(), |done| fused.pass_t(done), BatchSize::PerIteration);
        });
    }
    group.bench_function("plain", |b| {
        b.iter(|| pool.install(|| plain.weight_gradient(&problem, &mut out).expect("plain")));
    });
    group.finish();

    let mut group = c.benchmark_group(format!("whole_{size}"));
    group.sample_size(10).throughput(Throughput::Elements(3 * product));
    for (form, save) in forms {
        let mut fused = Fused::new(&data, save);
        group.bench_function(form, |b| {
            b.iter(|| {
                let done = fused.pass_s();
                fused.pass_t(done);
            });
        });
    }
    group.bench_function("plain", |b| {
        b.iter(|| {
            pool.install(|| {
                plain.input_gradient(&problem, &mut out).expect("plain");
                plain.weight_gradient(&problem, &mut out).expect("plain");
            });
        });
    });
    group.finish();
}

criterion_group!(benches, passes);
criterion_main!(benches);
