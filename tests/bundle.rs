//! Kernels that a program carries, or a folder: nothing is compiled where they run.

#[path = "common/nvrtc.rs"]
mod compiler;

use compiler::nvrtc;
use half::bf16;
use safetensors::tensor::{Dtype as Stored, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use vocabfuse::codegen::bundle::{self, Text};
use vocabfuse::codegen::compile::{Form, artifact::Artifact};
use vocabfuse::codegen::manifest::Manifest;
use vocabfuse::codegen::{Architecture, CrossEntropyForm, Loss};
use vocabfuse::runtime::RowLoss;
use vocabfuse::{
    Batch, Builder, Bundle, CrossEntropy, Dtype, Gpu, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Ptx,
    Save, Shard, ShardLayout, Upstream,
};
use vocabfuse_testing::{Need, has};

const CHUNK: usize = 512;
const TOKENS: usize = 5;
const HIDDEN: usize = 8;
const VOCAB: usize = 40;

/// The bundle of a builder for the interpreter, as `Builder::write_cuda` makes it.
fn bundle_of(builder: &Builder) -> Bundle {
    let texts = bundle::texts(builder).unwrap();
    let compiled = bundle::compile(&texts, &[(Form::Ptx, Architecture::parse("sm_80").unwrap())]).unwrap();
    let manifest = Manifest::new(texts.iter().map(|text| text.entry.clone()).collect());
    let kept = |text: String| -> &'static str { text.leak() };
    let programs = texts.iter().filter_map(|t| Some((kept(t.entry.name.clone()), kept(t.programs.clone()?))));
    let programs: Vec<_> = programs.collect();
    let texts: Vec<_> = texts.into_iter().map(|Text { entry, text, .. }| (kept(entry.name), kept(text))).collect();
    let artifacts = compiled.artifacts.iter().map(|artifact| -> &'static [u8] { artifact.encode().leak() });
    let artifacts: Vec<_> = artifacts.collect();
    Bundle {
        manifest: kept(manifest.to_json()),
        texts: texts.leak(),
        programs: programs.leak(),
        artifacts: artifacts.leak(),
    }
}

fn builder() -> Builder {
    Builder::cuda().dtypes(&[Dtype::Bf16]).chunks(&[CHUNK])
}

fn interpreter(cache: &Path) -> Gpu {
    Gpu::ptx(&Ptx::new("sm_80").unwrap()).unwrap().with_cache(cache)
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn values(count: usize, step: f32) -> Vec<bf16> {
    (0..count).map(|i| bf16::from_f32((i as f32 * step).sin())).collect()
}

type Results = (Vec<f32>, Vec<f32>, Vec<f32>);

/// Loss, dX and dW of one rank.
fn run(gpu: &Gpu, loss: RowLoss, policy: Policy) -> Results {
    let (x, w, targets) = (values(TOKENS * HIDDEN, 0.7), values(VOCAB * HIDDEN, 1.3), [0, 39, -100, 7, 20]);
    let layout = ShardLayout::even(VOCAB, 1).unwrap();
    let policy = Policy { chunk: Some(CHUNK), ..policy };
    // A name of cross-entropy's own comes with its options.
    let layer = if loss.uniforms.is_empty() {
        OutputLayer::new(gpu, &layout, 0, loss.options, policy)
    } else {
        OutputLayer::with_loss(gpu, &layout, 0, loss, policy)
    };
    let layer = layer.unwrap();
    let weight = Matrix::new(&w, VOCAB, HIDDEN).unwrap();
    let batch = Batch::new(Matrix::new(&x, TOKENS, HIDDEN).unwrap(), &targets);
    let comm = &Local::group(1)[0];
    let shard = Shard { weight, bias: None };
    let partial = layer.s_pass(comm, batch, shard).unwrap();
    let done = partial.start_combine().wait().unwrap();
    let mut dw = vec![0.0; VOCAB * HIDDEN];
    layer
        .t_pass(
            done.weight_grad,
            Operands::new(batch.x, shard),
            Gradients { dw: (&mut dw).into(), dbias: None },
            Upstream::One,
        )
        .unwrap();
    (done.loss, done.dx.to_vec(), dw)
}

fn cross_entropy(options: CrossEntropy) -> RowLoss {
    RowLoss { name: "cross_entropy".to_owned(), uniforms: BTreeMap::new(), options }
}

#[test]
fn a_bundle_has_all_that_every_form_of_cross_entropy_calls() {
    if !nvrtc() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let bundle = bundle_of(&builder().forms(&CrossEntropyForm::all()).unwrap());
    let gpu = interpreter(cache.path()).with_kernels(bundle).unwrap();
    for CrossEntropyForm { softcap, smoothing, argmax } in CrossEntropyForm::all() {
        let options = CrossEntropy {
            softcap: softcap.then_some(5.0),
            label_smoothing: if smoothing { 0.1 } else { 0.0 },
            argmax,
            ..CrossEntropy::default()
        };
        let saves = if softcap && smoothing { vec![Save::No] } else { vec![Save::No, Save::Yes] };
        for save in saves {
            let policy = Policy { save, filter: Some(0.001), ..Policy::default() };
            let (losses, _, dw) = run(&gpu, cross_entropy(options), policy);
            assert!(losses[0] > 0.0 && dw.iter().any(|v| *v != 0.0));
        }
    }
    assert!(is_empty(cache.path()), "something was compiled");
}

#[test]
fn kernels_of_another_loss_of_the_same_name_are_not_used() {
    if !nvrtc() {
        return;
    }
    let named = |form: CrossEntropyForm| Loss { name: "mine".to_owned(), ..form.loss().unwrap() };
    let plain = named(CrossEntropyForm::default());
    let capped = named(CrossEntropyForm { softcap: true, ..CrossEntropyForm::default() });
    let bundle = bundle_of(&builder().loss(plain.clone()));
    let losses = |loss: &Loss, bundle: Option<Bundle>| {
        let cache = tempfile::tempdir().unwrap();
        let mut gpu = interpreter(cache.path()).with_loss(loss.clone()).unwrap();
        if let Some(bundle) = bundle {
            gpu = gpu.with_kernels(bundle).unwrap();
        }
        let uniforms = [("softcap", 0.5), ("z_loss", 0.0)].map(|(name, value)| (name.to_owned(), value));
        let options = CrossEntropy::default();
        let loss = RowLoss { name: "mine".to_owned(), uniforms: uniforms.into(), options };
        (run(&gpu, loss, Policy::default()), is_empty(cache.path()))
    };
    let (expected, nothing) = losses(&capped, None);
    assert!(!nothing);
    assert_eq!(losses(&capped, Some(bundle)), (expected.clone(), false));
    let (of_plain, nothing) = losses(&plain, Some(bundle));
    assert!(nothing && of_plain != expected, "those of the loss itself are used");
}

#[test]
fn a_bundle_on_disk_embeds_what_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let builder = builder().operators(&vocabfuse::codegen::operator::all().unwrap());
    // Without architectures there is nothing to compile.
    let written = builder.write_cuda(folder.path()).unwrap();
    assert_eq!((written.artifacts, written.notes.len()), (0, 0));
    let text = std::fs::read_to_string(&written.file).unwrap();
    assert!(text.contains("pub const CUDA_KERNELS: vocabfuse_runtime::Bundle"));
    let embedded: Vec<&str> = text.split("include_str!(\"").skip(1).map(|t| t.split('"').next().unwrap()).collect();
    assert_eq!(embedded.len(), written.kernels + 1, "texts and a manifest");
    for file in &embedded {
        assert!(folder.path().join(file).is_file(), "{file}");
    }
    // Operators have a chunk of their own, and an embedding takes gradients in f32.
    for kernel in ["accumulate__bf16_c512", "accumulate__bf16_c2048", "weight_grad__bf16_c2048", "scatter_add__f32"] {
        assert!(embedded.iter().any(|file| file.contains(kernel)), "no {kernel} among {embedded:?}");
    }
    let nothing = Builder::new().kernels(&[]).write_cuda(folder.path()).unwrap_err().to_string();
    assert!(nothing.contains("no CUDA kernel"), "{nothing}");
    if nvrtc() {
        let architectures = Architecture::list("sm_80,sm_90").unwrap();
        let merge = builder.kernels(&[vocabfuse::KernelKind::Merge]).architectures(&architectures);
        let written = merge.write_cuda(folder.path()).unwrap();
        assert_eq!((written.kernels, written.artifacts, written.notes), (1, 3, vec![]));
        let files = std::fs::read_dir(folder.path().join("cuda_kernels")).unwrap().map(|e| e.unwrap().path());
        let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "bin")).collect();
        let options = |path| Artifact::decode(&std::fs::read(path).unwrap()).unwrap().label.options[0].clone();
        let mut options: Vec<String> = files.iter().map(options).collect();
        options.sort();
        assert_eq!(options, ["compute_80", "sm_80", "sm_90"].map(|on| format!("--gpu-architecture={on}")));
    }
}

