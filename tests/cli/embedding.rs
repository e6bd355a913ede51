//! `vocabfuse run --op embedding`.

use super::*;

fn lookup() -> Vec<Tensor> {
    vec![
        i64s("ids", &[0, 39, 5, 39, 5, 39]),
        f32s("w", &[VOCAB, HIDDEN], &waves(VOCAB * HIDDEN, 1.3)),
        f32s("dy", &[TOKENS, HIDDEN], &waves(TOKENS * HIDDEN, 0.7)),
    ]
}

#[test]
fn run_embeds() {
    if !nvrtc() {
        return;
    }
    let folder = Folder::new(&bytes(&lookup()));
    let (n, h, v) = (TOKENS, HIDDEN, VOCAB);
    for device in ["cpu", "ptx:sm_80"] {
        for dtype in ["f32", "bf16", "f16"] {
            let options = format!(
                "--op embedding --bounds 0,5,5,40 --dtype {dtype} --padding-idx 0 --device {device} --threads 2 --check --json"
            );
            let report = folder.run(&options.split_whitespace().collect::<Vec<_>>()).json();
            assert_eq!(
                (&report["passed"], &report["errors"]["y"]),
                (&Value::from(true), &Value::from(0.0)),
                "{report}"
            );
            assert_eq!((&report["barriers"], &report["launches"]), (&Value::from(1), &Value::from(1)));
            let row = h * if dtype == "f32" { 4 } else { 2 };
            assert_eq!(report["bytes"], n * row, "every row travels once");
            let names = report["kernels"].as_array().unwrap().iter().map(|k| k.as_str().unwrap());
            assert_eq!(names.filter(|k| k.starts_with("gather_rows__") || k.starts_with("scatter_add__")).count(), 2);
            assert_eq!(folder.outputs(), outputs(&[("dw", &[v, h]), ("y", &[n, h])]));
        }
    }
    let written = std::fs::read(folder.path("out.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&written).unwrap();
    let dw: Vec<f32> =
        file.tensor("dw").unwrap().data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(dw[..h].iter().all(|d| *d == 0.0), "the padding id has no gradient");
    let dy = waves(n * h, 0.7);
    assert_eq!(dw[39 * h], dy[h] + dy[3 * h] + dy[5 * h]);
}

#[test]
fn run_embeds_without_a_gradient() {
    let folder = Folder::new(&bytes(&lookup()[..2]));
    let ended = folder.run(&["--op", "embedding", "--check", "--ranks", "7"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for word in ["lookup", "combine", "barriers", "plain composition", "7 ranks"] {
        assert!(ended.stdout.contains(word), "no {word} in {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("backward"), "{}", ended.stdout);
    assert_eq!(folder.outputs(), outputs(&[("y", &[TOKENS, HIDDEN])]));
    let none = Folder::new(&bytes(&[i64s("ids", &[]), lookup().remove(1)]));
    assert_eq!(none.run(&["--op", "embedding", "--ranks", "3", "--check", "--json"]).json()["passed"], true);
}

#[test]
fn unusable_lookups_are_refused() {
    let faults: Vec<(Tensor, &[&str])> = vec![
        (i64s("ids", &[0, 1, 2, 40, 4, 5]), &["tensor ids", "position 3", "40", "0..40"]),
        (i64s("ids", &[0, 1, -2, 3, 4, 5]), &["tensor ids", "position 2", "-2", "0..40"]),
        (f32s("ids", &[TOKENS], &[0.0; TOKENS]), &["tensor ids", "F32", "I64 or I32"]),
        (f32s("w", &[VOCAB], &[0.0; VOCAB]), &["tensor w", "[40]", "[V, H]"]),
        (f32s("w", &[VOCAB, 0], &[]), &["tensor w", "H of at least 1"]),
        (f32s("dy", &[TOKENS, 1], &[0.0; TOKENS]), &["tensor dy", "[6, 1]", "[6, 5]"]),
        (f32s("x", &[1, 1], &[0.0]), &["tensor x", "unknown", "ids, w, dy"]),
    ];
    for (fault, words) in faults {
        let mut all = lookup();
        all.retain(|t| t.name != fault.name);
        all.push(fault);
        refuses(&bytes(&all), &["--op", "embedding", "--ranks", "2"], words);
    }
    let mut large = lookup();
    large.retain(|t| t.name != "w");
    large.push(f32s("w", &[VOCAB, HIDDEN], &[-1e6; VOCAB * HIDDEN]));
    let words = ["option --dtype f16: tensor w: -1000000.0 at position 0; expected at most 65504.0"];
    refuses(&bytes(&large), &["--op", "embedding", "--dtype", "f16"], &words);
    refuses(&bytes(&lookup()[1..]), &["--op", "embedding"], &["tensor ids", "missing", "[N]"]);
    for (options, words) in [
        ("--op embedding --padding-idx 40", &["padding_idx", "40"][..]),
        ("--op embedding --padding-idx -1", &["padding_idx", "-1"]),
        ("--op embedding --chunk 512", &["--chunk", "embedding", "cross-entropy"]),
        ("--op embedding --logit-scale 1", &["--logit-scale", "embedding", "cross-entropy"]),
        ("--op gather", &["--op", "gather", "cross-entropy, embedding"]),
    ] {
        refuses(&bytes(&lookup()), &options.split_whitespace().collect::<Vec<_>>(), words);
    }
    refuses(&bytes(&tensors()), &["--padding-idx", "3"], &["--padding-idx", "--op embedding"]);
}
