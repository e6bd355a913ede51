//! Each instruction against its scalar definition, over all shapes and with values at the edges.

use std::arch::asm;

use crate::common::*;

type Tile = [[u8; 64]; 16];

fn shapes() -> impl Iterator<Item = (usize, usize)> {
    (1..=16).flat_map(|rows| (4..=64).step_by(4).map(move |colsb| (rows, colsb)))
}

#[test]
fn moves_cover_exactly_the_configured_shape() {
    emulated();
    let mut random = Random(1);
    for (rows, colsb) in shapes() {
        Config::new([(rows as u8, colsb as u16); 8]).load();
        let source: Tile = random.bytes::<1024>().as_chunks::<64>().0.try_into().unwrap();
        let background = 0x5a;
        let mut target: Tile = [[background; 64]; 16];
        // SAFETY: the tiles have at most 16 rows of 64 bytes, 64 bytes apart.
        unsafe {
            tile_load!("tmm5", source.as_ptr(), 64_usize);
            tile_store!("tmm5", target.as_mut_ptr(), 64_usize);
        }
        for (m, row) in target.iter().enumerate() {
            for (n, &byte) in row.iter().enumerate() {
                let inside = m < rows && n < colsb;
                assert_eq!(byte, if inside { source[m][n] } else { background });
            }
        }
    }
}

#[test]
fn strides_may_be_wide_zero_or_negative() {
    emulated();
    let mut random = Random(2);
    let memory: [u8; 8192] = random.bytes();
    for (rows, colsb) in [(16, 64), (7, 20), (1, 4), (13, 44)] {
        Config::new([(rows as u8, colsb as u16); 8]).load();
        for (start, stride) in [(0, 500_isize), (0, 0), (8000, -499), (3, 1), (64, 64)] {
            let mut tile: Tile = [[0; 64]; 16];
            // SAFETY: 16 rows of 64 bytes lie within `memory` for each of the strides.
            unsafe {
                tile_load!("tmm0", memory.as_ptr().add(start), stride);
                tile_store!("tmm0", tile.as_mut_ptr(), 64_usize);
            }
            for (m, row) in tile.iter().take(rows).enumerate() {
                let from = start.wrapping_add_signed(stride * m as isize);
                assert_eq!(row[..colsb], memory[from..from + colsb]);
            }
        }
    }
}

#[test]
fn all_tiles_are_distinct_and_reconfiguration_clears_them() {
    emulated();
    Config::full().load();
    let sources: [[u8; 1024]; 8] = std::array::from_fn(|n| [n as u8 + 1; 1024]);
    let mut targets = [[0_u8; 1024]; 8];
    macro_rules! each {
        ($move:ident, $buffers:ident, $pointer:ident) => {
            $move!("tmm0", $buffers[0].$pointer(), 64_usize);
            $move!("tmm1", $buffers[1].$pointer(), 64_usize);
            $move!("tmm2", $buffers[2].$pointer(), 64_usize);
            $move!("tmm3", $buffers[3].$pointer(), 64_usize);
            $move!("tmm4", $buffers[4].$pointer(), 64_usize);
            $move!("tmm5", $buffers[5].$pointer(), 64_usize);
            $move!("tmm6", $buffers[6].$pointer(), 64_usize);
            $move!("tmm7", $buffers[7].$pointer(), 64_usize);
        };
    }
    // SAFETY: every buffer is one full tile.
    unsafe {
        each!(tile_load, sources, as_ptr);
        each!(tile_store, targets, as_mut_ptr);
        assert_eq!(targets, sources);
        asm!("tilezero tmm0", "tilezero tmm7", options(nostack, nomem));
        each!(tile_store, targets, as_mut_ptr);
        for n in 0..8 {
            let expected = if n % 7 == 0 { [0; 1024] } else { sources[n] };
            assert_eq!(targets[n], expected);
        }
        Config::full().load();
        each!(tile_store, targets, as_mut_ptr);
        assert_eq!(targets, [[0; 1024]; 8]);
    }
}

#[test]
fn configuration_reads_back() {
    emulated();
    // A fresh thread is unconfigured.
    std::thread::spawn(|| assert_eq!(Config::stored(), Config::EMPTY)).join().unwrap();
    let mut config = Config::new(std::array::from_fn(|n| (n as u8 * 2, n as u16 * 9)));
    config.start_row = 3;
    config.load();
    assert_eq!(Config::stored(), config);
    // SAFETY: drops the tile state of this thread.
    unsafe { asm!("tilerelease", options(nostack)) };
    assert_eq!(Config::stored(), Config::EMPTY);
    config.load();
    // Palette 0 releases, whatever follows it.
    Config { palette: 0, ..config }.load();
    assert_eq!(Config::stored(), Config::EMPTY);
    // SAFETY: releasing twice is allowed.
    unsafe { asm!("tilerelease", options(nostack)) };
}

