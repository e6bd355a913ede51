//! Barriers, deadlocks, races and order between blocks.

use crate::support::{one_warp, run_words};
use vocabfuse_ptx::{Launch, LaunchError, RaceKind, Space};

fn block(threads: u32, seed: u64) -> Launch {
    Launch { block: [threads, 1, 1], seed, instruction_limit: 1_000_000, ..one_warp() }
}

fn blocks(count: u32, seed: u64, resident_blocks: usize) -> Launch {
    Launch { grid: [count, 1, 1], resident_blocks, ..block(32, seed) }
}

/// `%r1` is the shared address of the thread's word, `%r2` that of its
/// neighbour, modulo 64 threads.
const NEIGHBOUR: &str = "mov.u32 %r0, dynamic;\nshl.b32 %r1, %tid, 2;\nadd.s32 %r1, %r1, %r0;\n\
     add.s32 %r2, %tid, 33;\nand.b32 %r2, %r2, 63;\nshl.b32 %r2, %r2, 2;\nadd.s32 %r2, %r2, %r0;\n";

fn kinds(body: &str, shape: &Launch) -> Vec<RaceKind> {
    let run = run_words(body, shape, &[5; 64], 64).unwrap();
    run.report.races.iter().map(|r| r.kind).collect()
}

#[test]
fn a_barrier_orders_the_warps_of_a_block() {
    for (barrier, wanted) in
        [("bar.sync 0;", vec![]), ("barrier.sync.aligned 3;", vec![]), ("barrier.sync 3, 64;", vec![])]
    {
        let body = format!(
            "{NEIGHBOUR}st.shared.u32 [%r1], %tid;\n{barrier}\nld.shared.u32 %r3, [%r2];\n\
             st.global.u32 [%result], %r3;"
        );
        for seed in 0..8 {
            let run = run_words(&body, &block(64, seed), &[0], 64).unwrap();
            let found: Vec<RaceKind> = run.report.races.iter().map(|r| r.kind).collect();
            assert_eq!(found, wanted);
            let neighbours: Vec<u32> = (0..64).map(|i| (i + 33) % 64).collect();
            assert_eq!(run.out, neighbours);
        }
    }
}

#[test]
fn without_a_barrier_one_of_the_accesses_races() {
    for (between, seeds) in [("", 0..8), ("bar.warp.sync -1;", 0..8), ("membar.cta;", 0..8)] {
        let body = format!(
            "{NEIGHBOUR}st.shared.u32 [%r1], %tid;\n{between}\nld.shared.u32 %r3, [%r2];\n\
             st.global.u32 [%result], %r3;"
        );
        for seed in seeds {
            // Which of the two comes first is up to the schedule.
            let found = kinds(&body, &block(64, seed));
            let known = [RaceKind::ReadAfterWrite, RaceKind::WriteAfterRead];
            assert!(!found.is_empty() && found.iter().all(|k| known.contains(k)), "{found:?}");
        }
    }
}

#[test]
fn races_name_both_lines() {
    let body = format!(
        "{NEIGHBOUR}st.shared.u32 [%r1], %tid;\nbar.warp.sync -1;\n\
         ld.shared.u32 %r3, [%r2];\nst.global.u32 [%result], %r3;"
    );
    let text = crate::support::kernel_text(&body);
    let line = |what: &str| 1 + text.lines().position(|l| l.starts_with(what)).unwrap() as u32;
    let run = run_words(&body, &block(64, 1), &[0], 64).unwrap();
    let race = &run.report.races[0];
    let mut lines = [race.first.line, race.second.line];
    lines.sort_unstable();
    assert_eq!(lines, [line("st.shared"), line("ld.shared")]);
    assert_eq!(race.space, Space::Shared);
    assert_ne!(race.first.warp, race.second.warp);
    assert!(race.to_string().contains("PTX line"));
}

#[test]
fn lanes_of_a_warp_need_a_warp_barrier() {
    for (barrier, wanted) in [
        ("bar.warp.sync -1;", vec![]),
        ("bar.sync 0;", vec![]),
        ("", vec![RaceKind::ReadAfterWrite]),
        // A shuffle moves registers and orders no memory.
        ("shfl.sync.idx.b32 %r9, %tid, 0, 31, -1;", vec![RaceKind::ReadAfterWrite]),
    ] {
        let body = format!(
            "mov.u32 %r0, dynamic;\nshl.b32 %r1, %tid, 2;\nadd.s32 %r1, %r1, %r0;\n\
             xor.b32 %r2, %r1, 4;\nst.shared.u32 [%r1], %tid;\n{barrier}\n\
             ld.shared.u32 %r3, [%r2];\n"
        );
        assert_eq!(kinds(&body, &block(32, 0)), wanted, "{barrier}");
    }
}

