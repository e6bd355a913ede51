//! Shuffles, static shared memory and an atomic, as NVRTC compiles them.

use crate::support::{Numbers, ROWSTATS, f32_bytes, read_f32s, read_u32s};
use vocabfuse_ptx::{Arg, Launch, LaunchError, Memory, Module, Report, launch};

const ROWS: usize = 5;
const V: usize = 1000;

/// Largest value and sum of every row, and the count of empty rows.
struct Found {
    report: Report,
    largest: Vec<f32>,
    sum: Vec<f32>,
    empty: u32,
}

/// Rows of random values, of which the third is empty.
fn input() -> Vec<f32> {
    let mut x = Numbers::new(3).f32s(ROWS * V);
    x.iter_mut().for_each(|x| *x *= 20.0);
    x[2 * V..3 * V].fill(f32::NEG_INFINITY);
    x
}

fn run(text: &str, seed: u64) -> Result<Found, LaunchError> {
    let module = Module::parse(text).unwrap();
    let kernel = module.kernel("rowstats").unwrap();
    assert_eq!(kernel.static_shared(), 256);
    let mut memory = Memory::new();
    let x = memory.alloc_with(&f32_bytes(&input())).unwrap();
    let largest = memory.alloc(4 * ROWS).unwrap();
    let sum = memory.alloc(4 * ROWS).unwrap();
    let empty = memory.alloc_with(&[0; 4]).unwrap();
    let shape = Launch { grid: [ROWS as u32, 1, 1], block: [96, 1, 1], seed, resident_blocks: 3, ..Launch::default() };
    let pointers = [x, largest, sum, empty].map(Arg::Pointer);
    let arguments = [pointers.as_slice(), &[Arg::I32(V as i32)]].concat();
    Ok(Found {
        report: launch(kernel, &shape, &arguments, &mut memory)?,
        largest: read_f32s(&memory, largest, ROWS),
        sum: read_f32s(&memory, sum, ROWS),
        empty: read_u32s(&memory, empty, 1)[0],
    })
}

#[test]
fn row_statistics_match_a_scalar_loop() {
    for seed in 0..8 {
        let found = run(ROWSTATS, seed).unwrap();
        assert!(found.report.is_clean(), "{:#?}", found.report);
        assert_eq!(found.empty, 1);
        for (row, values) in input().chunks(V).enumerate() {
            let wanted = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(found.largest[row], wanted);
            let terms = values.iter().map(|&x| f64::from(x - wanted).exp2());
            let wanted: f64 = if wanted.is_finite() { terms.sum() } else { 0.0 };
            assert!((f64::from(found.sum[row]) - wanted).abs() <= 1e-5 * wanted);
        }
    }
}

#[test]
fn planted_faults_race_or_stop() {
    let text = ROWSTATS.replace("bar.sync \t0;", "");
    assert_ne!(text, ROWSTATS);
    for seed in 0..8 {
        assert!(!run(&text, seed).unwrap().report.races.is_empty());
    }
    // Half of the lanes are missing from the member mask of the shuffles.
    let text = ROWSTATS.replace("%r22, -1;", "%r22, 65535;");
    assert_ne!(text, ROWSTATS);
    assert!(run(&text, 0).is_err());
}
