//! The command line: good runs, and every kind of unusable input.

#[path = "cli/measure.rs"]
mod measure;
#[path = "cli/operators.rs"]
mod operators;
#[path = "cli/options.rs"]
mod options;

use assert_cmd::cargo::cargo_bin_cmd;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};

const TOKENS: usize = 6;
const HIDDEN: usize = 5;
const VOCAB: usize = 40;

struct Tensor {
    name: &'static str,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn f32s(name: &'static str, shape: &[usize], values: &[f32]) -> Tensor {
    Tensor { name, dtype: Dtype::F32, shape: shape.to_vec(), data: bytemuck::cast_slice(values).to_vec() }
}

fn i64s(name: &'static str, values: &[i64]) -> Tensor {
    Tensor { name, dtype: Dtype::I64, shape: vec![values.len()], data: bytemuck::cast_slice(values).to_vec() }
}

fn waves(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

fn tensors() -> Vec<Tensor> {
    vec![
        f32s("x", &[TOKENS, HIDDEN], &waves(TOKENS * HIDDEN, 0.7)),
        f32s("w", &[VOCAB, HIDDEN], &waves(VOCAB * HIDDEN, 1.3)),
        i64s("targets", &[0, 39, -100, 7, 7, 20]),
    ]
}

fn bytes(tensors: &[Tensor]) -> Vec<u8> {
    let views = tensors.iter().map(|t| (t.name, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A folder with an input file.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(input: &[u8]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.safetensors"), input).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, options: &[&str]) -> Ended {
        let mut arguments = vec!["run", "--input", "in.safetensors", "--output", "out.safetensors"];
        arguments.extend(options);
        vocabfuse(self.0.path(), &arguments)
    }

    fn outputs(&self) -> Vec<(String, Vec<usize>)> {
        let bytes = std::fs::read(self.path("out.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut outputs: Vec<_> = file.iter().map(|(name, t)| (name.to_owned(), t.shape().to_vec())).collect();
        outputs.sort();
        outputs
    }
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn json(&self) -> Value {
        assert_eq!((self.code, self.stdout.lines().count()), (Some(0), 1), "{}{}", self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// Unusable input: exit 2, and one line that says `words`.
    fn refused(&self, words: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (Some(2), ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: ") && self.stderr.lines().count() == 1, "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", self.stderr);
        }
    }
}

fn vocabfuse(folder: &Path, arguments: &[&str]) -> Ended {
    vocabfuse_with(folder, arguments, &[])
}

fn vocabfuse_with(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let output = cargo_bin_cmd!("vocabfuse")
        .current_dir(folder)
        .args(arguments)
        .env_remove("VOCABFUSE_ISA")
        .env_remove("RUST_LOG")
        .env("VOCABFUSE_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn outputs(names: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    names.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
}

#[test]
fn run_writes_outputs_and_reports() {
    let folder = Folder::new(&bytes(&tensors()));
    let report = folder.run(&["--ranks", "2", "--check", "--json"]).json();
    assert_eq!(report["passed"], true);
    for output in ["loss", "lse", "dx", "dw"] {
        assert!(report["errors"][output].as_f64().unwrap() < 1e-5, "{report}");
    }
    assert_eq!((&report["errors"]["dbias"], &report["barriers"]), (&Value::Null, &Value::from(1)));
    for key in ["launches", "bytes", "peak_extra_bytes"] {
        assert!(report[key].as_u64().unwrap() > 0, "{key} in {report}");
    }
    for pass in ["s", "combine", "t"] {
        assert!(report["ms"][pass].as_f64().unwrap() >= 0.0);
    }
    assert!(report["kernels"].as_array().unwrap().iter().any(|k| k.as_str().unwrap().starts_with("logits_softmax__")));
    assert!(report["device"].as_str().unwrap().starts_with("cpu"));
    let (n, h, v) = (TOKENS, HIDDEN, VOCAB);
    assert_eq!(folder.outputs(), outputs(&[("dw", &[v, h]), ("dx", &[n, h]), ("loss", &[1]), ("lse", &[n])]));
}

#[test]
fn run_takes_all_options() {
    let mut all = tensors();
    all.push(f32s("bias", &[VOCAB], &waves(VOCAB, 0.3)));
    all.push(f32s("upstream", &[TOKENS], &waves(TOKENS, 0.9)));
    let folder = Folder::new(&bytes(&all));
    for (algorithm, barriers) in [("naive", 3), ("one", 2), ("two", 1)] {
        let options = format!(
            "--bounds 0,5,5,40 --communicator local --dtype bf16 --precision exact --chunk 512 --algorithm {algorithm} --save no \
             --device cpu --threads 1 --check --reduction none --ignore-index 7 --logit-scale -0.5 --output-dtype f16 --json"
        );
        // -100 is no longer ignored, so every target must be a class.
        let refused = folder.run(&options.split_whitespace().collect::<Vec<_>>());
        refused.refused(&["targets", "-100"]);
        let options = options.replace("--ignore-index 7", "--ignore-index -100");
        let report = folder.run(&options.split_whitespace().collect::<Vec<_>>()).json();
        assert_eq!((&report["passed"], &report["barriers"]), (&Value::from(true), &Value::from(barriers)));
        assert!(report["errors"]["dbias"].is_f64());
        assert_eq!((&report["dtype"], &report["ranks"]), (&Value::from("bf16"), &Value::from(3)));
    }
    let (n, h, v) = (TOKENS, HIDDEN, VOCAB);
    let expected = [("dbias", &[v][..]), ("dw", &[v, h]), ("dx", &[n, h]), ("loss", &[n]), ("lse", &[n])];
    assert_eq!(folder.outputs(), outputs(&expected));
}

#[test]
fn run_interprets_the_kernels_of_a_gpu() {
    let folder = Folder::new(&bytes(&tensors()));
    let report = folder
        .run(&[
            "--device",
            "ptx:sm_80",
            "--dtype",
            "bf16",
            "--bounds",
            "0,5,5,40",
            "--chunk",
            "512",
            "--check",
            "--json",
        ])
        .json();
    assert_eq!((&report["passed"], &report["device"]), (&Value::from(true), &Value::from("ptx:sm_80")));
    assert_eq!((&report["interpreter"]["races"], &report["barriers"]), (&Value::from(0), &Value::from(1)));
    assert!(report["kernels"].as_array().unwrap().iter().any(|k| k.as_str().unwrap().contains("sm80")), "{report}");
}

#[test]
fn run_prints_tables() {
    let folder = Folder::new(&bytes(&tensors()));
    let ended = folder.run(&["--check", "--normalizer", "12.5"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for word in ["pass S", "combine", "pass T", "barriers", "plain composition", "dw"] {
        assert!(ended.stdout.contains(word), "no {word} in {}", ended.stdout);
    }
}

fn lookup() -> Vec<Tensor> {
    vec![
        i64s("ids", &[0, 39, 5, 39, 5, 39]),
        f32s("w", &[VOCAB, HIDDEN], &waves(VOCAB * HIDDEN, 1.3)),
        f32s("dy", &[TOKENS, HIDDEN], &waves(TOKENS * HIDDEN, 0.7)),
    ]
}

#[test]
fn run_embeds() {
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

/// `peak_extra_bytes` of 64 tokens and H = 32 over `vocab` classes.
fn extra_bytes(vocab: usize, options: &[&str]) -> u64 {
    let (tokens, hidden) = (64, 32);
    let targets: Vec<i64> = (0..tokens as i64).collect();
    let input = [
        f32s("x", &[tokens, hidden], &waves(tokens * hidden, 0.7)),
        f32s("w", &[vocab, hidden], &waves(vocab * hidden, 1.3)),
        i64s("targets", &targets),
    ];
    let folder = Folder::new(&bytes(&input));
    let json = folder.run(&[&["--threads", "1", "--json"], options].concat()).json();
    json["peak_extra_bytes"].as_u64().unwrap()
}

#[test]
fn memory_is_flat_in_the_vocabulary_under_recompute() {
    let (small, large) = (extra_bytes(4_000, &["--save", "no"]), extra_bytes(64_000, &["--save", "no"]));
    assert!(large < small + small / 20 + 10_000, "{small} bytes for V = 4000, {large} for V = 64000");
    // Saved values are one f32 a token and class, on top of the same working set.
    let saved = extra_bytes(64_000, &["--save", "yes"]);
    assert!((64 * 64_000 * 4..64 * 66_000 * 4 + large).contains(&saved), "{saved} bytes with saved values");
}

#[test]
fn run_without_tokens() {
    let none = [f32s("x", &[0, HIDDEN], &[]), tensors().remove(1), i64s("targets", &[])];
    let folder = Folder::new(&bytes(&none));
    assert_eq!(folder.run(&["--ranks", "3", "--check", "--json"]).json()["passed"], true);
}

#[test]
fn a_nan_in_x_stays_in_its_row() {
    let mut odd = tensors();
    let mut x = waves(TOKENS * HIDDEN, 0.7);
    x[HIDDEN] = f32::NAN;
    odd[0] = f32s("x", &[TOKENS, HIDDEN], &x);
    let folder = Folder::new(&bytes(&odd));
    assert_eq!(folder.run(&["--check", "--json", "--reduction", "none"]).json()["passed"], true);
}

#[test]
fn a_failed_check_exits_with_1() {
    // In f64 these logits are finite, in f32 they are not.
    let mut odd = tensors();
    odd[0] = f32s("x", &[TOKENS, HIDDEN], &[1e30; TOKENS * HIDDEN]);
    odd[1] = f32s("w", &[VOCAB, HIDDEN], &[1e30; VOCAB * HIDDEN]);
    let ended = Folder::new(&bytes(&odd)).run(&["--check", "--json"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(serde_json::from_str::<Value>(&ended.stdout).unwrap()["passed"], false);
    assert!(ended.stderr.starts_with("check failed: ") && ended.stderr.lines().count() == 1, "{}", ended.stderr);
}

#[test]
fn unusable_tensors_are_refused() {
    let zeros = |count| vec![0.0; count];
    let nan = [&[f32::NAN][..], &zeros(VOCAB * HIDDEN - 1)].concat();
    let targets = |last| i64s("targets", &[0, 1, 2, 3, 4, last]);
    let faults: Vec<(Tensor, &[&str])> = vec![
        (f32s("x", &[TOKENS * HIDDEN], &zeros(TOKENS * HIDDEN)), &["tensor x", "[30]", "[N, H]"]),
        (f32s("w", &[VOCAB, 4], &zeros(VOCAB * 4)), &["tensor w", "[40, 4]", "[V, 5]"]),
        (f32s("w", &[VOCAB, HIDDEN], &nan), &["tensor w", "NaN"]),
        (f32s("targets", &[TOKENS], &zeros(TOKENS)), &["tensor targets", "F32", "I64 or I32"]),
        (i64s("targets", &[1]), &["tensor targets", "[1]", "[6]"]),
        (targets(40), &["targets", "40"]),
        (targets(-1), &["targets", "-1"]),
        (f32s("bias", &[VOCAB + 1], &zeros(VOCAB + 1)), &["tensor bias", "[41]", "[40]"]),
        (f32s("upstream", &[1, TOKENS], &zeros(TOKENS)), &["tensor upstream", "[1, 6]", "[6]"]),
        (f32s("bais", &[VOCAB], &zeros(VOCAB)), &["tensor bais", "unknown", "bias"]),
        (Tensor { dtype: Dtype::BF16, ..half_of_w() }, &["tensor w", "bf16", "f32", "--dtype"]),
    ];
    for (fault, words) in faults {
        let mut all = tensors();
        all.retain(|t| t.name != fault.name);
        all.push(fault);
        refuses(&bytes(&all), &["--ranks", "2"], words);
    }
    refuses(&bytes(&tensors()[..2]), &[], &["tensor targets", "missing", "[N]"]);
}

fn half_of_w() -> Tensor {
    Tensor { name: "w", dtype: Dtype::F16, shape: vec![VOCAB, HIDDEN], data: vec![0; VOCAB * HIDDEN * 2] }
}

fn refuses(input: &[u8], options: &[&str], words: &[&str]) {
    let folder = Folder::new(input);
    folder.run(options).refused(words);
    // Neither an output nor a part of one.
    assert_eq!(std::fs::read_dir(folder.0.path()).unwrap().count(), 1);
}

#[test]
fn damaged_files_are_refused() {
    let whole = bytes(&tensors());
    for input in [&whole[..whole.len() - 1], &whole[..100], &whole[..3], b"something else entirely"] {
        refuses(input, &[], &["in.safetensors", "expected a whole safetensors file"]);
    }
    let folder = tempfile::tempdir().unwrap();
    vocabfuse(folder.path(), &["run", "--input", "absent", "--output", "out"]).refused(&["absent"]);
}

#[test]
fn unusable_options_are_refused() {
    let input = bytes(&tensors());
    let faults: &[(&str, &[&str])] = &[
        ("--chunk 1000", &["--chunk", "1000", "power of two"]),
        ("--chunk 256", &["--chunk", "256", "512"]),
        ("--chunk 16384", &["chunk", "16384", "512, 2048, 8192"]),
        ("--ranks 0", &["--ranks", "0", "from 1"]),
        ("--ranks 100000", &["--ranks", "100000"]),
        ("--threads 0", &["--threads"]),
        ("--bounds 0,20", &["--bounds", "20", "40"]),
        ("--bounds 0,50", &["--bounds", "50", "40"]),
        ("--bounds 5,40", &["--bounds", "begin at 5"]),
        ("--bounds 0,30,20,40", &["--bounds", "30..20"]),
        ("--bounds 0,x,40", &["--bounds", "0,5,5,100"]),
        ("--bounds 40", &["--bounds"]),
        ("--ranks 3 --bounds 0,20,40", &["--ranks", "--bounds", "2 ranks"]),
        ("--dtype f64", &["--dtype", "f64", "f32, bf16, f16"]),
        ("--output-dtype f64", &["--output-dtype", "f32, bf16, f16"]),
        ("--algorithm three", &["--algorithm", "naive, one, two"]),
        ("--save perhaps", &["--save", "auto, yes, no"]),
        ("--reduction product", &["--reduction", "none, sum, mean"]),
        ("--device gpu", &["--device", "gpu", "cuda:N"]),
        ("--device ptx:sm_20", &["--device", "sm_20", "ptx:sm_80"]),
        // There is no such GPU anywhere, and mostly no driver either.
        ("--device cuda:99", &["device", "cuda:99"]),
        ("--device ptx:sm_80 --dtype f32", &["precision", "tf32x3"]),
        ("--device ptx:sm_80 --dtype bf16 --precision tf32", &["precision", "bf16"]),
        ("--communicator nccl", &["--communicator", "nccl", "local"]),
        ("--precision tf32", &["--precision", "exact"]),
        ("--precision f64", &["--precision", "exact", "tf32x3"]),
        ("--logit-scale 0", &["--logit-scale", "other than 0"]),
        ("--logit-scale nan", &["--logit-scale", "finite"]),
        ("--normalizer 0", &["--normalizer", "above 0"]),
        ("--normalizer 3 --reduction sum", &["--normalizer", "mean"]),
        ("--ignore-index many", &["--ignore-index", "whole number"]),
        ("--memory-budget 64", &["memory_budget", "64"]),
        ("--softcap 0", &["--softcap"]),
    ];
    for (options, words) in faults {
        refuses(&input, &options.split_whitespace().collect::<Vec<_>>(), words);
    }
    let folder = Folder::new(&input);
    vocabfuse(folder.0.path(), &["run", "--input", "in.safetensors", "--output", "absent/out"])
        .refused(&["--output", "absent/out"]);
    vocabfuse(folder.0.path(), &["run", "--input", "in.safetensors"]).refused(&["--output"]);
    vocabfuse(folder.0.path(), &[]).refused(&["subcommand", "run", "train", "generate", "list", "bench", "compile"]);
}

#[test]
fn train_learns_and_draws() {
    let folder = tempfile::tempdir().unwrap();
    let text = "One two three, four five six. Seven eight, nine ten!\n".repeat(60);
    std::fs::write(folder.path().join("text.txt"), text).unwrap();
    let options = "train --text text.txt --ranks 3 --vocab 300 --hidden 16 --steps 12 --tokens 24 --microbatches 2 --json --out out";
    for (algorithm, barriers) in [("naive", 3.0), ("one", 2.0), ("two", 1.0)] {
        let mut arguments: Vec<&str> = options.split_whitespace().collect();
        arguments.extend(["--algorithm", algorithm]);
        let report = vocabfuse(folder.path(), &arguments).json();
        assert_eq!((&report["steps"], &report["barriers_per_microbatch"]), (&Value::from(12), &Value::from(barriers)));
        assert!(report["loss_last"].as_f64().unwrap() < report["loss_first"].as_f64().unwrap());
        assert!(report["max_loss_difference"].as_f64().unwrap() < 1e-3, "{report}");
        for key in ["reference_loss_last", "ms_per_step", "reference_ms_per_step"] {
            assert!(report[key].is_f64(), "{key}");
        }
    }
    let csv = std::fs::read_to_string(folder.path().join("out/loss.csv")).unwrap();
    assert_eq!(csv.lines().count(), 13);
    assert!(std::fs::read_to_string(folder.path().join("out/loss.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn train_refuses_what_it_cannot_learn() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("short.txt"), "short").unwrap();
    std::fs::write(folder.path().join("binary"), [0, 159, 146, 150]).unwrap();
    let train = |options: &str| {
        let arguments: Vec<&str> = std::iter::once("train").chain(options.split_whitespace()).collect();
        vocabfuse(folder.path(), &arguments)
    };
    train("--text short.txt").refused(&["--text", "too short", "at least 264"]);
    train("--text .").refused(&["--text", "too short"]);
    train("--text binary").refused(&["--text", "binary"]);
    train("--out binary").refused(&["--out", "binary"]);
    train("--text absent").refused(&["absent"]);
    train("--vocab 100").refused(&["--vocab", "256"]);
    train("--steps 0").refused(&["--steps"]);
    train("--ranks 0").refused(&["--ranks"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn generate_writes_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let generate = |out: &str| {
        let options = "--target avx512 --kernel logits_softmax --dtype bf16 --chunk 4096 --json --out";
        let arguments: Vec<&str> = std::iter::once("generate").chain(options.split_whitespace()).chain([out]).collect();
        vocabfuse(folder.path(), &arguments).json()
    };
    let report = generate("a");
    generate("b");
    let name = report["kernels"][0].as_str().unwrap();
    assert!(name.starts_with("logits_softmax__cross_entropy_bf16_c4096__avx512"), "{name}");
    let file = |out: &str| std::fs::read(folder.path().join(out).join(format!("avx512/{name}.rs"))).unwrap();
    assert_eq!(file("a"), file("b"));
    for file in report["files"].as_array().unwrap() {
        assert!(folder.path().join("a").join(file.as_str().unwrap()).is_file());
    }
}

#[test]
fn generate_refuses_what_no_template_covers() {
    let folder = tempfile::tempdir().unwrap();
    let generate = |options: &str| {
        let arguments: Vec<&str> = std::iter::once("generate").chain(options.split_whitespace()).collect();
        vocabfuse(folder.path(), &arguments)
    };
    generate("--target amx --dtype f32 --out o").refused(&["f32", "amx", "bf16"]);
    generate("--target sse --out o").refused(&["--target", "scalar, avx2, avx512"]);
    generate("--target scalar --kernel matmul --out o").refused(&["--kernel", "logits_softmax"]);
    generate("--target scalar --chunk 100 --out o").refused(&["--chunk", "power of two"]);
    generate("--target scalar").refused(&["--out"]);
    generate("--target scalar --out o --compile").refused(&["--compile", "scalar", "sm_80"]);
    generate("--target sm_80 --out o --architecture sm_80").refused(&["--compile"]);
    generate("--target sm_80 --out o --compile --architecture sm_12").refused(&["--architecture", "sm_80, sm_86"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::write(folder.path().join("file"), "").unwrap();
    generate("--target scalar --kernel merge --out file").refused(&["--out", "file"]);
}

#[test]
fn cuda_kernels_are_compiled_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let options = "--target sm_80 --kernel merge --architecture sm_80,sm_89 --out o --compile --json";
    let arguments: Vec<&str> = std::iter::once("generate").chain(options.split_whitespace()).collect();
    let report = vocabfuse(folder.path(), &arguments).json();
    let name = report["kernels"][0].as_str().unwrap();
    for file in [format!("o/cuda/{name}.cu"), "o/cuda/manifest.json".to_owned()] {
        assert!(folder.path().join(file).is_file());
    }
    let resources = report["resources"].as_array().unwrap();
    let of = |key: &str| resources.iter().map(|r| r[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("architecture"), ["sm_80", "sm_89"]);
    assert_eq!(of("spills"), [0, 0]);
    assert!(of("registers").iter().chain(&of("warps")).all(|r| r.as_u64() > Some(7)), "{report}");
    // S, and T in two ways, of three shapes on two GPUs.
    let roofline = report["roofline"].as_array().unwrap();
    assert_eq!(roofline.len(), 18);
    let a100 = &roofline[0];
    assert_eq!((&a100["gpu"], &a100["tokens"], &a100["pass"]), (&"A100".into(), &4096.into(), &"S".into()));
    // 4 NVH operations at 312 TFLOP/s.
    let least = 4.0 * 4096.0 * 4096.0 * 128_256.0 / 312e12 * 1e3;
    assert!(a100["roofline_ms"].as_f64().unwrap() >= least, "{a100}");
}

#[test]
fn compiling_without_a_compiler_says_which_package_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["generate", "--target", "sm_80", "--kernel", "merge", "--out", "o", "--compile"];
    // A folder that is named takes the place of the one that the tests install into.
    let ended = vocabfuse_with(folder.path(), &arguments, &[("VOCABFUSE_NVRTC", "nowhere")]);
    if ended.code == Some(0) {
        // The system has the compiler.
        return;
    }
    ended.refused(&["NVRTC", "nvidia-cuda-nvrtc-cu12==12.9.86"]);
    assert!(!folder.path().join("o").exists());
}

#[test]
fn list_shows_what_runs_here() {
    let folder = tempfile::tempdir().unwrap();
    let report = vocabfuse(folder.path(), &["list", "--target", "scalar", "--json"]).json();
    let kernels = report["kernels"].as_array().unwrap();
    assert!(!kernels.is_empty());
    for kernel in kernels {
        assert_eq!((&kernel["target"], &kernel["runnable"]), (&Value::from("scalar"), &Value::from(true)));
        assert!(kernel["name"].as_str().unwrap().starts_with(kernel["kernel"].as_str().unwrap()));
    }
    let ended = vocabfuse(folder.path(), &["list"]);
    assert!(ended.stdout.contains("logits_softmax__cross_entropy_f32_c512__scalar"), "{}", ended.stdout);
    let cuda = vocabfuse(folder.path(), &["list", "--target", "sm_80", "--json"]).json();
    let softmax = "logits_softmax__cross_entropy_bf16_c8192__sm80_m128n256k32s4";
    assert!(cuda["kernels"].as_array().unwrap().iter().any(|k| k["name"] == softmax && k["target"] == "sm_80"));
    let resources = cuda["resources"].as_array().unwrap().iter().filter(|r| r["name"] == softmax);
    let of: Vec<_> = resources.map(|r| (r["architecture"].as_str().unwrap(), r["spills"].as_u64())).collect();
    assert_eq!(of, [("sm_80", Some(0)), ("sm_90", Some(0))]);
    vocabfuse(folder.path(), &["list", "--target", "mmx"]).refused(&["--target", "scalar, avx2, avx512"]);
}

#[test]
fn the_instruction_set_of_the_environment_is_one_of_a_cpu() {
    let folder = Folder::new(&bytes(&tensors()));
    let arguments = ["run", "--input", "in.safetensors", "--output", "out.safetensors"];
    let ended = vocabfuse_with(folder.0.path(), &arguments, &[("VOCABFUSE_ISA", "sm_80")]);
    ended.refused(&["VOCABFUSE_ISA", "\"sm_80\"", "scalar, avx2"]);
    assert!(!ended.stderr.contains("amx, sm_80"), "{}", ended.stderr);
}

#[test]
fn help_has_examples() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["run", "train", "generate", "list", "bench", "compile"] {
        let ended = vocabfuse(folder.path(), &[command, "--help"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(ended.stdout.contains("Example") && ended.stdout.contains("--json"), "{}", ended.stdout);
    }
}
