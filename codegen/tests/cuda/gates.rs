//! What the compiler makes of every kernel: resources, and instructions of the main loops.

use std::time::Instant;
use vocabfuse_codegen::compile::nvrtc::Nvrtc;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{log, roofline, sass, tools};
use vocabfuse_codegen::emit::{cuda_entry, emit};
use vocabfuse_codegen::{Builder, Dtype, KernelSpec, Precision, Target, cross_entropy};

// The default set, and the forms that are compiled when asked for: all kinds, dtypes and precisions at one chunk, since
// a chunk changes nothing but constants.
fn specs() -> Vec<KernelSpec> {
    let of = |builder: Builder| builder.generate().unwrap().into_iter().map(|k| k.spec).collect::<Vec<_>>();
    let mut specs = of(Builder::cuda().chunks(&[8192]));
    specs.extend(of(Builder::cuda().dtypes(&[Dtype::Bf16]).chunks(&[2048, 32768])));
    let more = Builder::new().targets(Target::CUDA).chunks(&[8192]).precisions(Precision::ALL).narrow(true);
    specs.extend(of(more.dtypes(&[Dtype::Bf16, Dtype::F32])));
    let mut unique: Vec<KernelSpec> = vec![];
    specs.into_iter().for_each(|s| {
        if !unique.contains(&s) {
            unique.push(s)
        }
    });
    unique
}

#[test]
fn every_kernel_compiles_without_a_spill() {
    let loss = cross_entropy().unwrap();
    let nvrtc = Nvrtc::load().unwrap_or_else(|e| panic!("{e}"));
    let disassembler = tools::nvdisasm();
    let folder = std::env::temp_dir().join(format!("vocabfuse-gates-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let on = Architecture::parse("sm_80").unwrap();
    for spec in specs() {
        let (kernel, entry) = (emit(&spec, &loss).unwrap(), cuda_entry(&spec, &loss).unwrap());
        let start = Instant::now();
        let compiled = nvrtc.cubin(&kernel.name, &kernel.text, on).unwrap_or_else(|e| panic!("{e}"));
        let seconds = start.elapsed().as_secs_f64();
        let resources = log::check(&entry, on, &compiled.log).unwrap_or_else(|e| panic!("{e}"));
        print!(
            "{:72} {:3} registers, {:6} B shared, {:2} warps, {seconds:.2} s",
            kernel.name,
            resources.registers,
            resources.static_shared as usize + entry.dynamic_shared,
            resources.warps
        );
        if let Some(program) = &disassembler {
            let cubin = folder.join("kernel.cubin");
            std::fs::write(&cubin, &compiled.code).unwrap();
            let listing = sass::count(&tools::disassemble(program, &cubin).unwrap_or_else(|e| panic!("{e}")));
            sass::check(&entry, "sm_80", &listing).unwrap_or_else(|e| panic!("{e}"));
            if spec.kernel.is_product() {
                let inner = listing.main_loop;
                print!(
                    ", {:.2} instructions a product ({} HMMA, {} LDSM, {} LDGSTS)",
                    inner.per_product(),
                    inner.products,
                    inner.matrix_loads,
                    inner.copies
                );
                if spec.dtype != Dtype::F32 && !spec.narrow {
                    // A scheduler issues eight instructions while its tensor core computes one product.
                    assert!(inner.per_product() < 3.0, "{}: {inner:?}", kernel.name);
                }
            }
        }
        println!();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(disassembler.is_some(), "nvdisasm was not found; pip install --target target/nvrtc nvidia-cuda-nvdisasm");
}

#[test]
fn other_architectures_compile_too() {
    let loss = cross_entropy().unwrap();
    let nvrtc = Nvrtc::load().unwrap_or_else(|e| panic!("{e}"));
    for on in Architecture::ALL.iter().filter(|a| a.number > 80) {
        let kernels = Builder::cuda().dtypes(&[Dtype::Bf16]).chunks(&[8192]).generate().unwrap();
        for kernel in
            kernels.into_iter().filter(|k| k.name.starts_with("logits_softmax") || k.name.starts_with("weight_grad"))
        {
            let compiled = nvrtc.cubin(&kernel.name, &kernel.text, *on).unwrap_or_else(|e| panic!("{e}"));
            let entry = cuda_entry(&kernel.spec, &loss).unwrap();
            let resources = log::check(&entry, *on, &compiled.log).unwrap_or_else(|e| panic!("{e}"));
            println!("{} {}: {} registers, {} warps", kernel.name, on.name(), resources.registers, resources.warps);
        }
    }
}

#[test]
fn errors_of_the_compiler_name_the_kernel() {
    let nvrtc = Nvrtc::load().unwrap_or_else(|e| panic!("{e}"));
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
