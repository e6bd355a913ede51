//! Shuffles, static shared memory and an atomic, as NVRTC compiles them.

mod support;

use support::{Numbers, ROWSTATS, f32_bytes, read_f32s, read_u32s};
use vocabfuse_ptx::{Arg, Launch, Memory, Module, launch};

#[test]
fn row_statistics_match_a_scalar_loop() {
    let module = Module::parse(ROWSTATS).unwrap();
    let kernel = module.kernel("rowstats").unwrap();
    assert_eq!(kernel.static_shared(), 256);
    let (rows, v) = (5, 1000);
    let mut x: Vec<f32> = Numbers::new(3)
        .f32s(rows * v)
        .iter()
        .map(|x| 20.0 * x)
        .collect();
    x[2 * v..3 * v].fill(f32::NEG_INFINITY);
    for seed in 0..8 {
        let mut memory = Memory::new();
        let input = memory.alloc_with(&f32_bytes(&x)).unwrap();
        let largest = memory.alloc(4 * rows).unwrap();
        let sum = memory.alloc(4 * rows).unwrap();
        let empty = memory.alloc_with(&[0; 4]).unwrap();
        let shape = Launch {
            grid: [rows as u32, 1, 1],
            block: [96, 1, 1],
            seed,
            resident_blocks: 3,
            ..Launch::default()
        };
        let pointers = [input, largest, sum, empty].map(Arg::Pointer);
        let arguments = [pointers.as_slice(), &[Arg::I32(v as i32)]].concat();
        let report = launch(kernel, &shape, &arguments, &mut memory).unwrap();
        assert!(report.is_clean(), "{report:#?}");
        assert_eq!(read_u32s(&memory, empty, 1), [1]);
        let (largest, sum) = (
            read_f32s(&memory, largest, rows),
            read_f32s(&memory, sum, rows),
        );
        for (row, values) in x.chunks(v).enumerate() {
            let wanted = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest[row], wanted);
            let terms = values.iter().map(|&x| f64::from(x - wanted).exp2());
            let wanted: f64 = if wanted.is_finite() { terms.sum() } else { 0.0 };
            assert!((f64::from(sum[row]) - wanted).abs() <= 1e-5 * wanted);
        }
    }
}
