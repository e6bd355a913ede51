//! CUDA kernels that run the programs of an operator on the logits of a chunk, a row a block.

use super::Kernel;
use super::cuda::{entry_of, lowered, render_kernel};
use super::cuda_abi::identifier;
use super::statistic::statistics;
use crate::error::{Error, SpecError};
use crate::logits::LogitsForm;
use crate::lower::Cuda;
use crate::manifest::Data::{F32, I32};
use crate::manifest::{Bindings, Entry, Type};
use crate::operator::Operator;
use crate::program::{Input, Merge, Program, Shape, ValueId};
use crate::spec::{KernelKind, KernelSpec};
use minijinja::value::Serde;
use minijinja::{Value, context};

/// What a host needs to know to launch the kernel that applies the options of the logits.
///
/// # Errors
/// See [`Error`].
pub fn logits_entry(spec: &KernelSpec, form: LogitsForm) -> Result<Entry, Error> {
    let interface = Interface::of_logits(&form.program()?, form)?;
    entry_of(spec, &interface.parameters, interface.bindings)
}

/// What a host needs to know to launch a kernel of an operator; a gradient by its first or second distribution.
///
/// # Errors
/// See [`Error`].
pub fn operator_entry(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Entry, Error> {
    let interface = Interface::of_operator(spec.kernel, operator, distribution)?;
    entry_of(spec, &interface.parameters, interface.bindings)
}

pub(super) fn emit_logits(spec: &KernelSpec, form: LogitsForm) -> Result<Kernel, Error> {
    let program = form.program()?;
    let interface = Interface::of_logits(&program, form)?;
    let map = lowered(&program, "m", &elements(program.store()))?;
    let slope = form.slope_program()?.map(|p| lowered(&p, "s", &elements(p.store()))).transpose()?;
    let columns = interface.bindings.columns.clone();
    render_kernel(spec, context! { map, slope, columns }, &interface.parameters)
}

/// `distribution` is that of a gradient.
pub(super) fn emit(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Kernel, Error> {
    let interface = Interface::of_operator(spec.kernel, operator, distribution)?;
    let context = if spec.kernel == KernelKind::RowStatistics {
        statistics_context(operator)?
    } else {
        let gradient = gradient(operator, distribution)?;
        context! {
            gradient => lowered(gradient, "g", &elements(gradient.store()))?,
            selected => gradient.reads(&Input::Selected),
            distributions => operator.distributions(),
        }
    };
    render_kernel(spec, context, &interface.parameters)
}

/// How a kernel is called.
struct Interface {
    parameters: Vec<(String, Type)>,
    bindings: Bindings,
}

type List = &'static [(&'static str, Type)];

/// The chunk of the logits at hand.
const CHUNK: List = &[("stride", Type::I64), ("first_column", Type::I32), ("columns", Type::I32)];

impl Interface {
    /// `lists` and the inputs of a program.
    fn new(program: &Program, lists: &[List]) -> Result<Interface, Error> {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let bindings = Bindings {
            uniforms: owned(program.uniforms()),
            rows: owned(program.row_inputs()),
            columns: owned(program.column_inputs()),
            ..Bindings::default()
        };
        let listed = lists.iter().copied().flatten().map(|(name, ty)| ((*name).to_owned(), *ty));
        let mut parameters: Vec<(String, Type)> = listed.collect();
        for (prefix, names, ty) in [
            ("uniform", &bindings.uniforms, Type::F32),
            ("column", &bindings.columns, Type::Read(F32)),
            ("row", &bindings.rows, Type::Read(F32)),
        ] {
            for name in names {
                parameters.push((format!("{prefix}_{}", identifier(name)?), ty));
            }
        }
        Ok(Interface { parameters, bindings })
    }

    fn of_logits(program: &Program, form: LogitsForm) -> Result<Interface, Error> {
        let slopes: List = if form.softcap { &[("slopes", Type::Write(F32))] } else { &[] };
        Interface::new(program, &[&[("logits", Type::Write(F32))], CHUNK, slopes])
    }

