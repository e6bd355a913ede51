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
    value: usize,
    /// Position of what it selects, for [`Merge::ArgMax`].
    id: Option<usize>,
    /// Reference that it is relative to.
    reference: usize,
    /// Position in the state of the sum of the weights of a moment.
    sum: usize,
    /// How often each reference is added to the distances of a moment.
    shifts: [i8; DISTRIBUTIONS],
}

/// Statistics of a program with some references, in order, and the values that a lowered program has to give for them.
pub(super) fn statistics(
    program: &Program,
    references: usize,
    lowering: &dyn Lowering,
) -> (Vec<Statistic>, Vec<ValueId>) {
    let (mut statistics, mut values) = (vec![], vec![]);
    for ((slot, (_, merge)), (_, output)) in (references..).zip(program.rules()).zip(program.row_outputs()) {
        values.push(output);
        let value = values.len();
        let id = match *program.op(output) {
            Op::ArgMax(_, id) => {
                values.push(id);
                Some(values.len())
            }
            _ => None,
        };
        let (rule, reference, sum, shifts) = match merge {
            Merge::Sum => ("Sum", 0, 0, [0; DISTRIBUTIONS]),
            Merge::Max => ("Max", 0, 0, [0; DISTRIBUTIONS]),
            Merge::ArgMax => ("ArgMax", 0, 0, [0; DISTRIBUTIONS]),
            Merge::ScaledSum { reference } => ("ScaledSum", reference, 0, [0; DISTRIBUTIONS]),
            Merge::Moment { reference, sum, shifts } => ("Moment", reference, references + sum, shifts),
        };
        let identity = lowering.constant(merge.identity());
        statistics.push(Statistic { rule, slot, identity, value, id, reference, sum, shifts });
    }
    (statistics, values)
}
