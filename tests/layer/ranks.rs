//! A rank on which something goes wrong ends the step on all ranks, with one error and at once, and the next step works.

use crate::common::{Case, Tensors, worst_row};
use std::sync::Mutex;
use std::time::Duration;
use vocabfuse::ranks::each;
use vocabfuse_kernels::{Bindings, Kernel};
use vocabfuse_runtime::{
    Algorithm, Batch, Cpu, CrossEntropy, Distribution, DistributionGradients, Error, InputLayer, Local, Matrix,
    Operators, OutputLayer, Policy, Registry, RowLoss, Shard, ShardLayout, Target, ValueGradients,
};
use vocabfuse_testing::{Need, skipped};

const TOKENS: usize = 20;
const HIDDEN: usize = 24;
const VOCAB: usize = 90;
const ALGORITHMS: [Algorithm; 3] = [Algorithm::Naive, Algorithm::One, Algorithm::Two];

/// What is wrong on rank 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    Weight,
    Bias,
    Budget,
    Group,
    Panic,
    Withdrawal,
}

fn layout() -> ShardLayout {
    ShardLayout::from_bounds(&[0, 40, 90]).unwrap()
}

fn tensors() -> Tensors {
    Tensors::random(&Case { bias: true, ..Case::new(TOKENS, HIDDEN, VOCAB) })
}

/// Runs `work` for two ranks that outlive it. A rank that waits for ever fails the test; one that panics has no result.
fn on_both<T: Send + 'static>(
    group: &'static [Local],
    work: impl Fn(&Local) -> Result<T, Error> + Send + Sync + 'static,
) -> Vec<Option<Result<T, Error>>> {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let one = |_: usize, comm: &Local| {
            Ok::<_, Error>(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(comm))).ok())
        };
        done.send(each(group.iter().collect(), one)).ok();
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("no rank is left waiting").unwrap()
}

/// As [`on_both`], by tasks of a rayon pool.
fn in_pool<T: Send + 'static>(
    threads: usize,
    group: &'static [Local],
    work: impl Fn(&Local) -> Result<T, Error> + Send + Sync + 'static,
) -> Vec<Option<Result<T, Error>>> {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut results: Vec<_> = group.iter().map(|_| None).collect();
        pool.scope(|scope| {
            for (comm, result) in group.iter().zip(&mut results) {
                let work = &work;
                scope.spawn(move |_| *result = Some(work(comm)));
            }
        });
        done.send(results).ok();
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("no rank is left waiting")
}

/// Ranks for the rest of the process.
fn group() -> &'static [Local] {
    Box::leak(Local::group(2).into_boxed_slice())
}

/// S and C1 of a rank, up to the losses.
fn layer_step(comm: &Local, cpu: &Cpu, algorithm: Algorithm, fault: Fault) -> Result<Vec<f32>, Error> {
    let (layout, tensors, rank) = (layout(), tensors(), comm.rank());
    let odd = |wanted| rank == 1 && fault == wanted;
    if odd(Fault::Withdrawal) {
        comm.withdraw();
        return Err(Error::RankGone { rank });
    }
    let policy = Policy { algorithm, memory_budget: odd(Fault::Budget).then_some(1000), ..Policy::default() };
    let of_three = ShardLayout::from_bounds(&[0, 40, 90, 90]).unwrap();
    let of_rank = if odd(Fault::Group) { &of_three } else { &layout };
    let layer = OutputLayer::new(cpu, of_rank, rank, CrossEntropy::default(), policy)?;
    let rows = if odd(Fault::Weight) { 40..80 } else { layout.range(rank) };
    let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?.row_range(rows)?;
    let bias = &tensors.bias.as_ref().unwrap()[layout.range(rank)];
    let bias = Some(if odd(Fault::Bias) { &bias[1..] } else { bias });
    let batch = Batch::new(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, &tensors.targets);
    let partial = layer.s_pass(comm, batch, Shard { weight, bias })?;
    assert!(!odd(Fault::Panic), "on purpose");
    partial.start_combine().wait().map(|done| done.loss)
}

