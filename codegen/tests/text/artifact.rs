//! Compiled kernels as bytes.

use vocabfuse_codegen::compile::artifact::{Artifact, ArtifactError, Label};
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::{Form, options};
use vocabfuse_codegen::emit::cuda_entry;
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Target, cross_entropy};

fn entry(kernel: KernelKind) -> Entry {
    let spec = KernelSpec::new(kernel, Target::Sm80, Dtype::Bf16, 8192, "cross_entropy").unwrap();
    cuda_entry(&spec, &cross_entropy().unwrap()).unwrap()
}

fn artifact() -> Artifact {
    let Entry { name: kernel, abi, .. } = entry(KernelKind::Merge);
    let options = options(Form::Cubin, Architecture::parse("sm_90").unwrap());
    let label = Label { kernel, abi, text: "0123".to_owned(), options, compiler: "NVRTC 12.9.86".to_owned() };
    Artifact { label, code: vec![0x7f, b'\n', 0, b'\n', 1] }
}

#[test]
fn they_are_read_back_unless_a_byte_differs() {
    let bytes = artifact().encode();
    assert_eq!(Artifact::decode(&bytes), Ok(artifact()));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        assert_eq!(Artifact::decode(&damaged), Err(ArtifactError::Damaged), "byte {at}");
        assert_eq!(Artifact::decode(&bytes[..at]), Err(ArtifactError::Damaged), "{at} bytes");
    }
}

#[test]
fn another_interface_is_named() {
    assert_eq!(artifact().check(&entry(KernelKind::Merge)), Ok(()));
    let changed = Entry { abi: "other".to_owned(), ..entry(KernelKind::Merge) };
    let error = artifact().check(&changed).unwrap_err().to_string();
    assert!(error.contains("merge__cross_entropy") && error.contains("other"), "{error}");
    assert!(artifact().check(&entry(KernelKind::WeightGrad)).is_err());
}

#[test]
fn a_label_is_of_what_decides_the_code_and_not_of_the_compiler() {
    let (on, entry) = (Architecture::parse("sm_90").unwrap(), entry(KernelKind::Merge));
    let wanted = Label::of(&entry, "text", Form::Cubin, on);
    let made = Label { compiler: "NVRTC 13.1.2".to_owned(), ..wanted.clone() };
    assert!(made.is_of(&wanted) && made.file_name() == wanted.file_name());
    let other_entry = Entry { abi: "other".to_owned(), ..entry.clone() };
    for other in [
        Label::of(&entry, "another", Form::Cubin, on),
        Label::of(&entry, "text", Form::Ptx, on),
        Label::of(&other_entry, "text", Form::Cubin, on),
        Label { kernel: "other".to_owned(), ..wanted.clone() },
    ] {
        assert!(!other.is_of(&wanted) && other.file_name() != wanted.file_name(), "{other:?}");
    }
}

#[test]
fn options_say_the_form_and_the_architecture() {
    let on = Architecture::parse("sm_86").unwrap();
    let first = |form| options(form, on)[0].clone();
    assert_eq!(first(Form::Cubin), "--gpu-architecture=sm_86");
    assert_eq!(first(Form::Ptx), "--gpu-architecture=compute_86");
}
