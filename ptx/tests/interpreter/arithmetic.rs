//! Every arithmetic, logic and conversion instruction on chosen values.

use crate::support::{one_warp, run_words};
use half::{bf16, f16};

/// Runs `instruction`, which takes `%r1`, `%r2`, `%r3` to `%r0`.
fn words(instruction: &str, input: [u32; 3]) -> u32 {
    let body = format!(
        "ld.global.u32 %r1, [%in];\nld.global.u32 %r2, [%in+4];\nld.global.u32 %r3, [%in+8];\n\
         {instruction}\nst.global.u32 [%result], %r0;"
    );
    run_words(&body, &one_warp(), &input, 32).unwrap().out[5]
}

/// Runs `instruction`, which takes `%d1`, `%d2` and `%r3` to `%d3`.
fn doubles(instruction: &str, a: u64, b: u64, c: u32) -> u64 {
    let body = format!(
        "ld.global.u64 %d1, [%in];\nld.global.u64 %d2, [%in+8];\nld.global.u32 %r3, [%in+16];\n\
         {instruction}\nadd.s64 %d4, %result, %d0;\nst.global.u64 [%d4], %d3;"
    );
    let input = [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32, c];
    let out = run_words(&body, &one_warp(), &input, 64).unwrap().out;
    u64::from(out[10]) | u64::from(out[11]) << 32
}

/// Runs `instruction`, which takes `%f1`, `%f2`, `%f3` to `%f0`.
fn floats(instruction: &str, input: [f32; 3]) -> f32 {
    let body = format!("mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\n{instruction}\nmov.b32 %r0, %f0;");
    f32::from_bits(words(&body, input.map(f32::to_bits)))
}

const M: u32 = u32::MAX;
const MIN: u32 = 0x8000_0000;