#[test]
fn a_fault_of_one_rank_ends_the_step_of_a_layer_on_all() {
    let cpu = Cpu::new(Some(1)).unwrap();
    for algorithm in ALGORITHMS {
        let group = group();
        let step = |fault| {
            let cpu = cpu.clone();
            on_both(group, move |comm| layer_step(comm, &cpu, algorithm, fault))
        };
        let good = step(Fault::Nothing);
        assert!(good[0].as_ref().is_some_and(Result::is_ok) && good[0] == good[1], "{good:?}");
        let gone = || Error::RankGone { rank: 1 }.to_string();
        for (fault, expected) in [
            (Fault::Weight, "tensor w: expected the 50 rows 40..90 of rank 1, got 40 rows".to_owned()),
            (Fault::Bias, "tensor bias: expected 50 elements, got 49".to_owned()),
            (Fault::Budget, "option memory_budget: 1000 bytes are too few".to_owned()),
            (Fault::Group, "shard layout: rank 1 of 2 in the group; expected rank 1 of 3".to_owned()),
            (Fault::Withdrawal, gone()),
            (Fault::Panic, gone()),
        ] {
            let found = step(fault);
            let message = found[0].clone().unwrap().unwrap_err().to_string();
            assert!(message.starts_with(&expected), "{algorithm}, {fault:?}: {message}");
            assert!(if fault == Fault::Panic { found[1].is_none() } else { found[0] == found[1] }, "{found:?}");
            assert_eq!(step(Fault::Nothing), good, "{algorithm} after {fault:?}");
        }
    }
}

/// A registry in which some kernels of a loss bind other names.
fn altered(kernel: &str, loss: &str, change: impl Fn(Bindings) -> Bindings) -> Registry {
    let mut registry = Registry::default();
    let of_loss = registry.iter().filter(|k| k.kernel == kernel && k.loss == loss);
    let other = |k: &Kernel| Kernel { bindings: Box::leak(Box::new(change(*k.bindings))), ..*k };
    let kernels: Vec<Kernel> = of_loss.map(other).collect();
    assert!(!kernels.is_empty());
    let text: &[Kernel] = kernels.leak();
    registry.extend(vec![text].leak());
    registry
}

#[test]
fn a_fault_between_barriers_leaves_the_next_step_intact() {
    // With algorithms one and naive the second product, of which an input is missing, comes after the first barrier.
    let registry = altered("logits_operand", "cross_entropy_smoothing", |b| Bindings { rows: &["missing"], ..b });
    let cpu = Cpu::new(Some(1)).unwrap();
    let broken = cpu.clone().with_registry(registry);
    for algorithm in ALGORITHMS {
        let group = group();
        let smoothed = move |comm: &Local, cpu: &Cpu| {
            let (layout, tensors) = (layout(), tensors());
            let loss = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
            let policy = Policy { algorithm, ..Policy::default() };
            let layer = OutputLayer::new(cpu, &layout, comm.rank(), loss, policy)?;
            let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?.row_range(layout.range(comm.rank()))?;
            let batch = Batch::new(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, &tensors.targets);
            let done = layer.s_pass(comm, batch, Shard { weight, bias: None })?.start_combine().wait()?;
            Ok(done.loss)
        };
        let broken = broken.clone();
        for found in on_both(group, move |comm| smoothed(comm, &broken)) {
            let message = found.unwrap().unwrap_err().to_string();
            assert!(message.contains("needs the input \"missing\""), "{algorithm}: {message}");
        }
        let cpu = cpu.clone();
        assert!(on_both(group, move |comm| smoothed(comm, &cpu)).into_iter().all(|found| found.unwrap().is_ok()));
    }
}

/// A lookup of which rank 1 has so many rows of the table.
fn look_up(comm: &Local, rows: usize) -> Result<Vec<f32>, Error> {
    let (layout, tensors) = (layout(), tensors());
    let layer = InputLayer::new(&Cpu::new(Some(1))?, &layout, comm.rank(), None)?;
    let table = Matrix::new(&tensors.w, VOCAB, HIDDEN)?;
    let range = layout.range(comm.rank());
    let rows = if comm.rank() == 1 { range.start..range.start + rows } else { range };
    let ids = [1, 60, 89, 0];
    layer.lookup(comm, &ids, table.row_range(rows)?)?.start_select().wait().map(|done| done.x.to_f32())
}

#[test]
fn a_fault_of_one_rank_ends_a_lookup_on_all() {
    let group = group();
    let step = |rows: usize| on_both(group, move |comm| look_up(comm, rows));
    let good = step(50);
    assert!(good[0].as_ref().is_some_and(Result::is_ok) && good[0] == good[1]);
    let bad = step(49);
    assert!(matches!(bad[0], Some(Err(Error::Shape { tensor: "w", .. }))) && bad[0] == bad[1], "{bad:?}");
    assert_eq!(step(50), good);
}

