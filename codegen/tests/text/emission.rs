//! Emitted text: snapshots, determinism, names, and errors that name what is wrong.

use minijinja::context;
use vocabfuse_codegen::manifest::Manifest;
use vocabfuse_codegen::render::render;
use vocabfuse_codegen::{Builder, Dtype, Error, KernelKind, KernelSpec, Precision, SpecError, Target, cross_entropy};

#[test]
fn products_of_f32_in_bf16x3() {
    let loss = cross_entropy().unwrap();
    let spec = |kernel, target, dtype, precision| {
        KernelSpec::with_precision(kernel, target, dtype, Some(precision), 512, &loss.name)
    };
    let files = Builder::checked_in_bf16x3().unwrap().files().unwrap();
    for file in [
        "amx_bf16x3/logits_softmax__cross_entropy_bf16x3__amx_m32n32.rs",
        "amx_bf16x3/vocabulary_grad__bf16x3__amx_m32n32.rs",
        "avx512bf16_bf16x3/pack_tokens__bf16x3__avx512bf16_m14n32.rs",
    ] {
        assert!(files.contains_key(file), "no {file} in {:?}", files.keys());
    }
    let unique = files.keys().filter(|file| file.contains("logits_softmax__cross_entropy"));
    assert_eq!(unique.count(), 2 * 4, "every form on both targets, with and without argmax in one text");

    let refused = |kernel, target, dtype, precision| spec(kernel, target, dtype, precision).unwrap_err().to_string();
    let error = refused(KernelKind::Merge, Target::Amx, Dtype::F32, Precision::Bf16x3);
    assert!(error.contains("merge on target amx") && error.contains("avx512"), "{error}");
    for (target, dtype) in [(Target::Amx, Dtype::Bf16), (Target::Avx512, Dtype::F32), (Target::Avx2, Dtype::F16)] {
        let error = refused(KernelKind::PackTokens, target, dtype, Precision::Bf16x3);
        let named = format!("precision bf16x3 for dtype {dtype} on target {target}");
        assert!(error.contains(&named) && error.contains("bf16x3 is on avx512bf16 and amx"), "{error}");
    }
    let error = refused(KernelKind::PackTokens, Target::Avx512, Dtype::F32, Precision::Tf32x3);
    assert!(error.contains("precision tf32x3 for dtype f32 on target avx512"), "{error}");
    let error = refused(KernelKind::LogitsSoftmax, Target::Sm80, Dtype::F32, Precision::Bf16x3);
    assert!(error.contains("precision bf16x3 for dtype f32 on target sm_80") && error.contains("tf32x3"), "{error}");
}

#[test]
fn cuda_manifest_is_read_back() {
    let entries = Builder::cuda().chunks(&[2048]).entries().unwrap();
    let manifest = Manifest::new(entries);
    assert_eq!(Manifest::parse(&manifest.to_json()).unwrap(), manifest);
    let names: Vec<&str> = manifest.kernels.iter().map(|e| e.name.as_str()).collect();
    insta::assert_snapshot!("cuda_names", names.join("\n"));
    let of = |kernel: &str| manifest.kernels.iter().find(|e| e.name.starts_with(kernel)).unwrap();
    let softmax = of("logits_softmax__cross_entropy_bf16");
    assert_eq!((softmax.block, softmax.dynamic_shared), (256, 98304));
    assert_eq!(softmax.bindings.statistics, ["rest", "target_logit"]);
    assert_eq!(softmax.parameters[0].ty, "*const bf16");
    assert_ne!(softmax.abi, of("logits_softmax__cross_entropy_f16").abi, "the types of pointers are part of it");
    assert_ne!(softmax.abi, of("accumulate").abi);
}

#[test]
fn cuda_specifications_name_what_is_supported() {
    let spec = |kernel, dtype, precision| {
        KernelSpec::with_precision(kernel, Target::Sm80, dtype, precision, 2048, "cross_entropy").map(|s| s.name())
    };
    let error = spec(KernelKind::LogitsSoftmax, Dtype::F32, None).unwrap_err().to_string();
    assert!(error.contains("f32 without a precision") && error.contains("tf32x3"), "{error}");
    let error = spec(KernelKind::Accumulate, Dtype::Bf16, Some(Precision::Tf32)).unwrap_err().to_string();
    assert!(error.contains("precision tf32 for dtype bf16"), "{error}");
    let error = spec(KernelKind::PackTokens, Dtype::Bf16, None).unwrap_err().to_string();
    assert!(error.contains("pack_tokens on target sm_80") && error.contains("logits_softmax"), "{error}");
    let error = KernelSpec::new(KernelKind::Accumulate, Target::Avx2, Dtype::F32, 512, "x").unwrap_err().to_string();
    assert!(error.contains("accumulate on target avx2"), "{error}");
    let error = spec(KernelKind::GradientScale, Dtype::Bf16, None).unwrap_err().to_string();
    assert!(error.contains("dtype f16"), "{error}");
    assert_eq!(
        spec(KernelKind::LogitsSoftmax, Dtype::F32, Some(Precision::Tf32x3)).unwrap(),
        "logits_softmax__cross_entropy_f32_tf32x3_c2048__sm80_m128n256k16s4"
    );
}

