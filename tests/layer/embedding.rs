//! The input layer against the f64 reference, on every CPU target and on the PTX interpreter.

use crate::common::embedding::{Case, Tensors, check, cpus, everywhere, run};
use crate::common::{interpreter, same, worst_row};
use half::bf16;
use proptest::prelude::*;
use vocabfuse::problem::embedding::Embedding;
use vocabfuse::problem::{self, Problem};
use vocabfuse::ranks::{each, split_rows};
use vocabfuse::reference;
use vocabfuse_runtime::{
    Batch, Counters, Cpu, CrossEntropy, Device, Dtype, Error, Gradients, InputLayer, Local, Matrix, Operands,
    OutputLayer, Policy, Shard, ShardLayout, Target, Upstream,
};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

#[test]
fn every_device_agrees_on_every_layout() {
    for bounds in
        [&[0, 37][..], &[0, 20, 37], &[0, 3, 30, 37], &[0, 0, 10, 10, 36, 37], &[0, 37, 37], &[0, 8, 16, 24, 32, 37]]
    {
        for dtype in DTYPES {
            for gradient in [Dtype::F32, dtype] {
                let case = Case { dtype, gradient, padding: Some(2), ..Case::new(41, 19, bounds) };
                everywhere(&case, &case.tensors());
            }
        }
    }
}

#[test]
fn sizes_of_one_and_none() {
    for (tokens, hidden, bounds) in [
        (0, 4, &[0, 9][..]),
        (0, 4, &[0, 0, 9]),
        (1, 1, &[0, 1]),
        (1, 1, &[0, 0, 1, 1]),
        (5, 1, &[0, 1, 2]),
        (3, 300, &[0, 2]),
    ] {
        for dtype in DTYPES {
            let case = Case { dtype, ..Case::new(tokens, hidden, bounds) };
            everywhere(&case, &case.tensors());
        }
    }
    // Nothing can be asked of an empty table.
    let empty = Case { ids: vec![], layout: ShardLayout::even(0, 2).unwrap(), ..Case::new(0, 4, &[0, 1]) };
    everywhere(&empty, &empty.tensors());
}

#[test]
fn one_id_may_have_all_tokens() {
    for dtype in DTYPES {
        let case = Case { ids: vec![11; 700], dtype, gradient: dtype, ..Case::new(0, 600, &[0, 5, 12, 20]) };
        let run = everywhere(&case, &case.tensors());
        assert!(run.dw[..11 * 600].iter().all(|v| *v == 0.0));
    }
}

#[test]
fn many_equal_ids_lose_one_rounding() {
    for (gradient, dy) in [(Dtype::F32, 0.1f32), (Dtype::Bf16, 0.100_097_656), (Dtype::F16, 0.099_975_586)] {
        let case = Case { ids: vec![0; 1 << 16], dtype: gradient, gradient, ..Case::new(0, 1, &[0, 2]) };
        for (before, sign) in [(0.0, 1.0), (3.0, -1.0)] {
            let tensors = Tensors { dy: vec![sign * dy; 1 << 16], before, ..case.tensors() };
            let sum = f64::from(before) + f64::from(sign * dy) * f64::from(1 << 16);
            assert_eq!(everywhere(&case, &tensors).dw, [sum as f32, before], "{gradient}");
        }
    }
}

#[test]
fn infinite_gradients_of_equal_ids_add_up_as_numbers_do() {
    let case = Case { ids: vec![0, 1, 0, 1, 0], ..Case::new(0, 1, &[0, 2]) };
    let tensors = Tensors { dy: vec![1.0, f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, 1.0], ..case.tensors() };
    for cpu in cpus(2, case.dtype) {
        let dw = run(&cpu, &case, &tensors).unwrap().dw;
        assert!(dw[0] == f32::INFINITY && dw[1].is_nan(), "{dw:?} on {}", cpu.name());
    }
}

#[test]
fn the_padding_id_has_a_row_and_no_gradient() {
    let case = Case { padding: Some(30), ids: vec![30, 1, 30, 2, 30], ..Case::new(0, 8, &[0, 15, 37]) };
    let tensors = case.tensors();
    let run = everywhere(&case, &tensors);
    assert!(same(&run.y[..8], &tensors.w[30 * 8..31 * 8]));
    assert!(run.dw[30 * 8..31 * 8].iter().all(|v| *v == 0.0));
    let every = Case { padding: None, ..case };
    assert!(everywhere(&every, &tensors).dw[30 * 8..31 * 8].iter().any(|v| *v != 0.0));
}

