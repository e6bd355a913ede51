//! Row statistics as templates see them.

use crate::loss::Merge;
use crate::lower::Lowering;
use crate::program::{DISTRIBUTIONS, Op, Program, ValueId};
use serde::Serialize;

/// One statistic of a `state` that holds the references first, then the statistics in order.
#[derive(Serialize)]
pub(super) struct Statistic {
    /// Name of the rule of merging.
    pub(super) rule: &'static str,
    /// Position in the state.
    pub(super) slot: usize,
    /// Of a row that has seen no logit, as text.
    identity: String,
    /// Position of its value among the results of the lowered statistics program, in which the values stand behind one
    /// other result.
    pub(super) value: usize,
    /// Position of what it selects, for [`Merge::ArgMax`].
    id: Option<usize>,
    /// Reference that it is relative to, if there is one.
    reference: Option<usize>,
    /// Position in the state of the sum of the weights of a moment.
    sum: usize,
    /// How often each reference is added to the distances of a moment.
    shifts: [i8; DISTRIBUTIONS],
    /// Of a divergence.
    divergence: Option<Divergence>,
    /// Position in the state of what roundings of the sum have lost, if it is a sum: behind all statistics. An expression
    /// where it depends on whether there are optional ones.
    lost: Option<String>,
    /// Whether the constant `OPTIONAL` of the function decides if it is computed.
    pub(super) optional: bool,
}

/// What a divergence is made of: positions of its values among the results, and of the sums of its weights in the state.
#[derive(Serialize)]
struct Divergence {
    p: usize,
    q: usize,
    log_ratio: usize,
    p_sum: usize,
    q_sum: usize,
}

/// The rules by which statistics merge, as texts of the registry's `Rule`. Positions are those in a state with `references`.
pub(super) fn rules(rules: &[(String, Merge)], references: usize) -> Vec<String> {
    let text = |rule: &Merge| match *rule {
        Merge::Sum => "Rule::Sum".to_owned(),
        Merge::Max => "Rule::Max".to_owned(),
        Merge::ArgMax => "Rule::ArgMax".to_owned(),
        Merge::ScaledSum { reference } => format!("Rule::ScaledSum {{ reference: {reference} }}"),
        Merge::Moment { reference, sum, shifts } => format!(
            "Rule::Moment {{ reference: {reference:?}, sum: {}, shifts: {:?} }}",
            references + sum,
            shifts.map(f32::from)
        ),
        Merge::Divergence { p, q } => format!("Rule::Divergence {{ p: {}, q: {} }}", references + p, references + q),
    };
    rules.iter().map(|(_, rule)| text(rule)).collect()
}

/// Statistics of a program with some references, in order, and the values that a lowered program has to give for them.
pub(super) fn statistics(
    program: &Program,
    references: usize,
    lowering: &dyn Lowering,
) -> (Vec<Statistic>, Vec<ValueId>) {
    statistics_or_fewer(program, references, lowering, program.rules().len())
}

/// As [`statistics`], of which all but the first `required` are optional.
pub(super) fn statistics_or_fewer(
    program: &Program,
    references: usize,
    lowering: &dyn Lowering,
    required: usize,
) -> (Vec<Statistic>, Vec<ValueId>) {
    let (mut statistics, mut values) = (vec![], vec![]);
    let rules = program.rules();
    let mut sums = 0..;
    let behind = |sum: usize| {
        let [all, fewer] = [rules.len(), required].map(|statistics| references + statistics + sum);
        if all == fewer { all.to_string() } else { format!("if OPTIONAL {{ {all} }} else {{ {fewer} }}") }
    };
    for ((slot, (_, merge)), (_, output)) in (references..).zip(rules.clone()).zip(program.row_outputs()) {
        let mut position = |value: ValueId| {
            values.push(value);
            values.len()
        };
        let (mut id, mut divergence) = (None, None);
        let value = match (program.op(output), merge) {
            (Op::Divergence { p, q, log_ratio }, Merge::Divergence { p: p_sum, q: q_sum }) => {
                let [p, q, log_ratio] = [*p, *q, *log_ratio].map(&mut position);
                divergence = Some(Divergence { p, q, log_ratio, p_sum: references + p_sum, q_sum: references + q_sum });
                p
            }
            (Op::ArgMax(_, of), _) => {
                let value = position(output);
                id = Some(position(*of));
                value
            }
            _ => position(output),
        };
        let none = [0; DISTRIBUTIONS];
        let (rule, reference, sum, shifts) = match merge {
            Merge::Sum => ("Sum", None, 0, none),
            Merge::Max => ("Max", None, 0, none),
            Merge::ArgMax => ("ArgMax", None, 0, none),
            Merge::ScaledSum { reference } => ("ScaledSum", Some(reference), 0, none),
            Merge::Moment { reference, sum, shifts } => ("Moment", reference, references + sum, shifts),
            Merge::Divergence { p, .. } => match rules[p].1 {
                Merge::ScaledSum { reference } => ("Divergence", Some(reference), 0, none),
                _ => ("Divergence", None, 0, none),
            },
        };
        let lost = if merge.is_sum() { sums.next().map(behind) } else { None };
        let optional = slot >= references + required;
        let identity = lowering.constant(merge.identity());
        statistics.push(Statistic {
            rule,
            slot,
            identity,
            value,
            id,
            reference,
            sum,
            shifts,
            divergence,
            lost,
            optional,
        });
    }
    (statistics, values)
}
