//! Faults planted in a correct kernel. Every one must be caught by a fault of
//! the launch, a reported race, a read of unwritten memory or a wrong result.

use crate::support::{MATMUL, matmul};
use vocabfuse_ptx::{LaunchError, Module};

/// How a planted fault shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Catch {
    Error,
    Race,
    Unwritten,
    Wrong,
}

/// Replaces the `nth` place that holds `from`, or all if `nth` is nothing.
fn plant(from: &str, to: &str, nth: Option<usize>) -> String {
    let lines = MATMUL.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    let text = lines.collect::<Vec<_>>().join("\n");
    let places: Vec<usize> = text.match_indices(from).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "{from} is not in the kernel");
    match nth {
        None => text.replace(from, to),
        Some(nth) => {
            let at = places[nth];
            format!("{}{to}{}", &text[..at], &text[at + from.len()..])
        }
    }
}

/// All ways in which the kernel of `text` shows its fault over some seeds.
fn catches(text: &str) -> Vec<Catch> {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let kernel = module.kernel("matmul").unwrap();
    let mut caught = Vec::new();
    let mut add = |catch, found| {
        if found && !caught.contains(&catch) {
            caught.push(catch);
        }
    };
    for seed in 0..4 {
        match matmul(kernel, [70, 136, 72], seed) {
            Err(LaunchError::Shape(rule)) => panic!("{rule}"),
            Err(_) => add(Catch::Error, true),
            Ok(run) => {
                add(Catch::Race, !run.report.races.is_empty());
                add(Catch::Unwritten, !run.report.uninitialized.is_empty());
                add(Catch::Wrong, run.error() > 1e-3);
            }
        }
    }
    caught
}

/// Plants a fault and returns how it was caught.
fn caught(from: &str, to: &str, nth: Option<usize>) -> Vec<Catch> {
    let caught = catches(&plant(from, to, nth));
    assert!(!caught.is_empty(), "missed: {from} -> {to}");
    caught
}

#[test]
fn the_kernel_itself_is_clean() {
    assert!(catches(MATMUL).is_empty());
}

#[test]
fn missing_synchronisation_is_a_race() {
    for (from, to, nth) in [
        // Data of other warps is read before it has arrived.
        ("bar.sync 0;", "", Some(0)),
        // A stage is overwritten while other warps read it.
        ("bar.sync 0;", "", Some(1)),
        ("cp.async.wait_group 0;", "", None),
        ("cp.async.wait_group 1;", "", None),
        ("cp.async.wait_group 1;", "cp.async.wait_group 2;", None),
        // The first stage ends up in the group of the second.
        ("cp.async.commit_group;", "", Some(0)),
        ("cp.async.commit_group;", "", Some(1)),
        // The barrier orders lanes of a warp only.
        ("bar.sync 0;", "bar.warp.sync -1;", Some(0)),
        ("bar.sync 0;", "bar.warp.sync -1;", Some(1)),
    ] {
        let text = plant(from, to, nth);
        let caught = catches(&text);
        assert!(caught.contains(&Catch::Race), "{from} -> {to}: {caught:?}");
    }
}

#[test]
fn waiting_after_the_barrier_is_a_race() {
    // Each thread waits for its own copies only, so the barrier must come later.
    let wait = "bar.sync 0; cp.async.wait_group 0;";
    let text = plant("bar.sync 0;", wait, Some(0));
    let text = text.replacen("cp.async.wait_group 1;", "", 1);
    let text = text.replacen("cp.async.wait_group 0;", "", 1);
    assert!(catches(&text).contains(&Catch::Race));
}

#[test]
fn wrong_barriers_are_errors_or_races() {
    for (from, to, nth) in [
        ("bar.sync 0;", "bar.sync 0, 64;", Some(0)),
        ("bar.sync 0;", "bar.sync 0, 160;", Some(0)),
        ("bar.sync 0;", "bar.sync 0, 100;", Some(0)),
        ("bar.sync 0;", "bar.sync 16;", Some(0)),
        ("bar.sync 0;", "bar.arrive 0, 128;", Some(0)),
        ("bar.sync 0;", "@%p1 bar.sync 0;", Some(0)),
        ("bar.sync 0;", "bar.sync %r54;", Some(0)),
    ] {
        let caught = caught(from, to, nth);
        let found = caught.contains(&Catch::Error) || caught.contains(&Catch::Race);
        assert!(found, "{from} -> {to}: {caught:?}");
    }
}

#[test]
fn divergence_at_aligned_instructions_is_an_error() {
    let odd = "mov.u32 oddness, %tid.x; and.b32 oddness, oddness, 1; setp.eq.u32 odd, oddness, 1;";
    for (from, to) in [
        ("bar.sync 0;", "@odd bar.sync 0;"),
        ("bar.sync 0;", "@odd bra PAST; bar.sync 0; PAST:"),
        ("mma.sync.aligned", "@odd mma.sync.aligned"),
        ("ldmatrix.sync.aligned", "@!odd ldmatrix.sync.aligned"),
        // A promise that all threads go the same way, broken.
        ("bar.sync 0;", "@odd bra.uni PAST; bar.sync 0; PAST:"),
    ] {
        let text = plant(from, &format!("{odd} {to}"), Some(0));
        let text = text.replacen(".reg .pred", ".reg .pred odd; .reg .b32 oddness; .reg .pred", 1);
        let module = Module::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let kernel = module.kernel("matmul").unwrap();
        for seed in 0..4 {
            let at = match matmul(kernel, [70, 136, 72], seed) {
                Err(LaunchError::Divergent { at, .. } | LaunchError::Illegal { at, .. }) => at,
                other => panic!("missed: {to}: {:?}", other.err()),
            };
            let line = text.lines().nth(at.line as usize - 1).unwrap();
            assert!(line.contains("odd") && line.contains(from), "{to}: {line}");
        }
    }
}

