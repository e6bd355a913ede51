use super::*;
use crate::problem::{Options, Reduction};

const H: usize = 3;
const V: usize = 5;
const TARGETS: [i64; 4] = [2, -100, 0, 4];

fn values(count: usize, seed: u64) -> Vec<f64> {
    (0..count as u64).map(|i| ((i * 7919 + seed * 104_729) % 1000) as f64 / 500.0 - 1.0).collect()
}

struct Case {
    x: Vec<f64>,
    w: Vec<f64>,
    bias: Vec<f64>,
    upstream: Option<Vec<f64>>,
    lse_upstream: Option<Vec<f64>>,
    token_weights: Option<Vec<f64>>,
    class_weights: Option<Vec<f64>>,
    options: Options,
}

impl Case {
    fn new(options: Options) -> Case {
        let (upstream, lse_upstream, token_weights, class_weights) = (None, None, None, None);
        let (x, w, bias) = (values(4 * H, 1), values(V * H, 2), values(V, 3));
        Case { x, w, bias, upstream, lse_upstream, token_weights, class_weights, options }
    }

    fn problem(&self) -> Problem<'_, f64> {
        Problem {
            bias: Some(&self.bias),
            upstream: self.upstream.as_deref(),
            lse_upstream: self.lse_upstream.as_deref(),
            token_weights: self.token_weights.as_deref(),
            class_weights: self.class_weights.as_deref(),
            ..Problem::new(&self.x, &self.w, &TARGETS, H, self.options)
        }
    }

    fn run(&self) -> Outputs<f64> {
        cross_entropy(&self.problem()).unwrap()
    }

    /// What the gradients are the derivative of: the losses, and lse, weighted by upstream.
    fn objective(&self) -> f64 {
        let value = |values: &Option<Vec<f64>>, i: usize, rest: f64| values.as_ref().map_or(rest, |v| v[i]);
        let of = |z_loss| {
            let options = Options { reduction: Reduction::None, z_loss, ..self.options };
            let out = cross_entropy(&Problem { options, ..self.problem() }).unwrap();
            let sum: f64 = out.loss.iter().enumerate().map(|(i, l)| value(&self.upstream, i, 1.0) * l).sum();
            (sum, out.lse)
        };
        let (all, lse) = of(self.options.z_loss);
        let by_lse: f64 = lse.iter().enumerate().map(|(i, l)| value(&self.lse_upstream, i, 0.0) * l).sum();
        let loss = match (self.options.reduction, self.options.normalizer) {
            (Reduction::Mean, Some(normalizer)) => all / normalizer,
            (Reduction::Mean, None) => {
                let tokens = [0, 2, 3].map(|token| value(&self.token_weights, token, 1.0));
                let targets = [2, 0, 4].map(|class| value(&self.class_weights, class, 1.0));
                let weights: f64 = tokens.iter().zip(targets).map(|(token, target)| token * target).sum();
                let (without, _) = of(0.0);
                without / weights + (all - without) / tokens.iter().sum::<f64>()
            }
            _ => all,
        };
        loss + by_lse
    }

    fn numerical(&mut self, part: fn(&mut Case) -> &mut Vec<f64>) -> Vec<f64> {
        const STEP: f64 = 1e-5;
        let mut derivative = |i: usize| {
            let mut at = |delta: f64| {
                part(self)[i] += delta;
                let value = self.objective();
                part(self)[i] -= delta;
                value
            };
            (at(STEP) - at(-STEP)) / (2.0 * STEP)
        };
        let count = part(&mut Case::new(Options::default())).len();
        (0..count).map(&mut derivative).collect()
    }
}

