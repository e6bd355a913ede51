//! A tensor core matmul as NVRTC compiles it.

use crate::support::{MATMUL, matmul};
use vocabfuse_ptx::{Class, Module};

#[test]
fn ragged_sizes_are_right_under_every_schedule() {
    let module = Module::parse(MATMUL).unwrap();
    let kernel = module.kernel("matmul").unwrap();
    for size in [[64, 64, 32], [70, 136, 72], [1, 1, 8], [65, 63, 136]] {
        for seed in 0..8 {
            let run = matmul(kernel, size, seed).unwrap_or_else(|e| panic!("{size:?}: {e}"));
            assert!(run.error() < 1e-4, "{size:?} seed {seed}: {}", run.error());
            assert!(run.report.is_clean(), "{size:?}: {:#?}", run.report.races);
        }
    }
}

#[test]
fn counters_tell_the_shape_of_the_kernel() {
    let module = Module::parse(MATMUL).unwrap();
    let kernel = module.kernel("matmul").unwrap();
    assert_eq!(kernel.static_shared(), 0);
    assert_eq!(kernel.max_threads(), Some(128));
    assert_eq!(kernel.parameters().len(), 6);
    assert_eq!(kernel.parameters()[3].offset, 24);

    let report = matmul(kernel, [128, 64, 64], 1).unwrap().report;
    let warps = 2 * 4;
    let steps = 2;
    // Each warp and step of 32: two halves of 2 x 4 products and 2 + 2 loads.
    assert_eq!(report.classes.get(Class::MatrixMultiply), warps * steps * 2 * 8);
    assert_eq!(report.classes.get(Class::MatrixLoad), warps * steps * 2 * 4);
    assert_eq!(report.classes.get(Class::AsyncCopy), warps * steps * 4);
    assert_eq!(report.classes.get(Class::Barrier), warps * steps * 2);
    // Rows are five quarters of 64 bytes apart: ldmatrix meets every bank once,
    // while the two rows that a quarter of a warp copies share four banks.
    for line in &report.lines {
        let expected = match line.class {
            Class::MatrixLoad => line.shared.ideal,
            Class::AsyncCopy => 2 * line.shared.ideal,
            _ => 0,
        };
        assert_eq!(line.shared.transactions, expected, "line {}", line.line);
    }
    assert_eq!(report.shared.conflicts(), warps * steps * 4 * 4);
    // Rows of 64 bytes fill their sectors; results are stored by single words.
    let stores = report.lines.iter().filter(|l| l.class == Class::StoreGlobal);
    for line in stores {
        assert_eq!(line.global.width, 4);
        assert_eq!(line.global.efficiency(), 0.5);
    }
    let copies = report.lines.iter().filter(|l| l.class == Class::AsyncCopy && l.warps > 0);
    for line in copies {
        assert_eq!(line.global.width, 16);
        assert_eq!(line.global.efficiency(), 1.0);
    }
}
