//! Memory spaces: bounds, alignment, generic addresses and unwritten bytes.

use crate::support::{one_warp, run_words};
use vocabfuse_ptx::{Arg, Checks, Launch, LaunchError, Memory, MemoryError, Module, Space, launch};

fn error(body: &str) -> LaunchError {
    match run_words(body, &one_warp(), &[1; 64], 64) {
        Err(error) => error,
        Ok(_) => panic!("{body}: no error"),
    }
}

#[test]
fn accesses_outside_an_allocation_fault_with_their_place() {
    let LaunchError::OutOfBounds { at, space, bytes, .. } = error("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+256];")
    else {
        panic!("another error");
    };
    assert_eq!((space, bytes), (Space::Global, 16));
    assert_eq!((at.block, at.thread), ([0; 3], 0));
    let text = crate::support::kernel_text("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+256];");
    let line = text.lines().position(|l| l.contains("v4.u32")).unwrap() + 1;
    assert_eq!(at.line as usize, line);
}

#[test]
fn every_space_has_bounds() {
    for (body, wanted) in [
        ("ld.global.u32 %r1, [%in+-4];", Space::Global),
        ("st.global.u8 [%out+256], %r1;", Space::Global),
        ("mov.u32 %r1, dynamic;\nld.shared.u32 %r2, [%r1+4096];", Space::Shared),
        ("st.shared.u32 [8192], %r1;", Space::Shared),
        ("ld.param.u32 %r1, [in+16];", Space::Param),
        (".local .align 8 .b8 depot[16];\nld.local.u32 %r1, [depot+16];", Space::Local),
        ("cvta.shared.u64 %d1, 0;\nld.u32 %r1, [%d1+65536];", Space::Shared),
        ("mov.u64 %d1, 0;\nld.u32 %r1, [%d1];", Space::Global),
        ("red.global.add.u32 [%out+1024], 1;", Space::Global),
    ] {
        match error(body) {
            LaunchError::OutOfBounds { space, .. } => assert_eq!(space, wanted, "{body}"),
            other => panic!("{body}: {other}"),
        }
    }
}

#[test]
fn misaligned_accesses_fault() {
    for body in [
        "ld.global.u32 %r1, [%in+2];",
        "ld.global.v2.u32 {%r1, %r2}, [%in+4];",
        "mov.u32 %r1, dynamic;\nst.shared.v4.u32 [%r1+8], {%r1, %r1, %r1, %r1};",
        "mov.u32 %r0, dynamic;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r0+8];",
        "atom.global.add.u64 %d1, [%out+4], 1;",
    ] {
        assert!(matches!(error(body), LaunchError::Misaligned { .. }), "{body}");
    }
}

#[test]
fn generic_addresses_reach_every_space() {
    let body = ".local .align 8 .b8 depot[256];\n.shared .align 16 .b8 fixed[256];\n\
        mov.u64 %d1, fixed;\ncvta.shared.u64 %d1, %d1;\nadd.s64 %d1, %d1, %d0;\n\
        ld.u32 %r1, [%mine];\nst.u32 [%d1], %r1;\nld.u32 %r2, [%d1];\n\
        mov.u64 %d2, depot;\ncvta.local.u64 %d2, %d2;\nadd.s64 %d2, %d2, %d0;\n\
        st.u32 [%d2], %r2;\nld.u32 %r3, [%d2];\ncvta.to.shared.u64 %d3, %d1;\n\
        ld.shared.u32 %r4, [%d3];\nadd.u32 %r3, %r3, %r4;\nst.u32 [%result], %r3;";
    let input: Vec<u32> = (0..32).collect();
    let run = run_words(body, &one_warp(), &input, 32).unwrap();
    assert!(run.report.is_clean(), "{:#?}", run.report);
    assert_eq!(run.out, (0..32).map(|i| 2 * i).collect::<Vec<u32>>());
}

#[test]
fn vectors_and_narrow_types_keep_their_bits() {
    let body = "mul.wide.u32 %d1, %tid, 16;\nadd.s64 %d2, %in, %d1;\nadd.s64 %d3, %out, %d1;\n\
        ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%d2];\n\
        st.global.cs.v2.u32 [%d3], {%r1, %r2};\nst.global.u16 [%d3+8], %r3;\n\
        ld.global.s8 %r5, [%d2+12];\nst.global.u32 [%d3+12], %r5;";
    let input: Vec<u32> = (0..128).map(|i| 0xffff_ff00 + i).collect();
    let out = run_words(body, &one_warp(), &input, 128).unwrap().out;
    for (found, given) in out.chunks(4).zip(input.chunks(4)) {
        assert_eq!(found[..2], given[..2]);
        assert_eq!(found[2], given[2] & 0xffff);
        assert_eq!(found[3], given[3] as u8 as i8 as u32);
    }
}