/// Entropies and dX.
type Entropies = (Vec<f32>, Vec<Option<Vec<f32>>>);

/// Both phases of an operator. `missing` are the elements that rank 1 lacks of the bias in the first, and of dW in the second.
fn entropies(comm: &Local, missing: [usize; 2]) -> Result<Entropies, Error> {
    let (layout, tensors) = (layout(), tensors());
    let range = layout.range(comm.rank());
    let [bias, dw] = if comm.rank() == 1 { missing } else { [0; 2] };
    let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?.row_range(range.clone())?;
    let x = Matrix::new(&tensors.x, TOKENS, HIDDEN)?;
    let bias = Some(&tensors.bias.as_ref().unwrap()[range.start + bias..range.end]);
    let of = Distribution { bias, ..Distribution::linear(x, weight) };
    let layer = Operators::new(&Cpu::new(Some(1))?, &layout, comm.rank())?;
    let done = layer.entropy(comm, of)?.start_combine().wait()?;
    let mut dw = vec![0.0; range.len() * HIDDEN - dw];
    let wanted = DistributionGradients { dx: true, dw: Some(&mut dw), ..Default::default() };
    let upstream = ValueGradients { entropy: Some(&[1.0; TOKENS]), ..Default::default() };
    let dx = layer.backward(comm, &done.ticket, &[of], upstream, vec![wanted])?.start_combine().wait()?;
    Ok((done.values.entropy, dx))
}

#[test]
fn a_fault_of_one_rank_ends_both_phases_of_an_operator_on_all() {
    let group = group();
    let step = |missing: [usize; 2]| on_both(group, move |comm| entropies(comm, missing));
    let good = step([0, 0]);
    assert!(good[0].as_ref().is_some_and(Result::is_ok) && good[0] == good[1]);
    for (phases, name) in [([1, 0], "bias"), ([0, 1], "dw")] {
        let bad = step(phases);
        let Some(Err(Error::Shape { tensor, .. })) = &bad[0] else { panic!("{bad:?}") };
        assert!(*tensor == name && bad[0] == bad[1], "{bad:?}");
        assert_eq!(step([0, 0]), good);
    }
}

/// Checks that ranks which are tasks of rayon pools get one error, and after it run on threads of their own.
fn refused_in_pools<T: Send + std::fmt::Debug + PartialEq + 'static>(
    work: impl Fn(&Local) -> Result<T, Error> + Send + Sync + Clone + 'static,
) {
    for threads in [1, 2, 16] {
        let group = group();
        for _ in 0..10 {
            let found = in_pool(threads, group, work.clone());
            assert!(found.iter().all(|of_rank| *of_rank == Some(Err(Error::RankInPool))), "{threads}: {found:?}");
        }
        let found = on_both(group, work.clone());
        assert!(found[0].as_ref().is_some_and(Result::is_ok) && found[0] == found[1], "{threads}: {found:?}");
    }
}

#[test]
fn ranks_on_threads_of_a_rayon_pool_get_one_error_at_once() {
    let cpu = Cpu::new(Some(2)).unwrap();
    refused_in_pools(move |comm| layer_step(comm, &cpu, Algorithm::Two, Fault::Nothing));
    refused_in_pools(|comm| look_up(comm, 50));
    refused_in_pools(|comm| entropies(comm, [0; 2]));
}

#[test]
fn ranks_that_only_wait_in_a_rayon_pool_get_the_same_error() {
    let (group, tensors): (_, &Tensors) = (group(), Box::leak(Box::new(tensors())));
    let begun = |comm: &Local| {
        let layer = Operators::new(&Cpu::new(Some(1))?, &layout(), comm.rank())?;
        let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?.row_range(layout().range(comm.rank()))?;
        let of = Distribution::linear(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, weight);
        layer.entropy(comm, of).map(|statistics| Mutex::new(Some(statistics.start_combine())))
    };
    let waiting: Vec<_> = group.iter().map(|comm| begun(comm).unwrap()).collect();
    let wait = move |comm: &Local| {
        let merging = waiting[comm.rank()].lock().unwrap().take().unwrap();
        merging.wait().map(|done| done.values.entropy)
    };
    assert_eq!(in_pool(1, group, wait), [Some(Err(Error::RankInPool)), Some(Err(Error::RankInPool))]);
}

