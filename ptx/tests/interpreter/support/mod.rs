//! Helpers shared by the integration tests.

#![allow(dead_code)]

use half::bf16;
use vocabfuse_ptx::{Arg, Kernel, Launch, LaunchError, Memory, Module, Report, launch};

/// The text of `matmul.cu` as NVRTC 12.9 compiles it for sm_80.
pub const MATMUL: &str = include_str!("../ptx/matmul.ptx");

/// The text of `rowstats.cu`.
pub const ROWSTATS: &str = include_str!("../ptx/rowstats.ptx");

/// A small reproducible generator of numbers in [-1, 1).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn next(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn bf16s(&mut self, count: usize) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(self.next())).collect()
    }

    pub fn f32s(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    pub fn u32s(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| (self.bits() >> 24) as u32).collect()
    }
}

pub fn bf16_bytes(values: &[bf16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn u32_bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn read_u32s(memory: &Memory, address: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * count];
    memory.read(address, &mut bytes).unwrap();
    let words = bytes.chunks_exact(4);
    words.map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect()
}

pub fn read_f32s(memory: &Memory, address: u64, count: usize) -> Vec<f32> {
    let words = read_u32s(memory, address, count);
    words.into_iter().map(f32::from_bits).collect()
}

/// A kernel around a body, with parameters `in` and `out` whose addresses are
/// in `%in` and `%out`, the thread index in `%tid`, and `%mine` and `%result`
/// pointing to the thread's own word of each.
pub fn kernel_text(body: &str) -> String {
    format!(
        ".version 8.8\n.target sm_80\n.address_size 64\n\
         .extern .shared .align 128 .b8 dynamic[];\n\
         .visible .entry test(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .pred %p<16>;\n.reg .b16 %h<16>;\n.reg .b32 %r<64>;\n.reg .f32 %f<64>;\n\
         .reg .b64 %d<32>;\n.reg .f64 %fd<8>;\n.reg .b32 %tid;\n\
         .reg .b64 %in;\n.reg .b64 %out;\n.reg .b64 %mine;\n.reg .b64 %result;\n\
         ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %tid, %tid.x;\n\
         mul.wide.u32 %d0, %tid, 4;\nadd.s64 %mine, %in, %d0;\nadd.s64 %result, %out, %d0;\n\
         {body}\nret;\n}}\n"
    )
}

/// A finished run of a [`kernel_text`] kernel.
pub struct Run {
    pub report: Report,
    pub out: Vec<u32>,
}

/// Runs a [`kernel_text`] kernel on words; the output starts as zeros.
pub fn run_words(body: &str, shape: &Launch, input: &[u32], outputs: usize) -> Result<Run, LaunchError> {
    let module = Module::parse(&kernel_text(body)).unwrap_or_else(|e| panic!("{e}"));
    let mut memory = Memory::new();
    let from = memory.alloc_with(&u32_bytes(input)).unwrap();
    let to = memory.alloc_with(&vec![0; 4 * outputs]).unwrap();
    let arguments = [Arg::Pointer(from), Arg::Pointer(to)];
    let kernel = module.kernel("test").unwrap();
    let report = launch(kernel, shape, &arguments, &mut memory)?;
    let out = read_u32s(&memory, to, outputs);
    Ok(Run { report, out })
}

/// One warp with a little shared memory.
pub fn one_warp() -> Launch {
    Launch { dynamic_shared: 4096, ..Launch::default() }
}

/// Result of the matmul kernel on seeded inputs.
pub struct Matmul {
    pub report: Report,
    pub found: Vec<f32>,
    pub wanted: Vec<f64>,
}

/// Bytes of dynamic shared memory of the matmul kernel.
pub const MATMUL_SHARED: usize = 2 * 2 * 64 * 40 * 2;

/// Runs the matmul kernel of `module`.
pub fn matmul(kernel: &Kernel, [m, n, k]: [usize; 3], seed: u64) -> Result<Matmul, LaunchError> {
    let mut numbers = Numbers::new(7);
    let (a, b) = (numbers.bf16s(m * k), numbers.bf16s(n * k));
    let mut memory = Memory::new();
    let a_address = memory.alloc_with(&bf16_bytes(&a)).unwrap();
    let b_address = memory.alloc_with(&bf16_bytes(&b)).unwrap();
    let c_address = memory.alloc(4 * m * n).unwrap();
    let shape = Launch {
        grid: [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1],
        block: [128, 1, 1],
        dynamic_shared: MATMUL_SHARED,
        seed,
        resident_blocks: 1 + seed as usize % 2,
        instruction_limit: 10_000_000,
        ..Launch::default()
    };
    let arguments = [
        Arg::Pointer(a_address),
        Arg::Pointer(b_address),
        Arg::Pointer(c_address),
        Arg::I32(m as i32),
        Arg::I32(n as i32),
        Arg::I32(k as i32),
    ];
    let report = launch(kernel, &shape, &arguments, &mut memory)?;
    let found = read_f32s(&memory, c_address, m * n);
    let product = |i: usize| {
        let (row, column) = (i / n, i % n);
        let terms = (0..k).map(|x| a[row * k + x].to_f64() * b[column * k + x].to_f64());
        terms.sum()
    };
    let wanted = (0..m * n).map(product).collect();
    Ok(Matmul { report, found, wanted })
}

impl Matmul {
    /// Largest absolute error; infinite if a result is not finite.
    pub fn error(&self) -> f64 {
        let pairs = self.found.iter().zip(&self.wanted);
        let errors = pairs.map(|(&f, &w)| (f64::from(f) - w).abs());
        errors.fold(0.0, |worst, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) })
    }
}
