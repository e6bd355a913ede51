//! Library functions as NVRTC compiles them, against those of the host.

use crate::support::{Numbers, f32_bytes, read_f32s, read_u32s, u32_bytes};
use vocabfuse_ptx::{Arg, Launch, Memory, Module, launch};

const FUNCTIONS: &str = include_str!("ptx/functions.ptx");

/// A name, and the function of an input as a double and as it is.
type Function = (&'static str, fn(f64, f32) -> f64);

/// Runs `name` on a column of words and returns `columns` columns of results.
fn run(name: &str, input: &[u8], n: usize, columns: usize, extra: &[Arg]) -> (Memory, u64) {
    let module = Module::parse(FUNCTIONS).unwrap();
    let mut memory = Memory::new();
    let from = memory.alloc_with(input).unwrap();
    let to = memory.alloc(4 * n * columns).unwrap();
    let shape = Launch { grid: [n.div_ceil(64) as u32, 1, 1], block: [64, 1, 1], ..Launch::default() };
    let mut arguments = vec![Arg::Pointer(from), Arg::Pointer(to), Arg::I32(n as i32)];
    arguments.extend_from_slice(extra);
    let kernel = module.kernel(name).unwrap();
    let report = launch(kernel, &shape, &arguments, &mut memory).unwrap();
    assert!(report.is_clean(), "{report:#?}");
    (memory, to)
}

#[test]
fn float_functions_are_close_to_the_host() {
    let mut input: Vec<f32> = Numbers::new(6).f32s(200).iter().map(|x| 8.0 * x).collect();
    input.extend([0.0, -0.0, 1.0, -1.0, 1e-20, -1e-7, 0.5, 2.5, -2.5, 30.0]);
    let n = input.len();
    let functions: [Function; 14] = [
        ("exp", |x, _| x.exp()),
        ("log", |x, _| f64::from((x.abs() as f32) + 0.01).ln()),
        ("tanh", |x, _| x.tanh()),
        ("sqrt", |x, _| x.abs().sqrt()),
        ("quotient", |x, _| x / (1.5 + x * x)),
        ("log1p", |x, _| x.abs().ln_1p()),
        ("expm1", |x, _| x.exp_m1()),
        ("pow", |x, _| (x.abs() + 0.5).powf(1.7)),
        ("rounding", |x, _| x.floor() + 2.0 * x.ceil() + 3.0 * x.round_ties_even() + 4.0 * x.trunc()),
        ("fmod", |_, x| f64::from((x * 10.0) % 0.75)),
        ("copysign", |x, _| 3f64.copysign(x)),
        ("casts", |_, x| {
            let casts = (x * 100.0) as i32 as f32 + (x.abs() * 50.0) as u32 as f32;
            f64::from(casts + (x * 1e6) as i64 as f32)
        }),
        ("double", |x, _| x * 1.000001 + x.abs().sqrt() / 3.0),
        ("ldexp", |x, _| x * 8.0),
    ];
    let (memory, to) = run("floats", &f32_bytes(&input), n, functions.len(), &[]);
    let out = read_f32s(&memory, to, n * functions.len());
    for ((name, function), found) in functions.iter().zip(out.chunks(n)) {
        for (&x, &y) in input.iter().zip(found) {
            let wanted = function(f64::from(x), x);
            let error = (f64::from(y) - wanted).abs();
            // A few units in the last place, as the CUDA guide states.
            assert!(error <= 1e-6 * wanted.abs() + 1e-37, "{name}({x}): {y} for {wanted}");
        }
    }
}

#[test]
fn integer_functions_equal_the_host() {
    let mut input = Numbers::new(2).u32s(200);
    input.extend([0, 1, u32::MAX, i32::MAX as u32, i32::MIN as u32, 99, 100, -5i32 as u32]);
    let n = input.len();
    let k = 11i32;
    let functions: [fn(i32, i32) -> i32; 16] = [
        |x, k| x / k,
        |x, k| x % k,
        |x, k| (i64::from(x) * i64::from(k) / i64::from(k + 1)) as i32,
        |x, k| (i64::from(x) * i64::from(k) % 1000) as i32,
        |x, _| (x as u32 / 7 + x as u32 % 13) as i32,
        |x, _| {
            let first = if x == 0 { 0 } else { x.trailing_zeros() + 1 };
            (x.count_ones() + x.leading_zeros() + first) as i32
        },
        |x, _| x.reverse_bits(),
        |x, k| {
            let signed = (i64::from(x) * i64::from(k)) >> 32;
            let unsigned = (u64::from(x as u32) * k as u64) >> 32;
            (signed as i32).wrapping_add(unsigned as i32)
        },
        |x, k| (x.min(k) ^ x.max(-k)) | x.wrapping_abs(),
        |x, k| (x >> 3).wrapping_add((x as u32 >> 5) as i32).wrapping_add(x << (k & 31)),
        |x, _| i32::from(x as i16) + i32::from(x as i8) + i32::from(x as u16),
        |x, k| (x & 0xffff) | (k << 16),
        |x, k| ((i64::from(x) * i64::from(k)) as u64 >> 17) as i32,
        |x, k| {
            let word = u64::from(k as u32) << 32 | u64::from(x as u32);
            ((word << 7 >> 32) as i32).wrapping_add((word >> 9) as i32)
        },
        |x, k| match x > 0 {
            true if k < 5 && x < 100 => 3,
            true => 4,
            false if x == -5 || k != 3 => 7,
            false => 8,
        },
        |x, k| {
            let table = |j: i32| x.wrapping_mul(j).wrapping_add(k);
            table(x & 15).wrapping_add(table(k & 15))
        },
    ];
    let columns = functions.len();
    let (memory, to) = run("integers", &u32_bytes(&input), n, columns, &[Arg::I32(k)]);
    let out = read_u32s(&memory, to, n * columns);
    for (column, (function, found)) in functions.iter().zip(out.chunks(n)).enumerate() {
        for (&x, &y) in input.iter().zip(found) {
            let wanted = function(x as i32, k) as u32;
            assert_eq!(y, wanted, "column {column} of {x:#x}");
        }
    }
}
