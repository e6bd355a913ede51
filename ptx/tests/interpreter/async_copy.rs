//! cp.async: sizes, zero fill, groups and visibility.

use crate::support::{Numbers, one_warp, run_words};
use vocabfuse_ptx::{Launch, LaunchError, RaceKind};

const ADDRESS: &str = "mov.u32 %r0, dynamic;\nshl.b32 %r1, %tid, 4;\nadd.s32 %r1, %r1, %r0;\n\
     cvt.u64.u32 %d1, %r1;\nshl.b32 %r2, %tid, 4;\ncvt.u64.u32 %d2, %r2;\n\
     add.s64 %d3, %in, %d2;\nadd.s64 %d4, %out, %d2;\n";
const STORE: &str = "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1];\n\
     st.global.v4.u32 [%d4], {%r10, %r11, %r12, %r13};\n";

fn seeded(seed: u64) -> Launch {
    Launch { seed, ..one_warp() }
}

#[test]
fn copies_take_some_bytes_and_fill_the_rest_with_zeros() {
    let input = Numbers::new(9).u32s(128);
    let bytes: Vec<u8> = input.iter().flat_map(|w| w.to_le_bytes()).collect();
    for take in [0, 1, 2, 5, 8, 15, 16] {
        let body = format!(
            "{ADDRESS}cp.async.cg.shared.global.L2::128B [%r1], [%d3], 16, {take};\n\
             cp.async.wait_all;\n{STORE}"
        );
        let run = run_words(&body, &seeded(take), &input, 128).unwrap();
        assert!(run.report.is_clean(), "{:#?}", run.report);
        let found: Vec<u8> = run.out.iter().flat_map(|w| w.to_le_bytes()).collect();
        for (i, &byte) in found.iter().enumerate() {
            let wanted = if i % 16 < take as usize { bytes[i] } else { 0 };
            assert_eq!(byte, wanted, "take {take}, byte {i}");
        }
    }
}

#[test]
fn small_copies_go_through_l1() {
    let input = Numbers::new(9).u32s(128);
    let body = format!(
        "{ADDRESS}cp.async.ca.shared.global [%r1], [%d3], 8;\n\
         cp.async.ca.shared.global [%r1+8], [%d3+8], 4;\n\
         cp.async.ca.shared.global [%r1+12], [%d3+12], 4;\ncp.async.commit_group;\n\
         cp.async.wait_group 0;\n{STORE}"
    );
    let run = run_words(&body, &seeded(1), &input, 128).unwrap();
    assert!(run.report.is_clean());
    assert_eq!(run.out, input);
}

#[test]
fn a_wait_covers_all_but_the_last_groups() {
    let input = Numbers::new(4).u32s(256);
    for (keep, pending) in [(0, false), (1, true)] {
        let body = format!(
            "{ADDRESS}cp.async.cg.shared.global [%r1+512], [%d3], 16;\ncp.async.commit_group;\n\
             cp.async.cg.shared.global [%r1], [%d3+512], 16;\ncp.async.commit_group;\n\
             cp.async.wait_group {keep};\nld.shared.u32 %r5, [%r1+512];\n{STORE}\
             cp.async.wait_all;\n"
        );
        for seed in 0..8 {
            let run = run_words(&body, &seeded(seed), &input, 128).unwrap();
            let kinds: Vec<RaceKind> = run.report.races.iter().map(|r| r.kind).collect();
            match pending {
                false => assert_eq!(run.out, input[128..]),
                true => assert_eq!(kinds, [RaceKind::PendingCopy]),
            }
        }
    }
}

#[test]
fn data_arrives_late_or_early_by_the_seed() {
    let input = vec![7; 128];
    let body = format!(
        "{ADDRESS}mov.u32 %r5, 0;\nst.shared.u32 [%r1], %r5;\n\
         cp.async.cg.shared.global [%r1], [%d3], 16;\nmov.u32 %r6, 0;\n\
         LOOP:\nadd.u32 %r6, %r6, 1;\nsetp.lt.u32 %p1, %r6, 400;\n@%p1 bra LOOP;\n\
         ld.shared.u32 %r7, [%r1];\nst.global.u32 [%d4], %r7;\ncp.async.wait_all;\n"
    );
    let mut seen = [false; 2];
    for seed in 0..64 {
        let out = run_words(&body, &seeded(seed), &input, 128).unwrap().out;
        seen[usize::from(out[0] == 7)] = true;
    }
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_copy_never_waited_for_is_reported() {
    let body = format!("{ADDRESS}cp.async.cg.shared.global [%r1], [%d3], 16;\n");
    let run = run_words(&body, &seeded(0), &[1; 128], 1).unwrap();
    assert_eq!(run.report.races[0].kind, RaceKind::CopyAtExit);
    // Nothing is lost where nothing was read.
    let body = format!("{ADDRESS}cp.async.cg.shared.global [%r1], [%d3], 16, 0;\n");
    let run = run_words(&body, &seeded(0), &[1; 128], 1).unwrap();
    assert!(run.report.races.is_empty());
}

#[test]
fn bad_sources_and_destinations_are_faults() {
    let one = |copy: &str| {
        let body = format!("{ADDRESS}{copy}\ncp.async.wait_all;\n");
        run_words(&body, &seeded(0), &[1; 128], 1).err()
    };
    let out = |e| matches!(e, Some(LaunchError::OutOfBounds { .. }));
    let misaligned = |e| matches!(e, Some(LaunchError::Misaligned { .. }));
    assert!(out(one("cp.async.cg.shared.global [%r1], [%d3+512], 16;")));
    assert!(out(one("cp.async.cg.shared.global [%r1+4096], [%d3], 16;")));
    assert!(misaligned(one("cp.async.cg.shared.global [%r1+4], [%d3], 16;")));
    assert!(misaligned(one("cp.async.cg.shared.global [%r1], [%d3+8], 16;")));
    let long = one("cp.async.cg.shared.global [%r1], [%d3], 16, 17;");
    assert!(matches!(long, Some(LaunchError::Illegal { .. })));
    // No byte of the source is touched where none is read.
    assert_eq!(one("cp.async.cg.shared.global [%r1], [%d3+512], 16, 0;"), None);
}