#[test]
fn integers_of_32_bits() {
    let cases: &[(&str, [u32; 3], u32)] = &[
        ("add.s32 %r0, %r1, %r2;", [M, 3, 0], 2),
        ("sub.s32 %r0, %r1, %r2;", [2, 5, 0], M - 2),
        ("mul.lo.s32 %r0, %r1, %r2;", [0x10001, 0x10001, 0], 0x20001),
        ("mul.hi.s32 %r0, %r1, %r2;", [M, 5, 0], M),
        ("mul.hi.u32 %r0, %r1, %r2;", [M, M, 0], M - 1),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", [7, 6, 5], 47),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", [M, 2, 5], 6),
        ("div.s32 %r0, %r1, %r2;", [M - 6, 2, 0], M - 2),
        ("div.u32 %r0, %r1, %r2;", [M, 2, 0], M / 2),
        ("div.s32 %r0, %r1, %r2;", [MIN, M, 0], MIN),
        ("div.u32 %r0, %r1, %r2;", [5, 0, 0], M),
        ("rem.s32 %r0, %r1, %r2;", [M - 6, 4, 0], M - 2),
        ("rem.u32 %r0, %r1, %r2;", [17, 5, 0], 2),
        ("min.s32 %r0, %r1, %r2;", [M, 5, 0], M),
        ("min.u32 %r0, %r1, %r2;", [M, 5, 0], 5),
        ("max.s32 %r0, %r1, %r2;", [M, 5, 0], 5),
        ("abs.s32 %r0, %r1;", [M - 4, 0, 0], 5),
        ("neg.s32 %r0, %r1;", [5, 0, 0], M - 4),
        ("and.b32 %r0, %r1, %r2;", [12, 10, 0], 8),
        ("or.b32 %r0, %r1, %r2;", [12, 10, 0], 14),
        ("xor.b32 %r0, %r1, %r2;", [12, 10, 0], 6),
        ("not.b32 %r0, %r1;", [12, 0, 0], M - 12),
        ("cnot.b32 %r0, %r1;", [0, 0, 0], 1),
        ("shl.b32 %r0, %r1, %r2;", [3, 31, 0], MIN),
        ("shl.b32 %r0, %r1, %r2;", [3, 32, 0], 0),
        ("shr.u32 %r0, %r1, %r2;", [MIN, 31, 0], 1),
        ("shr.u32 %r0, %r1, %r2;", [MIN, 99, 0], 0),
        ("shr.s32 %r0, %r1, %r2;", [MIN, 99, 0], M),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xCA;", [0xff00, 0x1234, 0x5678], 0x1278),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", [12, 10, 5], 12 ^ 10 ^ 5),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", [0x8000_0000, 1, 4], 0x18),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", [0x10, 1, 4], 0x1000_0001),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", [0x10, 7, 40], 7),
        ("bfe.u32 %r0, %r1, %r2, %r3;", [0xabcd, 4, 8], 0xbc),
        ("bfe.s32 %r0, %r1, %r2, %r3;", [0xabcd, 4, 8], 0xffff_ffbc),
        ("bfe.s32 %r0, %r1, %r2, %r3;", [0xabcd, 4, 0], 0),
        ("bfi.b32 %r0, %r1, %r2, 4, 8;", [0xff, 0x1000_0001, 0], 0x1000_0ff1),
        ("prmt.b32 %r0, %r1, %r2, %r3;", [0x3322_1100, 0x7766_5544, 0x7610], 0x7766_1100),
        ("prmt.b32 %r0, %r1, %r2, %r3;", [0x0000_0080, 0, 0x1118], 0x0000_00ff),
        ("popc.b32 %r0, %r1;", [0xf0f, 0, 0], 8),
        ("clz.b32 %r0, %r1;", [1, 0, 0], 31),
        ("clz.b32 %r0, %r1;", [0, 0, 0], 32),
        ("brev.b32 %r0, %r1;", [1, 0, 0], MIN),
        ("bfind.u32 %r0, %r1;", [0x100, 0, 0], 8),
        ("bfind.s32 %r0, %r1;", [M - 255, 0, 0], 7),
        ("bfind.shiftamt.u32 %r0, %r1;", [0x100, 0, 0], 23),
        ("bfind.u32 %r0, %r1;", [0, 0, 0], M),
        ("slct.b32.s32 %r0, %r1, %r2, %r3;", [1, 2, M], 2),
        ("set.lt.u32.s32 %r0, %r1, %r2;", [M, 0, 0], M),
        ("set.lt.u32.u32 %r0, %r1, %r2;", [M, 0, 0], 0),
        ("cvt.s32.s8 %r0, %r1;", [0x1ff, 0, 0], M),
        ("cvt.u32.u16 %r0, %r1;", [0x1_2345, 0, 0], 0x2345),
        ("cvt.sat.s8.s32 %r0, %r1;", [1000, 0, 0], 127),
        ("cvt.sat.u8.s32 %r0, %r1;", [M, 0, 0], 0),
        ("mov.b32 {%h1, %h2}, %r1;\nmov.b32 %r0, {%h2, %h1};", [0x1234_5678, 0, 0], 0x5678_1234),
        ("mov.b32 {%h1, _}, %r1;\ncvt.s32.s16 %r0, %h1;", [0x1234_f678, 0, 0], 0xffff_f678),
    ];
    for &(instruction, input, wanted) in cases {
        let found = words(instruction, input);
        assert_eq!(found, wanted, "{instruction} {input:x?}: {found:#x}");
    }
}

