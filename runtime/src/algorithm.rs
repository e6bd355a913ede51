//! The three algorithms as sequences of the same collective: which parts of the rows each barrier merges.

use crate::comm::{Contribution, Finish, Local, Merged, Pending};
use crate::cpu::{Cpu, Family, SPass, Saved, ShardRows};
use crate::{Algorithm, Result};
use vocabfuse_kernels::abi::Stages;

/// What the barriers of one microbatch work on.
pub(crate) struct Exchange<'a> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) family: &'a Family,
    pub(crate) pass: SPass<'a>,
    pub(crate) agreement: &'a str,
    pub(crate) saved: Option<&'a mut Saved>,
}

impl Algorithm {
    /// What pass S has to compute before the first barrier.
    pub(crate) fn stages(self) -> Stages {
        match self {
            Algorithm::Two => Stages::All,
            Algorithm::Naive | Algorithm::One => Stages::Statistics,
        }
    }

    /// Starts the first barrier. Returns the rows that later barriers need.
    pub(crate) fn start(
        self,
        comm: &Local,
        agreement: String,
        family: &Family,
        rows: ShardRows,
    ) -> (Pending, Option<ShardRows>) {
        match self {
            Algorithm::Two => (comm.start(Contribution { agreement, rows }), None),
            Algorithm::One => (comm.start(Contribution { agreement, rows }), None),
            Algorithm::Naive => {
                // Only the references travel: the maximum comes first, the sums with the next barrier.
                let mut references = ShardRows::identity(family, rows.tokens);
                references.state.truncate(1);
                references.state[0].as_mut().copy_from_slice(rows.state[0].as_ref());
                (comm.start(Contribution { agreement, rows: references }), Some(rows))
            }
        }
    }

    /// Completes the first barrier and runs the others.
    pub(crate) fn complete(
        self,
        comm: &Local,
        first: Pending,
        kept: Option<ShardRows>,
        exchange: &mut Exchange<'_>,
        finish: &Finish<'_>,
    ) -> Result<Merged> {
        let (cpu, family) = (exchange.cpu, exchange.family);
        if self == Algorithm::Two {
            return first.wait(cpu, family, Some(finish));
        }
        let mut merged = concatenate(family, &first.wait(cpu, family, None)?);
        if let Some(mut rows) = kept {
            let mut global = ShardRows::identity(family, rows.tokens);
            global.state[0].as_mut().copy_from_slice(merged.state[0].as_ref());
            rows.merge(family, &global, 0);
            rows.targets = Default::default();
            let second = comm.start(Contribution { agreement: exchange.agreement.to_owned(), rows });
            merged = concatenate(family, &second.wait(cpu, family, None)?);
        }
        let rows = gradient_rows(comm, exchange, merged)?;
        let last = comm.start(Contribution { agreement: exchange.agreement.to_owned(), rows });
        last.wait(cpu, family, Some(finish))
    }
}

/// A relative to the merged reference, beside statistics that merge to the merged ones: rank 0 brings them, the others
/// bring the identity.
fn gradient_rows(comm: &Local, exchange: &mut Exchange<'_>, merged: ShardRows) -> Result<ShardRows> {
    let family = exchange.family;
    let mut rows = ShardRows::identity(family, merged.tokens);
    rows.state[0].as_mut().copy_from_slice(merged.state[0].as_ref());
    let stages = if exchange.saved.is_some() { Stages::AccumulateSaved } else { Stages::All };
    exchange.cpu.s_pass(family, &exchange.pass, stages, &mut rows, exchange.saved.as_deref_mut())?;
    if comm.rank() == 0 {
        rows.state = merged.state;
    } else {
        let identity = ShardRows::identity(family, merged.tokens);
        rows.state.truncate(1);
        rows.state.extend(identity.state.into_iter().skip(1));
    }
    rows.targets = exchange.cpu.gather_targets(family, &exchange.pass);
    Ok(rows)
}

/// The state of all tokens from the blocks of a barrier.
fn concatenate(family: &Family, merged: &Merged) -> ShardRows {
    let tokens = merged.blocks.last().map_or(0, |b| b.tokens.end);
    let mut rows = ShardRows::identity(family, tokens);
    for block in &merged.blocks {
        for (to, from) in rows.state.iter_mut().zip(&block.rows.state) {
            to.as_mut()[block.tokens.clone()].copy_from_slice(&from.as_ref()[..block.tokens.len()]);
        }
    }
    rows
}