/// A folder with tensors of every operation.
fn inputs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let wave = |count: usize, step: f32| -> Vec<u8> {
        (0..count).flat_map(|i| (i as f32 * step).sin().to_le_bytes()).collect()
    };
    let whole = |ids: &[i64]| -> Vec<u8> { ids.iter().flat_map(|id| id.to_le_bytes()).collect() };
    let (x, w) = (("x", Stored::F32, vec![TOKENS, HIDDEN]), ("w", Stored::F32, vec![VOCAB, HIDDEN]));
    let ids = ("ids", Stored::I64, vec![TOKENS]);
    let linear = [(x, wave(TOKENS * HIDDEN, 0.7)), (w.clone(), wave(VOCAB * HIDDEN, 1.3))];
    let targets = (("targets", Stored::I64, vec![TOKENS]), whole(&[0, 39, -100, 7, 20]));
    let teacher = [
        (("teacher_x", Stored::F32, vec![TOKENS, HIDDEN]), wave(TOKENS * HIDDEN, 0.9)),
        (("teacher_w", Stored::F32, vec![VOCAB, HIDDEN]), wave(VOCAB * HIDDEN, 0.4)),
    ];
    let chosen = (ids, whole(&[0, 39, 5, 5, 20]));
    let rows = (("dy", Stored::F32, vec![TOKENS, HIDDEN]), wave(TOKENS * HIDDEN, 0.3));
    let files = [
        ("loss", [&linear[..], &[targets]].concat()),
        ("logprobs", [&linear[..], std::slice::from_ref(&chosen)].concat()),
        ("plain", linear.to_vec()),
        ("teacher", [&linear[..], &teacher].concat()),
        ("embedding", vec![chosen, (w, wave(VOCAB * HIDDEN, 1.3)), rows]),
    ];
    for (name, tensors) in files {
        let views = tensors
            .iter()
            .map(|((name, dtype, shape), data)| (*name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.path().join(format!("{name}.safetensors")), bytes).unwrap();
    }
    folder
}

