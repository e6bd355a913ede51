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