#[test]
fn reads_of_unwritten_bytes_are_reported_once_per_line() {
    let body = "mov.u32 %r0, dynamic;\nadd.s32 %r0, %r0, %tid;\nst.shared.u8 [%r0+1], %r0;\n\
        bar.warp.sync -1;\nld.shared.u8 %r1, [%r0+1];\nld.shared.u8 %r2, [%r0];";
    let report = run_words(body, &one_warp(), &[0], 1).unwrap().report;
    assert_eq!(report.races, []);
    let [read] = report.uninitialized.as_slice() else {
        panic!("{:#?}", report.uninitialized);
    };
    assert_eq!((read.space, read.address, read.count), (Space::Shared, 0, 1));
    assert_eq!(read.at.thread, 0);

    let off = Launch { checks: Checks { races: true, uninitialized: false }, ..one_warp() };
    assert!(run_words(body, &off, &[0], 1).unwrap().report.is_clean());
}

#[test]
fn the_host_sees_bounds_too() {
    let mut memory = Memory::new();
    let a = memory.alloc_with(&[1, 2, 3]).unwrap();
    let b = memory.alloc(5).unwrap();
    assert!(b > a + 3);
    let mut bytes = [0; 2];
    memory.read(a + 1, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3]);
    let out = MemoryError::OutOfBounds { address: a + 2, bytes: 2 };
    assert_eq!(memory.read(a + 2, &mut bytes), Err(out));
    assert!(memory.write(u64::MAX, &[1, 2]).is_err());
    assert_eq!(memory.free(a + 1), Err(MemoryError::NotAnAllocation(a + 1)));
    memory.free(a).unwrap();
    assert!(memory.read(a, &mut bytes).is_err());
    assert!(matches!(memory.alloc(usize::MAX), Err(MemoryError::OutOfMemory(_))));
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let module = Module::parse(&crate::support::kernel_text("")).unwrap();
    let kernel = module.kernel("test").unwrap();
    let mut memory = Memory::new();
    let mut run = |shape: Launch, arguments: &[Arg]| launch(kernel, &shape, arguments, &mut memory);
    let pointers = [Arg::Pointer(0), Arg::Pointer(0)];
    assert!(run(one_warp(), &pointers).is_ok());
    let count = run(one_warp(), &pointers[..1]);
    assert!(matches!(count, Err(LaunchError::ArgumentCount { expected: 2, found: 1 })));
    let size = run(one_warp(), &[Arg::U32(1), Arg::Pointer(0)]);
    assert!(matches!(size, Err(LaunchError::ArgumentSize { index: 0, expected: 8, found: 4 })));
    for (grid, block) in [
        ([0, 1, 1], [32, 1, 1]),
        ([1, 70_000, 1], [32, 1, 1]),
        ([1, 1, 1], [2048, 1, 1]),
        ([u32::MAX, 60_000, 60_000], [32, 1, 1]),
    ] {
        let shape = Launch { grid, block, ..one_warp() };
        assert!(matches!(run(shape, &pointers), Err(LaunchError::Shape(_))));
    }
    let large = Launch { dynamic_shared: 164 * 1024, ..one_warp() };
    assert!(matches!(run(large, &pointers), Err(LaunchError::SharedMemory { .. })));
}

#[test]
fn grids_and_blocks_have_three_axes() {
    let body = "mov.u32 %r1, %tid.y;\nmov.u32 %r2, %ntid.x;\nmad.lo.u32 %r3, %r1, %r2, %tid;\n\
        mov.u32 %r1, %tid.z;\nmov.u32 %r4, %ntid.y;\nmul.lo.u32 %r4, %r4, %r2;\n\
        mad.lo.u32 %r3, %r1, %r4, %r3;\nmov.u32 %r5, %ctaid.z;\nmov.u32 %r6, %nctaid.y;\n\
        mov.u32 %r7, %ctaid.y;\nmad.lo.u32 %r5, %r5, %r6, %r7;\nmov.u32 %r6, %nctaid.x;\n\
        mov.u32 %r7, %ctaid.x;\nmad.lo.u32 %r5, %r5, %r6, %r7;\n\
        mad.lo.u32 %r3, %r5, 30, %r3;\nmul.wide.u32 %d1, %r3, 4;\nadd.s64 %d1, %out, %d1;\n\
        mov.u32 %r8, %laneid;\nmov.u32 %r9, %warpid;\nmad.lo.u32 %r8, %r9, 32, %r8;\n\
        st.global.u32 [%d1], %r8;";
    let shape = Launch { grid: [2, 3, 2], block: [3, 5, 2], resident_blocks: 4, seed: 5, ..one_warp() };
    let run = run_words(body, &shape, &[0], 12 * 30).unwrap();
    assert!(run.report.is_clean());
    assert_eq!(run.out, (0..360).map(|i| i % 30).collect::<Vec<u32>>());
}
