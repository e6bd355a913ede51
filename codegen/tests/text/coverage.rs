//! A text of every kernel on every family of templates, and what each option, precision and type changes in it.
//!
//! What an option changes is kept as the lines that differ, beside the text that they differ from.

use similar::TextDiff;
use std::collections::BTreeSet;
use vocabfuse_codegen::emit::{emit, emit_logits, emit_operator};
use vocabfuse_codegen::spec::CHUNKS;
use vocabfuse_codegen::{
    CrossEntropyForm, Dtype, Error, KernelKind, KernelSpec, LogitsForm, Loss, Operator, Precision, Target,
    cross_entropy, operator,
};

/// A target of each family, which is those that share folders of templates.
const FAMILIES: [Target; 4] = [Target::Avx2, Target::Avx512Bf16, Target::Amx, Target::Sm80];

const CHUNK: usize = 2048;

/// The text of a kernel for a dtype, with the programs of a loss.
fn of_loss(kind: KernelKind, target: Target, dtype: Dtype, loss: &Loss) -> Result<String, Error> {
    let spec = KernelSpec::new(kind, target, dtype, CHUNK, &loss.name)?;
    Ok(emit(&spec, loss)?.text)
}

fn of_operator(kind: KernelKind, target: Target, operator: &Operator) -> Result<String, Error> {
    let programs = if kind == KernelKind::RowGradient { operator.gradient_name(0) } else { operator.name.clone() };
    let spec = KernelSpec::new(kind, target, Dtype::F32, CHUNK, &programs)?;
    Ok(emit_operator(&spec, operator, 0)?.text)
}

fn of_logits(target: Target, softcap: bool) -> Result<String, Error> {
    let form = LogitsForm { softcap };
    let spec = KernelSpec::new(KernelKind::RowLogits, target, Dtype::F32, CHUNK, form.name())?;
    Ok(emit_logits(&spec, form)?.text)
}

fn find(name: &str) -> Operator {
    operator::all().unwrap().into_iter().find(|operator| operator.name == name).unwrap()
}

/// The loss with all that kernels may be about: smoothing has a second product.
fn smoothed() -> Loss {
    CrossEntropyForm { smoothing: true, ..CrossEntropyForm::default() }.loss().unwrap()
}

/// The plainest text of a kernel: without options, for the first dtype that it is for.
fn plain(kind: KernelKind, target: Target) -> Result<String, Error> {
    match kind {
        KernelKind::RowLogits => of_logits(target, false),
        KernelKind::RowStatistics | KernelKind::RowGradient => of_operator(kind, target, &find("logprobs")),
        KernelKind::LogitsOperand => of_loss(kind, target, Dtype::Bf16, &smoothed()),
        KernelKind::GradientScale => of_loss(kind, target, Dtype::F16, &cross_entropy().unwrap()),
        _ => of_loss(kind, target, Dtype::Bf16, &cross_entropy().unwrap()),
    }
}

/// The lines in which a text differs from another, with those around them.
fn changes(from: &str, to: &str) -> String {
    TextDiff::from_lines(from, to).unified_diff().context_radius(1).to_string()
}

#[test]
fn families_stand_for_all_targets() {
    let folders: BTreeSet<_> = FAMILIES.iter().map(|target| target.row().templates).collect();
    for target in Target::ALL {
        assert!(folders.contains(target.row().templates), "no target of the family of {target} has snapshots");
    }
}

#[test]
fn each_kernel_of_each_family() {
    for target in FAMILIES {
        for kind in KernelKind::ALL.iter().copied().filter(|kind| kind.is_on(target)) {
            match plain(kind, target) {
                Ok(text) => insta::assert_snapshot!(format!("{kind}_{target}"), text),
                // Targets of bf16 leave to others what multiplies nothing, and only they unpack A.
                Err(error) => assert!(
                    matches!(error, Error::Spec(_)) && FAMILIES.iter().any(|other| plain(kind, *other).is_ok()),
                    "{kind} on {target}: {error}"
                ),
            }
        }
    }
}

