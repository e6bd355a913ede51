//! What the machine could do during a comparison, by its own measurement.

use super::report::median;
use serde::Deserialize;
use std::fmt;

/// How fast one thread was at an operation.
#[derive(Clone, Debug, Deserialize)]
pub struct Rate {
    pub operation: String,
    pub isa: String,
    pub gflops: f64,
}

/// All rates at one time.
#[derive(Clone, Debug, Deserialize)]
pub struct Calibration {
    /// The highest that matrix products of the compared type can have.
    pub peak: Rate,
    pub rates: Vec<Rate>,
    /// How tiles were loaded, if the processor has any.
    pub tile_loads: Option<String>,
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GFLOP/s of {}", self.peak.gflops, self.peak.operation)?;
        self.tile_loads.as_ref().map_or(Ok(()), |loads| write!(f, ", tile loads {loads}"))
    }
}

/// Medians of every rate over a run and how tiles were loaded, as sentences.
pub fn sentences(calibrations: &[Calibration]) -> String {
    let Some(first) = calibrations.first() else { return String::new() };
    let rates: Vec<String> = first
        .rates
        .iter()
        .enumerate()
        .map(|(index, Rate { operation, isa, .. })| {
            let all = || calibrations.iter().map(|calibration| calibration.rates[index].gflops);
            let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
            let median = median(all()).unwrap_or(f64::NAN);
            format!("{operation} {median:.1} ({isa}; {least:.1} to {most:.1})")
        })
        .collect();
    let mut text = format!("GFLOP/s of one thread in the same run, medians: {}.", rates.join(", "));
    if let Some(mode) = &first.tile_loads {
        let same = calibrations.iter().filter(|calibration| calibration.tile_loads.as_ref() == Some(mode)).count();
        let count = calibrations.len();
        text += &if same == count {
            format!(" Tile loads: {mode} in all {count} calibrations.")
        } else {
            format!(" **Tile loads changed on the way: {mode} in {same} of {count} calibrations.**")
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(l1: f64, tile_loads: Option<&str>) -> Calibration {
        let rate = |operation: &str, gflops| Rate { operation: operation.to_owned(), isa: "I".to_owned(), gflops };
        Calibration {
            peak: rate("tiles", l1),
            rates: vec![rate("vectors", 150.0), rate("tiles", l1)],
            tile_loads: tile_loads.map(str::to_owned),
        }
    }

    #[test]
    fn a_machine_with_tiles_names_its_mode() {
        let (full, slow) = (calibration(2600.0, Some("full rate")), calibration(490.0, Some("throttled")));
        assert_eq!(slow.to_string(), "490.0 GFLOP/s of tiles, tile loads throttled");
        assert_eq!(
            sentences(&[full.clone(), full.clone()]),
            "GFLOP/s of one thread in the same run, medians: vectors 150.0 (I; 150.0 to 150.0), \
             tiles 2600.0 (I; 2600.0 to 2600.0). Tile loads: full rate in all 2 calibrations."
        );
        let mixed = sentences(&[full.clone(), slow, full]);
        assert!(mixed.ends_with("**Tile loads changed on the way: full rate in 2 of 3 calibrations.**"), "{mixed}");
    }

    #[test]
    fn a_machine_without_tiles_has_no_mode() {
        assert!(!sentences(&[calibration(500.0, None)]).contains("loads"));
        assert_eq!(sentences(&[]), "");
    }
}
