//! The command line: good runs, and every kind of unusable input.

mod embedding;
mod kernels;
mod measure;
mod operators;
mod options;

#[path = "../common/nvrtc.rs"]
mod compiler;

use compiler::nvrtc;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::path::{Path, PathBuf};
use vocabfuse::{Cpu, Target};
use vocabfuse_testing::{Need, has};

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
        self.run_with(options, &[])
    }

    fn run_with(&self, options: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut arguments = vec!["run", "--input", "in.safetensors", "--output", "out.safetensors"];
        arguments.extend(options);
        vocabfuse_with(self.0.path(), &arguments, variables)
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
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_vocabfuse"))
        .current_dir(folder)
        .args(arguments)
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
fn run_multiplies_f32_in_bf16x3_where_there_is_bf16() {
    let folder = Folder::new(&bytes(&tensors()));
    let options = ["--precision", "bf16x3", "--ranks", "2", "--check", "--json"];
    let on = |isa: &str| folder.run_with(&options, &[("VOCABFUSE_ISA", isa)]);
    let pairs = Cpu::available_targets().contains(&Target::Avx512Bf16);
    if has(pairs, Need::Avx512Bf16, "no AVX-512 BF16 here") {
        let report = on("avx512bf16").json();
        let device = report["device"].as_str().unwrap();
        assert!(report["passed"] == true && device.starts_with("cpu avx512bf16, precision bf16x3"), "{report}");
        let kernels = report["kernels"].as_array().unwrap();
        let softmax = "logits_softmax__cross_entropy_f32_bf16x3__avx512bf16_m14n32";
        assert!(kernels.iter().any(|k| k == softmax), "{report}");
    }
    on("scalar").refused(&["option precision", "bf16x3", "avx512bf16 and amx", "target scalar"]);
}

#[test]
fn run_interprets_the_kernels_of_a_gpu() {
    if !nvrtc() {
        return;
    }
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

/// `peak_extra_bytes` of some tokens and H = 32 over `vocab` classes, on the fastest target or one of choice.
fn extra_bytes(tokens: usize, vocab: usize, save: &str, isa: Option<&str>) -> u64 {
    let hidden = 32;
    let targets: Vec<i64> = (0..tokens as i64).collect();
    let input = [
        f32s("x", &[tokens, hidden], &waves(tokens * hidden, 0.7)),
        f32s("w", &[vocab, hidden], &waves(vocab * hidden, 1.3)),
        i64s("targets", &targets),
    ];
    let folder = Folder::new(&bytes(&input));
    let variables: Vec<(&str, &str)> = isa.iter().map(|isa| ("VOCABFUSE_ISA", *isa)).collect();
    let json = folder.run_with(&["--threads", "1", "--json", "--save", save], &variables).json();
    json["peak_extra_bytes"].as_u64().unwrap()
}

#[test]
fn memory_is_flat_in_the_vocabulary_under_recompute() {
    // A processor of another kind has other panels, and so another number of tokens that are few.
    for target in Cpu::available_targets() {
        for tokens in [1, 8, 64, 128, 256, 300] {
            let [small, large] = [4_000, 64_000].map(|vocab| extra_bytes(tokens, vocab, "no", Some(target.as_str())));
            let what = format!("{tokens} tokens on {target}: {small} bytes for V = 4000, {large} for V = 64000");
            assert!(large < small + small / 20 + 10_000, "{what}");
        }
    }
    // Saved values are one f32 a token and class, on top of the same working set.
    let (large, saved) = (extra_bytes(64, 64_000, "no", None), extra_bytes(64, 64_000, "yes", None));
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
    // In f64 these logits are zero, in f32 they are the difference of infinite terms.
    let mut odd = tensors();
    odd[0] = f32s("x", &[TOKENS, HIDDEN], &[1e30; TOKENS * HIDDEN]);
    odd[1] = f32s("w", &[VOCAB, HIDDEN], &[1e30, -1e30, 1e30, -1e30, 0.0].repeat(VOCAB));
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
fn inputs_are_not_overwritten() {
    let input = bytes(&tensors());
    let folder = Folder::new(&input);
    let ended = vocabfuse(folder.0.path(), &["run", "--input", "in.safetensors", "--output", "./in.safetensors"]);
    ended.refused(&["--output ./in.safetensors", "is the input"]);
    assert_eq!(std::fs::read(folder.path("in.safetensors")).unwrap(), input);
}

#[test]
fn unusable_options_are_refused() {
    let input = bytes(&tensors());
    let faults: &[(&str, &[&str])] = &[
        ("--chunk 1000", &["--chunk", "1000", "power of two"]),
        ("--chunk 128", &["--chunk", "128", "256"]),
        ("--ranks 0", &["--ranks", "0", "from 1"]),
        ("--ranks 100000", &["--ranks", "100000"]),
        ("--threads 0", &["--threads"]),
        ("--bounds 0,20", &["--bounds", "20", "40"]),
        ("--bounds 0,50", &["--bounds", "50", "40"]),
        ("--bounds 5,40", &["--bounds", "begin at 5"]),
        ("--bounds 0,30,20,40", &["--bounds", "30..20"]),
        ("--bounds 0,x,40", &["--bounds", "0,5,5,100"]),
        ("--bounds 40", &["--bounds"]),
        ("--ranks 3 --bounds 0,20,40", &["--ranks", "--bounds", "expected 2"]),
        ("--z-loss -1", &["--z-loss", "-1", "at least 0"]),
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
        ("--precision tf32", &["option precision", "exact", "bf16x3", "got tf32"]),
        ("--precision bf16x3 --dtype f16", &["option precision", "bf16x3 for dtype f32", "dtype f16"]),
        ("--precision bf16x3 --device ptx:sm_80", &["option precision", "bf16x3", "tf32 or tf32x3"]),
        ("--precision f64", &["--precision", "exact", "tf32x3, bf16x3"]),
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

#[test]
fn a_limit_hides_what_the_machine_has_beyond_a_target() {
    let folder = Folder::new(&bytes(&tensors()));
    let list = |limit| vocabfuse_with(folder.0.path(), &["list", "--json"], &[("VOCABFUSE_ISA_LIMIT", limit)]).json();
    let available = list("scalar")["available"].clone();
    assert!(available[0] == "scalar" && available[1] != "avx2", "{available}");
    let run = |isa, limit| folder.run_with(&["--json"], &[("VOCABFUSE_ISA", isa), ("VOCABFUSE_ISA_LIMIT", limit)]);
    assert!(run("", "scalar").json()["device"].as_str().unwrap().starts_with("cpu scalar"));
    run("avx2", "scalar").refused(&["avx2", "VOCABFUSE_ISA_LIMIT"]);
    run("", "mmx").refused(&["VOCABFUSE_ISA_LIMIT", "\"mmx\"", "scalar, avx2"]);
}