#[test]
fn the_slope_of_a_cap_has_its_digits_where_logits_reach_it() {
    // ±20 capped at 1: the derivative of tanh is 4 e^-40 there, and 1 - tanh² is zero in f64.
    let (x, w) = ([20.0], [1.0, -1.0]);
    let options = Options { softcap: Some(1.0), ..Options::default() };
    let problem = Problem { bias: Some(&[0.0; 2]), vocab: 2, ..Problem::new(&x, &w, &[0], 1, options) };
    let dbias = cross_entropy(&problem).unwrap().dbias.unwrap();
    let want = -4.0 * (-40.0f64).exp() / (1.0 + 2.0f64.exp());
    assert!((dbias[0] / want - 1.0).abs() < 1e-12 && (dbias[1] / want + 1.0).abs() < 1e-12, "{dbias:?} for {want}");
}

#[test]
fn gradients_are_the_derivatives_of_the_loss() {
    let normalizer = Some(7.5);
    for options in [
        Options { reduction: Reduction::None, ..Options::default() },
        Options { reduction: Reduction::Sum, logit_scale: 1.7, ..Options::default() },
        Options { reduction: Reduction::Mean, ..Options::default() },
        Options { reduction: Reduction::Mean, normalizer, logit_scale: -0.5, ..Options::default() },
    ] {
        for upstream in [None, Some(vec![0.5, 3.0, -2.0, 1.25])] {
            let mut case = Case::new(options);
            case.upstream = upstream;
            let out = case.run();
            assert!(largest_error(&out.dx, &case.numerical(|c| &mut c.x)) < 1e-8, "{options:?}");
            assert!(largest_error(&out.dw, &case.numerical(|c| &mut c.w)) < 1e-8, "{options:?}");
            assert!(largest_error(&out.dbias.unwrap(), &case.numerical(|c| &mut c.bias)) < 1e-8, "{options:?}");
        }
    }
}

#[test]
fn gradients_are_the_derivatives_with_every_mix_of_options() {
    for mix in 0..128 {
        let has = |bit: usize| mix >> bit & 1 == 1;
        let mut case = Case::new(Options {
            reduction: if has(0) { Reduction::Mean } else { Reduction::Sum },
            softcap: has(1).then_some(0.8),
            label_smoothing: if has(2) { 0.3 } else { 0.0 },
            z_loss: if has(3) { 0.2 } else { 0.0 },
            logit_scale: 1.3,
            ..Options::default()
        });
        case.upstream = Some(vec![0.5, 3.0, -2.0, 1.25]);
        case.lse_upstream = has(4).then(|| vec![0.7, 5.0, -0.3, 0.2]);
        case.token_weights = has(5).then(|| vec![2.0, 3.0, 0.0, 0.5]);
        case.class_weights = has(6).then(|| vec![0.5, 1.0, 2.0, 0.0, 1.5]);
        let out = case.run();
        assert!(largest_error(&out.dx, &case.numerical(|c| &mut c.x)) < 1e-8, "{mix:b}");
        assert!(largest_error(&out.dw, &case.numerical(|c| &mut c.w)) < 1e-8, "{mix:b}");
        assert!(largest_error(&out.dbias.unwrap(), &case.numerical(|c| &mut c.bias)) < 1e-8, "{mix:b}");
    }
}

// PyTorch's definition for one token, term by term.
#[test]
fn options_mean_what_they_say() {
    let options = Options { reduction: Reduction::None, label_smoothing: 0.1, z_loss: 0.01, ..Options::default() };
    let (x, w) = ([1.0], [0.5, -1.0, 2.0]);
    let weights = [1.0, 2.0, 0.5];
    let problem = Problem { class_weights: Some(&weights), ..Problem::new(&x, &w, &[2], 1, options) };
    let out = cross_entropy(&problem).unwrap();
    let lse = w.iter().map(|y: &f64| y.exp()).sum::<f64>().ln();
    let spread: f64 = w.iter().zip(weights).map(|(y, weight)| weight * (lse - y)).sum();
    let loss = 0.9 * 0.5 * (lse - 2.0) + 0.1 / 3.0 * spread + 0.01 * lse * lse;
    assert!((out.loss[0] - loss).abs() < 1e-12 && (out.lse[0] - lse).abs() < 1e-12);
    assert_eq!(out.argmax, [2]);
    let capped = Options { softcap: Some(0.5), reduction: Reduction::None, ..Options::default() };
    let out = cross_entropy(&Problem::new(&x, &w, &[2], 1, capped)).unwrap();
    let y = w.map(|z: f64| 0.5 * (z / 0.5).tanh());
    assert!((out.loss[0] - (y.iter().map(|y| y.exp()).sum::<f64>().ln() - y[2])).abs() < 1e-12);
}