#[test]
fn each_option_changes_what_it_has_to() {
    let form = CrossEntropyForm::default();
    let options = [
        ("softcap", CrossEntropyForm { softcap: true, ..form }),
        ("smoothing", CrossEntropyForm { smoothing: true, ..form }),
        ("argmax", CrossEntropyForm { argmax: true, ..form }),
    ];
    let kinds = [
        KernelKind::LogitsSoftmax,
        KernelKind::ReduceStatistics,
        KernelKind::Merge,
        KernelKind::Finish,
        KernelKind::WeightGradRecompute,
        KernelKind::LogitsGradient,
        KernelKind::SavedGradient,
    ];
    for target in FAMILIES {
        for (option, form) in options {
            let loss = form.loss().unwrap();
            let mut changed = String::new();
            for kind in kinds.into_iter().filter(|kind| loss.has(*kind)) {
                let Ok(text) = of_loss(kind, target, Dtype::Bf16, &loss) else { continue };
                changed += &format!("{kind}\n{}\n", changes(&plain(kind, target).unwrap(), &text));
            }
            insta::assert_snapshot!(format!("{option}_{target}"), changed);
        }
        if let Ok(capped) = of_logits(target, true) {
            let changed = changes(&of_logits(target, false).unwrap(), &capped);
            insta::assert_snapshot!(format!("softcap_of_operators_{target}"), changed);
        }
    }
}

#[test]
fn each_type_and_precision_changes_what_it_has_to() {
    let loss = cross_entropy().unwrap();
    let text = |kind, target, dtype, precision| {
        let spec = KernelSpec::with_precision(kind, target, dtype, precision, CHUNK, &loss.name).unwrap();
        emit(&spec, &loss).unwrap().text
    };
    for kind in [KernelKind::LogitsSoftmax, KernelKind::Accumulate, KernelKind::WeightGrad] {
        let on_sm80 = |dtype, precision| text(kind, Target::Sm80, dtype, precision);
        let bf16 = on_sm80(Dtype::Bf16, None);
        let tf32x3 = on_sm80(Dtype::F32, Some(Precision::Tf32x3));
        insta::assert_snapshot!(format!("{kind}_sm_80_f16"), changes(&bf16, &on_sm80(Dtype::F16, None)));
        let tf32 = on_sm80(Dtype::F32, Some(Precision::Tf32));
        insta::assert_snapshot!(format!("{kind}_sm_80_tf32"), changes(&tf32x3, &tf32));
        insta::assert_snapshot!(format!("{kind}_sm_80_tf32x3"), tf32x3);
    }
    for target in [Target::Avx512Bf16, Target::Amx] {
        for kind in [KernelKind::PackVocabulary, KernelKind::LogitsSoftmax, KernelKind::WeightGradSaved] {
            let split = text(kind, target, Dtype::F32, Some(Precision::Bf16x3));
            let changed = changes(&text(kind, target, Dtype::Bf16, None), &split);
            insta::assert_snapshot!(format!("{kind}_{target}_bf16x3"), changed);
        }
    }
    // CPU kernels are generic in how tensors are stored.
    for dtype in [Dtype::F32, Dtype::F16] {
        let of = |dtype| text(KernelKind::LogitsSoftmax, Target::Avx2, dtype, None);
        let body =
            |text: String| text.split("/// Registry entries.").next().unwrap().lines().skip(2).collect::<String>();
        assert_eq!(body(of(dtype)), body(of(Dtype::Bf16)), "{dtype}");
    }
}

#[test]
fn operators_differ_in_their_statistics_and_gradients() {
    for target in [Target::Avx2, Target::Sm80] {
        for operator in operator::all().unwrap().into_iter().filter(|operator| operator.name != "logprobs") {
            let statistics = of_operator(KernelKind::RowStatistics, target, &operator).unwrap();
            insta::assert_snapshot!(format!("row_statistics_{}_{target}", operator.name), statistics);
        }
    }
}

#[test]
fn a_chunk_that_is_asked_for_is_a_constant_of_cpu_kernels() {
    let loss = cross_entropy().unwrap();
    let spec =
        KernelSpec::new(KernelKind::LogitsSoftmax, Target::Avx2, Dtype::Bf16, *CHUNKS.start(), &loss.name).unwrap();
    let special = emit(&spec.clone().specialised(CHUNK).unwrap(), &loss).unwrap().text;
    insta::assert_snapshot!("logits_softmax_avx2_c2048", changes(&emit(&spec, &loss).unwrap().text, &special));
}