#[test]
fn lanes_of_one_store_may_share_a_place_only_with_one_value() {
    let store = |value: &str| format!("mov.u32 %r0, dynamic;\nst.shared.u32 [%r0], {value};\n");
    assert_eq!(kinds(&store("7"), &block(32, 0)), []);
    assert_eq!(kinds(&store("%tid"), &block(32, 0)), [RaceKind::LaneConflict]);
    let global = "st.global.u32 [%out], %tid;";
    assert_eq!(kinds(global, &block(32, 0)), [RaceKind::LaneConflict]);
}

#[test]
fn narrow_neighbours_do_not_race() {
    let body = "mov.u32 %r0, dynamic;\nadd.s32 %r1, %r0, %tid;\nst.shared.u8 [%r1], %tid;\n\
        add.s64 %d1, %out, %d0;\ncvt.u64.u32 %d2, %tid;\nadd.s64 %d3, %out, %d2;\n\
        st.global.u8 [%d3], %tid;\nbar.sync 0;\nld.shared.u32 %r2, [%r0];\n";
    assert_eq!(kinds(body, &block(64, 3)), []);
}

#[test]
fn named_barriers_pair_producers_with_consumers() {
    // Warp 0 fills and arrives, warp 1 waits and reads.
    let body = |barrier: &str| {
        format!(
            "{NEIGHBOUR}setp.lt.u32 %p1, %tid, 32;\n@!%p1 bra CONSUME;\n\
             st.shared.u32 [%r1], %tid;\n{barrier}\nret;\n\
             CONSUME:\nbar.sync 1, 64;\nld.shared.u32 %r3, [%r2];\nst.global.u32 [%result], %r3;\n"
        )
    };
    for seed in 0..8 {
        assert_eq!(kinds(&body("bar.arrive 1, 64;"), &block(64, seed)), []);
        let missing = run_words(&body(""), &block(64, seed), &[0], 64);
        let Err(LaunchError::Deadlock { waits }) = missing else {
            panic!("no deadlock");
        };
        assert_eq!(waits.len(), 1);
        assert_eq!(waits[0].warp, 1);
        assert_eq!(waits[0].reason, "32 of 64 threads arrived at barrier 1");
    }
}

#[test]
fn a_barrier_votes() {
    let body = "setp.lt.u32 %p1, %tid, 40;\nbar.red.popc.u32 %r1, 0, %p1;\n\
        setp.lt.u32 %p1, %tid, 63;\nbar.red.and.pred %p2, 0, %p1;\nselp.u32 %r2, 100, 0, %p2;\n\
        bar.red.or.pred %p2, 0, !%p1;\nselp.u32 %r3, 1000, 0, %p2;\n\
        add.u32 %r1, %r1, %r2;\nadd.u32 %r1, %r1, %r3;\nst.global.u32 [%result], %r1;";
    for seed in 0..4 {
        let run = run_words(body, &block(64, seed), &[0], 64).unwrap();
        assert_eq!(run.out, [1040; 64]);
    }
}

#[test]
fn a_barrier_does_not_wait_for_threads_that_ended() {
    // Some lanes of the first warp and all of the third end early or late.
    let body = "setp.lt.u32 %p1, %tid, 7;\nsetp.ge.u32 %p2, %tid, 64;\n@%p1 bra END;\n\
        @%p2 bra END;\nbar.sync 0;\nbar.red.popc.u32 %r1, 2, 1;\nst.global.u32 [%result], %r1;\n\
        END:\n";
    for seed in 0..8 {
        let run = run_words(body, &block(90, seed), &[0], 90).unwrap();
        assert!(run.out[..7].iter().chain(&run.out[64..]).all(|&x| x == 0));
        assert_eq!(run.out[7..64], [57; 57]);
    }
}

#[test]
fn an_endless_loop_ends() {
    let result = run_words("LOOP:\nbra LOOP;", &block(32, 0), &[0], 1);
    assert_eq!(result.err(), Some(LaunchError::InstructionLimit(1_000_000)));
}

#[test]
fn a_group_that_spins_does_not_starve_the_one_it_waits_for() {
    // Lane 0 waits in a loop for a flag that lane 1 sets further on.
    let body = "mov.u32 %r0, dynamic;\nsetp.eq.u32 %p2, %tid, 0;\nsetp.ne.u32 %p3, %tid, 1;\n\
        mov.u32 %r3, 0;\n@%p2 st.volatile.shared.u32 [%r0], %r3;\nbar.warp.sync -1;\n\
        @!%p2 bra SET;\n\
        WAIT:\nld.volatile.shared.u32 %r3, [%r0];\nsetp.eq.u32 %p1, %r3, 0;\n@%p1 bra WAIT;\n\
        bra.uni END;\nSET:\n@%p3 bra END;\nmov.u32 %r3, 1;\nst.volatile.shared.u32 [%r0], %r3;\n\
        END:\n";
    for seed in 0..4 {
        assert_eq!(kinds(body, &block(32, seed)), []);
    }
}

