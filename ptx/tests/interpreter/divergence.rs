//! Instructions that lanes have to run together, in code where a branch or a predicate has divided them.

use crate::support::{Run, kernel_text, one_warp, run_words};
use vocabfuse_ptx::{Launch, LaunchError};

const MATRIX_LOAD: &str = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0];";
const MULTIPLY: &str = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r2, %r3}, {%r4}, \
     {%f0, %f1, %f2, %f3};";

/// What is `.aligned`.
const ALIGNED: [&str; 6] = [
    MATRIX_LOAD,
    MULTIPLY,
    "bar.sync 0;",
    "bar.arrive 0, 32;",
    "barrier.sync.aligned 0;",
    "bar.red.popc.u32 %r1, 0, %p1;",
];

/// What names its lanes in a mask, here all.
const MEMBERS: [&str; 6] = [
    "shfl.sync.bfly.b32 %r1, %tid, 1, 31, -1;",
    "vote.sync.ballot.b32 %r1, %p1, -1;",
    "vote.sync.any.pred %p2, %p1, -1;",
    "match.any.sync.b32 %r1, %tid, -1;",
    "redux.sync.add.u32 %r1, %tid, -1;",
    "bar.warp.sync -1;",
];

/// `%p1` holds in lanes 0 to 6, `%r0` is a shared address whose rows are written.
fn text(body: &str) -> String {
    format!(
        "mov.u32 %r9, dynamic;\nshl.b32 %r0, %tid, 4;\nadd.u32 %r0, %r0, %r9;\nmov.u32 %r2, 0;\nmov.u32 %r3, 0;\n\
         mov.u32 %r4, 0;\nmov.f32 %f0, 0f00000000;\nmov.f32 %f1, %f0;\nmov.f32 %f2, %f0;\nmov.f32 %f3, %f0;\n\
         st.shared.v4.u32 [%r0], {{%r2, %r2, %r2, %r2}};\nbar.warp.sync -1;\nsetp.lt.u32 %p1, %tid, 7;\n{body}"
    )
}

fn run(body: &str, seed: u64) -> Result<Run, LaunchError> {
    run_words(&text(body), &Launch { seed, instruction_limit: 100_000, ..one_warp() }, &[0], 32)
}

/// The error of a body, which is the same under every schedule but for the group that came first, is on the line that
/// begins with `line`.
fn divergent(body: &str, line: &str) -> Vec<(u32, u32, u32, Option<u32>)> {
    let of_seed = |seed| {
        let found = run(body, seed).err();
        let Some(LaunchError::Divergent { at, here, elsewhere, ended, branch }) = found else {
            panic!("{body}: {found:?}");
        };
        let text = kernel_text(&text(body));
        let found = text.lines().nth(at.line as usize - 1).unwrap();
        assert!(found.contains(line), "{body}: {found}");
        assert_eq!(here >> at.thread & 1, 1);
        (here, elsewhere, ended, branch)
    };
    (0..16).map(of_seed).collect()
}

#[test]
fn a_predicate_must_not_divide_an_aligned_instruction() {
    for aligned in ALIGNED {
        for (here, elsewhere, ended, branch) in
            divergent(&format!("@%p1 {aligned}\n{aligned}"), &format!("@%p1 {aligned}"))
        {
            assert_eq!((here, elsewhere, ended, branch), (0x7f, !0x7f, 0, None));
        }
    }
}

#[test]
fn lanes_of_different_turns_of_a_loop_do_not_run_together() {
    // Lanes 0 to 6 skip it in the first of two turns, and so come to it in the second, while the others wait in the first.
    for aligned in ALIGNED {
        let body = format!(
            "mov.u32 %r7, 0;\nLOOP:\nsetp.eq.u32 %p3, %r7, 0;\nand.pred %p3, %p3, %p1;\n@%p3 bra SKIP;\n{aligned}\nSKIP:\n\
             add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p4, %r7, 2;\n@%p4 bra LOOP;"
        );
        for (here, elsewhere, _, branch) in divergent(&body, aligned) {
            assert_eq!((here, elsewhere), (!0x7f, 0x7f), "{aligned}");
            let text = kernel_text(&text(&body));
            assert_eq!(text.lines().nth(branch.unwrap() as usize - 1), Some("@%p3 bra SKIP;"));
        }
    }
}

#[test]
fn meeting_inside_of_a_condition_is_no_excuse() {
    // Every lane comes here, but on two ways that need not meet before.
    for aligned in ALIGNED {
        let body = format!("@%p1 bra BOTH;\n@!%p1 bra BOTH;\nbra.uni PAST;\nBOTH:\n{aligned}\nPAST:\nmov.u32 %r8, 0;");
        divergent(&body, aligned);
    }
}

