//! Row statistics as templates see them.

use crate::program::{DISTRIBUTIONS, Merge};
use serde::Serialize;

/// One statistic of a `state` that holds the references first, then the statistics in order.
#[derive(Serialize)]
pub(super) struct Statistic {
    /// Name of the rule of merging.
    rule: &'static str,
    /// Position in the state.
    slot: usize,
    /// Reference that it is relative to.
    reference: usize,
    /// Position of the sum of the weights of a moment.
    sum: usize,
    /// How often each reference is added to the distances of a moment.
    shifts: [i8; DISTRIBUTIONS],
}

impl Statistic {
    /// All of a program with some references.
    pub(super) fn all(rules: &[(String, Merge)], references: usize) -> Vec<Statistic> {
        let one = |(index, (_, rule)): (usize, &(String, Merge))| {
            let plain = |rule| Statistic { rule, slot: references + index, reference: 0, sum: 0, shifts: [0; 2] };
            match *rule {
                Merge::Sum => plain("Sum"),
                Merge::Max => plain("Max"),
                Merge::ScaledSum { reference } => Statistic { reference, ..plain("ScaledSum") },
                Merge::Moment { reference, sum, shifts } => {
                    Statistic { reference, sum: references + sum, shifts, ..plain("Moment") }
                }
            }
        };
        rules.iter().enumerate().map(one).collect()
    }
}
