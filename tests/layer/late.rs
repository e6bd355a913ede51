//! Tickets that outlive what they were made from, and upstream gradients that come after C1.

use crate::common::{Case, Run, Tensors, check, devices, interpreter, run, same, worst_row};
use half::bf16;
use vocabfuse::problem::Outputs;
use vocabfuse::ranks::{each, split_rows};
use vocabfuse_runtime::{
    Algorithm, Batch, Cpu, CrossEntropy, Device, Distribution, DistributionGradients, Dtype, Error, Gpu, Gradients,
    Ids, InputGrad, Later, Local, Matrix, Operands, Operators, OutputLayer, Policy, Reduction, Save, Shard,
    ShardLayout, Upstream, Upstreams, ValueGradients, WeightGrad,
};

/// A case with upstream gradients of loss and lse.
fn case(tokens: usize, hidden: usize, vocab: usize) -> Case {
    Case {
        upstream: true,
        extras: [true, true, false],
        bias: true,
        dtype: Dtype::Bf16,
        ..Case::new(tokens, hidden, vocab)
    }
}

fn narrow(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

/// What a rank has after C1.
struct Forward<D: Device> {
    loss: Vec<f32>,
    lse: Vec<f32>,
    ticket: WeightGrad<D>,
    dx: InputGrad,
}

/// Passes S and C1 of a rank whose upstream gradients come later, from tensors that are gone afterwards.
fn forward<D: Device>(
    layer: &OutputLayer<D>,
    layout: &ShardLayout,
    comm: &Local,
    tensors: &Tensors,
) -> Result<Forward<D>, Error> {
    let (tokens, range) = (tensors.targets.len(), layout.range(comm.rank()));
    let hidden = tensors.x.len() / tokens.max(1);
    let (x, w) = (narrow(&tensors.x), narrow(&tensors.w[range.start * hidden..range.end * hidden]));
    let bias = tensors.bias.as_ref().map(|bias| bias[range.clone()].to_vec());
    let batch = Batch {
        later: Later::LossAndLse,
        token_weights: tensors.token_weights.as_deref(),
        ..Batch::new(Matrix::new(&x, tokens, hidden)?, &tensors.targets)
    };
    let shard = Shard { weight: Matrix::new(&w, range.len(), hidden)?, bias: bias.as_deref() };
    let done = layer.s_pass(comm, batch, shard)?.start_combine().wait()?;
    assert!(done.dx.is_empty());
    let dx = done.input_grad.unwrap();
    assert!(dx.bytes() <= tokens * hidden * 8);
    Ok(Forward { loss: done.loss, lse: done.lse, ticket: done.weight_grad, dx })
}

/// Runs a case with upstream gradients that come after C1, pass T three times on threads of its own; the outputs, and the
/// barriers of a rank.
fn late<D: Device>(device: &D, case: &Case, tensors: &Tensors) -> (Outputs<f32>, u64) {
    let layout = ShardLayout::from_bounds(&case.bounds).unwrap();
    let (tokens, hidden) = (case.tokens, case.hidden);
    let upstreams = Upstreams {
        loss: Upstream::Rows(tensors.upstream.as_deref().unwrap()),
        lse: Some(Upstream::Rows(tensors.lse_upstream.as_deref().unwrap())),
    };
    let layer = |rank| OutputLayer::new(device, &layout, rank, case.loss, case.policy).unwrap();
    let comms = Local::group(layout.ranks());
    let forward =
        each(comms.iter().collect(), |rank, comm: &Local| forward(&layer(rank), &layout, comm, tensors)).unwrap();
    let barriers = comms[0].counters().barriers;

    let (mut dw, mut dbias) = (vec![0.0; case.vocab * hidden], vec![0.0; case.vocab]);
    let parts = split_rows(&mut dw, hidden, (0..layout.ranks()).map(|r| layout.range(r)));
    let of_bias = split_rows(&mut dbias, 1, (0..layout.ranks()).map(|r| layout.range(r)));
    let first = &forward[0];
    let mut dx = vec![0.0f32; tokens * hidden];
    first.dx.write(upstreams, (&mut dx).into()).unwrap();
    let mut rounded = vec![bf16::ONE; tokens * hidden];
    first.dx.write(upstreams, (&mut rounded).into()).unwrap();
    for (row, (narrow, wide)) in rounded.iter().zip(&dx).enumerate() {
        let error = (f64::from(narrow.to_f32()) - 1.0 - f64::from(*wide)).abs();
        assert!(error <= (1.0 + f64::from(wide.abs())) / 256.0, "element {row}: {narrow} beside 1 + {wide}");
    }
    let (loss, lse) = (first.loss.clone(), first.lse.clone());
    let work = forward.into_iter().zip(parts.into_iter().zip(of_bias)).collect();
    each(work, |rank, (forward, (dw, dbias)): (Forward<D>, (&mut [f32], &mut [f32]))| {
        let range = layout.range(rank);
        let x = narrow(&tensors.x);
        let w = narrow(&tensors.w[range.start * hidden..range.end * hidden]);
        let x = Matrix::new(&x, tokens, hidden)?;
        let weight = Matrix::new(&w, range.len(), hidden)?;
        let bias = tensors.bias.as_ref().map(|bias| &bias[range.clone()]);
        let shard = forward.ticket.needs_weight().then_some(Shard { weight, bias });
        let operands = Operands { x, shard };
        let mut again = vec![0.0f32; dw.len()];
        for _ in 0..2 {
            again.fill(0.0);
            layer(rank).t_pass(
                &forward.ticket,
                operands,
                Gradients { dw: (&mut again).into(), dbias: None },
                upstreams,
            )?;
        }
        let out = Gradients { dw: (&mut *dw).into(), dbias: Some(dbias) };
        layer(rank).t_pass(forward.ticket, operands, out, upstreams)?;
        assert!(same(dw, &again), "a ticket gives the same however often it is used");
        Ok::<_, Error>(())
    })
    .unwrap();
    (Outputs { loss, lse, dx, dw, dbias: Some(dbias), argmax: vec![] }, barriers)
}

/// Compares with the same gradients known in pass S, and with f64.
fn agrees<D: Device>(device: &D, case: &Case) {
    let tensors = Tensors::random(case);
    let known = run(device, case, &tensors).unwrap();
    let (out, barriers) = late(device, case, &tensors);
    assert_eq!(barriers, known.counters[0].barriers, "{case:?}");
    assert!(case.policy.algorithm != Algorithm::Two || barriers == 1);
    assert!(same(&out.loss, &known.out.loss) && same(&out.lse, &known.out.lse), "{case:?}");
    let error = worst_row(&out.dw, &known.out.dw, case.hidden, 0.0);
    assert!(error < 1e-6, "dw differs by {error} in {case:?}");
    let size = known.out.dx.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let error = worst_row(&out.dx, &known.out.dx, case.hidden, f64::from(size) * 1e-3);
    assert!(error < 1e-5, "dx differs by {error} in {case:?}");
    check(case, &tensors, &Run { out: Outputs { argmax: known.out.argmax.clone(), ..out }, ..known }).unwrap();
}

#[test]
fn gradients_whose_upstream_comes_late_are_those_that_are_known_before() {
    let base = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
    let losses = [
        base,
        CrossEntropy { reduction: Reduction::None, softcap: Some(5.0), z_loss: 0.01, ..base },
        CrossEntropy { reduction: Reduction::Sum, label_smoothing: 0.1, logit_scale: 0.7, ..base },
    ];
    for cpu in devices(2) {
        for algorithm in [Algorithm::Two, Algorithm::One, Algorithm::Naive] {
            for (loss, save) in losses.into_iter().zip([Save::Yes, Save::No, Save::Auto]) {
                let policy = Policy {
                    algorithm,
                    save: if loss.softcap.is_some() { Save::No } else { save },
                    ..Policy::default()
                };
                let case = Case { loss, policy, bounds: vec![0, 30, 31, 90], ..case(37, 20, 90) };
                if cpu.target().multiplies_f32() || case.dtype == Dtype::Bf16 {
                    agrees(&cpu, &case);
                }
            }
        }
    }
}

#[test]
fn gradients_on_a_gpu_may_come_late_too() {
    let Some((_, gpu)) = interpreter() else { return };
    for (save, smoothing) in [(Save::Yes, 0.0), (Save::No, 0.1)] {
        let loss = CrossEntropy { label_smoothing: smoothing, ..CrossEntropy::default() };
        let policy = Policy { save, chunk: Some(512), ..Policy::default() };
        agrees(&gpu, &Case { loss, policy, bounds: vec![0, 40, 600], ..case(9, 16, 600) });
    }
}

#[test]
fn tickets_hold_nothing_of_the_caller() {
    fn lives<T: Send + Sync + 'static>() {}
    lives::<WeightGrad<Cpu>>();
    lives::<WeightGrad<Gpu>>();
    lives::<InputGrad>();
}

#[test]
fn what_does_not_fit_a_ticket_is_refused_by_name() {
    let case = Case { bounds: vec![0, 40], policy: Policy { save: Save::No, ..Policy::default() }, ..case(6, 8, 40) };
    let tensors = Tensors::random(&case);
    let layout = ShardLayout::even(40, 1).unwrap();
    let cpu = Cpu::new(Some(1)).unwrap();
    let layer = OutputLayer::new(&cpu, &layout, 0, case.loss, case.policy).unwrap();
    let comm = Local::group(1).remove(0);
    let Forward { ticket, dx, .. } = forward(&layer, &layout, &comm, &tensors).unwrap();
    let (x, w) = (narrow(&tensors.x), narrow(&tensors.w));
    let (x, weight) = (Matrix::new(&x, 6, 8).unwrap(), Matrix::new(&w, 40, 8).unwrap());
    let shard = Shard { weight, bias: None };
    let refused = |layer: &OutputLayer, operands, upstream: Upstreams<'_>| {
        let mut dw = vec![0.0; 320];
        let out = Gradients { dw: (&mut dw).into(), dbias: None };
        let error = layer.t_pass(&ticket, operands, out, upstream).unwrap_err().to_string();
        assert!(dw.iter().all(|v| *v == 0.0), "{error}");
        error
    };
    let one = Upstreams::from(Upstream::One);
    let error = refused(&layer, Operands { x, shard: None }, one);
    assert!(error.contains("w:") && error.contains("saved nothing"), "{error}");
    let error = refused(&layer, Operands::new(x.row_range(0..5).unwrap(), shard), one);
    assert!(error.contains("x:") && error.contains("[6, 8]") && error.contains("[5, 8]"), "{error}");
    let wide = Matrix::new(&tensors.x, 6, 8).unwrap();
    let error = refused(&layer, Operands::new(wide, shard), one);
    assert!(error.contains("x") && error.contains("bf16") && error.contains("f32"), "{error}");
    let short = [1.0; 5];
    let error = refused(&layer, Operands::new(x, shard), Upstream::Rows(&short).into());
    assert!(error.contains("upstream") && error.contains('6') && error.contains('5'), "{error}");
    let other = Policy { algorithm: Algorithm::One, ..case.policy };
    let other = OutputLayer::new(&cpu, &layout, 0, case.loss, other).unwrap();
    let error = refused(&other, Operands::new(x, shard), one);
    assert!(error.contains("option ticket"), "{error}");

    let mut out = vec![0.0; 48];
    let error = dx.write(Upstream::Rows(&short), (&mut out).into()).unwrap_err().to_string();
    assert!(error.contains("upstream"), "{error}");
    let error = dx.write(Upstream::One, (&mut out[1..]).into()).unwrap_err().to_string();
    assert!(error.contains("dx"), "{error}");

    // Of the loss alone: half the memory, and no upstream gradient of lse.
    let lse = [0.5; 6];
    let batch = Batch { later: Later::Loss, ..Batch::new(x, &tensors.targets) };
    let known = Batch { lse_upstream: Some(&lse), ..batch };
    let error = layer.s_pass(&comm, known, shard).err().unwrap().to_string();
    assert!(error.contains("lse_upstream") && error.contains("come later"), "{error}");
    let done = layer.s_pass(&comm, batch, shard).unwrap().start_combine().wait().unwrap();
    let dx = done.input_grad.unwrap();
    assert_eq!(dx.bytes(), 6 * 8 * 4);
    let both = Upstreams { loss: Upstream::One, lse: Some(Upstream::Rows(&lse)) };
    assert!(dx.write(both, (&mut out).into()).unwrap_err().to_string().contains("lse_upstream"));
    let mut dw = vec![0.0; 320];
    let out = Gradients { dw: (&mut dw).into(), dbias: None };
    let error = layer.t_pass(done.weight_grad, Operands::new(x, shard), out, both).unwrap_err().to_string();
    assert!(error.contains("lse_upstream"), "{error}");
}

