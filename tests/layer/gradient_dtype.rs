//! dW in the type of W: sums are f32 and rounded once, added to what is there or in its place.

use crate::common::{Case, Tensors, amx, devices, run};
use half::{bf16, f16};
use vocabfuse_runtime::{
    Batch, Cpu, CrossEntropy, Device, Dtype, Element, Error, GradientMut, Gradients, Local, Matrix, Operands,
    OutputLayer, Policy, Save, Shard, ShardLayout, Target, Upstream,
};

/// Classes, and the rows of W with padding.
const CLASSES: usize = 699;
const ROWS: usize = 700;

/// dW of the case by one rank, which pass T puts into `dw`.
fn put<T: Element, D: Device>(
    device: &D,
    case: &Case,
    tensors: &Tensors,
    from: fn(f32) -> T,
    dw: GradientMut<'_>,
) -> Result<(), Error> {
    let x: Vec<T> = tensors.x.iter().map(|v| from(*v)).collect();
    let mut w: Vec<T> = tensors.w.iter().map(|v| from(*v)).collect();
    w.resize(ROWS * case.hidden, from(f32::NAN));
    let layout = ShardLayout::padded(CLASSES, 1)?;
    let layer = OutputLayer::new(device, &layout, 0, case.loss, case.policy)?;
    let batch = Batch::new(Matrix::new(&x, case.tokens, case.hidden)?, &tensors.targets);
    let weight = Matrix::new(&w, layout.range(0).len(), case.hidden)?;
    let shard = Shard { weight, bias: None };
    let done = layer.s_pass(&Local::group(1)[0], batch, shard)?.start_combine().wait()?;
    layer
        .t_pass(done.weight_grad, Operands::new(batch.x, shard), Gradients { dw, dbias: None }, Upstream::One)
        .map(|_| ())
}

fn in_its_own_type<T: Element>(cpu: &Cpu, save: Save, from: fn(f32) -> T, wide: fn(T) -> f32) {
    // Kernels round the sums of few tokens themselves, those of more are gathered first.
    for tokens in [100, 1100] {
        of_tokens(cpu, save, tokens, from, wide);
    }
}

fn of_tokens<T: Element>(cpu: &Cpu, save: Save, tokens: usize, from: fn(f32) -> T, wide: fn(T) -> f32) {
    let policy = Policy { save, ..Policy::default() };
    let case = Case { dtype: T::DTYPE, policy, ..Case::new(tokens, 40, CLASSES) };
    let tensors = Tensors::random(&case);
    let exact = run(cpu, &case, &tensors).unwrap().out.dw;
    let what = format!("{} {:?} {save} {tokens} tokens", cpu.name(), T::DTYPE);

    let mut dw = vec![from(3.0); ROWS * case.hidden];
    put(cpu, &case, &tensors, from, GradientMut::from(&mut dw).overwriting()).unwrap();
    for (got, want) in dw.iter().zip(&exact) {
        assert_eq!(wide(*got), wide(from(*want)), "{what}");
    }
    assert!(dw[CLASSES * case.hidden..].iter().all(|v| wide(*v) == 0.0), "{what}: padding");

    if T::DTYPE != Dtype::F32 {
        added_to(cpu, &case, &tensors, from, wide, &exact);
    }
    let mut dw = vec![f32::NAN; ROWS * case.hidden];
    put(cpu, &case, &tensors, from, GradientMut::from(&mut dw).overwriting()).unwrap();
    assert!(crate::common::same(&dw[..exact.len()], &exact), "{what}: f32 overwritten");
}

fn added_to<T: Element>(
    cpu: &Cpu,
    case: &Case,
    tensors: &Tensors,
    from: fn(f32) -> T,
    wide: fn(T) -> f32,
    exact: &[f32],
) {
    let what = format!("{} {:?}", cpu.name(), T::DTYPE);
    let mut dw: Vec<T> = (0..ROWS * case.hidden).map(|i| from((i % 7) as f32 * 1e-4)).collect();
    let before: Vec<f32> = dw.iter().map(|v| wide(*v)).collect();
    put(cpu, case, tensors, from, (&mut dw).into()).unwrap();
    for ((got, want), before) in dw.iter().zip(exact).zip(&before) {
        assert_eq!(wide(*got), wide(from(before + want)), "{what}");
    }
    let padding = CLASSES * case.hidden..;
    assert!(dw[padding.clone()].iter().zip(&before[padding]).all(|(a, b)| wide(*a) == *b), "{what}: padding");
}