#[test]
fn integers_of_64_bits() {
    let big = 0x1234_5678_9abc_def0;
    let cases: &[(&str, u64, u64, u32, u64)] = &[
        ("add.s64 %d3, %d1, %d2;", u64::MAX, 3, 0, 2),
        ("sub.s64 %d3, %d1, %d2;", 1, 3, 0, u64::MAX - 1),
        ("mul.lo.s64 %d3, %d1, %d2;", big, 3, 0, 0x369d_0369_d036_9cd0),
        ("mul.hi.u64 %d3, %d1, %d2;", u64::MAX, u64::MAX, 0, u64::MAX - 1),
        ("mul.hi.s64 %d3, %d1, %d2;", u64::MAX, u64::MAX, 0, 0),
        ("div.s64 %d3, %d1, %d2;", u64::MAX - 6, 2, 0, u64::MAX - 2),
        ("rem.u64 %d3, %d1, %d2;", big, 1000, 0, big % 1000),
        ("mul.wide.s32 %d3, %r3, -2;", 0, 0, M, 2),
        ("mul.wide.u32 %d3, %r3, %r3;", 0, 0, M, 0xffff_fffe_0000_0001),
        ("mad.wide.u32 %d3, %r3, 4, %d1;", 100, 0, 5, 120),
        ("shl.b64 %d3, %d1, %r3;", 3, 0, 63, 1 << 63),
        ("shr.s64 %d3, %d1, %r3;", 1 << 63, 0, 63, u64::MAX),
        ("shr.u64 %d3, %d1, %r3;", 1 << 63, 0, 63, 1),
        ("bfe.u64 %d3, %d1, 8, 16;", big, 0, 0, 0xbcde),
        ("bfi.b64 %d3, %d1, %d2, 60, 8;", 0xff, 1, 0, 0xf000_0000_0000_0001),
        ("cvt.s64.s32 %d3, %r3;", 0, 0, M, u64::MAX),
        ("cvt.u64.u32 %d3, %r3;", 0, 0, M, 0xffff_ffff),
        ("cvt.u32.u64 %r4, %d1;\ncvt.u64.u32 %d3, %r4;", big, 0, 0, 0x9abc_def0),
        ("mov.b64 {%r4, %r5}, %d1;\nmov.b64 %d3, {%r5, %r4};", big, 0, 0, 0x9abc_def0_1234_5678),
        ("brev.b64 %d3, %d1;", 1, 0, 0, 1 << 63),
        ("clz.b64 %r4, %d1;\ncvt.u64.u32 %d3, %r4;", 1, 0, 0, 63),
        ("min.s64 %d3, %d1, %d2;", u64::MAX, 5, 0, u64::MAX),
        ("max.u64 %d3, %d1, %d2;", u64::MAX, 5, 0, u64::MAX),
        ("neg.s64 %d3, %d1;", 1, 0, 0, u64::MAX),
        ("selp.b64 %d3, %d1, %d2, 0;", 1, 2, 0, 2),
    ];
    for &(instruction, a, b, c, wanted) in cases {
        let found = doubles(instruction, a, b, c);
        assert_eq!(found, wanted, "{instruction} {a:#x}: {found:#x}");
    }
}

