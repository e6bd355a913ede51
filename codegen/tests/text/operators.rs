//! Operators: their programs as text, and what they mean, by the f64 interpreter on a row split over tiles whose
//! references move.

use std::collections::BTreeMap;
use vocabfuse_codegen::operator::{self, Operator};
use vocabfuse_codegen::program::{Graph, Interpretation, Merge, ProgramError, Tile, place, reference_of};

fn operator(name: &str) -> Operator {
    operator::all().unwrap().into_iter().find(|o| o.name == name).unwrap()
}

#[test]
fn programs() {
    let mut text = String::new();
    for o in operator::all().unwrap() {
        text += &format!("{}\n{}\n", o.statistics, o.finish);
        o.gradients.iter().for_each(|g| text += &format!("{g}\n"));
        text += &format!("{:?}\n{:?}\n\n", o.statistics.rules(), o.results());
    }
    insta::assert_snapshot!(text);
}

/// A tile of one row with logits of two distributions.
fn tile(first: usize, p: &[f64], q: &[f64], references: [f64; 2], ids: &[i64]) -> Tile {
    Tile {
        rows: 1,
        columns: p.len(),
        logit: p.to_vec(),
        second_logit: q.to_vec(),
        first_column: first as i64,
        reference: vec![references[0]],
        second_reference: vec![references[1]],
        selected: vec![ids.iter().map(|id| (*id, 0.0)).collect()],
        top: 3,
        seed: 7,
        token: vec![5],
        uniform: BTreeMap::from([("logit_scale".to_owned(), 1.0)]),
        ..Tile::default()
    }
}

/// Statistics of the second part merged into those of the first, all relative to `references`.
fn merged(o: &Operator, parts: [(&Interpretation, [f64; 2]); 2], references: [f64; 2]) -> BTreeMap<String, Vec<f64>> {
    let rules = o.statistics.rules();
    let rise = |from: [f64; 2], k: usize| place(references[k]) - place(from[k]);
    let value = |part: &Interpretation, index: usize| part.row[&rules[index].0][0];
    let raised = |(part, from): (&Interpretation, [f64; 2])| -> Vec<f64> {
        let raise = |(index, (_, rule)): (usize, &(String, Merge))| match *rule {
            Merge::Sum | Merge::Max | Merge::ArgMax => value(part, index),
            Merge::ScaledSum { reference } => value(part, index) * (-rise(from, reference)).exp(),
            Merge::Moment { reference, sum, shifts } => {
                let grown: f64 = (0..2).map(|k| f64::from(shifts[k]) * rise(from, k)).sum();
                (value(part, index) + grown * value(part, sum)) * (-reference.map_or(0.0, |r| rise(from, r))).exp()
            }
            Merge::Divergence { .. } => value(part, index) * (-rise(from, 0)).exp(),
        };
        rules.iter().enumerate().map(raise).collect()
    };
    let (a, b) = (raised(parts[0]), raised(parts[1]));
    let one = |(i, (name, rule)): (usize, &(String, Merge))| {
        let value = match *rule {
            Merge::Max => a[i].max(b[i]),
            Merge::Divergence { p, q } => {
                // The chain rule, written out: what the parts say of themselves, and what they say of each other.
                let (all_p, all_q) = (a[p] + b[p], a[q] + b[q]);
                let part = |p: f64, q: f64| if p == 0.0 { 0.0 } else { p * ((p / all_p) / (q / all_q)).ln() };
                a[i] + b[i] + part(a[p], a[q]) + part(b[p], b[q])
            }
            _ => a[i] + b[i],
        };
        (name.clone(), vec![value])
    };
    rules.iter().enumerate().map(one).collect()
}

