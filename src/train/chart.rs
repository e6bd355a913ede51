//! The losses as a table and as a picture.

use super::{Step, TrainError};
use plotters::prelude::*;
use std::fmt::Write;
use std::path::Path;
use vocabfuse::Filtered;

/// Writes loss.csv and loss.svg into a folder, which is made if missing.
///
/// # Errors
/// [`TrainError::Io`] or [`TrainError::Chart`] if they cannot be written.
pub fn write(folder: &Path, steps: &[Step]) -> Result<(), TrainError> {
    std::fs::create_dir_all(folder).map_err(TrainError::io(folder))?;
    for (name, text) in [("loss.csv", table(steps)), ("loss.svg", picture(steps)?)] {
        let path = folder.join(name);
        vocabfuse::tensors::write_whole(&path, text.as_bytes()).map_err(TrainError::io(&path))?;
    }
    Ok(())
}

fn table(steps: &[Step]) -> String {
    let mut text = String::from("step,loss,reference_loss,difference,s_ms,c1_ms,t_ms,dx_left_out,dw_left_out\n");
    for (i, s) in steps.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{i},{},{},{:e},", s.loss, s.reference_loss, s.loss - s.reference_loss);
        let [dx, dw] = s.layer.filtered.map(Filtered::share);
        let [s, c1, t] = s.layer.times.map(|time| time.as_secs_f64() * 1e3);
        let _ = writeln!(text, "{s:.3},{c1:.3},{t:.3},{dx:.4},{dw:.4}");
    }
    text
}

const PALE: RGBColor = RGBColor(240, 170, 90);
const DARK: RGBColor = RGBColor(20, 70, 140);
const GRAY: RGBColor = RGBColor(120, 120, 120);

struct Curve {
    name: &'static str,
    style: ShapeStyle,
    of: fn(&Step) -> f64,
    /// What 1 is in the chart.
    unit: f64,
}

fn picture(steps: &[Step]) -> Result<String, TrainError> {
    let failed = |e: &dyn std::fmt::Display| TrainError::Chart(e.to_string());
    let filters = steps.iter().any(|s| s.layer.filtered[1].tiles > 0);
    let losses = || steps.iter().flat_map(|s| [s.loss, s.reference_loss]).filter(|l| l.is_finite());
    // The share of tiles begins at zero.
    let all = || losses().chain(filters.then_some(0.0));
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), l| (low.min(l), high.max(l)));
    let range = if low <= high { low.floor()..high.ceil().max(low.floor() + 1.0) } else { 0.0..1.0 };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (800, 480)).into_drawing_area();
        area.fill(&WHITE).map_err(|e| failed(&e))?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Training loss (nats per token)", ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(44)
            .build_cartesian_2d(0..steps.len().max(2) - 1, range.clone())
            .map_err(|e| failed(&e))?;
        chart.configure_mesh().x_desc("step").light_line_style(TRANSPARENT).draw().map_err(|e| failed(&e))?;
        // The reference is wide and pale, so that a curve on top of it leaves both to be seen.
        let mut curves = vec![
            Curve { name: "plain f32, one rank", style: PALE.stroke_width(5), of: |s| s.reference_loss, unit: 1.0 },
            Curve { name: "vocabfuse", style: DARK.stroke_width(2), of: |s| s.loss, unit: 1.0 },
        ];
        if filters {
            let name = "tiles left out of dW, 0 to 1 from zero to the top";
            let of = |s: &Step| s.layer.filtered[1].share();
            curves.push(Curve { name, style: GRAY.stroke_width(1), of, unit: range.end });
        }
        for Curve { name, style, of, unit } in curves {
            let points = steps.iter().enumerate().map(|(i, s)| (i, of(s) * unit)).filter(|(_, l)| l.is_finite());
            chart
                .draw_series(LineSeries::new(points, style))
                .map_err(|e| failed(&e))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], style));
        }
        chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw().map_err(|e| failed(&e))?;
        area.present().map_err(|e| failed(&e))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Cost;
    use std::time::Duration;

    #[test]
    fn both_files_are_written() {
        let step = |loss| Step {
            loss,
            reference_loss: loss + 0.5,
            time: Duration::ZERO,
            reference_time: Duration::ZERO,
            layer: Cost::default(),
        };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new");
        write(&out, &[step(2.0), step(1.5), step(f64::NAN)]).unwrap();
        let csv = std::fs::read_to_string(out.join("loss.csv")).unwrap();
        assert!(csv.starts_with("step,loss,reference_loss,difference,s_ms,c1_ms,t_ms,dx_left_out,dw_left_out\n0,2,2.5,-5e-1,0.000,0.000,0.000,0.0000,0.0000\n"), "{csv}");
        let svg = std::fs::read_to_string(out.join("loss.svg")).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("vocabfuse") && svg.trim_end().ends_with("</svg>"));
    }
}