#[test]
fn gradients_are_added_to_what_is_there() {
    for dtype in DTYPES {
        let case = Case { dtype, gradient: dtype, ..Case::new(30, 12, &[0, 20, 37]) };
        let tensors = Tensors { before: 7.0, ..case.tensors() };
        everywhere(&case, &tensors);
    }
}

#[test]
fn rows_that_pad_the_vocabulary_are_no_ids() {
    let layout = ShardLayout::padded(21, 3).unwrap();
    assert_eq!((layout.stored(), layout.classes(2)), (24, 5));
    let case = Case { layout, ..Case::new(30, 12, &[0, 21]) };
    everywhere(&case, &case.tensors());
    refused(&case, 21);
    refused(&case, 23);
}

/// An id that is out of range is the same error on every rank, before any row is read and anything is communicated.
fn refused(case: &Case, bad: i64) {
    fn on<D: Device>(device: &D, case: &Case, bad: i64) {
        let vocab = case.layout.vocab();
        let mut ids = case.ids.clone();
        ids[7] = bad;
        let w = case.tensors().w;
        let w = Matrix::new(&w, case.layout.stored(), case.hidden).unwrap();
        let errors = each(Local::group(case.layout.ranks()), |rank, comm| {
            let layer = InputLayer::new(device, &case.layout, rank, None).unwrap();
            let found = layer.lookup(&comm, &ids, w.row_range(case.layout.range(rank)).unwrap());
            assert_eq!(comm.counters(), Counters::default());
            Ok::<_, Error>(found.map(|_| ()).unwrap_err())
        });
        let expected = Error::Id { tensor: "ids", position: 7, id: bad, vocab };
        assert!(errors.unwrap().iter().all(|e| *e == expected));
    }
    cpus(1, Dtype::F32).iter().for_each(|cpu| on(cpu, case, bad));
    let Some((ptx, gpu)) = interpreter() else { return };
    on(&gpu, case, bad);
    assert_eq!(ptx.take_report().launches, 0);
}

#[test]
fn ids_out_of_range_are_the_same_error_on_all_ranks() {
    let case = Case::new(20, 5, &[0, 10, 10, 37]);
    for bad in [-1, 37, 38, -100, 1 << 31, 1 << 32, (1 << 32) + 3, i64::MIN, i64::MAX] {
        refused(&case, bad);
    }
    let message = Error::Id { tensor: "ids", position: 7, id: 37, vocab: 37 }.to_string();
    assert_eq!(message, "tensor ids: position 7 has 37; expected an id in 0..37");
}

#[test]
fn rows_travel_once_and_a_frozen_table_changes_no_collective() {
    for dtype in DTYPES {
        let case = Case { dtype, ..Case::new(41, 19, &[0, 3, 3, 37]) };
        let tensors = case.tensors();
        let trained = everywhere(&case, &tensors);
        assert!(trained.counters.iter().all(|c| (c.barriers, c.launches) == (1, 1)));
        let owned = |rank| case.ids.iter().filter(|id| case.layout.range(rank).contains(&(**id as usize))).count();
        for (rank, counters) in trained.counters.iter().enumerate() {
            assert_eq!(counters.bytes as usize, owned(rank) * 19 * dtype.size(), "rank {rank}");
        }
        let frozen = Case { frozen: true, ..case };
        let Some((_, gpu)) = interpreter() else { continue };
        for frozen in [run(&Cpu::new(Some(1)).unwrap(), &frozen, &tensors), run(&gpu, &frozen, &tensors)] {
            let frozen = frozen.unwrap();
            assert_eq!(frozen.counters, trained.counters);
            assert!(same(&frozen.y, &trained.y) && frozen.dw.iter().all(|v| *v == 0.0));
        }
    }
}

