//! Whole kernels: a matrix product in 2x2 tiles with vector code in between, on several threads,
//! with all other state of the processor left alone.

use std::arch::asm;

use crate::common::*;

/// The right operand of a tile product: rows 2k and 2k+1 of a `depth` x 32 matrix as row k of pairs,
/// one 1 KiB tile for each 16 columns, 32 rows after 32 rows.
fn pack_right(depth: usize, element: impl Fn(usize, usize) -> u16) -> Vec<u16> {
    let mut packed = Vec::with_capacity(depth * 32);
    for step in 0..depth / 32 {
        for half in 0..2 {
            for pair in 0..16 {
                for column in 0..16 {
                    for part in 0..2 {
                        packed.push(element(step * 32 + pair * 2 + part, half * 16 + column));
                    }
                }
            }
        }
    }
    packed
}

/// The left operand: 32 rows of a 32 x `depth` matrix in 1 KiB tiles of 16 rows and 32 columns.
fn pack_left(depth: usize, element: impl Fn(usize, usize) -> u16) -> Vec<u16> {
    let mut packed = Vec::with_capacity(depth * 32);
    for step in 0..depth / 32 {
        for row in 0..32 {
            for column in 0..32 {
                packed.push(element(row, step * 32 + column));
            }
        }
    }
    packed
}

/// `c` (+)= `a` * `b` for packed operands of `steps` * 32 inner elements, with prefetches and vector
/// instructions between the tile instructions. Returns the sum of 0, 1, .. `steps` - 1 in 16 lanes,
/// computed beside.
///
/// # Safety
///
/// `a` and `b` hold 2 KiB a step, and there is at least one.
unsafe fn product_32x32(
    steps: usize,
    a: *const u16,
    b: *const u16,
    c: &mut [[f32; 32]; 32],
    accumulate: bool,
) -> [i32; 16] {
    let c = c.as_mut_ptr();
    let mut lanes = [0_i32; 16];
    // SAFETY: `c` is 32 rows of 128 bytes; the caller answers for `a` and `b`, which the loop
    // advances by 2 KiB a step; prefetches do not fault.
    unsafe {
        if accumulate {
            asm!(
                "tileloadd tmm0, [{c}+{s}]",
                "tileloadd tmm1, [{c}+{s}+64]",
                "tileloadd tmm2, [{c}+{s}+2048]",
                "tileloadd tmm3, [{c}+{s}+2112]",
                c = in(reg) c, s = in(reg) 128_usize, options(nostack),
            );
        } else {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack),);
        }
        asm!(
            "vpxor xmm8, xmm8, xmm8",
            "vpxor xmm9, xmm9, xmm9",
            "vpxor xmm10, xmm10, xmm10",
            "vpcmpeqd ymm11, ymm11, ymm11",
            "2:",
            "tileloaddt1 tmm6, [{b}+{s}]",
            "tileloadd tmm4, [{a}+{s}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloaddt1 tmm7, [{b}+{s}+1024]",
            "prefetcht1 [{b}+2048]",
            "prefetcht1 [{b}+2112]",
            "vpaddd ymm8, ymm8, ymm10",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a}+{s}+1024]",
            "prefetchw [{a}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "vpaddd ymm9, ymm9, ymm10",
            "vpsubd ymm10, ymm10, ymm11",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 2048",
            "add {b}, 2048",
            "dec {k}",
            "jnz 2b",
            "add {s}, 64",
            "tilestored [{c}+{s}], tmm0",
            "tilestored [{c}+{s}+64], tmm1",
            "tilestored [{c}+{s}+2048], tmm2",
            "tilestored [{c}+{s}+2112], tmm3",
            "vmovdqu [{lanes}], ymm8",
            "vmovdqu [{lanes}+32], ymm9",
            k = inout(reg) steps => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            c = in(reg) c,
            lanes = in(reg) lanes.as_mut_ptr(),
            s = inout(reg) 64_usize => _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            options(nostack),
        );
    }
    lanes
}

/// The elements of a bfloat16 matrix.
fn matrix(random: &mut Random, elements: usize) -> Vec<u16> {
    (0..elements).map(|_| random.bf16()).collect()
}