#[test]
fn a_group_of_one_rank_may_run_in_a_rayon_pool() {
    let cpu = Cpu::new(Some(2)).unwrap();
    let step = move |_: &Local| {
        let (comm, tensors) = (Local::group(1).remove(0), tensors());
        let layer =
            OutputLayer::new(&cpu, &ShardLayout::even(VOCAB, 1)?, 0, CrossEntropy::default(), Policy::default())?;
        let batch = Batch::new(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, &tensors.targets);
        let shard = Shard { weight: Matrix::new(&tensors.w, VOCAB, HIDDEN)?, bias: None };
        layer.s_pass(&comm, batch, shard)?.start_combine().wait().map(|done| done.loss)
    };
    let expected = on_both(group(), step.clone());
    assert!(expected[0].as_ref().is_some_and(Result::is_ok));
    for threads in [1, 16] {
        assert_eq!(in_pool(threads, group(), step.clone()), expected);
    }
}

/// CPUs of which each has rows of another form: panels of 8, 16 and 32 tokens, as far as this machine has them.
fn unlike() -> Vec<Cpu> {
    let wanted = [Target::Scalar, Target::Avx2, Target::Avx512];
    let has = |target: &Target| Cpu::available_targets().contains(target);
    let cpus: Vec<Cpu> = wanted.into_iter().filter(has).map(|t| Cpu::with_target(t, Some(1)).unwrap()).collect();
    if cpus.len() == 1 {
        skipped(Need::SecondTarget, "the machine has no target but scalar: ranks on two of them are not tested");
    }
    cpus
}

fn disagree<T: std::fmt::Debug + PartialEq>(found: &[Option<Result<T, Error>>]) {
    assert!(matches!(found[0], Some(Err(Error::Disagreement { rank: 1, .. }))) && found[0] == found[1], "{found:?}");
}

#[test]
fn ranks_on_different_cpu_targets_get_one_error() {
    let cpus = unlike();
    for (a, b) in cpus.iter().flat_map(|a| cpus.iter().map(move |b| (a, b))) {
        if a.target() == b.target() {
            continue;
        }
        for algorithm in ALGORITHMS {
            let pair = [a.clone(), b.clone()];
            let step = move |comm: &Local| layer_step(comm, &pair[comm.rank()], algorithm, Fault::Nothing);
            disagree(&on_both(group(), step));
        }
        let pair = [a.clone(), b.clone()];
        let entropy = move |comm: &Local| {
            let (layout, tensors) = (layout(), tensors());
            let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?.row_range(layout.range(comm.rank()))?;
            let of = Distribution::linear(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, weight);
            let layer = Operators::new(&pair[comm.rank()], &layout, comm.rank())?;
            layer.entropy(comm, of)?.start_combine().wait().map(|done| done.values.entropy)
        };
        disagree(&on_both(group(), entropy));
    }
}

#[test]
fn ranks_with_different_programs_under_one_name_get_one_error() {
    let more = |b: Bindings| Bindings {
        statistics: [b.statistics, &["more"]].concat().leak(),
        identities: [b.identities, &[0.0]].concat().leak(),
        ..b
    };
    let cpu = Cpu::new(Some(1)).unwrap();
    let other = cpu.clone().with_registry(altered("logits_softmax", "cross_entropy", more));
    let pair = [cpu, other];
    disagree(&on_both(group(), move |comm| layer_step(comm, &pair[comm.rank()], Algorithm::Two, Fault::Nothing)));
}