#[test]
fn threads_ranks_and_schedules_change_no_bit() {
    for dtype in DTYPES {
        let case = Case { dtype, gradient: dtype, ..Case::new(900, 530, &[0, 101]) };
        let tensors = case.tensors();
        let first = run(&Cpu::new(Some(1)).unwrap(), &case, &tensors).unwrap();
        check(&case, &tensors, &first).unwrap();
        for threads in [1, 2, 3, 7] {
            let cpu = Cpu::new(Some(threads)).unwrap();
            for bounds in [&[0, 101][..], &[0, 1, 101], &[0, 50, 50, 60, 90, 101]] {
                let layout = ShardLayout::from_bounds(bounds).unwrap();
                let other = run(&cpu, &Case { layout, ..case.clone() }, &tensors).unwrap();
                assert!(same(&first.y, &other.y) && same(&first.dw, &other.dw), "{threads} threads, {bounds:?}");
            }
        }
        let few = Case { ids: case.ids[..60].to_vec(), ..case };
        let tensors = Tensors { dy: tensors.dy[..60 * 530].to_vec(), ..tensors };
        let Some((ptx, gpu)) = interpreter() else { continue };
        let here = run(&Cpu::new(Some(2)).unwrap(), &few, &tensors).unwrap();
        for seed in 0..4 {
            ptx.reseed(seed);
            let other = run(&gpu, &few, &tensors).unwrap();
            assert!(same(&here.dw, &other.dw) && ptx.take_report().is_clean(), "schedule {seed}");
        }
    }
}