/// Runs the kernel on random operands and compares with the scalar definition, bit by bit.
fn check_kernel(seed: u64, steps: usize) {
    let depth = steps * 32;
    let mut random = Random(seed);
    let left = matrix(&mut random, 32 * depth);
    let right = matrix(&mut random, depth * 32);
    let a = pack_left(depth, |m, k| left[m * depth + k]);
    let b = pack_right(depth, |k, n| right[k * 32 + n]);
    let mut c = [[0.0; 32]; 32];
    Config::full().load();
    for accumulate in [false, true] {
        let mut expected = if accumulate { c } else { [[0.0; 32]; 32] };
        for (m, row) in expected.iter_mut().enumerate() {
            for (n, value) in row.iter_mut().enumerate() {
                for step in 0..steps {
                    let (mut even, mut odd) = (0.0, 0.0);
                    for k in (step * 32..step * 32 + 32).step_by(2) {
                        let term = |k: usize, sum| {
                            let factor = bf16_to_f32(left[m * depth + k]);
                            fma(factor, bf16_to_f32(right[k * 32 + n]), sum)
                        };
                        even = term(k, even);
                        odd = term(k + 1, odd);
                    }
                    *value = plus(*value, plus(even, odd));
                }
            }
        }
        // SAFETY: both operands have 2 KiB for each step.
        let lanes = unsafe { product_32x32(steps, a.as_ptr(), b.as_ptr(), &mut c, accumulate) };
        assert_eq!(lanes, [(steps * (steps - 1) / 2) as i32; 16]);
        for (row, expected) in c.iter().zip(&expected) {
            for (value, expected) in row.iter().zip(expected) {
                assert_eq!(value.to_bits(), expected.to_bits());
            }
        }
    }
}

#[test]
fn product_in_2x2_tiles() {
    emulated();
    for steps in [1, 2, 16, 33] {
        check_kernel(21 + steps as u64, steps);
    }
}

#[test]
fn threads_do_not_share_tiles() {
    emulated();
    std::thread::scope(|scope| {
        for seed in 31..39 {
            scope.spawn(move || {
                for round in 0..3 {
                    check_kernel(seed + 100 * round, 5);
                }
            });
        }
    });
}

/// Tile instructions that trap in every way the emulator works: loading, computing, storing.
macro_rules! traps {
    () => {
        "tilezero tmm2
        tileloadd tmm0, [rax + rcx]
        tileloaddt1 tmm1, [rax + rcx]
        tdpbf16ps tmm2, tmm0, tmm1
        tilestored [rax + rcx + 1024], tmm2"
    };
}

