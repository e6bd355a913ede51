//! CPU kernels that run the programs of an operator.

use super::cpu::{Names, Part, lowered, render_part};
use super::statistic::statistics;
use crate::error::{Error, SpecError};
use crate::logits::LogitsForm;
use crate::lower::RustSimd;
use crate::operator::Operator;
use crate::program::{Input, Program, Shape, ValueId};
use crate::spec::{KernelKind, KernelSpec};
use minijinja::value::Serde;
use minijinja::{Value, context};

pub(super) fn logits_part(spec: &KernelSpec, form: LogitsForm) -> Result<Part, Error> {
    let program = form.program()?;
    let map = lowered(&program, "m", &elements(program.store()))?;
    let slope = form.slope_program()?.map(|p| lowered(&p, "s", &elements(p.store()))).transpose()?;
    render_part(spec, context! { map, slope }, Names::of(&program).context())
}

/// `distribution` is that of a gradient.
pub(super) fn part(spec: &KernelSpec, operator: &Operator, distribution: usize) -> Result<Part, Error> {
    let rules = operator.statistics.rules();
    let references = operator.distributions();
    let (statistics, values) = statistics(&operator.statistics, references, &RustSimd);
    let statistics = Value::from(Serde(&statistics));
    let (context, mut names) = match spec.kernel {
        KernelKind::RowStatistics => (
            statistics_context(&operator.statistics, statistics, &values, references)?,
            Names { outputs: operator.slot_values(), ..Names::of(&operator.statistics) },
        ),
        KernelKind::Finish => {
            let wanted: Vec<_> = operator.finish.row_outputs().map(|(_, v)| (v, Shape::Row)).collect();
            let finish = lowered(&operator.finish, "f", &wanted)?;
            let nothing: Option<usize> = None;
            (context! { finish, a_factor => nothing, optional => false }, Names::of(&operator.finish))
        }
        KernelKind::RowGradient => {
            let gradient = operator.gradients.get(distribution).ok_or_else(|| SpecError::Unsupported {
                what: format!("a gradient of {} by distribution {distribution}", operator.name),
                supported: format!("{} gradients", operator.gradients.len()),
            })?;
            let context = context! {
                gradient => lowered(gradient, "g", &elements(gradient.store()))?,
                selected => gradient.reads(&Input::Selected),
                distributions => references,
            };
            (context, Names::of(gradient))
        }
        kernel => {
            return Err(SpecError::Unsupported {
                what: format!("kernel {kernel} of operator {}", operator.name),
                supported: "row_statistics, finish and row_gradient".to_owned(),
            }
            .into());
        }
    };
    if spec.kernel != KernelKind::RowGradient {
        names.keep(&rules, references);
    }
    render_part(spec, context, names.context())
}

fn statistics_context(
    program: &Program,
    statistics: Value,
    values: &[ValueId],
    references: usize,
) -> Result<Value, Error> {
    let maps = (0..references).map(|r| lowered(program, "m", &elements(program.referenced(r))));
    let maps: Vec<Value> = maps.collect::<Result<_, _>>()?;
    let top = program.top().map(|_| values.len());
    let wanted = values.iter().copied().chain(program.top().into_iter().flat_map(|(value, noise)| [value, noise]));
    let selected: Vec<ValueId> = program.selected().map(|(_, v)| v).collect();
    Ok(context! {
        maps,
        weigh => lowered(program, "w", &elements(wanted))?,
        chosen => lowered(program, "c", &elements(selected.iter().copied()))?,
        selected => !selected.is_empty(),
        random => program.reads(&Input::Random),
        top,
        statistics,
        distributions => references,
    })
}

fn elements(values: impl IntoIterator<Item = ValueId>) -> Vec<(ValueId, Shape)> {
    values.into_iter().map(|v| (v, Shape::Element)).collect()
}
