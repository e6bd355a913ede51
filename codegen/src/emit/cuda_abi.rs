//! Parameters of CUDA kernels, and the names that a host binds to them.

use crate::error::{Error, SpecError};
use crate::loss::Loss;
use crate::manifest::Data::{Element, F32, I32, I64, Output, U8};
use crate::manifest::{Bindings, Type};
use crate::program::Program;
use crate::spec::{KernelKind, KernelSpec};

fn programs(kernel: KernelKind, loss: &Loss) -> Vec<&Program> {
    match kernel {
        KernelKind::LogitsSoftmax => vec![&loss.statistics],
        KernelKind::LogitsOperand => loss.operand.iter().collect(),
        KernelKind::LogitsGradient => vec![&loss.statistics, &loss.gradient],
        KernelKind::SavedGradient => vec![&loss.gradient],
        KernelKind::Finish => vec![&loss.finish],
        _ => vec![],
    }
}

// Names of all programs of a kernel, each once.
fn names(kernel: KernelKind, loss: &Loss, of: fn(&Program) -> Vec<&str>) -> Vec<String> {
    let mut names: Vec<String> = vec![];
    for name in programs(kernel, loss).into_iter().flat_map(of) {
        if !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Column inputs that the kernel keeps in shared memory.
pub(super) fn staged(kernel: KernelKind, loss: &Loss) -> Vec<String> {
    names(kernel, loss, Program::column_inputs)
}

pub(super) fn bindings(spec: &KernelSpec, loss: &Loss) -> Bindings {
    let kernel = spec.kernel;
    let with_statistics =
        matches!(kernel, KernelKind::LogitsSoftmax | KernelKind::ReduceStatistics | KernelKind::Merge);
    let rules = if with_statistics { loss.statistics_rules() } else { vec![] };
    let scaled: &[&str] = if kernel == KernelKind::GradientScale { &["upstream", "bound"] } else { &[] };
    let outputs = if kernel == KernelKind::Finish { loss.finish.row_outputs().collect() } else { vec![] };
    Bindings {
        statistics: rules.into_iter().map(|(name, _)| name).collect(),
        uniforms: names(kernel, loss, Program::uniforms),
        rows: names(kernel, loss, Program::row_inputs)
            .into_iter()
            .chain(scaled.iter().map(|n| (*n).to_owned()))
            .collect(),
        columns: names(kernel, loss, Program::column_inputs),
        outputs: outputs.into_iter().map(|(name, _)| name.to_owned()).collect(),
        column_gradients: column_gradients(kernel, loss),
    }
}

fn column_gradients(kernel: KernelKind, loss: &Loss) -> Vec<String> {
    if matches!(kernel, KernelKind::LogitsGradient | KernelKind::SavedGradient) {
        loss.gradient.column_gradients().map(|(name, _)| name.to_owned()).collect()
    } else {
        vec![]
    }
}

// Names become identifiers of the text.
pub(super) fn identifier(name: &str) -> Result<&str, Error> {
    let valid = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let supported = "letters, digits and underscores".to_owned();
    if valid {
        Ok(name)
    } else {
        Err(SpecError::Unsupported { what: format!("program input {name:?}"), supported }.into())
    }
}

type List = &'static [(&'static str, Type)];

