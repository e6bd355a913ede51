//! What the compiler makes of every kernel: resources, and instructions of the main loops.

use std::time::Instant;
use vocabfuse_codegen::compile::measure::{Bench, DEFAULT_ARCHITECTURES};
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{Form, roofline, tools};
use vocabfuse_codegen::emit::{Kernel, cuda_entry};
use vocabfuse_codegen::manifest::{Entry, Manifest, Resources};
use vocabfuse_codegen::{Builder, CrossEntropyForm, Dtype, Precision, Target, bundle, cross_entropy, operator};
use vocabfuse_testing::{Need, has};

/// Spills of one to three registers outside of main loops: kernel, architecture and bytes. Any other is an error.
const KNOWN_SPILLS: [(&str, &str, &str); 5] = [
    ("logits_softmax__cross_entropy_softcap_argmax_bf16", "sm_80", "4 bytes of spill stores and 4 of"),
    ("logits_softmax__cross_entropy_smoothing_argmax_bf16", "sm_80", "12 bytes of spill stores and 12 of"),
    ("reduce_statistics__cross_entropy_softcap_smoothing_bf16", "sm_80", "4 bytes of spill stores and 4 of"),
    ("logits_gradient__cross_entropy_f32_tf32x3", "sm_90", "8 bytes of spill stores and 24 of"),
    ("saved_gradient__cross_entropy_bf16", "sm_100", "4 bytes of spill stores and 8 of"),
];

/// The place in the list of the spill that a message is about.
fn known_spill(message: &str) -> Option<usize> {
    KNOWN_SPILLS.iter().position(|(kernel, on, bytes)| [*kernel, *on, *bytes].iter().all(|word| message.contains(word)))
}

// The default set, and the forms that are compiled when asked for: all kinds, dtypes and precisions at one chunk, since
// a chunk changes nothing but constants.
fn kernels() -> Vec<(Kernel, Entry)> {
    let of = |builder: Builder| {
        let kernels = builder.generate().unwrap().into_iter().zip(builder.entries().unwrap());
        kernels.inspect(|(kernel, entry)| assert_eq!(kernel.name, entry.name)).collect::<Vec<_>>()
    };
    let mut kernels = of(Builder::checked_in_cuda().unwrap().chunks(&[8192]));
    kernels.extend(of(Builder::cuda().dtypes(&[Dtype::Bf16]).chunks(&[2048, 32768])));
    let more = Builder::new().targets(&Target::gpus().collect::<Vec<_>>()).chunks(&[8192]).precisions(Precision::ALL);
    let more = more.operators(&operator::all().unwrap());
    kernels.extend(of(more.dtypes(&[Dtype::Bf16, Dtype::F32])));
    let mut unique: Vec<(Kernel, Entry)> = vec![];
    kernels.into_iter().for_each(|kernel| {
        if unique.iter().all(|(known, _)| known.name != kernel.0.name) {
            unique.push(kernel)
        }
    });
    unique
}

// The manifest that is checked in, unless the package is on its own.
fn checked_in() -> Option<Manifest> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-gen/cuda/manifest.json");
    let text = std::fs::read_to_string(path).ok();
    has(text.is_some(), Need::Workspace, "there is no manifest to compare with");
    text.map(|text| Manifest::parse(&text).unwrap())
}

fn bench() -> Option<Bench> {
    crate::nvrtc()?;
    Some(Bench::new().unwrap())
}

#[test]
fn every_kernel_compiles_within_its_limits() {
    let manifest = checked_in();
    let Some(bench) = bench() else { return };
    // Without it resources are looked at, and instructions are not.
    let disassembles =
        has(bench.disassembles(), Need::Nvdisasm, &format!("nvdisasm was not found; {}", tools::INSTALL));
    for on in DEFAULT_ARCHITECTURES.map(|name| Architecture::parse(name).unwrap()) {
        for (kernel, entry) in kernels() {
            let spec = &kernel.spec;
            let start = Instant::now();
            // Refuses spills, too few warps, and main loops of other instructions than those of tensor cores.
            let (_, resources) = match bench.measure(&entry, &kernel.text, on) {
                Err(refused) if known_spill(&refused.to_string()).is_some() => {
                    println!("{refused}");
                    continue;
                }
                measured => measured.unwrap_or_else(|e| panic!("{e}")),
            };
            let seconds = start.elapsed().as_secs_f64();
            let Resources { registers, static_shared, warps, main_loop, .. } = resources;
            let (shared, on) = (static_shared as usize + entry.dynamic_shared, on.name());
            println!(
                "{:76} {on} {registers:3} registers, {shared:6} B shared, {warps:2} warps, {seconds:.2} s",
                kernel.name
            );
            if let Some(inner) = main_loop {
                println!("    {:.2} instructions a product, {inner:?}", inner.per_product());
                if spec.types.storage != Dtype::F32 {
                    // A scheduler issues eight instructions while its tensor core computes one product.
                    assert!(inner.per_product() < 3.0, "{}: {inner:?}", kernel.name);
                }
            }
            if let Some(known) = manifest.as_ref().and_then(|m| m.find(&entry.name)) {
                let name = &entry.name;
                let same = |known: &Resources| {
                    let main_loop = if disassembles { known.main_loop } else { None };
                    Resources { main_loop, ..known.clone() } == resources
                };
                assert!(known.resources.iter().any(same), "{name}: {resources:?}; run `cargo xtask generate`");
            }
        }
    }
}