/// Results and derivatives of one row, its columns in two tiles.
fn run(
    o: &Operator,
    p: &[f64],
    q: &[f64],
    ids: &[i64],
    weights: &[f64],
) -> (BTreeMap<String, Vec<f64>>, Vec<Vec<f64>>) {
    let cut = p.len() / 3;
    let (early, late, last) = ([-3.0, 9.0], [4.0, 2.0], [5.0, 9.0]);
    let first = o.statistics.interpret(&tile(0, &p[..cut], &q[..cut], early, ids));
    let second = o.statistics.interpret(&tile(cut, &p[cut..], &q[cut..], late, ids));
    let statistics = merged(o, [(&first, early), (&second, late)], last);
    let mut results = BTreeMap::<String, Vec<f64>>::new();
    for slot in 0..ids.len().max(1) {
        let mut rows = statistics.clone();
        for (name, values) in &first.selected {
            rows.insert(name.clone(), vec![values[0][slot] + second.selected[name][0][slot]]);
        }
        rows.insert(operator::TOP_VALUE.to_owned(), vec![f64::NEG_INFINITY]);
        let finish = Tile { row: rows, ..tile(0, &[0.0], &[0.0], last, &[]) };
        for (name, value) in o.finish.interpret(&finish).row {
            results.entry(name).or_default().extend(value);
        }
    }
    let mut rows: BTreeMap<String, Vec<f64>> = results.iter().map(|(n, v)| (n.clone(), vec![v[0]])).collect();
    rows.extend([("reference".to_owned(), vec![last[0]]), ("reference_1".to_owned(), vec![last[1]])]);
    for (name, of_slot) in o.results() {
        let upstream = if of_slot { weights.iter().sum() } else { 1.0 };
        rows.insert(format!("{name}_upstream"), vec![upstream]);
    }
    let selected = vec![ids.iter().copied().zip(weights.iter().copied()).collect()];
    let gradient = Tile { row: rows, selected, ..tile(0, p, q, [0.0; 2], &[]) };
    (results, o.gradients.iter().map(|g| g.interpret(&gradient).store).collect())
}

fn log_softmax(y: &[f64]) -> Vec<f64> {
    let max = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = max + y.iter().map(|y| (y - max).exp()).sum::<f64>().ln();
    y.iter().map(|y| y - lse).collect()
}

fn close(got: f64, want: f64) {
    assert!(got == want || (got - want).abs() < 1e-9 * (1.0 + want.abs()), "{got} for {want}");
}

const P: [f64; 7] = [0.3, -1.5, 2.0, 0.0, 4.5, f64::NEG_INFINITY, 1.0];
const Q: [f64; 7] = [1.3, 0.5, -2.0, 0.7, 3.5, f64::NEG_INFINITY, -1.0];

#[test]
fn logprobs_of_repeated_ids() {
    let (results, gradients) = run(&operator("logprobs"), &P, &Q, &[4, 1, 4], &[0.5, 2.0, -0.25]);
    let log_p = log_softmax(&P);
    for (got, id) in results["logprob"].iter().zip([4, 1, 4]) {
        close(*got, log_p[id]);
    }
    for (j, log_p) in log_p.iter().enumerate() {
        let selected = if j == 4 {
            0.25
        } else if j == 1 {
            2.0
        } else {
            0.0
        };
        close(gradients[0][j], selected - 2.25 * log_p.exp());
    }
}

#[test]
fn entropy_and_its_derivative() {
    let log_p = log_softmax(&P);
    let terms = log_p.iter().filter(|l| l.is_finite());
    let entropy = -terms.map(|l| l * l.exp()).sum::<f64>();
    for (name, ids, weights) in [("entropy", vec![], vec![]), ("logprobs_entropy", vec![2], vec![0.0])] {
        let (results, gradients) = run(&operator(name), &P, &Q, &ids, &weights);
        close(results["entropy"][0], entropy);
        for (j, l) in log_p.iter().enumerate() {
            close(gradients[0][j], if l.is_finite() { -l.exp() * (l + entropy) } else { 0.0 });
        }
    }
}

#[test]
fn divergence_and_its_derivatives() {
    let (log_p, log_q) = (log_softmax(&P), log_softmax(&Q));
    let terms = log_p.iter().zip(&log_q).filter(|(p, _)| p.is_finite());
    let divergence = terms.map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    let (results, gradients) = run(&operator("kl_divergence"), &P, &Q, &[], &[]);
    close(results["divergence"][0], divergence);
    for (j, (p, q)) in log_p.iter().zip(&log_q).enumerate() {
        let by_p = if p.is_finite() { p.exp() * (p - q - divergence) } else { 0.0 };
        close(gradients[0][j], by_p);
        close(gradients[1][j], q.exp() - p.exp());
    }
}