#[test]
fn the_default_cuda_set_is_emitted_within_a_second() {
    let start = std::time::Instant::now();
    assert!(Builder::cuda().files().unwrap().len() > 40);
    assert!(start.elapsed().as_secs_f64() < 1.0, "{:?}", start.elapsed());
}

#[test]
fn names_say_everything() {
    let names: Vec<String> =
        Builder::new().chunks(&[512, 8192]).generate().unwrap().into_iter().map(|k| k.name).collect();
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "two kernels share a name");
    insta::assert_snapshot!(names.join("\n"));
}

#[test]
fn equal_specifications_give_equal_text() {
    let first = Builder::new().files().unwrap();
    let second = Builder::new().files().unwrap();
    assert_eq!(first, second);
    let spec = |chunk| KernelSpec::new(KernelKind::Finish, Target::Avx2, Dtype::F32, chunk, "cross_entropy").unwrap();
    assert_eq!(spec(512), spec(8192), "a kernel that does not depend on the chunk has one specification");
}

#[test]
fn bad_specifications_name_the_parameter() {
    for chunk in [0, 128, 500, 1000, 131_072] {
        let error = KernelSpec::new(KernelKind::Merge, Target::Scalar, Dtype::F32, chunk, "x").unwrap_err();
        assert_eq!(error, SpecError::Chunk { chunk });
        assert!(error.to_string().contains("power of two from 256 to 65536"), "{error}");
    }
    let error = KernelSpec::new(KernelKind::LogitsSoftmax, Target::Amx, Dtype::F16, 512, "x").unwrap_err().to_string();
    assert!(error.contains("dtype f16 without a precision on target amx") && error.contains("bf16"), "{error}");
    let error = KernelSpec::new(KernelKind::Finish, Target::Avx512Bf16, Dtype::F32, 512, "x").unwrap_err().to_string();
    assert!(error.contains("dtype f32 without a precision on target avx512bf16") && error.contains("bf16"), "{error}");
    let error = "avx1024".parse::<Target>().unwrap_err().to_string();
    assert_eq!(error, "target \"avx1024\" is unknown; expected one of: scalar, avx2, avx512, avx512bf16, amx, sm_80");
}

#[test]
fn template_assertions_and_undefined_names_are_errors() {
    let tile = |lanes, panel| context! { lanes => lanes, panel => panel, rows => 4, inner => 1, terms => 1, k_block => 128, vocabulary_block => 64, row_block => 1, grad_panels => 4 };
    let prelude = |tile| {
        render(
            "cpu/prelude_scalar.rs.in",
            "demo",
            context! { version => "0", tile, attribute => "", features => "", largest_power => "1.0" },
        )
    };
    assert!(prelude(tile(8, 16)).is_ok());
    let Error::Template { kernel, message } = prelude(tile(8, 12)).unwrap_err() else {
        panic!("expected a template error")
    };
    assert_eq!(kernel, "demo");
    assert!(message.contains("parameter panel: expected a multiple of lanes"), "{message}");

    let Error::Template { message, .. } = render("cpu/kernel.rs.in", "demo", context! {}).unwrap_err() else {
        panic!("expected a template error")
    };
    assert!(message.contains("undefined"), "{message}");
    assert!(matches!(render("cpu/nothing.rs.in", "demo", context! {}), Err(Error::Template { .. })));
}

#[test]
fn every_template_is_used_and_has_no_stray_syntax() {
    for path in vocabfuse_templates::PATHS {
        assert!(vocabfuse_templates::get(path).is_some_and(|t| !t.is_empty()), "{path}");
    }
    let split = Builder::checked_in_bf16x3().unwrap().files().unwrap();
    let files = Builder::new().files().unwrap().into_iter().chain(split).chain(Builder::cuda().files().unwrap());
    for (name, text) in files {
        for mark in ["<|", "|>", "<%", "%>", "//$"] {
            assert!(!text.contains(mark), "{name} still has {mark}");
        }
    }
}

#[test]
fn a_bundle_without_kernels_is_an_error() {
    for builder in [Builder::cuda(), Builder::new().dtypes(&[]), Builder::new().targets(&[])] {
        assert!(builder.bundle().unwrap_err().to_string().contains("no kernel of a CPU target"));
    }
    assert!(Builder::new().targets(&[Target::Scalar]).chunks(&[512]).bundle().is_ok());
}