#[test]
fn start_row_resumes_an_interrupted_move() {
    emulated();
    let mut random = Random(3);
    let source: Tile = random.bytes::<1024>().as_chunks::<64>().0.try_into().unwrap();
    let mut config = Config::new([(9, 28); 8]);
    config.start_row = 4;
    config.load();
    let mut target: Tile = [[1; 64]; 16];
    // SAFETY: full tiles.
    unsafe { tile_load!("tmm1", source.as_ptr(), 64_usize) };
    // A completed move resets it.
    assert_eq!(Config::stored().start_row, 0);
    // SAFETY: full tiles.
    unsafe { tile_store!("tmm1", target.as_mut_ptr(), 64_usize) };
    for m in 0..16 {
        let expected = match m {
            0..4 => [0; 28],
            4..9 => source[m][..28].try_into().unwrap(),
            _ => [1; 28],
        };
        assert_eq!(target[m][..28], expected, "row {m}");
    }
}

/// Runs one product on tiles 2, 3 and 6 and returns the accumulator as full tile.
fn run_product(
    fp16: bool,
    (rows, depth, columns): (usize, usize, usize),
    c: &[[f32; 16]; 16],
    a: &[[u16; 32]; 16],
    b: &[[u16; 32]; 16],
) -> [[f32; 16]; 16] {
    let mut config = Config::new([(1, 4); 8]);
    (config.rows[2], config.colsb[2]) = (rows as u8, columns as u16 * 4);
    (config.rows[3], config.colsb[3]) = (rows as u8, depth as u16 * 4);
    (config.rows[6], config.colsb[6]) = (depth as u8, columns as u16 * 4);
    config.load();
    let mut result = [[0.0; 16]; 16];
    // SAFETY: all operands are full tiles.
    unsafe {
        tile_load!("tmm2", c.as_ptr(), 64_usize);
        tile_load!("tmm3", a.as_ptr(), 64_usize);
        tile_load!("tmm6", b.as_ptr(), 64_usize);
        if fp16 {
            asm!("tdpfp16ps tmm2, tmm3, tmm6", options(nostack));
        } else {
            asm!("tdpbf16ps tmm2, tmm3, tmm6", options(nostack));
        }
        tile_store!("tmm2", result.as_mut_ptr(), 64_usize);
    }
    result
}

fn check_product(
    fp16: bool,
    shape: (usize, usize, usize),
    c: &[[f32; 16]; 16],
    a: &[[u16; 32]; 16],
    b: &[[u16; 32]; 16],
) {
    let widen = if fp16 { fp16_to_f32 } else { bf16_to_f32 };
    let expected = product(shape, widen, c, a, b);
    let result = run_product(fp16, shape, c, a, b);
    for m in 0..16 {
        for n in 0..16 {
            let (got, want) = (result[m][n], expected[m][n]);
            assert!(same(got, want), "{shape:?} at {m},{n}: {got:e} not {want:e}");
        }
    }
}

fn grid<T: Copy + Default, const W: usize>(mut value: impl FnMut() -> T) -> [[T; W]; 16] {
    std::array::from_fn(|_| std::array::from_fn(|_| value()))
}

#[test]
fn bf16_products_of_all_depths_and_many_shapes() {
    emulated();
    let mut random = Random(4);
    let every_depth = (1..=16).map(|depth| (16, depth, 16));
    let mut odd = Random(5);
    let random_shapes = (0..200).map(|_| (odd.within(1..=16), odd.within(1..=16), odd.within(1..=16)));
    for shape in every_depth.chain(random_shapes) {
        let c = grid(|| random.f32());
        let (a, b) = (grid(|| random.bf16()), grid(|| random.bf16()));
        check_product(false, shape, &c, &a, &b);
    }
}

#[test]
fn bf16_products_of_any_bits() {
    emulated();
    let mut random = Random(6);
    for round in 0..200 {
        // From everything, infinities and NaN included, to small numbers, whose products and sums
        // are denormal or near it.
        let mut bits = |mask: u16, floor: u16| {
            let any = (random.next() >> 40) as u16;
            (any & 0x8000) | (floor + (any & mask))
        };
        let (mask, floor) = match round % 3 {
            0 => (0x7fff, 0),
            1 => (0x01ff, 0),
            _ => (0x03ff, 0x1e00),
        };
        let (a, b) = (grid(|| bits(mask, floor)), grid(|| bits(mask, floor)));
        let c = grid(|| bf16_to_f32(bits(0x01ff, 0)));
        check_product(false, (16, 1 + round % 16, 16), &c, &a, &b);
    }
}