#[test]
fn divergence_is_infinite_where_q_has_no_mass() {
    // e^-2000 is zero, and yet more than nothing.
    let p = [0.0, -2000.0, f64::NEG_INFINITY, 0.0, 0.0, 0.0];
    let q = [0.0, f64::NEG_INFINITY, f64::NEG_INFINITY, 0.0, 0.0, 0.0];
    let (results, gradients) = run(&operator("kl_divergence"), &p, &q, &[], &[]);
    assert_eq!(results["divergence"][0], f64::INFINITY);
    assert!(gradients[0].iter().all(|g| *g == 0.0), "{gradients:?}");
    assert!(gradients[1].iter().all(|g| g.abs() < 1e-12), "{gradients:?}");
    let (results, _) = run(&operator("kl_divergence"), &q, &p, &[], &[]);
    close(results["divergence"][0], 0.0);
}

#[test]
fn rows_without_a_distribution() {
    let dead = [f64::NEG_INFINITY; 7];
    for o in operator::all().unwrap() {
        let (results, gradients) = run(&o, &dead, &P, &[1], &[1.0]);
        let value = ["logprob", "entropy", "divergence"].iter().find_map(|n| results.get(*n)).unwrap();
        assert!(value[0].is_nan(), "{}", o.name);
        assert!(gradients.iter().flatten().all(|g| *g == 0.0), "{} {gradients:?}", o.name);
    }
}

#[test]
fn the_largest_columns() {
    let y = [1.0, 3.0, 2.0, 3.0, f64::NEG_INFINITY];
    let out = operator("top_k").statistics.interpret(&tile(10, &y, &y, [0.0; 2], &[]));
    let columns: Vec<i64> = out.top[0].iter().map(|pick| pick.column).collect();
    assert_eq!(columns, [11, 13, 12], "of equal ones the lowest id is first");
}

#[test]
fn samples_follow_the_distribution() {
    let o = operator("sample");
    let y = [0.0, 1.0, 2.0, -1.0];
    let mut counts = [0.0; 4];
    for token in 0..20_000 {
        let t = Tile { token: vec![token], top: 1, ..tile(0, &y, &y, [0.0; 2], &[]) };
        counts[o.statistics.interpret(&t).top[0][0].column as usize] += 1.0 / 20_000.0;
    }
    for (count, log_p) in counts.iter().zip(log_softmax(&y)) {
        assert!((count - log_p.exp()).abs() < 0.012, "{counts:?}");
    }
}

#[test]
fn random_numbers_are_defined_by_integers() {
    use vocabfuse_codegen::program::uniform;
    let bits = |seed, token, id| (f64::from(uniform(seed, token, id)) * 2f64.powi(32)) as u64;
    // Computed apart, with unbounded integers.
    let mix = |mut b: u64| {
        b = (b ^ (b >> 16)) * 0x7feb_352d % (1 << 32);
        b = (b ^ (b >> 15)) * 0x846c_a68b % (1 << 32);
        b ^ (b >> 16)
    };
    for (seed, token, id) in [(0u64, 0u32, 0u32), (7, 5, 11), (0x1234_5678_9abc_def0, 4_000_000_000, 250_000)] {
        let product = u64::from(token) * 0x9e37_79b9 % (1 << 32);
        let first = mix(mix(product ^ (seed % (1 << 32))) ^ (seed >> 32));
        let second = mix((first + 0x9e37_79b9) % (1 << 32));
        let want = mix(mix(u64::from(id) ^ first) ^ second);
        assert!(bits(seed, token, id).abs_diff(want) <= 256, "f32 keeps 24 bits");
    }
}

