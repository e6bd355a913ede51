//! `vocabfuse generate`, `list` and `compile`.

use super::*;

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
    assert!(name.starts_with("logits_softmax__cross_entropy_c4096__avx512"), "{name}");
    let file = |out: &str| std::fs::read(folder.path().join(out).join(format!("avx512/{name}.rs"))).unwrap();
    assert_eq!(file("a"), file("b"));
    for file in report["files"].as_array().unwrap() {
        assert!(folder.path().join("a").join(file.as_str().unwrap()).is_file());
    }
}

#[test]
fn generate_writes_f32_of_amx_in_bf16x3() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "generate --target amx --dtype f32 --kernel logits_softmax --chunk 1024 --out o --json";
    let report = vocabfuse(folder.path(), &arguments.split_whitespace().collect::<Vec<_>>()).json();
    assert_eq!(report["kernels"][0], "logits_softmax__cross_entropy_bf16x3_c1024__amx_m32n32");
    assert!(folder.path().join("o/amx_bf16x3/prelude.rs").is_file());
}

#[test]
fn generate_refuses_what_no_template_covers() {
    let folder = tempfile::tempdir().unwrap();
    let generate = |options: &str| {
        let arguments: Vec<&str> = std::iter::once("generate").chain(options.split_whitespace()).collect();
        vocabfuse(folder.path(), &arguments)
    };
    generate("--target amx --dtype f16 --out o").refused(&["f16", "amx", "bf16"]);
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
    if !nvrtc() {
        return;
    }
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
    if !has(ended.code != Some(0), Need::BareSystem, "the system has a compiler of its own") {
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
    let ended = vocabfuse(folder.path(), &["list", "--all"]);
    assert!(ended.stdout.contains("logits_softmax__cross_entropy_f32__scalar"), "{}", ended.stdout);
    let cuda = vocabfuse(folder.path(), &["list", "--target", "sm_80", "--json"]).json();
    let softmax = "logits_softmax__cross_entropy_bf16_c8192__sm80_m128n256k32s4";
    assert!(cuda["kernels"].as_array().unwrap().iter().any(|k| k["name"] == softmax && k["target"] == "sm_80"));
    let resources = cuda["resources"].as_array().unwrap().iter().filter(|r| r["name"] == softmax);
    let of: Vec<_> = resources.map(|r| (r["architecture"].as_str().unwrap(), r["spills"].as_u64())).collect();
    assert_eq!(of, [("sm_80", Some(0)), ("sm_90", Some(0))]);
    vocabfuse(folder.path(), &["list", "--target", "mmx"]).refused(&["--target", "scalar, avx2, avx512"]);
}

#[test]
fn list_has_a_line_a_family_and_filters() {
    let folder = tempfile::tempdir().unwrap();
    let list = |options: &str| {
        let arguments: Vec<&str> = std::iter::once("list").chain(options.split_whitespace()).collect();
        vocabfuse(folder.path(), &arguments)
    };
    let names = |options: &str| -> Vec<Value> {
        list(&format!("{options} --json")).json()["kernels"].as_array().unwrap().clone()
    };
    // The JSON has every kernel, whatever is printed.
    let all = names("");
    assert_eq!(all.len(), names("--all").len());
    let families: std::collections::BTreeSet<_> =
        all.iter().map(|k| (k["target"].to_string(), k["kernel"].to_string())).collect();
    let lines = |ended: &Ended| {
        ended.stdout.lines().filter(|line| line.ends_with("yes       ") || line.ends_with("no        ")).count()
    };
    assert_eq!(lines(&list("")), families.len());
    assert_eq!(lines(&list("--all")), all.len());
    let some = names("--target sm_80 --kernel logits_softmax --dtype f16 --loss cross_entropy");
    assert!(!some.is_empty() && some.len() < all.len());
    for kernel in &some {
        let of = ["target", "kernel", "dtype", "loss"].map(|key| kernel[key].as_str().unwrap());
        assert_eq!(of, ["sm_80", "logits_softmax", "f16", "cross_entropy"]);
    }
    let line = list("--target sm_80 --kernel row_statistics").stdout;
    assert!(line.contains("Losses and operators: entropy, kl_divergence") && line.contains("6 kernels."), "{line}");
    list("--loss focal").refused(&["--loss", "focal", "cross_entropy_softcap"]);
    list("--kernel matmul").refused(&["--kernel", "row_statistics"]);
    list("--dtype f64").refused(&["--dtype", "bf16"]);
}

#[test]
fn generate_writes_all_that_list_shows() {
    let folder = tempfile::tempdir().unwrap();
    let listed = vocabfuse(folder.path(), &["list", "--json"]).json();
    let listed = listed["kernels"].as_array().unwrap();
    for target in Target::ALL.iter().map(|target| target.as_str()) {
        // Names of kernels stand in the module, or in the texts.
        let mut written = String::new();
        for dtype in ["", " --dtype f32"] {
            let out = format!("{target}{}", dtype.len());
            let options = format!("generate --target {target} --loss all --operator all{dtype} --json --out {out}");
            let report = vocabfuse(folder.path(), &options.split_whitespace().collect::<Vec<_>>()).json();
            for file in report["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()) {
                written += &std::fs::read_to_string(folder.path().join(&out).join(file)).unwrap();
            }
        }
        for kernel in listed.iter().filter(|kernel| kernel["target"] == target) {
            assert!(written.contains(kernel["name"].as_str().unwrap()), "no {} is generated", kernel["name"]);
        }
    }
    // What only operators have comes without naming them.
    let options = "generate --target scalar --kernel row_statistics --json --out rows";
    let report = vocabfuse(folder.path(), &options.split_whitespace().collect::<Vec<_>>()).json();
    assert_eq!(report["kernels"].as_array().unwrap().len(), 6);
    let one = "generate --target sm_80 --kernel row_statistics --operator entropy --json --out one";
    let report = vocabfuse(folder.path(), &one.split_whitespace().collect::<Vec<_>>()).json();
    assert_eq!(report["kernels"].as_array().unwrap().len(), 1);
    let focal = ["generate", "--target", "scalar", "--loss", "focal", "--out", "o"];
    vocabfuse(folder.path(), &focal).refused(&["--loss", "focal", "cross_entropy_argmax"]);
}