#[test]
fn floats_follow_ieee() {
    let tiny = f32::from_bits(1);
    let nan = f32::NAN;
    let cases: &[(&str, [f32; 3], f32)] = &[
        ("add.f32 %f0, %f1, %f2;", [1.5, 2.25, 0.0], 3.75),
        ("add.ftz.f32 %f0, %f1, %f2;", [tiny, tiny, 0.0], 0.0),
        ("add.rn.f32 %f0, %f1, %f2;", [tiny, tiny, 0.0], 2.0 * tiny),
        ("sub.f32 %f0, %f1, %f2;", [1.5, 2.25, 0.0], -0.75),
        ("mul.f32 %f0, %f1, %f2;", [1.5, -2.0, 0.0], -3.0),
        ("add.sat.f32 %f0, %f1, %f2;", [1.5, 2.0, 0.0], 1.0),
        ("add.sat.f32 %f0, %f1, %f2;", [nan, 2.0, 0.0], 0.0),
        (
            "fma.rn.f32 %f0, %f1, %f2, %f3;",
            [1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0],
            -f32::EPSILON * f32::EPSILON,
        ),
        ("div.rn.f32 %f0, %f1, %f2;", [1.0, 3.0, 0.0], 1.0 / 3.0),
        ("div.full.f32 %f0, %f1, %f2;", [1.0, 4.0, 0.0], 0.25),
        ("min.f32 %f0, %f1, %f2;", [nan, 4.0, 0.0], 4.0),
        ("max.f32 %f0, %f1, %f2;", [1.0, nan, 0.0], 1.0),
        ("max.f32 %f0, %f1, %f2;", [-0.0, 0.0, 0.0], 0.0),
        ("min.f32 %f0, %f1, %f2;", [0.0, -0.0, 0.0], -0.0),
        ("max.NaN.f32 %f0, %f1, %f2;", [1.0, nan, 0.0], nan),
        ("abs.f32 %f0, %f1;", [-2.0, 0.0, 0.0], 2.0),
        ("neg.f32 %f0, %f1;", [2.0, 0.0, 0.0], -2.0),
        ("copysign.f32 %f0, %f1, %f2;", [-2.0, 5.0, 0.0], -5.0),
        ("add.rz.f32 %f0, %f1, %f2;", [1.0, -f32::EPSILON / 8.0, 0.0], 1.0 - f32::EPSILON / 2.0),
        ("add.rm.f32 %f0, %f1, %f2;", [-1.0, -1e-30, 0.0], -1.0 - f32::EPSILON),
        ("add.rp.f32 %f0, %f1, %f2;", [1.0, 1e-30, 0.0], 1.0 + f32::EPSILON),
        ("mul.rz.f32 %f0, %f1, %f2;", [f32::MAX, 2.0, 0.0], f32::MAX),
        ("fma.rm.f32 %f0, %f1, %f2, %f3;", [0.5, 0.5, 1e-30], 0.25),
        ("ex2.approx.ftz.f32 %f0, %f1;", [-3.0, 0.0, 0.0], 0.125),
        ("ex2.approx.ftz.f32 %f0, %f1;", [-140.0, 0.0, 0.0], 0.0),
        ("ex2.approx.f32 %f0, %f1;", [-149.0, 0.0, 0.0], tiny),
        ("ex2.approx.f32 %f0, %f1;", [f32::NEG_INFINITY, 0.0, 0.0], 0.0),
        ("lg2.approx.f32 %f0, %f1;", [8.0, 0.0, 0.0], 3.0),
        ("lg2.approx.ftz.f32 %f0, %f1;", [0.0, 0.0, 0.0], f32::NEG_INFINITY),
        ("rcp.approx.ftz.f32 %f0, %f1;", [4.0, 0.0, 0.0], 0.25),
        ("rcp.rn.f32 %f0, %f1;", [3.0, 0.0, 0.0], 1.0 / 3.0),
        ("sqrt.rn.f32 %f0, %f1;", [2.0, 0.0, 0.0], std::f32::consts::SQRT_2),
        ("rsqrt.approx.f32 %f0, %f1;", [4.0, 0.0, 0.0], 0.5),
        ("tanh.approx.f32 %f0, %f1;", [100.0, 0.0, 0.0], 1.0),
        ("sin.approx.f32 %f0, %f1;", [0.0, 0.0, 0.0], 0.0),
        ("cos.approx.f32 %f0, %f1;", [0.0, 0.0, 0.0], 1.0),
        ("setp.lt.f32 %p1, %f1, %f2;\nselp.f32 %f0, %f1, %f2, %p1;", [1.0, 2.0, 0.0], 1.0),
        ("setp.lt.f32 %p1, %f1, %f2;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", [nan, 2.0, 0.0], 0.0),
        ("setp.geu.f32 %p1, %f1, %f2;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", [nan, 2.0, 0.0], 1.0),
        ("setp.nan.f32 %p1|%p2, %f1, %f2;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p2;", [nan, 2.0, 0.0], 0.0),
        ("setp.lt.and.f32 %p1, %f1, %f2, !%p0;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", [1.0, 2.0, 0.0], 1.0),
        ("set.gt.f32.f32 %f0, %f1, %f2;", [3.0, 2.0, 0.0], 1.0),
        ("slct.f32.f32 %f0, %f1, %f2, %f3;", [3.0, 2.0, -1.0], 2.0),
        ("testp.infinite.f32 %p1, %f1;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", [f32::INFINITY, 0.0, 0.0], 1.0),
        ("testp.subnormal.f32 %p1, %f1;\nselp.f32 %f0, 0f3F800000, 0f00000000, %p1;", [tiny, 0.0, 0.0], 1.0),
        ("cvt.rni.f32.f32 %f0, %f1;", [2.5, 0.0, 0.0], 2.0),
        ("cvt.rzi.f32.f32 %f0, %f1;", [-2.5, 0.0, 0.0], -2.0),
        ("cvt.rmi.f32.f32 %f0, %f1;", [-2.5, 0.0, 0.0], -3.0),
        ("cvt.rpi.f32.f32 %f0, %f1;", [2.25, 0.0, 0.0], 3.0),
        ("cvt.rzi.s32.f32 %r9, %f1;\ncvt.rn.f32.s32 %f0, %r9;", [-2.75, 0.0, 0.0], -2.0),
        ("cvt.rzi.s32.f32 %r9, %f1;\ncvt.rn.f32.s32 %f0, %r9;", [nan, 0.0, 0.0], 0.0),
        ("cvt.rzi.u32.f32 %r9, %f1;\ncvt.rn.f32.u32 %f0, %r9;", [1e20, 0.0, 0.0], 4294967296.0),
        ("cvt.f64.f32 %fd1, %f1;\nmul.f64 %fd1, %fd1, %fd1;\ncvt.rn.f32.f64 %f0, %fd1;", [1.5, 0.0, 0.0], 2.25),
        (
            "cvt.rn.f64.s32 %fd1, -7;\nsqrt.rn.f64 %fd2, 0d4010000000000000;\nfma.rn.f64 %fd1, %fd1, %fd2, %fd2;\ncvt.rn.f32.f64 %f0, %fd1;",
            [0.0; 3],
            -12.0,
        ),
        ("cvt.sat.f32.f32 %f0, %f1;", [1.5, 0.0, 0.0], 1.0),
    ];
    for &(instruction, input, wanted) in cases {
        let found = floats(instruction, input);
        let same = found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan());
        assert!(same, "{instruction} {input:?}: {found} instead of {wanted}");
    }
}

