//! The check of `run`: right outputs pass at every size, and no wrong one does.

use super::Args;
use super::operator::{Operator, Place, Tensor};
use clap::Parser;
use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;
use vocabfuse::tensors::{Elements, Output, Written, write};
use vocabfuse::{Cpu, Dtype};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// A folder with the input of one run.
struct Input {
    folder: tempfile::TempDir,
}

const OPERATORS: [&str; 9] = [
    "cross-entropy --argmax",
    "logprobs",
    "entropy",
    "logprobs-entropy",
    "kl",
    "kl --reverse",
    "top-k --k 2",
    "sample --seed 3",
    "embedding",
];

impl Input {
    /// Random tensors that an operator reads, with class 1 unlikely by a bias.
    fn new(operator: &str, sizes: [usize; 3], dtype: Dtype, seed: u64) -> Input {
        Input::changed(operator, sizes, dtype, seed, |_, _| {})
    }

    /// The same after `change` has had its way with the values of each tensor.
    fn changed(
        operator: &str,
        [tokens, vocab, hidden]: [usize; 3],
        dtype: Dtype,
        seed: u64,
        change: impl Fn(&'static str, &mut [f32]),
    ) -> Input {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut values = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.random_range(-1.5..1.5)).collect() };
        let mut tensors = vec![];
        let mut floats = |name, shape: &[usize], dtype| {
            let mut values = values(shape.iter().product());
            change(name, &mut values);
            let values = Written::Floats(Elements::from_f32(values, dtype));
            tensors.push(Output { name, shape: shape.to_vec(), values });
        };
        let op = operator.split_whitespace().next().unwrap();
        floats("w", &[vocab, hidden], dtype);
        if op == "embedding" {
            floats("dy", &[tokens, hidden], dtype);
        } else {
            floats("x", &[tokens, hidden], dtype);
        }
        if op == "kl" {
            floats("teacher_x", &[tokens, hidden + 1], dtype);
            floats("teacher_w", &[vocab, hidden + 1], dtype);
        }
        if !["embedding", "kl"].contains(&op) {
            let mut bias = vec![0.0; vocab];
            bias[1.min(vocab - 1)] = -9.0;
            change("bias", &mut bias);
            let values = Written::Floats(Elements::F32(bias));
            tensors.push(Output { name: "bias", shape: vec![vocab], values });
        }
        let ids = |name| {
            let ids = (0..tokens).map(|i| (i * 7 % vocab) as i64).collect();
            Output { name, shape: vec![tokens], values: Written::Ids(ids) }
        };
        match op {
            "cross-entropy" => tensors.push(ids("targets")),
            "embedding" | "logprobs" | "logprobs-entropy" => tensors.push(ids("ids")),
            _ => {}
        }
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("in"), &tensors).unwrap();
        Input { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("in")
    }

    fn args(&self, operator: &str, options: &str) -> Args {
        let line = format!("run --op {operator} --check --threads 1 {options}");
        let files = ["--input".into(), self.path().into_os_string()];
        let output = ["--output".into(), self.folder.path().join("out").into_os_string()];
        let words = line.split_whitespace().map(Into::into);
        Command::try_parse_from(words.chain(files).chain(output)).unwrap_or_else(|e| panic!("{e}")).args
    }

    /// Names of outputs that fail after `perturb` has had its way with them.
    fn failed(&self, operator: &str, options: &str, perturb: impl Fn(&mut Vec<Tensor>)) -> Vec<&'static str> {
        fn check<O: Operator>(operator: &O, args: &Args, perturb: impl Fn(&mut Vec<Tensor>)) -> Vec<&'static str> {
            let layout = super::layout(args, operator.sizes().vocab).unwrap();
            let policy = args.products.policy();
            let place = Place { device: &Cpu::new(args.threads).unwrap(), layout: &layout, policy };
            let mut outputs = operator.run(&place).unwrap().outputs;
            perturb(&mut outputs);
            let check = super::check(args, operator, &outputs).unwrap();
            check.failed().into_iter().map(|(name, _)| name).collect()
        }
        let (args, path) = (self.args(operator, options), self.path());
        match args.op {
            super::Op::CrossEntropy => {
                check(&args.cross_entropy.read(&args.logits, &path, None).unwrap(), &args, perturb)
            }
            super::Op::Embedding => check(&args.embedding.read(&path, None).unwrap(), &args, perturb),
            op => check(&args.distribution.read(op, &args.logits, &path, None).unwrap(), &args, perturb),
        }
    }
}

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

fn passes(operator: &str, sizes: [usize; 3], dtype: Dtype, options: &str) {
    let input = Input::new(operator, sizes, dtype, sizes.iter().fold(1, |seed, size| seed * 31 + *size as u64));
    let failed = input.failed(operator, options, |_| {});
    assert_eq!(failed, [""; 0], "--op {operator} {options}: N, V, H = {sizes:?} in {dtype}");
}