#[test]
fn other_architectures_compile_too() {
    let loss = cross_entropy().unwrap();
    let Some(bench) = bench() else { return };
    let nvrtc = crate::nvrtc().expect("it was loaded");
    for on in Architecture::ALL {
        assert!(nvrtc.supports(*on), "{}", on.name());
    }
    let others = Architecture::ALL.iter().filter(|a| !DEFAULT_ARCHITECTURES.contains(&a.name().as_str()));
    for on in others {
        let kernels = Builder::cuda().dtypes(&[Dtype::Bf16]).chunks(&[8192]).generate().unwrap();
        for kernel in
            kernels.into_iter().filter(|k| k.name.starts_with("logits_softmax") || k.name.starts_with("weight_grad"))
        {
            let entry = cuda_entry(&kernel.spec, &loss).unwrap();
            let (_, resources) = bench.measure(&entry, &kernel.text, *on).unwrap_or_else(|e| panic!("{e}"));
            println!("{} {}: {} registers, {} warps", kernel.name, on.name(), resources.registers, resources.warps);
        }
    }
}

#[test]
fn kernels_spill_where_it_is_known_and_nowhere_else() {
    if crate::nvrtc().is_none() {
        return;
    }
    let spills = |builder: &Builder, on: &str| {
        let texts = bundle::texts(builder).unwrap();
        bundle::compile(&texts, &[(Form::Cubin, Architecture::parse(on).unwrap())]).unwrap().faults
    };
    let plain = Builder::checked_in_cuda().unwrap().dtypes(&[Dtype::Bf16]).chunks(&[8192]);
    let forms = plain.clone().forms(&CrossEntropyForm::all()).unwrap();
    let three = plain.clone().dtypes(&[Dtype::F32]).precisions(&[Precision::Tf32x3]);
    // Other kernels for 8.x and 9.x have gates of their own; within 10.x and 12.x code is the same but for its name.
    let found =
        [spills(&forms, "sm_80"), spills(&three, "sm_90"), spills(&plain, "sm_100"), spills(&plain, "sm_120")].concat();
    for (place, (kernel, on, bytes)) in KNOWN_SPILLS.iter().enumerate() {
        assert_eq!(
            found.iter().filter(|fault| known_spill(fault) == Some(place)).count(),
            1,
            "{kernel} for {on} does not spill {bytes} any more: {found:#?}"
        );
    }
    assert_eq!(found.len(), KNOWN_SPILLS.len(), "{found:#?}");
}

#[test]
fn errors_of_the_compiler_name_the_kernel() {
    let Some(nvrtc) = crate::nvrtc() else { return };
    let error = nvrtc.cubin("demo", "__global__ void f() { nonsense; }", Architecture::ALL[0]).unwrap_err().to_string();
    assert!(error.contains("demo") && error.contains("nonsense"), "{error}");
}

#[test]
fn the_roofline_is_that_of_the_products() {
    for gpu in [roofline::A100, roofline::H200] {
        for sizes in roofline::SHAPES {
            let s = roofline::pass_s(sizes, 8192, 2, gpu);
            let t = roofline::pass_t(sizes, 8192, 2, true, gpu);
            let total = s.seconds(gpu) + t.seconds(gpu);
            println!(
                "{} {sizes:?}: S {:.2} ms ({:.4} B/FLOP), T {:.2} ms ({:.4} B/FLOP), {:.2} ms in all",
                gpu.name,
                1e3 * s.seconds(gpu),
                s.bytes_per_operation(),
                1e3 * t.seconds(gpu),
                t.bytes_per_operation(),
                1e3 * total
            );
            let operations = 6.0 * sizes.tokens as f64 * sizes.hidden as f64 * sizes.vocab as f64;
            assert!((s.operations + t.operations - operations).abs() < 1e-6 * operations);
            let bound = operations / gpu.operations;
            assert!(total >= bound && total < 1.25 * bound, "memory or waves cost more than a quarter");
        }
    }
}
