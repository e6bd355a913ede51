//! Shared by the integration tests: configurations, random data, and the tile product spelled out
//! one scalar at a time.

#![allow(dead_code, unused_imports)]

use std::arch::asm;

use vocabfuse_amx_emulator::{Backend, install};

pub use vocabfuse_testing::{Need, skipped};

/// The memory operand of `ldtilecfg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Config {
    pub palette: u8,
    pub start_row: u8,
    pub reserved: [u8; 14],
    pub colsb: [u16; 16],
    pub rows: [u8; 16],
}

impl Config {
    pub const EMPTY: Self = Self { palette: 0, start_row: 0, reserved: [0; 14], colsb: [0; 16], rows: [0; 16] };

    /// Eight tiles of `(rows, bytes per row)`.
    pub fn new(shapes: [(u8, u16); 8]) -> Self {
        let mut config = Self { palette: 1, ..Self::EMPTY };
        for (n, (rows, colsb)) in shapes.into_iter().enumerate() {
            config.rows[n] = rows;
            config.colsb[n] = colsb;
        }
        config
    }

    pub fn full() -> Self {
        Self::new([(16, 64); 8])
    }

    pub fn load(&self) {
        // SAFETY: reads this configuration; `install` made the instruction executable.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly)) }
    }

    pub fn stored() -> Self {
        let mut config = Self { reserved: [0xaa; 14], ..Self::full() };
        // SAFETY: overwrites `config`.
        unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut config, options(nostack)) }
        config
    }
}

/// Installs the emulator; `false` where the processor executes AMX itself, so that there are no
/// counters and faults to look at.
pub fn emulated() -> bool {
    install().expect("AMX emulation") == Backend::Emulated
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `range`.
    pub fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + (self.next() >> 33) as usize % (range.end() - range.start() + 1)
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| (self.next() >> 56) as u8)
    }

    /// A bfloat16 of magnitude around 1, with a full mantissa.
    pub fn bf16(&mut self) -> u16 {
        let bits = self.next();
        (bits >> 48) as u16 & 0x80ff | (0x3e80 + (bits as u16 & 0x0100))
    }

    /// A single-precision number of magnitude around 1.
    pub fn f32(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Copies tile `$tile` (a literal register name) from `$pointer` with rows `$stride` bytes apart.
#[macro_export]
macro_rules! tile_load {
    ($tile:literal, $pointer:expr, $stride:expr) => {
        std::arch::asm!(concat!("tileloadd ", $tile, ", [{p} + {s}]"),
            p = in(reg) $pointer, s = in(reg) $stride, options(nostack, readonly))
    };
}

/// The reverse of [`tile_load`].
#[macro_export]
macro_rules! tile_store {
    ($tile:literal, $pointer:expr, $stride:expr) => {
        std::arch::asm!(concat!("tilestored [{p} + {s}], ", $tile),
            p = in(reg) $pointer, s = in(reg) $stride, options(nostack))
    };
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    flush(flush(a).mul_add(flush(b), flush(c)))
}

pub fn plus(a: f32, b: f32) -> f32 {
    flush(flush(a) + flush(b))
}

pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Half precision by its definition, exact in double precision and then in single precision.
pub fn fp16_to_f32(bits: u16) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => mantissa * f64::exp2(-24.0),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * f64::exp2(f64::from(exponent - 25)),
    };
    (if bits & 0x8000 != 0 { -magnitude } else { magnitude }) as f32
}

/// `c[m][n]` plus the dot product of row `m` of `a` with column `n` of `b`, whose `depth` rows hold
/// pairs: first and second elements are summed apart, joined, and added to `c`.
pub fn product(
    (rows, depth, columns): (usize, usize, usize),
    widen: fn(u16) -> f32,
    c: &[[f32; 16]; 16],
    a: &[[u16; 32]; 16],
    b: &[[u16; 32]; 16],
) -> [[f32; 16]; 16] {
    let mut result = [[0.0; 16]; 16];
    for m in 0..rows {
        for n in 0..columns {
            let (mut even, mut odd) = (0.0, 0.0);
            for k in 0..depth {
                even = fma(widen(a[m][2 * k]), widen(b[k][2 * n]), even);
                odd = fma(widen(a[m][2 * k + 1]), widen(b[k][2 * n + 1]), odd);
            }
            result[m][n] = plus(c[m][n], plus(even, odd));
        }
    }
    result
}

/// Same bits, or both NaN.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}