#[test]
fn general_registers_flags_and_red_zone_survive() {
    emulated();
    Config::full().load();
    let mut buffer = [0x40_u8; 2048];
    let (rdx, rsi, rdi, r8, r9, r10, r11): (u64, u64, u64, u64, u64, u64, u64);
    let (red_zone_top, red_zone_bottom, flags): (u64, u64, u64);
    // SAFETY: the tiles lie in `buffer`. The block moves the stack pointer below the red zone of the
    // surrounding function, writes its own, pushes nothing while that is in use, and undoes it all.
    unsafe {
        asm!(
            "sub rsp, 256",
            "mov qword ptr [rsp - 8], 0x1234",
            "mov qword ptr [rsp - 128], 0x5678",
            "stc",
            "std",
            traps!(),
            "mov r12, [rsp - 8]",
            "mov r13, [rsp - 128]",
            "pushfq",
            "pop r14",
            "cld",
            "add rsp, 256",
            in("rax") buffer.as_mut_ptr(), in("rcx") 64_usize,
            inout("rdx") 1_u64 => rdx, inout("rsi") 2_u64 => rsi, inout("rdi") 3_u64 => rdi,
            inout("r8") 4_u64 => r8, inout("r9") 5_u64 => r9, inout("r10") 6_u64 => r10,
            inout("r11") 7_u64 => r11,
            out("r12") red_zone_top, out("r13") red_zone_bottom, out("r14") flags,
        );
    }
    assert_eq!([rdx, rsi, rdi, r8, r9, r10, r11], [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((red_zone_top, red_zone_bottom), (0x1234, 0x5678));
    // Carry and direction.
    assert_eq!(flags & 0x401, 0x401);
}

#[test]
fn control_register_of_the_vector_unit_survives_and_is_not_consulted() {
    emulated();
    Config::full().load();
    // Sums of 32 products with 16 bits each: nearly all of them need rounding.
    let mut random = Random(42);
    let mut buffer: [[u16; 512]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| random.bf16()));
    let mut control = [0_u32; 2];
    let mut run = |mode: u32| {
        // SAFETY: the tiles lie in `buffer`; the control register is restored before the end.
        unsafe {
            asm!(
                "stmxcsr [rdx]",
                "ldmxcsr [rdx + 4]",
                traps!(),
                "stmxcsr [rdx + 4]",
                "ldmxcsr [rdx]",
                in("rax") buffer.as_mut_ptr(), in("rcx") 64_usize,
                in("rdx") { control[1] = mode; control.as_mut_ptr() },
                options(nostack),
            );
        }
        assert_eq!(control[1], mode);
        buffer[1]
    };
    // To nearest, upwards, and towards zero with both kinds of flushing.
    assert_eq!(run(0x1f80), run(0x5f80));
    assert_eq!(run(0x1f80), run(0xffc0));
}

#[test]
fn vector_and_mask_registers_survive() {
    emulated();
    if !std::arch::is_x86_feature_detected!("avx512bw") {
        crate::common::skipped(Need::Avx512, "the processor has no vector and mask registers that could change");
        return;
    }
    Config::full().load();
    let mut buffer = [0x40_u8; 2048];
    let pattern: [[u8; 64]; 32] = std::array::from_fn(|_| Random(41).bytes());
    let mut after = [[0_u8; 64]; 32];
    let masks: [u64; 7] = std::array::from_fn(|n| 0x0123_4567_89ab_cdef * (n as u64 + 1));
    let mut masks_after = [0_u64; 7];
    macro_rules! each {
        ($line:ident) => {
            concat!(
                $line!(0),
                $line!(1),
                $line!(2),
                $line!(3),
                $line!(4),
                $line!(5),
                $line!(6),
                $line!(7),
                $line!(8),
                $line!(9),
                $line!(10),
                $line!(11),
                $line!(12),
                $line!(13),
                $line!(14),
                $line!(15),
                $line!(16),
                $line!(17),
                $line!(18),
                $line!(19),
                $line!(20),
                $line!(21),
                $line!(22),
                $line!(23),
                $line!(24),
                $line!(25),
                $line!(26),
                $line!(27),
                $line!(28),
                $line!(29),
                $line!(30),
                $line!(31)
            )
        };
    }
    macro_rules! set {
        ($n:literal) => {
            concat!("vmovdqu8 zmm", $n, ", [rsi + 64*", $n, "]\n")
        };
    }
    macro_rules! get {
        ($n:literal) => {
            concat!("vmovdqu8 [rdi + 64*", $n, "], zmm", $n, "\n")
        };
    }
    macro_rules! each_mask {
        ($line:ident) => {
            concat!($line!(1), $line!(2), $line!(3), $line!(4), $line!(5), $line!(6), $line!(7))
        };
    }
    macro_rules! set_mask {
        ($n:literal) => {
            concat!("kmovq k", $n, ", [r8 + 8*", $n, " - 8]\n")
        };
    }
    macro_rules! get_mask {
        ($n:literal) => {
            concat!("kmovq [r9 + 8*", $n, " - 8], k", $n, "\n")
        };
    }
    // SAFETY: every access lies in the buffers; `clobber_abi` covers the vector and mask registers.
    unsafe {
        asm!(
            each!(set),
            each_mask!(set_mask),
            traps!(),
            each!(get),
            each_mask!(get_mask),
            in("rax") buffer.as_mut_ptr(), in("rcx") 64_usize,
            in("rsi") pattern.as_ptr(), in("rdi") after.as_mut_ptr(),
            in("r8") masks.as_ptr(), in("r9") masks_after.as_mut_ptr(),
            clobber_abi("sysv64"),
        );
    }
    assert_eq!(after, pattern);
    assert_eq!(masks_after, masks);
}