#[test]
fn blocks_that_share_bytes_race() {
    let own = "mov.u32 %r1, %ctaid.x;\nmul.wide.u32 %d1, %r1, 128;\nadd.s64 %d2, %out, %d1;\n\
        add.s64 %d2, %d2, %d0;\nst.global.u32 [%d2], %r1;";
    assert_eq!(kinds(own, &blocks(2, 0, 1)), []);
    for resident in [1, 3] {
        for seed in 0..4 {
            let shared = "st.global.u32 [%result], 1;";
            let found = kinds(shared, &blocks(3, seed, resident));
            assert_eq!(found, [RaceKind::WriteAfterWrite]);
            let read = "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p1, %r1, 0;\n\
                @%p1 st.global.u32 [%result], 1;\n@!%p1 ld.global.u32 %r2, [%result];";
            assert!(!kinds(read, &blocks(3, seed, resident)).is_empty());
        }
    }
}

#[test]
fn atomics_do_not_race_with_each_other() {
    let body = "atom.global.add.u32 %r1, [%out], 1;\nred.global.max.s32 [%out+4], %tid;\n\
        atom.global.cas.b32 %r2, [%out+8], 0, 9;\natom.global.exch.b32 %r3, [%out+12], 4;\n\
        red.global.add.f32 [%out+16], 0f3F000000;\natom.global.inc.u32 %r4, [%out+20], 6;\n\
        red.global.min.u32 [%out+24], %tid;\natom.global.add.u64 %d5, [%out+32], 3;";
    for seed in 0..4 {
        let run = run_words(body, &blocks(4, seed, 2), &[0], 16).unwrap();
        assert!(run.report.races.is_empty());
        assert_eq!(run.out[..4], [128, 31, 9, 4]);
        assert_eq!(f32::from_bits(run.out[4]), 64.0);
        assert_eq!(run.out[5], 128 % 7);
        assert_eq!(run.out[8], 384);
    }
    let mixed = "red.global.add.u32 [%out], 1;\nld.global.u32 %r1, [%out];";
    assert!(!kinds(mixed, &blocks(2, 0, 1)).is_empty());
}

/// Every block writes its part, and the block that counts last adds them up.
fn last_block(fence_before: &str, fence_after: &str) -> String {
    format!(
        "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %nctaid.x;\nsetp.ne.u32 %p1, %tid, 0;\n\
         @%p1 bra END;\nmul.wide.u32 %d1, %r1, 4;\nadd.s64 %d2, %out, %d1;\n\
         add.u32 %r3, %r1, 10;\nst.global.u32 [%d2], %r3;\n{fence_before}\n\
         atom.global.add.u32 %r4, [%out+64], 1;\n{fence_after}\nadd.u32 %r4, %r4, 1;\n\
         setp.ne.u32 %p2, %r4, %r2;\n@%p2 bra END;\nld.global.u32 %r5, [%out];\n\
         ld.global.u32 %r6, [%out+4];\nld.global.u32 %r7, [%out+8];\nadd.u32 %r5, %r5, %r6;\n\
         add.u32 %r5, %r5, %r7;\nst.global.u32 [%out+128], %r5;\nEND:\n"
    )
}

#[test]
fn fences_around_an_atomic_order_blocks() {
    for seed in 0..8 {
        let shape = blocks(3, seed, 2);
        let body = last_block("membar.gl;", "membar.gl;");
        let run = run_words(&body, &shape, &[0], 64).unwrap();
        assert_eq!(run.report.races, []);
        assert_eq!(run.out[32], 33);
        let scoped = last_block("fence.acq_rel.gpu;", "fence.acq_rel.gpu;");
        assert_eq!(kinds(&scoped, &shape), []);
        for (before, after) in [("", ""), ("membar.gl;", ""), ("membar.cta;", "membar.cta;")] {
            assert!(!kinds(&last_block(before, after), &shape).is_empty());
        }
    }
}

#[test]
fn resident_blocks_can_wait_for_each_other() {
    let body = "setp.ne.u32 %p1, %tid, 0;\n@%p1 bra END;\n\
        red.release.gpu.global.add.u32 [%out], 1;\n\
        WAIT:\nld.acquire.gpu.global.u32 %r1, [%out];\nsetp.lt.u32 %p2, %r1, 2;\n@%p2 bra WAIT;\n\
        END:\n";
    for seed in 0..4 {
        assert_eq!(kinds(body, &blocks(2, seed, 2)), []);
        let alone = run_words(body, &blocks(2, seed, 1), &[0], 4);
        assert!(matches!(alone, Err(LaunchError::InstructionLimit(_))));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let body = "atom.global.add.u32 %r1, [%out], 1;\nst.global.u32 [%result+4], %r1;";
    let once = |seed| run_words(body, &block(64, seed), &[0], 80).unwrap().out;
    assert_eq!(once(3), once(3));
    assert!((0..16).any(|seed| once(seed) != once(3)));
}