#[test]
fn a_folder_that_was_compiled_elsewhere_serves_where_there_is_no_compiler() {
    if !nvrtc() {
        return;
    }
    let folder = inputs();
    let vocabfuse = |options: &str, environment: &[(&str, &str)]| {
        let ended = std::process::Command::new(env!("CARGO_BIN_EXE_vocabfuse"))
            .current_dir(folder.path())
            .args(options.split_whitespace())
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap())
    };
    let compile = "compile --architecture sm_80 --dtype bf16 --chunk 512 --out kernels --json \
                   --loss cross_entropy,cross_entropy_softcap_smoothing_argmax";
    let (code, _, errors) = vocabfuse(compile, &[]);
    assert_eq!(code, Some(0), "{errors}");
    // A folder that is named takes the place of the one that the tests install into.
    let bare = |options: &str, cache: &str| {
        let on = "--dtype bf16 --device ptx:sm_80 --output o.safetensors --check --json";
        let environment = [("VOCABFUSE_NVRTC", "nowhere"), ("VOCABFUSE_CACHE", cache)];
        vocabfuse(&format!("run {on} --input {options}"), &environment)
    };
    let (code, _, errors) = bare("loss.safetensors --chunk 512", "empty");
    if has(code != Some(0), Need::BareSystem, "the system has a compiler of its own") {
        assert!(errors.contains("NVRTC") && errors.contains("VOCABFUSE_NVRTC=nowhere"), "{errors}");
    }
    for options in [
        "loss.safetensors --chunk 512",
        "loss.safetensors --chunk 512 --ranks 2 --algorithm naive --save no --filter 0.001",
        "loss.safetensors --chunk 512 --softcap 3 --label-smoothing 0.1 --argmax --z-loss 0.01",
        "logprobs.safetensors --op logprobs",
        "logprobs.safetensors --op logprobs-entropy --softcap 2",
        "plain.safetensors --op entropy",
        "plain.safetensors --op top-k --k 3",
        "plain.safetensors --op sample",
        "teacher.safetensors --op kl",
        "embedding.safetensors --op embedding",
    ] {
        let (code, report, errors) = bare(options, "kernels");
        assert_eq!(code, Some(0), "{options}: {errors}");
        assert_eq!(serde_json::from_str::<Value>(&report).unwrap()["passed"], true, "{options}: {report}");
    }
}