fn pass_at_small_sizes(operators: impl Iterator<Item = &'static str>) {
    for operator in operators {
        for dtype in DTYPES {
            for size in 0..27 {
                let sizes = [size % 3 + 1, size / 3 % 3 + 1, size / 9 + 1];
                let options = ["", "--ranks 2", "--output-dtype bf16", "--ranks 3 --output-dtype f16"][size % 4];
                // There is no second class among one.
                if !(operator.contains("--k 2") && sizes[1] == 1) {
                    passes(operator, sizes, dtype, options);
                }
            }
        }
    }
}

#[test]
fn right_outputs_of_one_to_three_tokens_classes_and_columns_pass() {
    pass_at_small_sizes(OPERATORS.into_iter().filter(|operator| !operator.starts_with("kl")));
}

#[test]
fn right_divergences_of_one_to_three_tokens_classes_and_columns_pass() {
    pass_at_small_sizes(OPERATORS.into_iter().filter(|operator| operator.starts_with("kl")));
}

#[test]
fn what_the_filter_leaves_out_passes() {
    for dtype in DTYPES {
        for (sizes, filter) in [([1, 1, 1], "1e-3"), ([2, 3, 2], "0.5"), ([40, 300, 16], "1e-2"), ([3, 900, 8], "0.1")]
        {
            for ranks in ["", " --ranks 2 --save no"] {
                let options = format!("--filter {filter}{ranks}");
                passes("cross-entropy", sizes, dtype, &options);
            }
        }
    }
}