#[test]
fn a_shard_that_is_all_padding_has_no_weights_of_classes() {
    let (vocab, ranks) = (10, 4);
    let loss = CrossEntropy { label_smoothing: 0.2, ..CrossEntropy::default() };
    let case = Case { loss, extras: [false, false, true], ..Case::new(TOKENS, HIDDEN, vocab) };
    let tensors = Tensors::random(&case);
    let cpu = Cpu::new(Some(1)).unwrap();
    let expected = crate::common::run(&cpu, &case, &tensors).unwrap().out;
    let layout = ShardLayout::padded(vocab, ranks).unwrap();
    assert_eq!((layout.range(3), layout.classes(3)), (12..16, 0));
    let mut w = tensors.w.clone();
    w.resize(layout.stored() * HIDDEN, f32::NAN);
    let found = each(Local::group(ranks), |rank, comm| {
        let layer = OutputLayer::new(&cpu, &layout, rank, loss, Policy::default())?;
        let weight = Matrix::new(&w, layout.stored(), HIDDEN)?.row_range(layout.range(rank))?;
        let class_weights = tensors.class_weights.as_deref();
        let batch = Batch { class_weights, ..Batch::new(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, &tensors.targets) };
        let done = layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine().wait()?;
        Ok::<_, Error>((done.loss, done.dx))
    });
    for (loss, dx) in found.unwrap() {
        assert!(worst_row(&loss, &expected.loss, 1, 0.0) < 1e-6 && worst_row(&dx, &expected.dx, HIDDEN, 0.0) < 1e-5);
    }
}

#[test]
fn a_loss_of_ones_own_has_the_options_that_its_programs_take() {
    let layout = ShardLayout::even(VOCAB, 1).unwrap();
    let (cpu, tensors, comm) = (Cpu::new(Some(1)).unwrap(), tensors(), Local::group(1).remove(0));
    let own = |name: &str, options| {
        let uniforms = [("z_loss".to_owned(), 0.0)].into();
        let loss = RowLoss { name: name.to_owned(), uniforms, options };
        let layer = OutputLayer::with_loss(&cpu, &layout, 0, loss, Policy::default())?;
        let weight = Matrix::new(&tensors.w, VOCAB, HIDDEN)?;
        let batch = Batch::new(Matrix::new(&tensors.x, TOKENS, HIDDEN)?, &tensors.targets);
        layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine().wait().map(|done| done.argmax)
    };
    let base = CrossEntropy::default();
    assert_eq!(own("cross_entropy", base), Ok(None));
    let argmax = CrossEntropy { argmax: true, ..base };
    assert!(own("cross_entropy_argmax", argmax).unwrap().is_some_and(|ids| ids.len() == TOKENS));
    for (options, expected) in [
        (argmax, "option argmax: expected false: loss cross_entropy gives none"),
        (CrossEntropy { softcap: Some(2.0), ..base }, "option softcap: expected none"),
        (CrossEntropy { label_smoothing: 0.1, ..base }, "option label_smoothing: expected none"),
        (CrossEntropy { z_loss: 0.1, ..base }, "option z_loss: expected none"),
    ] {
        let message = own("cross_entropy", options).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn ranks_may_have_several_microbatches_under_way_or_one() {
    let (tokens, hidden, vocab) = (40, 8, 10);
    let tensors = [0.5_f32, -0.25].map(|value| vec![value; tokens * hidden]);
    let (w, targets) = ((0..vocab * hidden).map(|i| i as f32 / 40.0).collect::<Vec<f32>>(), vec![3; tokens]);
    let layout = ShardLayout::even(vocab, 2).unwrap();
    for algorithm in [Algorithm::Two, Algorithm::One, Algorithm::Naive] {
        for frozen_input in [false, true] {
            let losses = |pipelined: [bool; 2]| {
                each(Local::group(2), |rank, comm| {
                    let policy = Policy { algorithm, frozen_input, ..Policy::default() };
                    let cpu = Cpu::new(Some(1))?;
                    let layer = OutputLayer::new(&cpu, &layout, rank, CrossEntropy::default(), policy)?;
                    let weight = Matrix::new(&w, vocab, hidden)?.row_range(layout.range(rank))?;
                    let start = |x: usize| {
                        let batch = Batch::new(Matrix::new(&tensors[x], tokens, hidden)?, &targets);
                        Ok::<_, Error>(layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine())
                    };
                    if pipelined[rank] {
                        let (first, second) = (start(0)?, start(1)?);
                        return Ok::<_, Error>([first.wait()?.loss[0], second.wait()?.loss[0]]);
                    }
                    Ok([start(0)?.wait()?.loss[0], start(1)?.wait()?.loss[0]])
                })
                .unwrap()
            };
            let expected = losses([false, false]);
            assert!(expected[0][0] != expected[0][1]);
            assert_eq!(losses([false, true]), expected, "{algorithm:?}, frozen input {frozen_input}");
            assert_eq!(losses([true, true]), expected, "{algorithm:?}, frozen input {frozen_input}");
        }
    }
}