#[test]
fn a_narrow_gradient_is_the_f32_one_rounded_once() {
    for cpu in devices(2).into_iter().chain(amx(2)) {
        for save in [Save::Yes, Save::No] {
            in_its_own_type::<bf16>(&cpu, save, bf16::from_f32, bf16::to_f32);
            if cpu.target() != Target::Amx {
                in_its_own_type::<f16>(&cpu, save, f16::from_f32, f16::to_f32);
                in_its_own_type::<f32>(&cpu, save, |v| v, |v| v);
            }
        }
    }
}

#[test]
fn no_token_that_counts_leaves_zeros_where_it_overwrites() {
    let cpu = Cpu::new(Some(1)).unwrap();
    let loss = CrossEntropy { ignore_index: Some(-1), ..CrossEntropy::default() };
    let case = Case { loss, dtype: Dtype::Bf16, ..Case::new(3, 8, CLASSES) };
    let tensors = Tensors { targets: vec![-1; 3], ..Tensors::random(&case) };
    let mut dw = vec![bf16::ONE; ROWS * case.hidden];
    put(&cpu, &case, &tensors, bf16::from_f32, GradientMut::from(&mut dw).overwriting()).unwrap();
    assert!(dw.iter().all(|v| *v == bf16::ZERO));
}

#[test]
fn another_type_is_refused() {
    let cpu = Cpu::new(Some(1)).unwrap();
    let case = Case { dtype: Dtype::Bf16, ..Case::new(3, 8, CLASSES) };
    let tensors = Tensors::random(&case);
    let mut dw = vec![f16::ZERO; ROWS * case.hidden];
    let error = put(&cpu, &case, &tensors, bf16::from_f32, (&mut dw).into()).unwrap_err().to_string();
    assert!(error.contains("dw") && error.contains("bf16") && error.contains("f16"), "{error}");
}

/// Rounded as a number, these carry into the exponent and become zeros.
const NANS: [u32; 2] = [0x7fff_ffff, 0xffff_ffff];

#[test]
fn a_nan_of_any_payload_reaches_a_narrow_gradient() {
    let (tokens, hidden) = (9, 24);
    for cpu in devices(1).into_iter().chain(amx(1)) {
        for save in [Save::Yes, Save::No] {
            for bits in NANS {
                reaches::<bf16>(&cpu, save, f32::from_bits(bits), tokens, hidden, bf16::from_f32, bf16::to_f32);
                if cpu.target() != Target::Amx {
                    reaches::<f16>(&cpu, save, f32::from_bits(bits), tokens, hidden, f16::from_f32, f16::to_f32);
                }
            }
        }
    }
}

fn reaches<T: Element>(
    cpu: &Cpu,
    save: Save,
    nan: f32,
    tokens: usize,
    hidden: usize,
    from: fn(f32) -> T,
    wide: fn(T) -> f32,
) {
    let layout = ShardLayout::even(CLASSES, 1).unwrap();
    let (x, w) = (vec![from(0.5); tokens * hidden], vec![from(0.25); CLASSES * hidden]);
    let targets: Vec<i64> = (0..tokens as i64).collect();
    let mut bias = vec![0.0; CLASSES];
    bias[7] = nan;
    let policy = Policy { save, ..Policy::default() };
    let layer = OutputLayer::new(cpu, &layout, 0, CrossEntropy::default(), policy).unwrap();
    let batch = Batch::new(Matrix::new(&x, tokens, hidden).unwrap(), &targets);
    let shard = Shard { weight: Matrix::new(&w, CLASSES, hidden).unwrap(), bias: Some(&bias) };
    let comm = &Local::group(1)[0];
    let done = layer.s_pass(comm, batch, shard).unwrap().start_combine().wait().unwrap();
    let mut dw = vec![from(3.0); CLASSES * hidden];
    layer
        .t_pass(
            done.weight_grad,
            Operands::new(batch.x, shard),
            Gradients { dw: (&mut dw).into(), dbias: None },
            Upstream::One,
        )
        .unwrap();
    let numbers = dw.iter().filter(|v| !wide(**v).is_nan()).count();
    assert_eq!(numbers, 0, "of dW on {} in {:?} {save} with {:#x}", cpu.name(), T::DTYPE, nan.to_bits());
}
