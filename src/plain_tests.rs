use super::*;
use crate::problem::{Options, Reduction};
use crate::reference::{self, largest_error};

struct Data {
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Vec<f32>,
    upstream: Vec<f32>,
    targets: Vec<i64>,
}

const N: usize = 37;
const H: usize = 24;
const V: usize = 1111;

fn data(dtype: Dtype) -> Data {
    let values = |count: usize, seed: usize| {
        let mut values: Vec<f32> =
            (0..count).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0).collect();
        round(&mut values, dtype);
        values
    };
    let targets = (0..N as i64).map(|i| if i % 5 == 3 { -100 } else { i * 31 % V as i64 }).collect();
    Data { x: values(N * H, 1), w: values(V * H, 2), bias: values(V, 3), upstream: values(N, 4), targets }
}

fn errors(dtype: Dtype, options: Options) -> [f64; 5] {
    let data = data(dtype);
    let plain = Problem {
        bias: Some(&data.bias),
        upstream: Some(&data.upstream),
        ..Problem::new(&data.x, &data.w, &data.targets, H, options)
    };
    let got = cross_entropy(&plain, dtype).unwrap();
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
    let (x, w, bias, upstream) = (wide(&data.x), wide(&data.w), wide(&data.bias), wide(&data.upstream));
    let exact =
        Problem { bias: Some(&bias), upstream: Some(&upstream), ..Problem::new(&x, &w, &data.targets, H, options) };
    let want = reference::cross_entropy(&exact).unwrap();
    [
        largest_error(&got.loss, &want.loss),
        largest_error(&got.lse, &want.lse),
        largest_error(&got.dx, &want.dx),
        largest_error(&got.dw, &want.dw),
        largest_error(&got.dbias.unwrap(), &want.dbias.unwrap()),
    ]
}

#[test]
fn agrees_with_the_reference_to_the_precision_of_the_dtype() {
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        for (dtype, bound) in [(Dtype::F32, 2e-6), (Dtype::F16, 4e-3), (Dtype::Bf16, 2e-2)] {
            let options = Options { logit_scale: 1.3, reduction, ..Options::default() };
            let more = Options { softcap: Some(2.0), label_smoothing: 0.2, z_loss: 0.1, ..options };
            for error in errors(dtype, options).into_iter().chain(errors(dtype, more)) {
                assert!(error < bound, "{reduction:?} {dtype}: {error}");
            }
        }
    }
}

#[test]
fn odd_rows_follow_the_contract() {
    let ninf = f32::NEG_INFINITY;
    let options = Options { reduction: Reduction::None, ..Options::default() };
    let problem = Problem::new(&[1.0, f32::NAN, 2.0], &[1.0, -1.0], &[0, 1, -100], 1, options);
    let out = cross_entropy(&problem, Dtype::F32).unwrap();
    assert!(out.loss[0].is_finite() && out.loss[1].is_nan() && out.loss[2] == 0.0);
    assert!(out.dx[0].is_finite() && out.dx[1].is_nan() && out.dx[2] == 0.0);
    let masked = Problem { x: &[1.0, 1.0, 1.0], bias: Some(&[ninf, ninf]), ..problem };
    let out = cross_entropy(&masked, Dtype::Bf16).unwrap();
    assert!(out.loss[0].is_nan() && out.lse[0] == ninf);
    assert_eq!((out.dx, out.dw), (vec![0.0; 3], vec![0.0; 2]));
}

#[test]
fn the_weight_gradient_needs_its_own_problem() {
    let problem = Problem::new(&[1.0], &[1.0, -1.0], &[0], 1, Options::default());
    let mut out = Outputs::default();
    assert!(Composition::new(Dtype::F32).weight_gradient(&problem, &mut out).is_err());
}
