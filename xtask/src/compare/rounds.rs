//! Rounds: every competitor once, in rotating order, between two calibrations.

use anyhow::Result;

/// Calibrations of one round may differ by this much; beyond it, the machine changed its pace on the way.
const TOLERANCE: f64 = 0.08;
/// How often a round is tried before it is kept as it is.
const ATTEMPTS: usize = 3;

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// GFLOP/s before and after.
    pub calibration: (f64, f64),
    /// Milliseconds of each competitor; `None` for one that failed.
    pub ms: Vec<Option<f64>>,
    /// Tries before this one.
    pub repeated: usize,
}

impl Round {
    /// Whether both calibrations agree.
    pub fn settled(&self) -> bool {
        let (before, after) = self.calibration;
        (before - after).abs() <= TOLERANCE * before.max(after)
    }
}

/// Runs `count` rounds. `calibrate` measures the machine's peak, `run` one competitor by its position; a competitor for
/// which `run` gives `None` is not asked again.
///
/// # Errors
/// If a calibration fails: without it no round counts.
pub fn play(
    count: usize,
    competitors: usize,
    mut calibrate: impl FnMut() -> Result<f64>,
    mut run: impl FnMut(usize) -> Option<f64>,
) -> Result<Vec<Round>> {
    let mut alive = vec![true; competitors];
    let mut rounds = Vec::with_capacity(count);
    for index in 0..count {
        for repeated in 0..ATTEMPTS {
            let before = calibrate()?;
            let mut ms = vec![None; competitors];
            for place in 0..competitors {
                // Rotated, so that none always runs in the wake of the same other.
                let competitor = (place + index + repeated) % competitors;
                if alive[competitor] {
                    ms[competitor] = run(competitor);
                    alive[competitor] = ms[competitor].is_some();
                }
            }
            let round = Round { calibration: (before, calibrate()?), ms, repeated };
            if round.settled() || repeated + 1 == ATTEMPTS {
                rounds.push(round);
                break;
            }
        }
    }
    Ok(rounds)
}

/// The rounds that figures are taken from: the settled ones, or all if less than half are.
pub fn counted(rounds: &[Round]) -> Vec<&Round> {
    let settled: Vec<&Round> = rounds.iter().filter(|round| round.settled()).collect();
    if 2 * settled.len() >= rounds.len() { settled } else { rounds.iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_rotates_and_the_dead_rest() {
        let mut order = vec![];
        let rounds = play(
            3,
            3,
            || Ok(100.0),
            |competitor| {
                order.push(competitor);
                (order.len() < 5 || competitor != 2).then_some(1.0)
            },
        )
        .unwrap();
        // In round 1 the order is 1, 2, 0: competitor 2 fails there, and round 2 goes on without it.
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 0, 1]);
        assert_eq!(rounds[1].ms, [Some(1.0), Some(1.0), None]);
        assert!(rounds.iter().all(|round| round.settled() && round.repeated == 0));
    }

    #[test]
    fn an_unsettled_round_is_repeated_and_at_last_kept() {
        let mut pace = [100.0, 90.0, 100.0, 99.0, 100.0, 50.0, 100.0, 50.0, 100.0, 50.0].into_iter();
        let rounds = play(2, 1, || Ok(pace.next().unwrap()), |_| Some(1.0)).unwrap();
        assert_eq!((rounds[0].repeated, rounds[0].settled()), (1, true));
        assert_eq!((rounds[1].repeated, rounds[1].settled()), (ATTEMPTS - 1, false));
        assert_eq!(counted(&rounds), [&rounds[0]]);
        assert_eq!(counted(&rounds[1..]), [&rounds[1]], "with nothing settled, all count");
    }
}