#[test]
fn swapped_fragments_are_wrong_results() {
    for (from, to, nth) in [
        ("{%r100, %r101, %r102, %r103},", "{%r100, %r102, %r101, %r103},", Some(0)),
        ("{%r168, %r169, %r170, %r171},", "{%r169, %r168, %r171, %r170},", Some(1)),
        ("{%r110, %r111},", "{%r111, %r110},", None),
        ("{%r110, %r111, %r112, %r113}, [", "{%r110, %r112, %r111, %r113}, [", None),
        ("{%f304, %f303, %f302, %f301}, {%r100", "{%f304, %f302, %f303, %f301}, {%r100", None),
        ("ldmatrix.sync.aligned.m8n8.x4.shared", "ldmatrix.sync.aligned.m8n8.x4.trans.shared", Some(2)),
        ("f32.bf16.bf16.f32", "f32.f16.f16.f32", Some(3)),
        // Rows of the wrong half of the fragment, and of the wrong lanes.
        ("and.b32 %r53, %r1, 15;", "and.b32 %r53, %r1, 7;", None),
        ("and.b32 %r59, %r1, 39;", "and.b32 %r59, %r1, 38;", None),
        ("and.b32 %r58, %r57, 8;", "and.b32 %r58, %r57, 0;", None),
    ] {
        let caught = caught(from, to, nth);
        assert!(caught.contains(&Catch::Wrong), "{from} -> {to}: {caught:?}");
    }
}

#[test]
fn wrong_addresses_are_caught() {
    for (from, to) in [
        // Another pitch for reading than for copying, and the reverse.
        ("mul.lo.s32 %r61, %r55, 40;", "mul.lo.s32 %r61, %r55, 48;"),
        ("mul.lo.s32 %r42, %r5, 40;", "mul.lo.s32 %r42, %r5, 32;"),
        // Another row length in global memory.
        ("mul.lo.s64 %rd47, %rd46, %rd1;", "mul.lo.s64 %rd47, %rd46, 64;"),
        // Always the same stage for copying, or for reading.
        ("and.b32 %r269, %r270, 1;", "and.b32 %r269, %r270, 0;"),
        ("and.b32 %r236, %r272, 1;", "and.b32 %r236, %r272, 0;"),
        // Each warp reads the tile of another.
        ("shr.u32 %r54, %r1, 6;", "shr.u32 %r54, %r1, 5;"),
        // Blocks overlap.
        ("shl.b32 %r3, %r34, 6;", "shl.b32 %r3, %r34, 5;"),
        // The second half of a step reads the first.
        ("or.b32 %r68, %r58, 16;", "or.b32 %r68, %r58, 0;"),
    ] {
        caught(from, to, None);
    }
}

#[test]
fn accesses_out_of_bounds_are_errors() {
    for (from, to) in [
        ("mul.wide.u32 %rd130, %r236, 10240;", "mul.wide.u32 %rd130, %r236, 20480;"),
        ("add.s64 %rd74, %rd55, 5120;", "add.s64 %rd74, %rd55, 20480;"),
        ("add.s64 %rd74, %rd55, 5120;", "add.s64 %rd74, %rd55, 5124;"),
        // One row too many, for either input.
        ("setp.lt.s32 %p9, %r7, %r30;", "setp.le.s32 %p9, %r7, %r30;"),
        ("setp.lt.s32 %p13, %r11, %r31;", "setp.le.s32 %p13, %r11, %r31;"),
        ("selp.b32 %r41, 16, 0, %p1;", "selp.b32 %r41, 17, 0, %p1;"),
    ] {
        let caught = caught(from, to, None);
        assert!(caught.contains(&Catch::Error), "{from} -> {to}: {caught:?}");
    }
}

#[test]
fn wrong_edges_are_caught() {
    for (from, to) in [
        // A column chunk too many or too few.
        ("setp.lt.s32 %p22, %r271, %r32;", "setp.le.s32 %p22, %r271, %r32;"),
        ("setp.lt.s32 %p10, %r6, %r32;", "setp.gt.s32 %p10, %r6, %r32;"),
        // Negated, and joined the wrong way.
        ("and.pred %p5, %p9, %p22;", "or.pred %p5, %p9, %p22;"),
        ("selp.b32 %r82, 16, 0, %p5;", "selp.b32 %r82, 0, 16, %p5;"),
        ("selp.b32 %r82, 16, 0, %p5;", "selp.b32 %r82, 8, 0, %p5;"),
        // A step too few or too many.
        ("setp.lt.s32 %p130, %r251, %r4;", "setp.le.s32 %p130, %r251, %r4;"),
        ("add.s32 %r35, %r32, 31;", "add.s32 %r35, %r32, 0;"),
    ] {
        caught(from, to, None);
    }
}
