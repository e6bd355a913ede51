//! `bench` and `compile`.

use super::{Ended, nvrtc, vocabfuse};
use serde_json::Value;

fn bench(options: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let size = "bench --tokens 40 --hidden 24 --vocab 1100 --threads 2";
    vocabfuse(folder.path(), &size.split(' ').chain(options.split_whitespace()).collect::<Vec<_>>())
}

#[test]
fn bench_reports_each_pass() {
    for (dtype, save, saved) in [("f32", "yes", true), ("bf16", "no", false), ("f16", "auto", true)] {
        let options = format!("--dtype {dtype} --save {save} --rounds 2 --chunk 512 --check --json");
        let report = bench(&options).json();
        for pass in ["s", "combine", "t", "whole"] {
            let value = |key: &str| report["passes"][pass][key].as_f64();
            assert!(value("min_ms") <= value("median_ms") && value("min_ms") > Some(0.0), "{pass} in {report}");
            // C1 is no matrix product.
            assert_eq!(value("gflops").is_some_and(|rate| rate > 0.0), pass != "combine", "{pass} in {report}");
            if cfg!(target_arch = "x86_64") {
                assert_eq!(value("share").is_some(), pass != "combine" && report["peak"].is_object(), "{report}");
            }
        }
        assert_eq!((&report["saved"], &report["passed"]), (&Value::from(saved), &Value::from(true)), "{report}");
        assert_eq!((&report["clock"], &report["rounds"]), (&Value::from("host"), &Value::from(2)));
        assert_eq!((&report["dtype"], &report["threads"]), (&Value::from(dtype), &Value::from(2)));
        for output in ["lse", "dx", "dw"] {
            let value = |key: &str| report["check"][output][key].as_f64().unwrap();
            assert!(value("error") <= value("limit"), "{output} in {report}");
        }
        assert_eq!(report["output_bytes"], (40 + 1100) * 24 * 4);
        assert!(report["peak_bytes"].as_u64() > report["output_bytes"].as_u64(), "{report}");
    }
}

#[test]
fn bench_prints_a_table() {
    let ended = bench("--rounds 1");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for word in ["40 tokens", "C1", "whole", "GFLOP/s", "the host's clock", "MiB"] {
        assert!(ended.stdout.contains(word), "no {word} in {}", ended.stdout);
    }
    assert!(!ended.stdout.contains("error against f64"), "{}", ended.stdout);
}

#[test]
fn bench_refuses_what_it_cannot_measure() {
    let faults: &[(&str, &[&str])] = &[
        ("--rounds 0", &["--rounds", "at least 1"]),
        ("--dtype f64", &["--dtype", "f32, bf16, f16"]),
        ("--save perhaps", &["--save", "auto, yes, no"]),
        ("--chunk 1000", &["--chunk", "power of two"]),
        ("--threads 0", &["--threads"]),
        ("--device ptx:sm_80", &["--device", "ptx:sm_80", "no stopwatch"]),
        ("--device cuda:99", &["cuda:99"]),
        ("--precision tf32 --dtype f32", &["option precision", "exact", "bf16x3"]),
        ("--precision bf16x3 --dtype bf16", &["option precision", "bf16x3 for dtype f32", "dtype bf16"]),
        ("--ranks 2", &["--ranks"]),
    ];
    for (options, words) in faults {
        bench(options).refused(words);
    }
    let folder = tempfile::tempdir().unwrap();
    let huge = ["bench", "--tokens", "1", "--hidden", "4000000000", "--vocab", "9000000000000"];
    vocabfuse(folder.path(), &huge).refused(&["--vocab", "too large"]);
    let none = ["bench", "--tokens", "0"];
    vocabfuse(folder.path(), &none).refused(&["--tokens", "at least 1"]);
}

#[test]
fn compile_fills_a_cache() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let compile = |options: &str| {
        let arguments: Vec<&str> = std::iter::once("compile").chain(options.split_whitespace()).collect();
        vocabfuse(folder.path(), &arguments)
    };
    let report = compile("--architecture sm_90 --dtype bf16 --chunk 512 --out cubins --json").json();
    let kernels = report["kernels"].as_array().unwrap();
    for name in ["logits_softmax__", "gather_rows__bf16", "scatter_add__bf16", "scatter_add__f32"] {
        assert!(kernels.iter().any(|k| k.as_str().unwrap().starts_with(name)), "no {name} in {report}");
    }
    // Machine code, and PTX for newer GPUs.
    assert_eq!(std::fs::read_dir(folder.path().join("cubins")).unwrap().count(), 2 * kernels.len());
    compile("--architecture sm_90 --loss focal --out cubins").refused(&["--loss", "focal", "cross_entropy_softcap"]);
    compile("--architecture sm_90 --operator sum --out cubins").refused(&["--operator", "sum", "kl_divergence"]);
    compile("--architecture sm_20 --out cubins").refused(&["sm_20", "sm_90"]);
    compile("--architecture sm_90").refused(&["--out"]);
    compile("--architecture sm_90 --dtype f32 --precision exact --out cubins").refused(&["f32", "tf32"]);
    compile("--architecture sm_90 --dtype f32 --precision bf16x3 --out cubins").refused(&["bf16x3", "tf32x3"]);
    std::fs::write(folder.path().join("file"), "").unwrap();
    compile("--architecture sm_90 --out file").refused(&["--out", "file"]);
}

#[cfg(unix)]
#[test]
fn the_check_of_a_gpu_runs_on_a_cpu() {
    let check = |device: &str| {
        std::process::Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/gpu/check.sh"))
            .envs([("DEVICE", device), ("SHAPES", "8,8,100"), ("VOCABFUSE_BIN", env!("CARGO_BIN_EXE_vocabfuse"))])
            // Cases that would take longer are left out.
            .envs([("CHECK_SECONDS", "1"), ("BENCH_SECONDS", "1")])
            .output()
            .unwrap()
    };
    let ended = check("cpu");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    for words in ["correctness on cpu: ", " 0 failed", "| 8,8,100 | vocabfuse, recompute |"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let ended = check("gpu");
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stdout).starts_with("nothing was checked: "));
}