/// A table that is also the weight of the output layer: one W, one dW, and both gradients in it. The error of the worst row of dW.
fn tied<D: Device>(device: &D, dtype: Dtype, embedding_first: bool) -> f64 {
    let case = Case { dtype, ..Case::new(24, 16, &[0, 17, 17, 40]) };
    let tensors = case.tensors();
    let (n, h, v) = (24, 16, 40);
    let narrow: Vec<bf16> = tensors.w.iter().map(|v| bf16::from_f32(*v)).collect();
    let w = if dtype == Dtype::F32 { Matrix::new(&tensors.w, v, h) } else { Matrix::new(&narrow, v, h) }.unwrap();
    let targets: Vec<i64> = case.ids.iter().map(|id| (id + 1) % v as i64).collect();
    let mut dw = vec![0.0f32; v * h];
    let parts = split_rows(&mut dw, h, (0..3).map(|r| case.layout.range(r)));
    let items: Vec<_> = Local::group(3).into_iter().zip(parts).collect();
    each(items, |rank, (comm, dw)| {
        let shard = w.row_range(case.layout.range(rank))?;
        let input = InputLayer::new(device, &case.layout, rank, None)?;
        let output = OutputLayer::new(device, &case.layout, rank, CrossEntropy::default(), Policy::default())?;
        let embedded = input.lookup(&comm, &case.ids, shard)?.start_select().wait()?;
        let batch = Batch::new(embedded.x.view(), &targets);
        let of_rank = Shard { weight: shard, bias: None };
        let done = output.s_pass(&comm, batch, of_rank)?.start_combine().wait()?;
        let operands = Operands::new(batch.x, of_rank);
        assert_eq!(comm.counters().barriers, 2);
        let dx = Matrix::new(&done.dx, n, h)?;
        if embedding_first {
            input.backward(&embedded.table_grad, dx, dw)?;
            output.t_pass(done.weight_grad, operands, Gradients { dw: dw.into(), dbias: None }, Upstream::One)?;
        } else {
            output.t_pass(
                done.weight_grad,
                operands,
                Gradients { dw: (&mut *dw).into(), dbias: None },
                Upstream::One,
            )?;
            input.backward(&embedded.table_grad, dx, dw)?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();

    let wide: Vec<f64> = tensors.w.iter().map(|v| f64::from(*v)).collect();
    let lookup = Embedding { w: &wide, ids: &case.ids, upstream: None, padding: None, hidden: h, vocab: v };
    let x = reference::embedding(&lookup).unwrap().y;
    let loss = Problem::new(&x, &wide, &targets, h, problem::Options::default());
    let loss = reference::cross_entropy(&loss).unwrap();
    let gradient = reference::embedding(&Embedding { upstream: Some(&loss.dx), ..lookup }).unwrap().dw.unwrap();
    let sum: Vec<f64> = loss.dw.iter().zip(&gradient).map(|(a, b)| a + b).collect();
    worst_row(&dw, &sum, h, 0.0)
}

#[test]
fn a_tied_table_gets_both_gradients() {
    for embedding_first in [true, false] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for cpu in cpus(2, dtype) {
                if dtype == Dtype::F32 || cpu.target() != Target::Amx {
                    let error = tied(&cpu, dtype, embedding_first);
                    assert!(error < if dtype == Dtype::F32 { 2e-6 } else { 1e-2 }, "{error:e} on {}", cpu.name());
                }
            }
        }
        let Some((ptx, gpu)) = interpreter() else { continue };
        let error = tied(&gpu, Dtype::Bf16, embedding_first);
        assert!(error < 1e-2 && ptx.take_report().is_clean(), "{error:e}");
    }
}

#[test]
fn ranks_that_disagree_get_the_same_error() {
    let layout = ShardLayout::from_bounds(&[0, 4, 9]).unwrap();
    let w: Vec<f32> = (0..9 * 6).map(|i| i as f32).collect();
    // What rank 1 does differently: ids, H, the padding id, the operator.
    for fault in 0..4 {
        let results = each(Local::group(2), |rank, comm| {
            let odd = |which| rank == 1 && fault == which;
            let (hidden, cpu) = (if odd(1) { 5 } else { 6 }, Cpu::new(Some(1))?);
            let rows = layout.range(rank).len();
            let table = Matrix::with_stride(&w[layout.range(rank).start * 6..], rows, hidden, 6)?;
            let ids = if odd(0) { [1, 8, 2] } else { [1, 8, 3] };
            if odd(3) {
                let layer = OutputLayer::new(&cpu, &layout, rank, CrossEntropy::default(), Policy::default())?;
                let batch = Batch::new(Matrix::new(&w[..18], 3, 6)?, &ids);
                let partial = layer.s_pass(&comm, batch, Shard { weight: table, bias: None })?;
                return Ok::<_, Error>(partial.start_combine().wait().map(|_| ()).unwrap_err());
            }
            let layer = InputLayer::new(&cpu, &layout, rank, odd(2).then_some(3))?;
            Ok(layer.lookup(&comm, &ids, table)?.start_select().wait().map(|_| ()).unwrap_err())
        })
        .unwrap();
        assert!(matches!(results[0], Error::Disagreement { rank: 1, .. }), "{fault}: {results:?}");
        assert_eq!(results[0], results[1]);
    }
}

#[test]
fn a_rank_that_leaves_ends_the_collective() {
    let layout = ShardLayout::from_bounds(&[0, 4, 9]).unwrap();
    let w = vec![1.0f32; 9 * 6];
    for contributes in [false, true] {
        let errors = each(Local::group(2), |rank, comm| {
            let layer = InputLayer::new(&Cpu::new(Some(1))?, &layout, rank, None)?;
            let table = Matrix::new(&w, 9, 6)?.row_range(layout.range(rank))?;
            if rank == 1 && !contributes {
                return Ok(None);
            }
            let selecting = layer.lookup(&comm, &[1, 8, 3], table)?.start_select();
            if rank == 1 { Ok(None) } else { Ok::<_, Error>(selecting.wait().err()) }
        });
        assert_eq!(errors.unwrap()[0], Some(Error::RankGone { rank: 1 }));
    }
}

#[test]
fn wrong_shapes_name_the_tensor() {
    let layout = ShardLayout::from_bounds(&[0, 4, 9]).unwrap();
    let cpu = Cpu::new(Some(1)).unwrap();
    let w = vec![1.0f32; 9 * 6];
    let full = Matrix::new(&w, 9, 6).unwrap();
    let layer = InputLayer::new(&cpu, &layout, 1, None).unwrap();
    let group = Local::group(2);
    let lookup = |table| layer.lookup(&group[1], &[1, 8], table).map(|_| ()).unwrap_err().to_string();
    assert_eq!(lookup(full), "tensor w: expected the 5 rows 4..9 of rank 1, got 9 rows");
    assert!(lookup(Matrix::new(&w[..0], 5, 0).unwrap()).starts_with("tensor w: expected 1 to"));
    let option = |padding| InputLayer::new(&cpu, &layout, 0, Some(padding)).unwrap_err().to_string();
    assert_eq!(option(9), "option padding_idx: expected an id in 0..9, got 9");
    assert_eq!(option(-1), "option padding_idx: expected an id in 0..9, got -1");
    assert!(InputLayer::new(&cpu, &layout, 2, None).is_err());

    let alone = ShardLayout::even(9, 1).unwrap();
    let layer = InputLayer::new(&cpu, &alone, 0, None).unwrap();
    assert!(matches!(layer.lookup(&group[0], &[1], full).map(|_| ()), Err(Error::Layout(_))));
    let comm = Local::group(1).remove(0);
    let backward = |dy: Matrix<'_>, dw: usize| {
        let done = layer.lookup(&comm, &[1, 8], full).unwrap().start_select().wait().unwrap();
        assert_eq!(done.x.to_f32().len(), 12);
        assert!(done.x.elements::<bf16>().is_none());
        layer.backward(&done.table_grad, dy, &mut vec![0.0; dw]).unwrap_err().to_string()
    };
    let rows = |rows| Matrix::new(&w[..rows * 6], rows, 6).unwrap();
    assert_eq!(backward(rows(3), 54), "tensor dy: expected 2 x 6, as x has, got 3 x 6");
    assert_eq!(backward(rows(2), 53), "tensor dw: expected 54 elements, got 53");
}