#[test]
fn ways_that_never_meet_are_told() {
    for aligned in ALIGNED.into_iter().filter(|a| !a.contains("arrive")) {
        let body = format!("@%p1 bra OTHER;\n{aligned}\nbra.uni PAST;\nOTHER:\n{aligned}\nPAST:\nmov.u32 %r8, 0;");
        for (here, elsewhere, ended, _) in divergent(&body, aligned) {
            assert!((here, elsewhere) == (0x7f, !0x7f) || (here, elsewhere) == (!0x7f, 0x7f), "{here:x} {elsewhere:x}");
            assert_eq!(ended, 0);
        }
    }
}

#[test]
fn members_that_never_come_are_told() {
    for members in MEMBERS {
        // They have ended, or wait elsewhere.
        for (here, elsewhere, ended, _) in divergent(&format!("@%p1 {members}"), members) {
            assert_eq!((here, elsewhere, ended), (0x7f, 0, !0x7f), "{members}");
        }
        for (here, elsewhere, ended, _) in divergent(&format!("@%p1 ret;\n{members}"), members) {
            assert_eq!((here, elsewhere, ended), (!0x7f, 0, 0x7f), "{members}");
        }
        let body = format!("@%p1 bra OTHER;\n{members}\nbra.uni PAST;\nOTHER:\nbar.sync 0;\nPAST:\nmov.u32 %r8, 0;");
        let result = divergent(&body, "");
        assert!(result.iter().all(|(_, _, ended, _)| *ended == 0), "{members}");
    }
}

#[test]
fn matrices_need_lanes_that_have_not_ended() {
    for aligned in [MATRIX_LOAD, MULTIPLY] {
        for (here, elsewhere, ended, _) in divergent(&format!("@%p1 ret;\n{aligned}"), aligned) {
            assert_eq!((here, elsewhere, ended), (!0x7f, 0, 0x7f));
        }
    }
}

#[test]
fn a_uniform_branch_goes_one_way() {
    for seed in 0..4 {
        let result = run("@%p1 bra.uni PAST;\nmov.u32 %r8, 1;\nPAST:\nmov.u32 %r8, 0;", seed);
        let Some(LaunchError::Illegal { rule, .. }) = result.err() else { panic!("missed") };
        assert!(rule.contains(".uni"), "{rule}");
        run("setp.lt.u32 %p1, %tid, 99;\n@%p1 bra.uni PAST;\nmov.u32 %r8, 1;\nPAST:\nmov.u32 %r8, 0;", seed).unwrap();
    }
}

#[test]
fn what_the_instruction_set_allows_is_no_error() {
    let loops = "mov.u32 %r7, 0;\nLOOP:\nadd.u32 %r7, %r7, 1;\nsetp.lt.u32 %p4, %r7, %tid;\n@%p4 bra LOOP;\n";
    for aligned in ALIGNED.into_iter().chain(MEMBERS) {
        let legal = [
            // After loops of different lengths, and after both ways of a condition.
            format!("{loops}{aligned}"),
            format!("@%p1 bra OTHER;\nmov.u32 %r8, 1;\nbra.uni PAST;\nOTHER:\nmov.u32 %r8, 2;\nPAST:\n{aligned}"),
            // In a loop whose lanes all take as many turns, each with a loop of its own length before.
            format!(
                "mov.u32 %r6, 0;\nOUTER:\n{loops}{aligned}\nadd.u32 %r6, %r6, 1;\nsetp.lt.u32 %p5, %r6, 3;\n@%p5 bra OUTER;"
            ),
            // In code that a condition guards which is the same in all lanes.
            format!("setp.lt.u32 %p5, %tid, 99;\n@!%p5 bra PAST;\n{aligned}\nPAST:\nmov.u32 %r8, 0;"),
            format!("setp.lt.u32 %p5, %tid, 99;\n@%p5 {aligned}"),
        ];
        for (body, seed) in legal.iter().flat_map(|body| (0..16).map(move |seed| (body, seed))) {
            // Arrivals that nobody waits for are a fault of another kind.
            if let Err(found) = run(&body.replace("bar.arrive 0, 32;", "bar.sync 0;"), seed) {
                panic!("{body}: {found}");
            }
        }
    }
    let unaligned = "@%p1 bra OTHER;\nbarrier.sync 0;\nbra.uni PAST;\nOTHER:\nbarrier.sync 0;\nPAST:\nmov.u32 %r8, 0;";
    // Threads that ended early are not waited for by barriers of the block.
    let early = "@%p1 bra END;\nbar.sync 0;\nbar.red.popc.u32 %r1, 2, %p1;\nEND:";
    for (body, seed) in [unaligned, early].iter().flat_map(|body| (0..16).map(move |seed| (body, seed))) {
        run(body, seed).unwrap_or_else(|found| panic!("{body}: {found}"));
    }
}