#[test]
fn what_does_not_count_has_no_gradient_whatever_its_upstream_is() {
    let loss = CrossEntropy { ignore_index: Some(-100), ..CrossEntropy::default() };
    let case = Case { loss, bounds: vec![0, 40], ..case(10, 8, 40) };
    let tensors = Tensors::random(&case);
    let layout = ShardLayout::even(40, 1).unwrap();
    let layer = OutputLayer::new(&Cpu::new(Some(1)).unwrap(), &layout, 0, loss, Policy::default()).unwrap();
    let Forward { dx, .. } = forward(&layer, &layout, &Local::group(1)[0], &tensors).unwrap();
    let ignored: Vec<bool> = tensors.targets.iter().map(|target| *target == -100).collect();
    assert!(ignored.iter().any(|ignored| *ignored));
    let upstream: Vec<f32> = ignored.iter().map(|ignored| if *ignored { f32::NAN } else { 1.0 }).collect();
    let mut out = vec![7.0f32; 80];
    dx.write(Upstream::Rows(&upstream), vocabfuse_runtime::GradientMut::from(&mut out).overwriting()).unwrap();
    for (row, ignored) in out.chunks(8).zip(&ignored) {
        assert_eq!(row.iter().all(|v| *v == 0.0), *ignored, "{row:?}");
    }
}