/// The parameters of a kernel in order.
pub(super) fn parameters(spec: &KernelSpec, loss: &Loss) -> Result<Vec<(String, Type)>, Error> {
    use Type::{F32 as Float, I32 as Int, I64 as Long, Read, Write};
    let bound = bindings(spec, loss);
    // Scalars, column inputs and row inputs of the kernel's programs stand where a list says `programs`.
    let mut inputs: Vec<(String, Type)> = vec![];
    for (prefix, list, ty) in
        [("uniform", &bound.uniforms, Float), ("column", &bound.columns, Read(F32)), ("row", &bound.rows, Read(F32))]
    {
        for name in list {
            inputs.push((format!("{prefix}_{}", identifier(name)?), ty));
        }
    }
    let logits: List = &[
        ("x", Read(Element)),
        ("x_stride", Long),
        ("w", Read(Element)),
        ("w_stride", Long),
        ("tokens", Int),
        ("hidden", Int),
        ("first_column", Int),
        ("columns", Int),
        ("classes", Int),
        ("targets", Read(I32)),
        ("references", Read(F32)),
    ];
    let operand: List = match spec.kernel {
        KernelKind::Finish if loss.operand.is_some() => &[("operand", Read(F32)), ("operand_stride", Long)],
        KernelKind::Merge if loss.operand.is_some() => {
            &[("operand", Write(F32)), ("other_operand", Read(F32)), ("operand_rows", Int)]
        }
        _ => &[],
    };
    let column_partials: List =
        if bound.column_gradients.is_empty() { &[] } else { &[("column_partials", Write(F32))] };
    let (before, after): (List, List) = match spec.kernel {
        KernelKind::LogitsSoftmax => (
            logits,
            &[("partials", Write(F32)), ("partial_stride", Long), ("e", Write(Element)), ("peaks", Write(F32))],
        ),
        KernelKind::LogitsOperand => (logits, &[("scale", Read(F32)), ("e", Write(Element))]),
        KernelKind::LogitsGradient => (logits, &[("scale", Read(F32)), ("q", Write(Element))]),
        KernelKind::SavedGradient => (
            &[
                ("values", Write(Element)),
                ("saved_references", Read(F32)),
                ("references", Read(F32)),
                ("tokens", Int),
                ("first_column", Int),
                ("columns", Int),
                ("classes", Int),
                ("targets", Read(I32)),
            ],
            &[("scale", Read(F32))],
        ),
        KernelKind::ReduceStatistics => (
            &[
                ("partials", Read(F32)),
                ("partial_stride", Long),
                ("state", Write(F32)),
                ("state_stride", Long),
                ("first", Int),
                ("tokens", Int),
                ("columns", Int),
                ("e", Write(Element)),
                ("previous", Write(F32)),
                ("saved_references", Write(F32)),
            ],
            &[],
        ),
        KernelKind::Accumulate => (
            &[
                ("e", Read(Element)),
                ("w", Read(Element)),
                ("w_stride", Long),
                ("tokens", Int),
                ("hidden", Int),
                ("columns", Int),
                ("a", Write(F32)),
                ("a_stride", Long),
                ("first", Int),
                ("previous", Read(F32)),
                ("references", Read(F32)),
                ("e_references", Read(F32)),
                ("scale", Read(F32)),
            ],
            &[],
        ),
        KernelKind::WeightGrad => (
            &[
                ("q", Read(Element)),
                ("x", Read(Element)),
                ("x_stride", Long),
                ("tokens", Int),
                ("hidden", Int),
                ("columns", Int),
                ("dw", Write(Output)),
                ("dw_stride", Long),
                ("beta", Int),
                ("scale", Read(F32)),
                ("skip", Read(U8)),
                ("skip_stride", Long),
            ],
            &[],
        ),
        KernelKind::ReduceColumns => (
            &[
                ("column_partials", Read(F32)),
                ("partial_stride", Long),
                ("row_tiles", Int),
                ("columns", Int),
                ("gradient", Write(F32)),
                ("beta", Int),
            ],
            &[],
        ),
        KernelKind::Logits => (
            &[
                ("x", Read(Element)),
                ("x_stride", Long),
                ("w", Read(Element)),
                ("w_stride", Long),
                ("tokens", Int),
                ("hidden", Int),
                ("columns", Int),
                ("logits", Write(F32)),
                ("stride", Long),
            ],
            &[],
        ),
        KernelKind::RoundRows => (
            &[("q", Read(F32)), ("stride", Long), ("columns", Int), ("scale", Read(F32)), ("rounded", Write(Element))],
            &[],
        ),
        KernelKind::GradientScale => (&[], &[("count", Int), ("scale", Write(F32))]),
        KernelKind::FilterTiles => (
            &[
                ("peaks", Read(F32)),
                ("peak_stride", Long),
                ("lse", Read(F32)),
                ("targets", Read(I32)),
                ("tokens", Int),
                ("first_column", Int),
                ("columns", Int),
                ("log2_threshold", Float),
                ("skip", Write(U8)),
                ("skip_stride", Long),
            ],
            &[],
        ),
        KernelKind::Merge => (
            &[
                ("state", Write(F32)),
                ("state_stride", Long),
                ("other_state", Read(F32)),
                ("other_stride", Long),
                ("hidden", Int),
                ("a", Write(F32)),
                ("a_stride", Long),
                ("other_a", Read(F32)),
                ("other_a_stride", Long),
            ],
            &[],
        ),
        KernelKind::Finish => (
            &[("references", Read(F32))],
            &[
                ("hidden", Int),
                ("a", Read(F32)),
                ("a_stride", Long),
                ("target_rows", Read(Element)),
                ("target_stride", Long),
                ("target_index", Read(I32)),
                ("rows", Read(I32)),
                ("dx", Write(Output)),
                ("dx_stride", Long),
                ("outputs", Write(F32)),
                ("output_stride", Long),
            ],
        ),
        KernelKind::GatherRows => (
            &[
                ("table", Read(Element)),
                ("table_stride", Long),
                ("ids", Read(I32)),
                ("columns", Int),
                ("out", Write(Output)),
                ("out_stride", Long),
            ],
            &[],
        ),
        KernelKind::ScatterAdd => (
            &[
                ("rows", Read(Element)),
                ("row_stride", Long),
                ("ids", Read(I32)),
                ("starts", Read(I32)),
                ("order", Read(I32)),
                ("columns", Int),
                ("table", Write(Output)),
                ("table_stride", Long),
            ],
            &[],
        ),
        KernelKind::SelectTokens => (
            &[
                ("targets", Read(I64)),
                ("upstream", Read(F32)),
                ("tokens", Int),
                ("vocab", Long),
                ("first_class", Long),
                ("classes", Int),
                ("ignored", Long),
                ("divisor", Float),
                ("rows", Write(I32)),
                ("local", Write(I32)),
                ("factors", Write(F32)),
                ("counts", Write(I32)),
            ],
            &[],
        ),
        KernelKind::ReduceLoss => (
            &[
                ("rows", Read(I32)),
                ("counts", Read(I32)),
                ("tokens", Int),
                ("divisor", Float),
                ("loss", Write(F32)),
                ("lse", Write(F32)),
                ("total", Write(F32)),
            ],
            &[],
        ),
        // Kernels of CPU targets; `KernelSpec::new` refuses them.
        _ => (&[], &[]),
    };
    let owned = |list: List| list.iter().map(|(name, ty)| ((*name).to_owned(), *ty)).collect::<Vec<_>>();
    let mut all = owned(before);
    all.extend(inputs);
    all.extend(owned(after));
    all.extend(owned(column_partials));
    all.extend(owned(operand));
    Ok(all)
}
