//! What is refused and how, and what ranks may do to each other.

use super::contract::given;
use super::harness::{Case, Data, Which, run};
use vocabfuse_runtime::{
    Cpu, Distribution, DistributionGradients, Error, Ids, KlDirection, Local, Matrix, Operators, ShardLayout,
    ValueGradients,
};

const INF: f32 = f32::INFINITY;

/// Runs one operator of one rank over x and w of five tokens, three of H and eleven of V.
fn failing(act: impl Fn(&Operators, &Local, Distribution<'_>) -> Result<(), Error>) -> String {
    let (x, w) = (vec![0.5; 15], vec![0.25; 33]);
    let layout = ShardLayout::even(11, 1).unwrap();
    let layer = Operators::new(&Cpu::new(Some(1)).unwrap(), &layout, 0).unwrap();
    let of = Distribution::linear(Matrix::new(&x, 5, 3).unwrap(), Matrix::new(&w, 11, 3).unwrap());
    act(&layer, &Local::group(1)[0], of).unwrap_err().to_string()
}

#[test]
fn errors_name_what_is_wrong() {
    let ids = Ids { ids: &[1, 2, 3, 4, 11], per_token: 1, ignore_index: None };
    assert_eq!(
        failing(|l, comm, of| l.logprobs(comm, of, ids).map(|_| ())),
        "tensor ids: position 4 has 11; expected an id in 0..11"
    );
    let negative = Ids { ids: &[1, -100, 3, 4, 1], ..ids };
    assert!(failing(|l, comm, of| l.logprobs(comm, of, negative).map(|_| ())).contains("position 1 has -100"));
    let short = Ids { ids: &[1, 2], ..ids };
    assert!(
        failing(|l, comm, of| l.logprobs(comm, of, short).map(|_| ()))
            .contains("tensor ids: expected 5 elements, got 2")
    );
    let none = Ids { ids: &[], per_token: 0, ignore_index: None };
    assert!(failing(|l, comm, of| l.logprobs(comm, of, none).map(|_| ())).contains("at least one id"));
    assert!(failing(|l, comm, of| l.top_k(comm, of, 12).map(|_| ())).contains("expected 1 to V = 11, got 12"));
    assert!(failing(|l, comm, of| l.top_k(comm, of, 0).map(|_| ())).contains("expected 1 to V = 11, got 0"));
    assert!(
        failing(|l, comm, of| l.entropy(comm, Distribution { logit_scale: 0.0, ..of }).map(|_| ()))
            .contains("option logit_scale")
    );
    for cap in [0.0, -1.0, f32::NAN, INF, 1e-40] {
        assert!(
            failing(|l, comm, of| l.entropy(comm, Distribution { softcap: Some(cap), ..of }).map(|_| ()))
                .contains("option softcap")
        );
    }
    let bias = [1.0, 2.0];
    assert!(
        failing(|l, comm, of| l.entropy(comm, Distribution { bias: Some(&bias), ..of }).map(|_| ()))
            .contains("tensor bias: expected 11 elements, got 2")
    );
    let given = [0.0f32; 30];
    let narrow = Distribution::logits(Matrix::new(&given, 5, 6).unwrap());
    assert!(
        failing(|l, comm, _| l.entropy(comm, narrow).map(|_| ()))
            .contains("tensor logits: expected the 11 columns of rank 0")
    );
    let teacher = Distribution::linear(Matrix::new(&given[..6], 2, 3).unwrap(), Matrix::new(&given, 10, 3).unwrap());
    let forward = KlDirection::Forward;
    let rows = failing(|l, comm, of| l.kl_divergence(comm, of, teacher, forward).map(|_| ()));
    assert!(rows.starts_with("tensor teacher_w: expected the 11 rows"), "{rows}");
    let w = [0.0; 33];
    for direction in [forward, KlDirection::Reverse] {
        let teacher = Distribution::linear(Matrix::new(&given[..6], 2, 3).unwrap(), Matrix::new(&w, 11, 3).unwrap());
        let rows = failing(|l, comm, of| l.kl_divergence(comm, of, teacher, direction).map(|_| ()));
        assert_eq!(rows, "tensor teacher_x: expected 5 rows, as the student has, got 2");
    }
    let nothing = ShardLayout::even(0, 1).unwrap();
    let layer = Operators::new(&Cpu::new(Some(1)).unwrap(), &nothing, 0).unwrap();
    let none = Distribution::logits(Matrix::new(&given[..0], 5, 0).unwrap());
    let sampled = layer.sample(&Local::group(1)[0], none, 1).map(|_| ()).unwrap_err().to_string();
    assert!(sampled.contains("0 classes"), "{sampled}");
    let fewer = Distribution::logits(Matrix::new(&given[..22], 2, 11).unwrap());
    assert!(
        failing(|l, comm, of| l.kl_divergence(comm, of, fewer, forward).map(|_| ()))
            .contains("tensor teacher_logits: expected 5 rows")
    );
}

#[test]
fn errors_of_the_second_phase() {
    let backward = |upstream: ValueGradients<'_>, gradients: Vec<DistributionGradients<'_>>| {
        let gradients = std::cell::RefCell::new(Some(gradients));
        failing(|layer, comm, of| {
            let done = layer.entropy(comm, of)?.start_combine().wait()?;
            layer.backward(comm, &done.ticket, &[of], upstream, gradients.take().unwrap()).map(|_| ())
        })
    };
    let none = ValueGradients::default;
    assert!(backward(none(), vec![]).contains("expected those of 1 distributions of entropy, got 0"));
    let mut short = vec![0.0; 3];
    let dw = DistributionGradients { dw: Some(&mut short), ..Default::default() };
    assert!(backward(none(), vec![dw]).contains("tensor dw: expected 33 elements, got 3"));
    let mut logits = vec![0.0; 55];
    let dlogits = DistributionGradients { dlogits: Some(&mut logits), ..Default::default() };
    assert!(backward(none(), vec![dlogits]).contains("dlogits of given logits"));
    let wrong = ValueGradients { divergence: Some(&[0.0; 5]), ..none() };
    assert!(backward(wrong, vec![DistributionGradients::default()]).contains("none of divergence"));
    let short = ValueGradients { entropy: Some(&[0.0; 4]), ..none() };
    assert!(backward(short, vec![DistributionGradients::default()]).contains("expected 5 elements, got 4"));
}

#[test]
fn ranks_that_disagree_all_know() {
    let case = given(Which::Entropy, 4, 10);
    let data = Data::random(&case);
    let layout = ShardLayout::even(10, 2).unwrap();
    let cpu = Cpu::new(Some(1)).unwrap();
    let errors = vocabfuse::ranks::each(Local::group(2), |rank, comm| {
        let range = layout.range(rank);
        let shard = Matrix::with_stride(&data.logits[0][range.start..], 4, range.len(), 10)?;
        let layer = Operators::new(&cpu, &layout, rank)?;
        let of = Distribution { logit_scale: 1.0 + rank as f32, ..Distribution::logits(shard) };
        Ok::<_, Error>(layer.entropy(&comm, of)?.start_combine().wait().map(|_| ()).unwrap_err().to_string())
    })
    .unwrap();
    assert!(errors[0] == errors[1] && errors[0].contains("ranks disagree"), "{errors:?}");
}

#[test]
fn frozen_operands_change_no_collective() {
    let case = Case { bounds: vec![0, 50, 120], bias: true, ..Case::new(Which::Forward, 20, 16, 120) };
    let data = Data::random(&case);
    let cpu = Cpu::new(Some(2)).unwrap();
    let all = run(&cpu, &case, &data).unwrap().answer;
    let layout = ShardLayout::from_bounds(&case.bounds).unwrap();
    let (x, w) = (&data.x, &data.w);
    // The teacher is detached, the student's X is frozen on all ranks, its W on the first alone.
    let found = vocabfuse::ranks::each(Local::group(2), |rank, comm| {
        let range = layout.range(rank);
        let of = |i: usize| -> Result<Distribution<'_>, Error> {
            let (n, h, v) = (case.tokens, case.hidden[i], case.vocab);
            let weight = Matrix::new(&w[i], v, h)?.row_range(range.clone())?;
            let bias = Some(&data.bias[i][range.clone()]);
            Ok(Distribution { bias, ..Distribution::linear(Matrix::new(&x[i], n, h)?, weight) })
        };
        let layer = Operators::new(&cpu, &layout, rank)?;
        let statistics = layer.kl_divergence(&comm, of(0)?, of(1)?, KlDirection::Forward)?;
        let done = statistics.start_combine().wait()?;
        let upstream = ValueGradients { divergence: Some(&data.rows), ..Default::default() };
        let mut dw = vec![0.0; range.len() * case.hidden[0]];
        let student = DistributionGradients { dw: (rank == 1).then_some(&mut dw), ..Default::default() };
        let both = vec![student, DistributionGradients::default()];
        let gradients = layer.backward(&comm, &done.ticket, &[of(0)?, of(1)?], upstream, both)?;
        let dx = gradients.start_combine().wait()?;
        assert_eq!(dx, [None, None]);
        Ok::<_, Error>((dw, comm.counters()))
    })
    .unwrap();
    assert!(found[0].0.iter().all(|d| *d == 0.0));
    assert_eq!(found[1].0, all.gradients[0].w[50 * 16..]);
    assert!(found.iter().all(|(_, counters)| (counters.barriers, counters.launches) == (2, 2)));
}