#[test]
fn reductions_agree_and_ignored_tokens_are_zero() {
    let run = |reduction, normalizer| Case::new(Options { reduction, normalizer, ..Options::default() }).run();
    let (none, sum) = (run(Reduction::None, None), run(Reduction::Sum, None));
    assert_eq!((none.loss[1], none.lse[1]), (0.0, 0.0));
    assert_eq!(none.dx[H..2 * H], [0.0; H]);
    assert!((none.loss.iter().sum::<f64>() - sum.loss[0]).abs() < 1e-12);
    assert!((run(Reduction::Mean, None).loss[0] - sum.loss[0] / 3.0).abs() < 1e-12);
    assert!((run(Reduction::Mean, Some(8.0)).loss[0] - sum.loss[0] / 8.0).abs() < 1e-12);
}

#[test]
fn class_weights_divide_all_of_a_mean_but_the_z_loss() {
    let mean = |targets: &[i64], weights: &[f64], options: Options| {
        let (x, w) = (vec![0.0; targets.len()], [0.0; 2]);
        let problem = Problem { class_weights: Some(weights), ..Problem::new(&x, &w, targets, 1, options) };
        cross_entropy(&problem).unwrap().loss[0]
    };
    let options = Options { z_loss: 0.1, ..Options::default() };
    let (ln, z_loss) = (2f64.ln(), 0.1 * 2f64.ln().powi(2));
    for weight in [1e-30, 1e-4, 1.0, 1e30] {
        assert!((mean(&[0], &[weight; 2], options) - (ln + z_loss)).abs() < 1e-12, "{weight}");
    }
    // Smoothing gives each class a share of its weight: (0.8 * 3 + 0.1 * (3 + 1) + 0.8 * 1 + 0.1 * (3 + 1)) / (3 + 1).
    let smoothed = Options { label_smoothing: 0.2, ..options };
    assert!((mean(&[0, 1, -100], &[3.0, 1.0], smoothed) - (ln + z_loss)).abs() < 1e-12);
    assert_eq!(mean(&[0, 0], &[0.0, 1.0], smoothed), 0.0);
    let divided = Options { normalizer: Some(8.0), ..options };
    assert!((mean(&[0, 1], &[3.0, 1.0], divided) - (4.0 * ln + 2.0 * z_loss) / 8.0).abs() < 1e-12);
}

#[test]
fn all_ignored_is_zero() {
    let case = Case::new(Options::default());
    let out = cross_entropy(&Problem { targets: &[-100; 4], ..case.problem() }).unwrap();
    assert_eq!(out.loss, [0.0]);
    assert!(out.dx.iter().chain(&out.dw).chain(out.dbias.iter().flatten()).all(|&g| g == 0.0));
}

#[test]
fn no_tokens() {
    let case = Case::new(Options::default());
    let out = cross_entropy(&Problem { x: &[], targets: &[], ..case.problem() }).unwrap();
    assert_eq!((out.loss, out.lse, out.dx, out.dw), (vec![0.0], vec![], vec![], vec![0.0; V * H]));
}

#[test]
fn a_row_without_distribution_has_zero_gradients() {
    let mut case = Case::new(Options { reduction: Reduction::None, ..Options::default() });
    case.bias = vec![f64::NEG_INFINITY; V];
    let out = case.run();
    assert!(out.loss[0].is_nan());
    assert_eq!(out.lse[0], f64::NEG_INFINITY);
    assert!(out.dx.iter().chain(&out.dw).chain(out.dbias.iter().flatten()).all(|&g| g == 0.0));
}