/// Rows beyond 2^31 elements, in memory of which only the pages that are touched exist.
#[test]
#[cfg(target_pointer_width = "64")]
fn offsets_have_64_bits() {
    let (rows, h) = ((1 << 28) + 10, 8);
    // An allocator may write its zeros, the system does not.
    let zeros = |bytes: usize| memmap2::MmapMut::map_anon(bytes).unwrap();
    let (mut w, mut dw) = (zeros(rows * h * size_of::<bf16>()), zeros(rows * h * size_of::<f32>()));
    let w: &mut [bf16] = bytemuck::cast_slice_mut(&mut w);
    let dw: &mut [f32] = bytemuck::cast_slice_mut(&mut dw);
    let last = rows - 1;
    assert!(last * h > i32::MAX as usize);
    w[last * h..].fill(bf16::from_f32(3.0));
    w[5 * h..6 * h].fill(bf16::from_f32(5.0));
    let layout = ShardLayout::even(rows, 1).unwrap();
    let comm = Local::group(1).remove(0);
    let dy = [1.0f32; 24];
    let mut times = 0.0;
    let mut all = |layer: &dyn Fn(&mut [f32]) -> Vec<f32>| {
        times += 1.0;
        let x = layer(dw);
        assert_eq!((&x[..8], &x[8..16], &x[16..]), (&[3.0; 8][..], &[5.0; 8][..], &[3.0; 8][..]));
        assert_eq!(&dw[last * h..], [2.0 * times; 8]);
        assert_eq!((&dw[5 * h..6 * h], &dw[6 * h..7 * h]), (&[times; 8][..], &[0.0; 8][..]));
    };
    fn on<D: Device>(
        device: &D,
        layout: &ShardLayout,
        w: Matrix<'_>,
        comm: &Local,
        dy: &[f32],
        dw: &mut [f32],
    ) -> Vec<f32> {
        let last = layout.vocab() as i64 - 1;
        let layer = InputLayer::new(device, layout, 0, None).unwrap();
        let ids = [last, 5, last];
        let done = layer.lookup(comm, &ids, w).unwrap().start_select().wait().unwrap();
        layer.backward(&done.table_grad, Matrix::new(dy, 3, 8).unwrap(), dw).unwrap();
        done.x.to_f32()
    }
    let w = Matrix::new(w, rows, h).unwrap();
    for cpu in cpus(1, Dtype::Bf16) {
        all(&|dw| on(&cpu, &layout, w, &comm, &dy, dw));
    }
    let Some((_, gpu)) = interpreter() else { return };
    all(&|dw| on(&gpu, &layout, w, &comm, &dy, dw));
}

fn any_case() -> impl Strategy<Value = Case> {
    let shape = (0..120usize, 1..300usize, 1..90usize);
    let cuts = prop::collection::vec(0.0..1.0f64, 0..5);
    let dtype = || prop_oneof![Just(Dtype::F32), Just(Dtype::Bf16), Just(Dtype::F16)];
    (shape, cuts, dtype(), dtype(), any::<Option<u16>>(), any::<u64>()).prop_map(
        |((tokens, hidden, vocab), cuts, dtype, gradient, padding, seed)| {
            // Uneven cuts; equal ones give empty shards.
            let mut bounds: Vec<usize> = cuts.iter().map(|c| (c * (vocab + 1) as f64) as usize).collect();
            bounds.extend([0, vocab]);
            bounds.sort_unstable();
            let padding = padding.map(|p| i64::from(p) % vocab as i64);
            Case { dtype, gradient, padding, seed, ..Case::new(tokens, hidden, &bounds) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::common::cases(64), ..ProptestConfig::default() })]

    #[test]
    fn every_device_agrees_with_the_reference(case in any_case()) {
        everywhere(&case, &case.tensors());
    }
}
