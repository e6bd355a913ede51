//! Time, memory and communication of the passes of an operator.

use crate::MEMORY;
use std::time::Instant;
use vocabfuse::Counters;

/// What an operator cost.
pub struct Costs {
    /// Names of the kernels that ran, each once.
    pub kernels: Vec<&'static str>,
    /// Barriers and launches of a rank, bytes of all ranks.
    pub counters: Counters,
    pub passes: Vec<Pass>,
    /// Most bytes that the process allocated at a time, besides inputs and outputs.
    pub peak_extra_bytes: usize,
    /// Shares of the tiles of dX and dW that the gradient filter left out, if there is one.
    pub filtered: Option<[f64; 2]>,
}

/// A pass over all ranks.
pub struct Pass {
    /// For programs.
    pub key: &'static str,
    /// For people.
    pub label: &'static str,
    pub ms: f64,
}

/// Measures while an operator runs. A pass should end on all ranks before the next begins, so that a rank that fails
/// leaves nobody waiting.
pub struct Meter {
    before: usize,
    last: Instant,
    passes: Vec<Pass>,
}

impl Meter {
    /// Begins; what is allocated by now is not counted.
    pub fn start() -> Meter {
        MEMORY.reset_peak_usage();
        Meter { before: MEMORY.current_usage(), last: Instant::now(), passes: vec![] }
    }

    /// Ends a pass.
    pub fn pass(&mut self, key: &'static str, label: &'static str) {
        let ms = self.last.elapsed().as_secs_f64() * 1e3;
        self.passes.push(Pass { key, label, ms });
        self.last = Instant::now();
    }

    /// Ends. `outputs` are bytes of outputs that were allocated meanwhile.
    pub fn finish(
        self,
        outputs: usize,
        mut kernels: Vec<&'static str>,
        ranks: impl IntoIterator<Item = Counters>,
    ) -> Costs {
        let peak_extra_bytes = MEMORY.peak_usage().saturating_sub(self.before + outputs);
        kernels.sort_unstable();
        kernels.dedup();
        let counters = ranks.into_iter().fold(Counters::default(), |all, rank| Counters {
            barriers: all.barriers.max(rank.barriers),
            launches: all.launches.max(rank.launches),
            bytes: all.bytes + rank.bytes,
        });
        Costs { kernels, counters, passes: self.passes, peak_extra_bytes, filtered: None }
    }
}