#[test]
fn a_nan_stays_in_its_row() {
    let mut case = Case::new(Options { reduction: Reduction::None, ..Options::default() });
    let clean = case.run();
    case.x[2 * H] = f64::NAN;
    let out = case.run();
    assert!(out.loss[2].is_nan() && out.lse[2].is_nan() && out.dx[2 * H..3 * H].iter().all(|d| d.is_nan()));
    assert_eq!((out.loss[0], out.lse[3], &out.dx[3 * H..]), (clean.loss[0], clean.lse[3], &clean.dx[3 * H..]));
}

#[test]
fn a_certain_target_keeps_its_digits() {
    // One class 100 ahead of the other: 1 - p = e^-100, which 1.0 - p would lose.
    let problem = Problem::new(&[100.0], &[1.0, 0.0], &[0], 1, Options::default());
    let out = cross_entropy(&problem).unwrap();
    let rest = (-100.0_f64).exp();
    assert!((out.loss[0] / rest - 1.0).abs() < 1e-12);
    assert!((out.dx[0] / -rest - 1.0).abs() < 1e-12);
    assert!((out.dw[1] / (100.0 * rest) - 1.0).abs() < 1e-12);
}

#[test]
fn more_tokens_than_a_block() {
    let (n, h, v) = (150, 9, 13);
    let (x, w) = (values(n * h, 4), values(v * h, 5));
    let targets: Vec<i64> = (0..n as i64).map(|i| i % 13).collect();
    let options = Options { reduction: Reduction::Sum, ..Options::default() };
    let problem = |first: usize, end: usize| Problem::new(&x[first * h..end * h], &w, &targets[first..end], h, options);
    let whole = cross_entropy(&problem(0, n)).unwrap();
    let (a, b) = (cross_entropy(&problem(0, 40)).unwrap(), cross_entropy(&problem(40, n)).unwrap());
    assert!((whole.loss[0] - a.loss[0] - b.loss[0]).abs() < 1e-10);
    assert_eq!(whole.dx, [a.dx, b.dx].concat());
    let dw: Vec<f64> = a.dw.iter().zip(&b.dw).map(|(a, b)| a + b).collect();
    assert!(largest_error(&whole.dw, &dw) < 1e-14);
}

#[test]
fn misfits_are_named() {
    let case = Case::new(Options::default());
    let bad = Problem { targets: &[0, 1, 5, 2], ..case.problem() };
    assert_eq!(
        cross_entropy(&bad).unwrap_err().to_string(),
        "targets[2] is 5; expected an id from 0 to below 5, or the ignore index"
    );
    let bad = Problem { bias: Some(&[0.0]), ..case.problem() };
    assert_eq!(cross_entropy(&bad).unwrap_err().to_string(), "bias holds 1 values; expected 5");
}

#[test]
fn errors_of_odd_values() {
    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;
    assert_eq!(largest_error(&[1.0_f32, 3.0], &[1.0_f64, 4.0]), 0.25);
    assert_eq!(largest_error::<f64, f64>(&[], &[]), 0.0);
    assert_eq!(largest_error(&[0.0], &[0.0]), 0.0);
    assert_eq!(largest_error(&[1e-9], &[0.0]), INF);
    assert_eq!(largest_error(&[NAN, INF, 1.0], &[NAN, INF, 2.0]), 0.5);
    for (got, want) in [(NAN, 1.0), (1.0, NAN), (INF, -INF), (INF, 1.0), (1.0, INF), (NAN, INF)] {
        assert_eq!(largest_error(&[got], &[want]), INF);
    }
    assert_eq!(largest_error(&[1.0], &[1.0, 2.0]), INF);
}
