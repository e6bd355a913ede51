//! Shuffles, votes and reductions of a warp.

use crate::support::{Numbers, one_warp, run_words};
use vocabfuse_ptx::LaunchError;

/// Runs `body` with the lane's input word in `%r1`; the result is `%r2`.
fn lanes(body: &str, input: &[u32]) -> Vec<u32> {
    let body = format!("ld.global.u32 %r1, [%mine];\n{body}\nst.global.u32 [%result], %r2;");
    run_words(&body, &one_warp(), input, 32).unwrap().out
}

#[test]
fn shuffles_move_values_within_segments() {
    let input = Numbers::new(1).u32s(32);
    for width in [32, 16, 8, 4] {
        let segment = (32 - width) << 8;
        for distance in [0usize, 1, 3, 7, 15, 31] {
            for mode in ["up", "down", "bfly", "idx"] {
                let clamp = segment | if mode == "up" { 0 } else { 31 };
                let body = format!(
                    "shfl.sync.{mode}.b32 %r2|%p1, %r1, {distance}, {clamp}, -1;\n\
                     selp.u32 %r3, 1, 0, %p1;\nst.global.u32 [%result], %r3;"
                );
                let out = lanes(&body, &input);
                for (lane, &found) in out.iter().enumerate() {
                    let first = lane / width * width;
                    // As the CUDA guide describes each function with a width.
                    let source = match mode {
                        "up" if lane >= first + distance => lane - distance,
                        "down" if lane + distance < first + width => lane + distance,
                        "bfly" if lane ^ distance < first + width => lane ^ distance,
                        "idx" => first + distance % width,
                        _ => lane,
                    };
                    assert_eq!(found, input[source], "{mode} {width} {distance} {lane}");
                }
            }
        }
    }
}

#[test]
fn shuffles_tell_whether_the_source_was_in_range() {
    let body = "shfl.sync.down.b32 %r3|%p1, %r1, 8, 31, -1;\nselp.u32 %r2, 1, 0, %p1;";
    let out = lanes(body, &[0; 32]);
    for (lane, &found) in out.iter().enumerate() {
        assert_eq!(found, u32::from(lane < 24));
    }
}

#[test]
fn a_shuffle_from_outside_the_members_is_illegal() {
    let body = "setp.lt.u32 %p1, %tid, 16;\n@%p1 shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xffff;";
    let result = run_words(body, &one_warp(), &[0; 32], 32);
    assert!(matches!(result, Err(LaunchError::Illegal { .. })));
}

#[test]
fn members_run_apart_from_other_lanes() {
    // Two halves take different ways to shuffles of their own.
    let body = "setp.lt.u32 %p1, %tid, 16;\n@%p1 bra LOW;\n\
        shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffff0000;\nbra.uni END;\n\
        LOW:\nshfl.sync.bfly.b32 %r2, %r1, 2, 31, 0xffff;\nEND:";
    let input: Vec<u32> = (0..32).collect();
    let out = lanes(body, &input);
    for lane in 0..32 {
        assert_eq!(out[lane as usize], if lane < 16 { lane ^ 2 } else { lane ^ 1 });
    }
}

#[test]
fn two_sets_of_members_share_one_instruction() {
    // The destination is the register of the member mask.
    let body = "setp.lt.u32 %p1, %tid, 16;\nselp.b32 %r2, 0xffff, 0xffff0000, %p1;\n\
        shfl.sync.bfly.b32 %r2, %r1, 3, 31, %r2;";
    let input: Vec<u32> = (0..32).collect();
    let wanted: Vec<u32> = (0..32).map(|lane| lane ^ 3).collect();
    assert_eq!(lanes(body, &input), wanted);
}

#[test]
fn lanes_meet_at_a_collective_from_different_ways() {
    let body = "and.b32 %r3, %tid, 1;\nsetp.eq.u32 %p1, %r3, 0;\nmov.u32 %r4, 0;\n@%p1 bra MEET;\n\
        LOOP:\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p2, %r4, %tid;\n@%p2 bra LOOP;\n\
        MEET:\nshfl.sync.idx.b32 %r2, %r4, 31, 31, -1;";
    assert_eq!(lanes(body, &[0; 32]), [31; 32]);
}

#[test]
fn votes_count_lanes() {
    let input: Vec<u32> = (0..32).collect();
    let ballot = "setp.gt.u32 %p1, %r1, 20;\nvote.sync.ballot.b32 %r2, %p1, -1;";
    assert_eq!(lanes(ballot, &input), [0xffe0_0000; 32]);
    let negated = "setp.gt.u32 %p1, %r1, 20;\nvote.sync.ballot.b32 %r2, !%p1, -1;";
    assert_eq!(lanes(negated, &input), [0x001f_ffff; 32]);
    for (quorum, bound, wanted) in
        [("all", 0, 1), ("all", 1, 0), ("any", 31, 1), ("any", 32, 0), ("uni", 0, 1), ("uni", 32, 1), ("uni", 5, 0)]
    {
        let body = format!(
            "setp.ge.u32 %p1, %r1, {bound};\nvote.sync.{quorum}.pred %p2, %p1, -1;\n\
             selp.u32 %r2, 1, 0, %p2;"
        );
        assert_eq!(lanes(&body, &input), [wanted; 32], "{quorum} {bound}");
    }
}

#[test]
fn matches_and_reductions_agree_with_loops() {
    let input: Vec<u32> = Numbers::new(8).u32s(32).iter().map(|x| x % 5).collect();
    let out = lanes("match.any.sync.b32 %r2, %r1, -1;", &input);
    for lane in 0..32 {
        let same = (0..32).filter(|&l| input[l] == input[lane]);
        assert_eq!(out[lane], same.fold(0, |bits, l| bits | 1 << l));
    }
    let all = "match.all.sync.b32 %r2|%p1, %r1, -1;";
    assert_eq!(lanes(all, &input), [0; 32]);
    assert_eq!(lanes(all, &[3; 32]), [u32::MAX; 32]);

    let input = Numbers::new(3).u32s(32);
    let signed = |x: &u32| *x as i32;
    let cases = [
        ("add.s32", input.iter().fold(0u32, |a, &b| a.wrapping_add(b))),
        ("max.u32", *input.iter().max().unwrap()),
        ("min.u32", *input.iter().min().unwrap()),
        ("max.s32", input.iter().map(signed).max().unwrap() as u32),
        ("min.s32", input.iter().map(signed).min().unwrap() as u32),
        ("and.b32", input.iter().fold(u32::MAX, |a, b| a & b)),
        ("or.b32", input.iter().fold(0, |a, b| a | b)),
        ("xor.b32", input.iter().fold(0, |a, b| a ^ b)),
    ];
    for (operation, wanted) in cases {
        let body = format!("redux.sync.{operation} %r2, %r1, -1;");
        assert_eq!(lanes(&body, &input), [wanted; 32], "{operation}");
    }
}

#[test]
fn the_active_mask_is_the_group_that_runs() {
    let body = "mov.u32 %r2, 0;\nsetp.lt.u32 %p1, %tid, 5;\n@%p1 activemask.b32 %r2;";
    let out = lanes(body, &[0; 32]);
    assert_eq!(out[..5], [31; 5]);
    assert_eq!(out[5..], [0; 27]);
}
