//! `vocabfuse run` with operators on the distribution over the vocabulary.

use super::{Folder, HIDDEN, TOKENS, Tensor, VOCAB, bytes, f32s, i64s, nvrtc, refuses, waves};
use safetensors::SafeTensors;
use serde_json::Value;

fn student() -> Vec<Tensor> {
    vec![
        f32s("x", &[TOKENS, HIDDEN], &waves(TOKENS * HIDDEN, 0.7)),
        f32s("w", &[VOCAB, HIDDEN], &waves(VOCAB * HIDDEN, 1.3)),
        f32s("bias", &[VOCAB], &waves(VOCAB, 0.3)),
    ]
}

fn teacher() -> Vec<Tensor> {
    let wide = HIDDEN + 4;
    vec![
        f32s("teacher_x", &[TOKENS, wide], &waves(TOKENS * wide, 0.9)),
        f32s("teacher_w", &[VOCAB, wide], &waves(VOCAB * wide, 0.4)),
    ]
}

fn with(mut tensors: Vec<Tensor>, more: Vec<Tensor>) -> Folder {
    tensors.extend(more);
    Folder::new(&bytes(&tensors))
}

fn outputs(names: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    let mut all = super::outputs(names);
    all.sort();
    all
}

fn ids() -> Tensor {
    Tensor { shape: vec![TOKENS, 2], ..i64s("ids", &[0, 39, 5, 5, -100, 7, 1, -100, -100, -100, 20, 21]) }
}

fn passes(folder: &Folder, options: &str, barriers: u64) {
    for place in ["", " --bounds 0,5,5,40 --dtype bf16", " --ranks 2 --softcap 2 --logit-scale -0.5"] {
        let options = format!("{options}{place} --threads 2 --check --json");
        let report = folder.run(&options.split_whitespace().collect::<Vec<_>>()).json();
        assert_eq!(report["passed"], true, "{report}");
        let counted = [&report["barriers"], &report["launches"]];
        assert_eq!(counted, [&Value::from(barriers); 2], "{options}");
    }
}

#[test]
fn values_and_gradients_pass_the_check() {
    let (n, h, v) = (TOKENS, HIDDEN, VOCAB);
    let gradients: [(&str, &[usize]); 3] = [("dx", &[n, h]), ("dw", &[v, h]), ("dbias", &[v])];
    let folder = with(student(), vec![ids(), f32s("upstream", &[n, 2], &waves(n * 2, 0.2))]);
    passes(&folder, "--op logprobs", 2);
    assert_eq!(folder.outputs(), outputs(&[&gradients[..], &[("logprobs", &[n, 2])]].concat()));
    passes(&folder, "--op logprobs-entropy", 2);
    assert_eq!(folder.outputs(), outputs(&[&gradients[..], &[("logprobs", &[n, 2]), ("entropy", &[n])]].concat()));

    let folder = with(student(), vec![]);
    passes(&folder, "--op entropy", 2);
    assert_eq!(folder.outputs(), outputs(&[&gradients[..], &[("entropy", &[n])]].concat()));
    passes(&folder, "--op top-k --k 7", 1);
    let picked: [(&str, &[usize]); 3] = [("ids", &[n, 7]), ("logits", &[n, 7]), ("logprobs", &[n, 7])];
    assert_eq!(folder.outputs(), outputs(&picked));
    passes(&folder, "--op sample --seed 5", 1);

    let folder = with(student(), teacher());
    for options in ["--op kl", "--op kl --reverse"] {
        passes(&folder, options, 2);
        let teacher: [(&str, &[usize]); 2] = [("teacher_dx", &[n, h + 4]), ("teacher_dw", &[v, h + 4])];
        assert_eq!(folder.outputs(), outputs(&[&gradients[..], &teacher, &[("divergence", &[n])]].concat()));
    }
}

#[test]
fn given_logits_need_no_second_collective() {
    let (n, v) = (TOKENS, VOCAB);
    let logits = |name, step| f32s(name, &[n, v], &waves(n * v, step));
    passes(&Folder::new(&bytes(&[logits("logits", 0.7)])), "--op entropy", 1);
    let folder = Folder::new(&bytes(&[logits("logits", 0.7), logits("teacher_logits", 1.1)]));
    passes(&folder, "--op kl", 1);
    let shapes: [(&str, &[usize]); 3] = [("divergence", &[n]), ("dlogits", &[n, v]), ("teacher_dlogits", &[n, v])];
    assert_eq!(folder.outputs(), outputs(&shapes));
}

