//! `vocabfuse run` with the options of cross-entropy.

use super::{Folder, HIDDEN, TOKENS, VOCAB, bytes, f32s, outputs, tensors, waves};
use serde_json::Value;

fn weighted() -> Folder {
    let positive = |count: usize, step: f32| waves(count, step).iter().map(|v| v.abs() + 0.1).collect::<Vec<_>>();
    let mut tensors = tensors();
    tensors.extend([
        f32s("bias", &[VOCAB], &waves(VOCAB, 0.3)),
        f32s("lse_upstream", &[TOKENS], &waves(TOKENS, 0.6)),
        f32s("token_weights", &[TOKENS], &positive(TOKENS, 0.4)),
        f32s("class_weights", &[VOCAB], &positive(VOCAB, 0.8)),
    ]);
    Folder::new(&bytes(&tensors))
}

#[test]
fn numbers_beyond_the_asked_type_are_refused_and_infinities_are_not() {
    let with = |name: &str, value: f32| {
        let mut all = tensors();
        let tensor = all.iter_mut().find(|tensor| tensor.name == name).unwrap();
        tensor.data[4..8].copy_from_slice(&value.to_le_bytes());
        Folder::new(&bytes(&all))
    };
    for name in ["x", "w"] {
        let words = ["option --dtype f16", &format!("tensor {name}: 65520.0 at position 1"), "65504.0"];
        with(name, 65520.0).run(&["--dtype", "f16"]).refused(&words);
        with(name, f32::MAX).run(&["--dtype", "bf16"]).refused(&[&format!("tensor {name}: "), "bf16"]);
        with(name, f32::NEG_INFINITY).run(&["--dtype", "f16", "--json"]).json();
        with(name, 65519.0).run(&["--dtype", "f16", "--json"]).json();
    }
    // What is computed may be too large as well: nothing is written then.
    let large = with("x", 3e5);
    let options = ["--reduction", "sum", "--output-dtype", "f16"];
    large
        .run(&options)
        .refused(&["option --output-dtype f16: tensor lse: ", "at position 0; expected at most 65504.0"]);
    assert!(!large.path("out.safetensors").exists());
    large.run(&["--reduction", "sum", "--output-dtype", "bf16", "--json"]).json();
    // An infinite loss is a result.
    let mut masked = tensors();
    let bias: Vec<f32> = (0..VOCAB).map(|class| if class == 39 { f32::NEG_INFINITY } else { 0.0 }).collect();
    masked.push(f32s("bias", &[VOCAB], &bias));
    Folder::new(&bytes(&masked)).run(&["--output-dtype", "f16", "--json"]).json();
}

#[test]
fn options_of_cross_entropy_pass_the_check() {
    let folder = weighted();
    let places = ["", " --bounds 0,5,5,40", " --ranks 2 --algorithm one --save no"];
    for options in
        ["--label-smoothing 0.1 --z-loss 0.01", "--softcap 2 --argmax", "--softcap 3 --label-smoothing 0.2 --argmax"]
    {
        for place in places {
            let all = format!("{options}{place} --threads 2 --check --json");
            let report = folder.run(&all.split_whitespace().collect::<Vec<_>>()).json();
            assert_eq!(report["passed"], true, "{all}: {report}");
            assert_eq!(report["barriers"], Value::from(if place.contains("one") { 2 } else { 1 }), "{all}");
        }
        let mut names: Vec<(&str, &[usize])> = vec![
            ("dbias", &[VOCAB]),
            ("dw", &[VOCAB, HIDDEN]),
            ("dx", &[TOKENS, HIDDEN]),
            ("loss", &[1]),
            ("lse", &[TOKENS]),
        ];
        if options.contains("argmax") {
            names.insert(0, ("argmax", &[TOKENS]));
        }
        let mut found = folder.outputs();
        found.sort();
        assert_eq!(found, outputs(&names));
    }
}

#[test]
fn frozen_tensors_have_no_gradient() {
    let folder = weighted();
    let names = |folder: &Folder| {
        let mut names: Vec<String> = folder.outputs().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    folder.run(&["--frozen", "x", "--check", "--json"]).json();
    assert_eq!(names(&folder), ["dbias", "dw", "loss", "lse"]);
    folder.run(&["--frozen", "w", "--ranks", "2", "--check", "--json"]).json();
    assert_eq!(names(&folder), ["dx", "loss", "lse"]);
    folder.run(&["--frozen", "w", "--frozen", "x", "--check", "--json"]).json();
    assert_eq!(names(&folder), ["loss", "lse"]);
}