    fn of_operator(kernel: KernelKind, operator: &Operator, distribution: usize) -> Result<Interface, Error> {
        use Type::{I32 as Int, I64 as Long, Read, Write};
        let logits: List = if operator.distributions() == 2 {
            &[("logits", Read(F32)), ("logits_1", Read(F32))]
        } else {
            &[("logits", Read(F32))]
        };
        let selection: List = &[("slots", Int), ("ids", Read(I32)), ("token_stride", Long)];
        match kernel {
            KernelKind::RowStatistics => {
                let program = &operator.statistics;
                let selected: List =
                    if program.selected().next().is_some() { &[("selected", Write(F32))] } else { &[] };
                let top: List = if program.top().is_some() {
                    &[
                        ("top_slots", Int),
                        ("top_values", Write(F32)),
                        ("top_noise", Write(F32)),
                        ("top_ids", Write(I32)),
                    ]
                } else {
                    &[]
                };
                let random: List = if program.reads(&Input::Random) {
                    &[("first_keys", Read(I32)), ("second_keys", Read(I32)), ("first_id", Int)]
                } else {
                    &[]
                };
                let state: List = &[("state", Write(F32))];
                let interface = Interface::new(program, &[logits, CHUNK, state, selection, selected, top, random])?;
                let statistics = program.rules().into_iter().map(|(name, _)| name).collect();
                let outputs = operator.slot_values().into_iter().map(str::to_owned).collect();
                Ok(Interface { bindings: Bindings { statistics, outputs, ..interface.bindings }, ..interface })
            }
            KernelKind::RowGradient => {
                let to: List =
                    &[("weights", Read(F32)), ("slopes", Read(F32)), ("q", Write(F32)), ("peaks", Write(F32))];
                Interface::new(gradient(operator, distribution)?, &[logits, CHUNK, selection, to])
            }
            _ => Err(SpecError::Unsupported {
                what: format!("kernel {kernel} of operator {}", operator.name),
                supported: "row_statistics and row_gradient; rows are merged and finished on the host".to_owned(),
            }
            .into()),
        }
    }
}

fn gradient(operator: &Operator, distribution: usize) -> Result<&Program, Error> {
    operator.gradients.get(distribution).ok_or_else(|| {
        SpecError::Unsupported {
            what: format!("a gradient of {} by distribution {distribution}", operator.name),
            supported: format!("{} gradients", operator.gradients.len()),
        }
        .into()
    })
}

fn statistics_context(operator: &Operator) -> Result<Value, Error> {
    let (program, references) = (&operator.statistics, operator.distributions());
    if let Some((name, _)) = program.rules().into_iter().find(|(_, rule)| *rule == Merge::ArgMax) {
        let what = format!("statistic {name} of operator {}, a value that belongs to a maximum", operator.name);
        return Err(SpecError::Unsupported { what, supported: "sums, maxima and moments".to_owned() }.into());
    }
    let (statistics, values) = statistics(program, references, &Cuda);
    let map = |r| lowered(program, &format!("m{r}_"), &elements(program.referenced(r)));
    let selected: Vec<ValueId> = program.selected().map(|(_, v)| v).collect();
    Ok(context! {
        maps => (0..references).map(map).collect::<Result<Vec<_>, _>>()?,
        weigh => lowered(program, "w", &elements(values))?,
        chosen => lowered(program, "c", &elements(selected.iter().copied()))?,
        ranked => lowered(program, "t", &elements(program.top().into_iter().flat_map(|(value, noise)| [value, noise])))?,
        selected => !selected.is_empty(),
        random => program.reads(&Input::Random),
        top => program.top().is_some(),
        statistics => Value::from(Serde(&statistics)),
        distributions => references,
    })
}

fn elements(values: impl IntoIterator<Item = ValueId>) -> Vec<(ValueId, Shape)> {
    values.into_iter().map(|v| (v, Shape::Element)).collect()
}