#[test]
fn moments_need_the_sum_of_their_weights() {
    let g = Graph::new("alone");
    let (y, r) = (g.logit(), g.reference());
    g.row_output("moment", (y.exp_above(r) * y.above(r)).sum());
    assert!(matches!(g.finish(), Err(ProgramError::Outputs(_))));
    let g = Graph::new("square");
    let (y, r) = (g.logit(), g.reference());
    g.row_output("total", y.exp_above(r).sum());
    g.row_output("square", (y.exp_above(r) * y.above(r) * y.above(r)).sum());
    assert!(matches!(g.finish(), Err(ProgramError::ReferenceUsed { .. })));
    let g = Graph::new("third");
    g.row_output("x", g.logit_of(2).largest());
    assert!(matches!(g.finish(), Err(ProgramError::Distribution { index: 2, .. })));
    let g = Graph::new("top");
    let (y, r) = (g.logit(), g.reference());
    g.top(y.exp_above(r), g.random());
    assert!(matches!(g.finish(), Err(ProgramError::ReferenceUsed { .. })), "a value that moves");
    let g = Graph::new("top");
    g.top(g.logit(), g.logit().above(g.reference()));
    assert!(matches!(g.finish(), Err(ProgramError::ReferenceUsed { .. })), "noise that moves");
    let g = Graph::new("divergence");
    let (p, q) = (g.logit().exp_above(g.reference()), g.logit_of(1).exp_above(g.reference_of(1)));
    let log_ratio = g.logit_of(1).above(g.reference_of(1)) - g.logit().above(g.reference());
    g.row_output("p", p.sum());
    g.row_output("divergence", p.divergence(q, log_ratio));
    assert!(matches!(g.finish(), Err(ProgramError::Outputs(_))), "without the sum of q");
}

#[test]
fn small_divergences_have_as_many_digits_as_large_ones() {
    let o = operator("kl_divergence");
    // Logits that differ by a constant are the same distribution; by 1e-6 here and there nearly so.
    let q: Vec<f64> = P.iter().enumerate().map(|(j, y)| y + 0.3 + [1e-6, 0.0, -1e-6][j % 3]).collect();
    let (log_p, log_q) = (log_softmax(&P), log_softmax(&q));
    let terms = log_p.iter().zip(&log_q).filter(|(p, _)| p.is_finite());
    let want: f64 = terms.map(|(p, q)| p.exp() * ((q - p).exp_m1() - (q - p))).sum();
    let (results, _) = run(&o, &P, &q, &[], &[]);
    let got = results["divergence"][0];
    // The merge of this test is not as careful as that of kernels.
    assert!((got - want).abs() < 1e-3 * want && want < 1e-11, "{got} for {want}");
}

// See `a_common_offset_changes_nothing` of cross-entropy.
#[test]
fn a_common_offset_changes_no_operator() {
    for offset in [0.0, 1e4, 1e7, 1e8] {
        let y = [1.0, 2.0, 3.0].map(|y| y + offset);
        let reference = f64::from(reference_of(y[2] as f32));
        let statistics = |o: &Operator| {
            let t = tile(0, &y, &y, [reference; 2], &[1]);
            let out = o.statistics.interpret(&t);
            let mut rows = out.row.clone();
            rows.extend(out.selected.iter().map(|(name, values)| (name.clone(), vec![values[0][0]])));
            rows.insert(operator::TOP_VALUE.to_owned(), vec![out.top.first().map_or(0.0, |t| t[0].value)]);
            o.finish.interpret(&Tile { row: rows, ..tile(0, &[0.0], &[0.0], [reference; 2], &[]) }).row
        };
        close(statistics(&operator("logprobs"))["logprob"][0], -1.407_605_964_444_38);
        close(statistics(&operator("entropy"))["entropy"][0], 0.832_395_583_175_26);
        close(statistics(&operator("top_k"))["logprob"][0], -0.407_605_964_444_38);
        close(statistics(&operator("kl_divergence"))["divergence"][0], 0.0);
    }
}

#[test]
fn noise_is_added_to_distances() {
    let o = operator("sample");
    for token in 0..100 {
        let draw = |offset: f64| {
            let y = [offset; 4];
            let t = Tile { token: vec![token], top: 1, ..tile(0, &y, &y, [0.0; 2], &[]) };
            o.statistics.interpret(&t).top[0][0].column
        };
        assert!([16_777_216.0, 1e30, -1e8].iter().all(|offset| draw(*offset) == draw(0.0)), "token {token}");
    }
}