#[test]
fn every_operator_runs_on_the_interpreter() {
    if !nvrtc() {
        return;
    }
    let (alone, taught) = (with(student(), vec![]), with(student(), teacher()));
    let selecting = with(student(), vec![ids()]);
    for operator in ["logprobs", "entropy", "logprobs-entropy", "kl", "kl --reverse", "top-k --k 5", "sample --seed 3"]
    {
        for place in ["--dtype bf16", "--dtype f16 --bounds 0,5,5,40 --softcap 2", "--precision tf32x3 --ranks 2"] {
            let folder = match operator.split(['-', ' ']).next() {
                Some("logprobs") => &selecting,
                Some("kl") => &taught,
                _ => &alone,
            };
            let options = format!("--op {operator} {place} --device ptx:sm_80 --check --json");
            let report = folder.run(&options.split_whitespace().collect::<Vec<_>>()).json();
            assert_eq!(report["passed"], true, "{options}: {report}");
        }
    }
}

#[test]
fn tensors_that_an_operator_does_not_read_are_refused() {
    let mut all = student();
    all.push(f32s("entropy_upstream", &[TOKENS], &waves(TOKENS, 0.2)));
    refuses(&bytes(&all), &["--op", "entropy"], &["tensor entropy_upstream", "nothing reads it here", "x, w, bias"]);
    all = student();
    all.push(ids());
    refuses(&bytes(&all), &["--op", "top-k", "--k", "2"], &["tensor ids", "nothing reads it here"]);
    all.push(f32s("logits", &[TOKENS, VOCAB], &waves(TOKENS * VOCAB, 0.7)));
    refuses(&bytes(&all), &["--op", "logprobs"], &["tensor w", "expected only logits, bias, ids"]);
}

#[test]
fn log_probabilities_have_the_shape_of_the_ids() {
    if !nvrtc() {
        return;
    }
    let n = TOKENS;
    let values = [0, 39, 5, -100, 7, 1];
    for place in [&[][..], &["--device", "ptx:sm_80", "--dtype", "bf16"]] {
        for shape in [vec![n], vec![n, 1]] {
            for upstream in [vec![n], vec![n, 1]] {
                let ids = Tensor { shape: shape.clone(), ..i64s("ids", &values) };
                let folder = with(student(), vec![ids, f32s("upstream", &upstream, &waves(n, 0.2))]);
                for op in ["logprobs", "logprobs-entropy"] {
                    let options = [&["--op", op, "--ranks", "2", "--check", "--json"], place].concat();
                    assert_eq!(folder.run(&options).json()["passed"], true);
                    let written: std::collections::BTreeMap<_, _> = folder.outputs().into_iter().collect();
                    assert_eq!(written["logprobs"], shape);
                    assert_eq!(written.get("entropy"), (op == "logprobs-entropy").then_some(&vec![n]));
                }
            }
        }
        let folder = with(student(), vec![]);
        for (op, shape) in [("top-k", &[n, 1][..]), ("sample", &[n])] {
            folder.run(&[&["--op", op, "--ranks", "2", "--json"], place].concat()).json();
            assert_eq!(folder.outputs(), outputs(&[("ids", shape), ("logits", shape), ("logprobs", shape)]));
        }
    }
}

#[test]
fn vectors_have_one_extent() {
    let column = |name, count: usize| f32s(name, &[count, 1], &waves(count, 0.2));
    let input = |tensor: Tensor| {
        let mut all = student();
        all.retain(|other| other.name != tensor.name);
        all.push(tensor);
        all
    };
    refuses(
        &bytes(&input(column("bias", VOCAB))),
        &["--op", "entropy"],
        &["tensor bias: shape [40, 1]; expected [40]"],
    );
    refuses(&bytes(&input(column("upstream", TOKENS))), &["--op", "entropy"], &["tensor upstream: shape [6, 1]"]);
    let mut all = input(f32s("upstream", &[TOKENS], &waves(TOKENS, 0.2)));
    all.push(ids());
    refuses(&bytes(&all), &["--op", "logprobs"], &["tensor upstream: shape [6]; expected [6, 2]"]);
}