/// Right outputs of inputs that are odd or far from 1, with ranks that hold different parts of it.
#[test]
fn right_outputs_of_extreme_inputs_pass() {
    type Change = fn(&'static str, &mut [f32]);
    let changes: [(&str, Change); 17] = [
        ("a weight of -inf", |name, v| {
            if name == "w" {
                v[7] = f32::NEG_INFINITY
            }
        }),
        ("a weight of +inf", |name, v| {
            if name == "w" {
                v[7] = f32::INFINITY
            }
        }),
        ("weights of -inf alone", |name, v| {
            if name == "w" {
                v.fill(f32::NEG_INFINITY)
            }
        }),
        ("a row of x that is NaN", |name, v| {
            if name == "x" {
                v[..3].fill(f32::NAN)
            }
        }),
        ("a row of x that is +inf", |name, v| {
            if name == "x" {
                v[..3].fill(f32::INFINITY)
            }
        }),
        ("masked classes", |name, v| {
            if name == "bias" {
                v[3..9].fill(f32::NEG_INFINITY)
            }
        }),
        ("no class", |name, v| {
            if name == "bias" {
                v.fill(f32::NEG_INFINITY)
            }
        }),
        ("a bias of +inf", |name, v| {
            if name == "bias" {
                v[2] = f32::INFINITY
            }
        }),
        ("an offset of 1e8", |name, v| {
            if name == "bias" {
                v.iter_mut().for_each(|v| *v += 1e8)
            }
        }),
        ("offsets of 1e7 and their digits", |name, v| {
            if name == "bias" {
                v.iter_mut().enumerate().for_each(|(i, v)| *v = 1e7 + 12.6 * i as f32)
            }
        }),
        ("an offset of 1e30", |name, v| {
            if name == "bias" {
                v.fill(1e30)
            }
        }),
        ("differences that f32 cannot hold", |name, v| {
            if name == "bias" {
                v.iter_mut().enumerate().for_each(|(i, v)| *v = [3e38, -3e38][i % 2])
            }
        }),
        ("logits that f32 cannot hold", |_, v| v.iter_mut().for_each(|v| *v = v.abs() * 1e20)),
        ("large logits", |_, v| v.iter_mut().for_each(|v| *v *= 300.0)),
        ("values below the smallest normal number", |name, v| {
            if name == "x" {
                v.iter_mut().for_each(|v| *v *= 1e-38)
            }
        }),
        ("equal rows", |_, v| v.iter_mut().for_each(|v| *v = v.signum())),
        ("zeros", |_, v| v.fill(0.0)),
    ];
    let operators = OPERATORS.into_iter().filter(|operator| *operator != "embedding");
    for operator in operators {
        for (index, (name, change)) in changes.iter().enumerate() {
            for (dtype, ranks) in DTYPES.into_iter().zip([1, 2, 3]) {
                let input = Input::changed(operator, [5, 40, 3], dtype, index as u64, change);
                let options = ["", "--softcap 30", "--logit-scale 1e-3"][index % 3];
                let failed = input.failed(operator, &format!("--ranks {ranks} {options}"), |_| {});
                assert_eq!(failed, [""; 0], "{name}: --op {operator} --ranks {ranks} {options} in {dtype}");
            }
        }
    }
}

/// Changes some values of one output.
fn change(name: &'static str, values: impl Fn(&mut [f32])) -> impl Fn(&mut Vec<Tensor>) {
    move |outputs| values(&mut outputs.iter_mut().find(|output| output.name == name).unwrap().values)
}

#[test]
fn a_wrong_row_fails_however_small_it_is() {
    let sizes = [5, 40, 3];
    for dtype in DTYPES {
        for operator in OPERATORS.into_iter().filter(|op| !op.starts_with("top-k") && !op.starts_with("sample")) {
            let input = Input::new(operator, sizes, dtype, 3);
            assert_eq!(input.failed(operator, "--ranks 2", |_| {}), [""; 0], "{operator} in {dtype}");
            let embedding = operator == "embedding";
            // Class 1 is unlikely; the embedding names no row 1.
            let row = if embedding { 7 } else { 1 };
            let dw = |factor: f32| move |dw: &mut [f32]| dw[row * 3..][..3].iter_mut().for_each(|v| *v *= factor);
            let little = if dtype == Dtype::F32 { 1.001 } else { 1.5 };
            for factor in [0.0, little, -1.0] {
                let failed = input.failed(operator, "--ranks 2", change("dw", dw(factor)));
                assert_eq!(failed, ["dw"], "a row times {factor}: {operator} in {dtype}");
            }
            if embedding {
                let one = change("y", |y| y[4] = f32::from_bits(y[4].to_bits() + 1));
                assert_eq!(input.failed(operator, "--ranks 2", one), ["y"]);
            } else {
                let row = change("dx", |dx| dx[3..6].iter_mut().for_each(|v| *v *= little));
                assert_eq!(input.failed(operator, "--ranks 2", row), ["dx"], "{operator} in {dtype}");
            }
        }
    }
}

#[test]
fn a_wrong_value_fails() {
    for (operator, names) in [
        ("cross-entropy --argmax", &["loss", "lse"][..]),
        ("logprobs-entropy", &["logprobs", "entropy"]),
        ("kl", &["divergence"]),
        ("top-k --k 2", &["logits", "logprobs"]),
        ("sample", &["logits", "logprobs"]),
    ] {
        let input = Input::new(operator, [5, 40, 3], Dtype::F32, 3);
        for name in names {
            let wrong = change(name, |values| values[0] *= 1.0 + 1e-4);
            assert_eq!(input.failed(operator, "--ranks 2", wrong), [*name], "{operator}");
        }
    }
}

#[test]
fn a_wrong_id_fails() {
    for (operator, name) in [("cross-entropy --argmax", "argmax"), ("top-k --k 2", "ids"), ("sample", "ids")] {
        let input = Input::new(operator, [5, 40, 3], Dtype::F32, 3);
        assert_eq!(input.failed(operator, "--ranks 2", |_| {}), [""; 0], "{operator}");
        for wrong in [-1, 1, 40, i64::MAX] {
            let failed = input.failed(operator, "--ranks 2", |outputs| {
                let ids = outputs.iter_mut().find_map(|output| output.ids.as_mut().filter(|_| output.name == name));
                ids.unwrap()[2] = wrong;
            });
            assert!(failed.contains(&name), "id {wrong}: {operator}");
        }
    }
    // Both are there, but in the wrong order.
    let input = Input::new("top-k --k 2", [5, 40, 3], Dtype::F32, 3);
    let swapped = input.failed("top-k --k 2", "", |outputs| outputs[0].ids.as_mut().unwrap().swap(0, 1));
    assert!(swapped.contains(&"ids"));
}

#[test]
fn what_is_written_as_infinity_fails() {
    let input = Input::new("cross-entropy", [3, 5, 2], Dtype::F32, 1);
    let large = f64::from(f16::MAX) * 2.0;
    let bias = Written::Floats(Elements::F32(vec![large as f32; 5]));
    let x = Written::Floats(Elements::F32(vec![0.5; 6]));
    let w = Written::Floats(Elements::F32(vec![0.25; 10]));
    let tensors = [
        Output { name: "x", shape: vec![3, 2], values: x },
        Output { name: "w", shape: vec![5, 2], values: w },
        Output { name: "bias", shape: vec![5], values: bias },
        Output { name: "targets", shape: vec![3], values: Written::Ids(vec![0, 1, 2]) },
    ];
    write(&input.path(), &tensors).unwrap();
    assert_eq!(input.failed("cross-entropy", "", |_| {}), [""; 0]);
    assert_eq!(input.failed("cross-entropy", "--output-dtype f16", |_| {}), ["lse"]);
}
