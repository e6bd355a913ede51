//! Bank conflicts and coalescing of single accesses.

use crate::support::{one_warp, run_words};
use vocabfuse_ptx::{Class, GlobalCounters, SharedCounters};

/// Counters of a load of `bytes` from byte `stride * lane` of shared memory.
fn shared(bytes: u32, stride: u32) -> SharedCounters {
    let load = match bytes {
        16 => "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];",
        8 => "ld.shared.v2.u32 {%r2, %r3}, [%r1];",
        4 => "ld.shared.u32 %r2, [%r1];",
        2 => "ld.shared.u16 %r2, [%r1];",
        _ => "ld.shared.u8 %r2, [%r1];",
    };
    let body = format!("mov.u32 %r0, dynamic;\nmad.lo.u32 %r1, %tid, {stride}, %r0;\n{load}");
    let report = run_words(&body, &one_warp(), &[0], 1).unwrap().report;
    let loads = report.lines.iter().find(|l| l.class == Class::LoadShared);
    assert_eq!(report.shared, loads.unwrap().shared);
    loads.unwrap().shared
}

#[test]
fn banks_serve_one_word_each_in_a_pass() {
    for (bytes, stride, transactions, ideal) in [
        (4, 4, 1, 1),
        (4, 0, 1, 1),
        (4, 8, 2, 1),
        (4, 12, 1, 1),
        (4, 64, 16, 1),
        (4, 128, 32, 1),
        // Neighbours in a word share it.
        (2, 2, 1, 1),
        (1, 1, 1, 1),
        (2, 128, 32, 1),
        // Halves of a warp.
        (8, 8, 2, 2),
        (8, 16, 4, 2),
        (8, 128, 32, 2),
        // Quarters of a warp.
        (16, 16, 4, 4),
        (16, 32, 8, 4),
        (16, 80, 4, 4),
        (16, 128, 32, 4),
        (16, 0, 4, 4),
    ] {
        let found = shared(bytes, stride);
        assert_eq!(found.transactions, transactions, "{bytes} bytes, stride {stride}");
        assert_eq!(found.ideal, ideal, "{bytes} bytes, stride {stride}");
        assert_eq!(found.conflicts(), transactions - ideal);
    }
}

/// Counters of a load of a word from byte `stride * lane + first`.
fn global(stride: u32, first: u32) -> GlobalCounters {
    let body = format!("mul.wide.u32 %d1, %tid, {stride};\nadd.s64 %d1, %d1, %in;\nld.global.u32 %r1, [%d1+{first}];");
    let report = run_words(&body, &one_warp(), &vec![0; 2048], 1).unwrap().report;
    report.global
}

#[test]
fn sectors_are_counted_once_per_request() {
    for (stride, first, sectors) in [(4, 0, 4), (4, 4, 5), (0, 0, 1), (8, 0, 8), (32, 0, 32), (128, 0, 32)] {
        let found = global(stride, first);
        assert_eq!(found.requests, 1);
        assert_eq!(found.bytes, 128);
        assert_eq!(found.width, 4);
        assert_eq!(found.sectors, sectors, "stride {stride} from {first}");
        assert_eq!(found.efficiency(), 128.0 / (32 * sectors) as f64);
    }
}

#[test]
fn instructions_are_counted_by_warp_and_by_lane() {
    let body = "setp.lt.u32 %p1, %tid, 3;\n@%p1 ex2.approx.f32 %f1, %f2;\nbar.sync 0;";
    let report = run_words(body, &one_warp(), &[0], 1).unwrap().report;
    let text = crate::support::kernel_text(body);
    let line = text.lines().position(|l| l.contains("ex2")).unwrap() as u32 + 1;
    let counters: Vec<_> = report.at_line(line).collect();
    assert_eq!(counters.len(), 1);
    assert_eq!((counters[0].class, counters[0].warps, counters[0].lanes), (Class::Math, 1, 3));
    assert_eq!(report.classes.get(Class::Barrier), 1);
    assert_eq!(report.classes.get(Class::OtherMemory), 2);
    // Six instructions of the frame, three of the body and a return.
    assert_eq!(report.warp_instructions, 10);
}
