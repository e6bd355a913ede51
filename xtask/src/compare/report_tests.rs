use super::super::calibration::Rate;
use super::*;

fn report() -> Report {
    let entry = |competitor, index, products| Entry {
        competitor,
        index,
        device: "avx512".to_owned(),
        products,
        output_bytes: 3 << 20,
        peak_bytes: Some(5 << 20),
        loss_error: 1e-7,
        dw_error: f64::INFINITY,
    };
    let round = |scale: f64, after| Round {
        calibration: (100.0, after),
        ms: vec![Some(2.0 * scale), None, Some(6.0 * scale)],
        repeated: 0,
    };
    let rate = Rate { operation: "multiply-adds".to_owned(), isa: "AVX-512".to_owned(), gflops: 100.0 };
    Report {
        setting: Setting {
            tokens: 1000,
            hidden: 100,
            vocab: 200,
            threads: 2,
            rounds: 3,
            dtype: "f32".to_owned(),
            only: vec![],
            cpu: "A CPU".to_owned(),
            date: "2000-01-01".to_owned(),
            forced: None,
        },
        calibrations: vec![Calibration { peak: rate.clone(), rates: vec![rate], tile_loads: None }],
        entries: vec![entry(Competitor::VocabfuseSaved, 0, 3), entry(Competitor::TorchEager, 2, 3)],
        // The last one does not count: it is not settled.
        rounds: vec![round(1.0, 100.0), round(2.0, 100.0), round(50.0, 10.0)],
        torch: Some(Ok("9.9".to_owned())),
        failed: vec![(Competitor::TorchCompile, "no compiler".to_owned())],
    }
}

#[test]
fn the_section_says_everything() {
    let section = report().section();
    let has = |text: &str| assert!(section.contains(text), "{text} is missing in:\n{section}");
    has("## N = 1000, H = 100, V = 200, f32, 2 threads, A CPU\n");
    has("cargo xtask compare --tokens 1000 --hidden 100 --vocab 200 --dtype f32 --threads 2 --rounds 3\n");
    has("medians: multiply-adds 100.0 (AVX-512; 100.0 to 100.0).");
    has("2 x 100.0 GFLOP/s of multiply-adds, the fastest here");
    // 6 x 1000 x 100 x 200 operations in 3 ms are 40 GFLOP/s, of 200.
    has("| vocabfuse saved | 3.0 | 2.0 | 1.00 | - | 5 | 2 | 1.0e-7 | inf | 20 % | avx512 |");
    has("| torch eager | 9.0 | 6.0 | 3.00 | - |");
    has("Not measured: torch.compile (no compiler).");
    has("| 3 | 100.0, 10.0 | 100.0 | 300.0 | unsettled |");
    assert!(!section.contains("not quiet"));
}

#[test]
fn a_restless_machine_is_named() {
    let mut report = report();
    report.rounds.drain(..2);
    assert!(report.section().contains("calibrations of 1 of the 1 rounds"));
}

#[test]
fn sections_are_replaced_or_added() {
    let document = "# M\n\nintro\n\n## a\n\nold\n\n## b\n\nkept\n";
    assert_eq!(replace_section(document, "## a", "## a\n\nnew\n"), "# M\n\nintro\n\n## a\n\nnew\n\n## b\n\nkept\n");
    assert_eq!(replace_section(document, "## b", "## b\n\nnew\n"), "# M\n\nintro\n\n## a\n\nold\n\n## b\n\nnew\n");
    let added = replace_section(document, "## c", "## c\n\nnew\n");
    assert_eq!(added, format!("{document}\n## c\n\nnew\n"));
    assert_eq!(replace_section(&added, "## c", "## c\n\nnew\n"), added);
}

#[test]
fn writing_creates_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("docs").join("m.md");
    let report = report();
    write(&path, &report).unwrap();
    let first = std::fs::read_to_string(&path).unwrap();
    assert!(first.starts_with("# Measurements\n") && first.contains(&report.setting.heading()));
    write(&path, &report).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), first, "writing again changes nothing");
}

#[test]
fn medians() {
    assert_eq!(median([].into_iter()), None);
    assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
    assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
}