#[test]
fn tickets_of_operators_outlive_their_distributions() {
    fn lives<T: Send + Sync + 'static>() {}
    lives::<vocabfuse_runtime::Ticket<Cpu>>();
    let (tokens, hidden, vocab) = (5, 8, 30);
    let tensors = Tensors::random(&Case::new(tokens, hidden, vocab));
    let layout = ShardLayout::even(vocab, 1).unwrap();
    let layer = Operators::new(&Cpu::new(Some(1)).unwrap(), &layout, 0).unwrap();
    let comm = Local::group(1).remove(0);
    let ticket = {
        let (x, w, ids) = (tensors.x.clone(), tensors.w.clone(), tensors.targets.clone());
        let of =
            Distribution::linear(Matrix::new(&x, tokens, hidden).unwrap(), Matrix::new(&w, vocab, hidden).unwrap());
        let ids = Ids { ids: &ids, per_token: 1, ignore_index: Some(-100) };
        layer.logprobs(&comm, of, ids).unwrap().start_combine().wait().unwrap().ticket
    };
    let of = |rows: usize, scale: f32| {
        let x = Matrix::new(&tensors.x[..rows * hidden], rows, hidden).unwrap();
        let w = Matrix::new(&tensors.w, vocab, hidden).unwrap();
        Distribution { logit_scale: scale, ..Distribution::linear(x, w) }
    };
    let upstream = [0.5, -1.0, 2.0, 0.0, 1.0];
    let backward = |factor: f32, of: Distribution<'_>| {
        let upstream = upstream.map(|u| u * factor);
        let mut dw = vec![0.0; vocab * hidden];
        let wanted = DistributionGradients { dx: true, dw: Some(&mut dw), ..Default::default() };
        let upstream = ValueGradients { logprobs: Some(&upstream), ..Default::default() };
        let own = layer.backward(&comm, &ticket, &[of], upstream, vec![wanted])?;
        let dx = own.start_combine().wait()?.remove(0).unwrap();
        Ok::<_, Error>((dx, dw))
    };
    let (dx, dw) = backward(1.0, of(tokens, 1.0)).unwrap();
    let again = std::thread::scope(|scope| scope.spawn(|| backward(1.0, of(tokens, 1.0)).unwrap()).join().unwrap());
    assert!(same(&dx, &again.0) && same(&dw, &again.1));
    let (double, _) = backward(2.0, of(tokens, 1.0)).unwrap();
    assert!(double.iter().zip(&dx).all(|(double, one)| *double == 2.0 * one));
    for other in [of(4, 1.0), of(tokens, 2.0)] {
        let error = backward(1.0, other).unwrap_err().to_string();
        assert!(error.contains("tensor x") || error.contains("option distributions"), "{error}");
    }
}