#[test]
fn halves_round_as_they_should() {
    // Ties, overflow, subnormals and both signs.
    let values = [
        1.0,
        -1.0,
        1.003_906_3,
        1.011_718_8,
        65_519.0,
        65_520.0,
        1e-7,
        3.0e-8,
        -5.9e-8,
        1e38,
        3.4e38,
        0.333_333_34,
        f32::INFINITY,
        -0.0,
        2049.0,
        2051.0,
    ];
    for x in values {
        let bits = x.to_bits();
        let pack = |op: &str| words(&format!("mov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\n{op}"), [bits, 0x4000_0000, 0]);
        let b = u32::from(bf16::from_f32(x).to_bits());
        let h = u32::from(f16::from_f32(x).to_bits());
        assert_eq!(pack("cvt.rn.bf16x2.f32 %r0, %f1, %f2;"), b << 16 | 0x4000, "{x}");
        assert_eq!(pack("cvt.rn.f16x2.f32 %r0, %f2, %f1;"), 0x4000 << 16 | h, "{x}");
        assert_eq!(pack("cvt.rn.bf16.f32 %h1, %f1;\ncvt.u32.u16 %r0, %h1;"), b, "{x}");
        assert_eq!(pack("cvt.rn.f16.f32 %h1, %f1;\ncvt.u32.u16 %r0, %h1;"), h, "{x}");
        assert_eq!(pack("cvt.rz.bf16.f32 %h1, %f1;\ncvt.u32.u16 %r0, %h1;"), bits >> 16, "{x}");
        let back = pack("cvt.rn.bf16.f32 %h1, %f1;\ncvt.f32.bf16 %f3, %h1;\nmov.b32 %r0, %f3;");
        assert_eq!(f32::from_bits(back), bf16::from_f32(x).to_f32());
        let back = pack("cvt.rn.f16.f32 %h1, %f1;\ncvt.f32.f16 %f3, %h1;\nmov.b32 %r0, %f3;");
        assert_eq!(f32::from_bits(back), f16::from_f32(x).to_f32());
        let relu = pack("cvt.rn.relu.bf16.f32 %h1, %f1;\ncvt.u32.u16 %r0, %h1;");
        assert_eq!(relu, if x > 0.0 { b } else { 0 }, "{x}");
    }
    let truncated =
        words("mov.b32 %f1, %r1;\ncvt.rz.f16.f32 %h1, %f1;\ncvt.u32.u16 %r0, %h1;", [65_535f32.to_bits(), 0, 0]);
    assert_eq!(truncated, 0x7bff);
}

#[test]
fn tf32_rounds_ties_away() {
    let convert = |bits| words("mov.b32 %f1, %r1;\ncvt.rna.tf32.f32 %r0, %f1;", [bits, 0, 0]);
    assert_eq!(convert(0x3f80_0fff), 0x3f80_0000);
    assert_eq!(convert(0x3f80_1000), 0x3f80_2000);
    assert_eq!(convert(0xbf80_1000), 0xbf80_2000);
    assert_eq!(convert(0x7f80_0000), 0x7f80_0000);
}

#[test]
fn predicates_combine() {
    let cases = [
        ("and.pred %p3, %p1, %p2;", 0b0001),
        ("or.pred %p3, %p1, %p2;", 0b0111),
        ("xor.pred %p3, %p1, %p2;", 0b0110),
        ("not.pred %p3, %p1;", 0b1100),
        ("mov.pred %p3, %p2;", 0b0101),
    ];
    for (operation, truth) in cases {
        let body = format!(
            "and.b32 %r1, %tid, 2;\nsetp.eq.u32 %p1, %r1, 0;\nand.b32 %r1, %tid, 1;\n\
             setp.eq.u32 %p2, %r1, 0;\n{operation}\nselp.u32 %r2, 1, 0, %p3;\n\
             st.global.u32 [%result], %r2;"
        );
        let out = run_words(&body, &one_warp(), &[0], 32).unwrap().out;
        for (lane, &found) in out.iter().enumerate() {
            assert_eq!(found, truth >> (lane % 4) & 1, "{operation} {lane}");
        }
    }
}