#[test]
fn a_number_that_the_asked_type_does_not_hold_is_refused_by_name() {
    let large = |name: &'static str| {
        let mut all = student();
        all.extend(teacher());
        let tensor = all.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.data[8..12].copy_from_slice(&65520f32.to_le_bytes());
        bytes(&all)
    };
    for name in ["x", "w", "teacher_x", "teacher_w"] {
        let words = ["option --dtype f16: ", &format!("tensor {name}: 65520.0 at position 2"), "65504.0"];
        refuses(&large(name), &["--op", "kl", "--dtype", "f16"], &words);
    }
    for name in ["logits", "teacher_logits"] {
        let of = |other, value: f32| f32s(other, &[1, 2], &[if other == name { value } else { 0.0 }, 0.0]);
        let input = |value| bytes(&[of("logits", value), of("teacher_logits", value)]);
        refuses(&input(-1e5), &["--op", "kl", "--dtype", "f16"], &[&format!("tensor {name}: -100000.0 at position 0")]);
        refuses(&input(f32::MAX), &["--op", "kl", "--dtype", "bf16"], &[&format!("tensor {name}: "), "bf16"]);
        // A mask is infinite already.
        Folder::new(&input(f32::NEG_INFINITY)).run(&["--op", "kl", "--dtype", "f16", "--json"]).json();
    }
}

#[test]
fn no_tokens_have_empty_outputs() {
    let none = [f32s("x", &[0, HIDDEN], &[]), f32s("w", &[VOCAB, HIDDEN], &waves(VOCAB * HIDDEN, 1.3))];
    let folder = Folder::new(&bytes(&none));
    folder.run(&["--op", "entropy", "--ranks", "2", "--check", "--json"]).json();
    let (h, v) = (HIDDEN, VOCAB);
    assert_eq!(folder.outputs(), outputs(&[("dw", &[v, h]), ("dx", &[0, h]), ("entropy", &[0])]));
    folder.run(&["--op", "top-k", "--k", "3", "--json"]).json();
    assert_eq!(folder.outputs(), outputs(&[("ids", &[0, 3]), ("logits", &[0, 3]), ("logprobs", &[0, 3])]));
}

#[test]
fn ids_are_written_as_integers() {
    let folder = with(student(), vec![]);
    folder.run(&["--op", "sample", "--output-dtype", "bf16", "--ranks", "3", "--json"]).json();
    let written = std::fs::read(folder.path("out.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&written).unwrap();
    let ids = file.tensor("ids").unwrap();
    assert_eq!((ids.dtype(), ids.shape()), (safetensors::Dtype::I64, &[TOKENS][..]));
    let drawn = ids.data().chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
    assert!(drawn.clone().all(|id| (0..VOCAB as i64).contains(&id)));
    assert_eq!(file.tensor("logprobs").unwrap().dtype(), safetensors::Dtype::BF16);
}

#[test]
fn unusable_input_is_refused() {
    let (n, v) = (TOKENS, VOCAB);
    let of = |more: Vec<Tensor>| {
        let mut all = student();
        all.retain(|t| more.iter().all(|m| m.name != t.name));
        all.extend(more);
        bytes(&all)
    };
    let cases: Vec<(Vec<u8>, &str, &[&str])> = vec![
        (of(vec![]), "--op logprobs", &["tensor ids", "missing", "[N] or [N, k]"]),
        (of(vec![i64s("ids", &[0, 1, 2, 40, 4, 5])]), "--op logprobs", &["tensor ids", "position 3", "0..40"]),
        (of(vec![i64s("ids", &[0, 1])]), "--op logprobs", &["tensor ids", "[2]", "[6] or [6, k]"]),
        (of(vec![]), "--op kl", &["tensor teacher_x", "missing"]),
        (
            of(vec![f32s("teacher_logits", &[n, v - 1], &waves(n * (v - 1), 1.0))]),
            "--op kl",
            &["tensor teacher_logits", "[6, 39]", "40 classes"],
        ),
        (of(vec![f32s("upstream", &[n - 1], &waves(n - 1, 1.0))]), "--op entropy", &["tensor upstream", "[5]", "[6]"]),
        (of(vec![]), "--op top-k --k 41", &["option k", "V = 40", "41"]),
        (of(vec![]), "--op top-k --k 0", &["--k"]),
        (of(vec![]), "--op entropy --k 3", &["--k", "entropy", "top-k"]),
        (of(vec![]), "--op top-k --reverse", &["--reverse", "--op kl"]),
        (of(vec![]), "--op entropy --device ptx:sm_80", &["option precision", "f32", "tf32x3"]),
        (of(vec![]), "--op entropy --save yes", &["--save", "cross-entropy"]),
        (of(vec![f32s("surprise", &[1], &[0.0])]), "--op entropy", &["tensor surprise", "unknown"]),
    ];
    for (input, options, words) in cases {
        refuses(&input, &options.split_whitespace().collect::<Vec<_>>(), words);
    }
}