#[test]
fn fp16_products() {
    emulated();
    let mut random = Random(7);
    for round in 0..200 {
        let mask = if round % 2 == 0 { 0xffff } else { 0x8fff };
        let mut bits = || (random.next() >> 40) as u16 & mask;
        let (a, b) = (grid(&mut bits), grid(&mut bits));
        let c = grid(|| random.f32());
        let shape = (1 + round % 16, 1 + round / 2 % 16, 1 + round / 3 % 16);
        check_product(true, shape, &c, &a, &b);
    }
}

/// One pair by one pair, added to `c`.
fn single(c: f32, a: [f32; 2], b: [f32; 2]) -> f32 {
    let bf16 = |x: f32| (x.to_bits() >> 16) as u16;
    let row = |pair: [f32; 2]| {
        let mut grid = [[0; 32]; 16];
        grid[0][..2].copy_from_slice(&pair.map(bf16));
        grid
    };
    let mut accumulator = [[0.0; 16]; 16];
    accumulator[0][0] = c;
    run_product(false, (1, 1, 1), &accumulator, &row(a), &row(b))[0][0]
}

#[test]
fn rounding_flushing_and_order() {
    emulated();
    let ulp = f32::EPSILON;
    // Ties go to the even neighbour.
    assert_eq!(single(1.0, [ulp / 2.0, 0.0], [1.0, 0.0]), 1.0);
    assert_eq!(single(1.0 + ulp, [ulp / 2.0, 0.0], [1.0, 0.0]), 1.0 + 2.0 * ulp);
    // The two halves of a pair meet before they meet the accumulator.
    assert_eq!(single(1.0, [ulp / 2.0, ulp / 2.0], [1.0, 1.0]), 1.0 + ulp);
    let huge = f32::exp2(100.0);
    assert_eq!(single(huge, [-huge, 1.0], [1.0, 1.0]), 0.0);
    // A denormal accumulator, factor, product or sum counts as zero, and zero keeps its sign.
    let (tiny, denormal) = (f32::MIN_POSITIVE, f32::MIN_POSITIVE / 2.0);
    for (c, a, b, expected) in [
        (denormal, [0.0, 0.0], [0.0, 0.0], 0.0),
        (0.0, [denormal, 0.0], [1e38, 0.0], 0.0),
        (0.0, [tiny, 0.0], [0.5, 0.0], 0.0),
        (-tiny, [tiny, 0.0], [1.5, 0.0], 0.0),
        (-0.0, [-tiny, -tiny], [0.5, 0.5], -0.0),
        (-0.0, [-tiny, 0.0], [0.5, 0.0], 0.0),
        (-denormal, [-tiny, -tiny], [0.5, 0.5], -0.0),
    ] {
        let result = single(c, a, b);
        assert!(same(result, expected), "{c:e} + {a:?} * {b:?} = {result:e}");
    }
    // Flushing judges the sum rounded to 24 bits, not to the spacing of the denormals: the first
    // product is the smallest normal number, the second takes off 3/8 of that spacing.
    let (mut a, mut b) = ([[0; 32]; 16], [[0; 32]; 16]);
    let power = |exponent: i32| ((exponent + 127) << 7) as u16;
    (a[0][0], b[0][0]) = (power(-63), power(-63));
    (a[0][2], b[1][0]) = (power(-75) | 0x40, power(-76) | 0x8000);
    let sum = run_product(false, (1, 2, 1), &[[0.0; 16]; 16], &a, &b)[0][0];
    assert_eq!(sum.to_bits(), 0);
    // Half-precision denormals in a half-precision product are numbers like any other.
    let one_by_one = |bits| {
        let mut grid = [[0_u16; 32]; 16];
        grid[0][0] = bits;
        grid
    };
    let result = run_product(true, (1, 1, 1), &[[0.0; 16]; 16], &one_by_one(1), &one_by_one(1));
    assert_eq!(result[0][0], f32::exp2(-48.0));
}

#[test]
fn products_see_nothing_of_an_earlier_shape() {
    emulated();
    // A product reads the padding of its factors: it must not see old bytes there.
    Config::full().load();
    let junk: Tile = [[0xff; 64]; 16];
    // SAFETY: a full tile.
    unsafe { tile_load!("tmm3", junk.as_ptr(), 64_usize) };
    let (a, b) = ([[0x3f80; 32]; 16], [[0x3f80; 32]; 16]);
    let result = run_product(false, (3, 2, 5), &[[1.0; 16]; 16], &a, &b);
    for (m, row) in result.iter().enumerate() {
        for (n, &value) in row.iter().enumerate() {
            assert_eq!(value, if m < 3 && n < 5 { 5.0 } else { 0.0 });
        }
    }
}
