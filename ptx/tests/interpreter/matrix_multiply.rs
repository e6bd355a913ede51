//! mma.sync against the fragment layouts of the PTX ISA.

use crate::support::{Numbers, one_warp, run_words};
use half::{bf16, f16};
use vocabfuse_ptx::{Accumulation, Launch};

/// Where the PTX ISA puts the elements of one shape; `g` is `lane / 4` and `t`
/// is `lane % 4`, and elements are counted through all registers of a lane.
struct Shape {
    name: &'static str,
    k: usize,
    /// Elements in a register.
    per: usize,
    a: fn(g: usize, t: usize, i: usize) -> (usize, usize),
    b: fn(g: usize, t: usize, i: usize) -> (usize, usize),
    encode: fn(f32) -> u32,
}

fn encode_bf16(x: f32) -> u32 {
    u32::from(bf16::from_f32(x).to_bits())
}

fn encode_f16(x: f32) -> u32 {
    u32::from(f16::from_f32(x).to_bits())
}

/// Garbage in the thirteen bits that TF32 does not have must not matter.
fn encode_tf32(x: f32) -> u32 {
    x.to_bits() | 0x0abc
}

fn a_k16(g: usize, t: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 || (4..6).contains(&i) { g } else { g + 8 };
    let column = t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 };
    (row, column)
}

fn b_k16(g: usize, t: usize, i: usize) -> (usize, usize) {
    (t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, g)
}

fn a_k8(g: usize, t: usize, i: usize) -> (usize, usize) {
    (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1))
}

fn b_k8(g: usize, t: usize, i: usize) -> (usize, usize) {
    (t * 2 + i, g)
}

fn a_tf32(g: usize, t: usize, i: usize) -> (usize, usize) {
    let row = if i == 0 || i == 2 { g } else { g + 8 };
    (row, if i < 2 { t } else { t + 4 })
}

fn b_tf32(g: usize, t: usize, i: usize) -> (usize, usize) {
    (if i == 0 { t } else { t + 4 }, g)
}

const SHAPES: [Shape; 6] = [
    Shape { name: "m16n8k16.row.col.f32.bf16.bf16.f32", k: 16, per: 2, a: a_k16, b: b_k16, encode: encode_bf16 },
    Shape { name: "m16n8k16.row.col.f32.f16.f16.f32", k: 16, per: 2, a: a_k16, b: b_k16, encode: encode_f16 },
    Shape { name: "m16n8k8.row.col.f32.bf16.bf16.f32", k: 8, per: 2, a: a_k8, b: b_k8, encode: encode_bf16 },
    Shape { name: "m16n8k8.row.col.f32.f16.f16.f32", k: 8, per: 2, a: a_k8, b: b_k8, encode: encode_f16 },
    Shape { name: "m16n8k8.row.col.f32.tf32.tf32.f32", k: 8, per: 1, a: a_tf32, b: b_tf32, encode: encode_tf32 },
    Shape { name: "m16n8k4.row.col.f32.tf32.tf32.f32", k: 4, per: 1, a: a_tf32, b: b_tf32, encode: encode_tf32 },
];

/// Words of one operand, register by register and lane by lane.
fn fragment(shape: &Shape, registers: usize, value: impl Fn(usize, usize, usize) -> f32) -> Vec<u32> {
    let word = |register: usize, lane: usize| {
        (0..shape.per).fold(0, |word, e| {
            let x = value(lane / 4, lane % 4, register * shape.per + e);
            word | (shape.encode)(x) << (16 * e)
        })
    };
    let places = (0..registers).flat_map(|r| (0..32).map(move |lane| (r, lane)));
    places.map(|(r, lane)| word(r, lane)).collect()
}

/// Loads A, B and C from rows of 32 words and multiplies; the results are in `%f60` to `%f63`.
fn instruction(shape: &Shape, a_registers: usize) -> String {
    let b_registers = a_registers / 2;
    let load = |first: usize, count: usize, prefix: &str| {
        let line = |i| {
            let offset = 128 * (first + i);
            let ty = if prefix == "%f" { "f32" } else { "b32" };
            format!("ld.global.{ty} {prefix}{}, [%mine+{offset}];\n", first + i)
        };
        (0..count).map(line).collect::<String>()
    };
    let names = |first: usize, count: usize, prefix: &str| {
        let names: Vec<String> = (first..first + count).map(|i| format!("{prefix}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let c_first = a_registers + b_registers;
    let loads = load(0, c_first, "%r") + &load(c_first, 4, "%f");
    loads
        + &format!(
            "mma.sync.aligned.{} {{%f60, %f61, %f62, %f63}}, {}, {}, {};\n",
            shape.name,
            names(0, a_registers, "%r"),
            names(a_registers, b_registers, "%r"),
            names(c_first, 4, "%f"),
        )
}

fn check(shape: &Shape, mut next: impl FnMut() -> f32, tolerance: f64) {
    let k = shape.k;
    let a: Vec<f32> = (0..16 * k).map(|_| next()).collect();
    let b: Vec<f32> = (0..k * 8).map(|_| next()).collect();
    let c: Vec<f32> = (0..16 * 8).map(|_| next()).collect();
    let a_registers = 16 * k / shape.per / 32;
    let mut input = fragment(shape, a_registers, |g, t, i| {
        let (row, column) = (shape.a)(g, t, i);
        a[row * k + column]
    });
    input.extend(fragment(shape, a_registers / 2, |g, t, i| {
        let (row, column) = (shape.b)(g, t, i);
        b[row * 8 + column]
    }));
    let place = |lane: usize, i: usize| {
        let row = if i < 2 { lane / 4 } else { lane / 4 + 8 };
        row * 8 + (lane % 4) * 2 + (i & 1)
    };
    for i in 0..4 {
        input.extend((0..32).map(|lane| c[place(lane, i)].to_bits()));
    }

    let mut body = instruction(shape, a_registers);
    for i in 0..4 {
        body += &format!("st.global.f32 [%result+{}], %f{};\n", 128 * i, 60 + i);
    }
    let out = run_words(&body, &one_warp(), &input, 128).unwrap().out;
    for lane in 0..32 {
        for i in 0..4 {
            let (row, column) = (place(lane, i) / 8, place(lane, i) % 8);
            let terms = (0..k).map(|x| f64::from(a[row * k + x]) * f64::from(b[x * 8 + column]));
            let wanted = terms.sum::<f64>() + f64::from(c[place(lane, i)]);
            let found = f64::from(f32::from_bits(out[i * 32 + lane]));
            let error = (found - wanted).abs();
            assert!(error <= tolerance, "{} [{row}][{column}]: {found} {wanted}", shape.name);
        }
    }
}

#[test]
fn every_shape_is_exact_on_small_integers() {
    for shape in &SHAPES {
        let mut numbers = Numbers::new(11);
        check(shape, || (numbers.bits() >> 40) as f32 % 8.0 - 4.0, 0.0);
    }
}

#[test]
fn every_shape_is_close_on_fractions() {
    for shape in &SHAPES {
        let mut numbers = Numbers::new(5);
        // Multiples of 1/128 below one are exact in all formats.
        check(shape, || ((numbers.bits() >> 40) as f32 % 255.0 - 127.0) / 128.0, 1e-5);
    }
}

/// A single result of one shape: products of `a` with ones, on top of `c`.
fn one_result(shape: &Shape, c: f32, a: impl Fn(usize) -> f32, accumulation: Accumulation) -> f32 {
    let registers = 16 * shape.k / shape.per / 32;
    let mut input = fragment(shape, registers, |g, t, i| a((shape.a)(g, t, i).1));
    input.extend(fragment(shape, registers / 2, |_, _, _| 1.0));
    let body = instruction(shape, registers) + "st.global.f32 [%result], %f60;\n";
    input.extend([c.to_bits(); 128]);
    let launch = Launch { accumulation, ..one_warp() };
    f32::from_bits(run_words(&body, &launch, &input, 128).unwrap().out[0])
}

#[test]
fn sums_are_cut_as_on_tensor_cores_unless_the_launch_says_otherwise() {
    assert_eq!(Launch::default().accumulation, Accumulation::Truncated);
    for shape in &SHAPES {
        // The last place that is kept beside 1 is 2^-24: two of these are the last place of f32.
        let last = 2.0f32.powi(-24);
        let one = |accumulation, a: &dyn Fn(usize) -> f32| one_result(shape, 1.0, a, accumulation);
        if !shape.name.contains("f16.f16") || shape.name.contains("bf16") {
            let pair = |x: usize| if x < 2 { last } else { 0.0 };
            assert_eq!(one(Accumulation::Truncated, &pair), 1.0 + 2.0 * last, "{}", shape.name);
            let halves = |_| last / 2.0;
            assert_eq!(one(Accumulation::Truncated, &halves), 1.0, "{}", shape.name);
            assert!(one(Accumulation::Rounded, &halves) > 1.0, "{}", shape.name);
            // A deep shape is two sums: one of the last place in each is cut from both.
            let both = |x: usize| if x == 0 || x == shape.k - 1 { last } else { 0.0 };
            let halved = shape.name.contains("k16") || shape.name.contains("k8.row.col.f32.tf32");
            let expected = if halved { 1.0 } else { 1.0 + 2.0 * last };
            assert_eq!(one(Accumulation::Truncated, &both), expected, "{}", shape.name);
            assert_eq!(one(Accumulation::Rounded, &both), 1.0 + 2.0 * last, "{}", shape.name);
        } else {
            // 2^-24 is the smallest number of f16. Its exponent counts as 2^-14, but beside 1 that changes nothing.
            assert_eq!(one(Accumulation::Truncated, &|x| if x < 2 { last } else { 0.0 }), 1.0 + 2.0 * last);
            // Beside nothing it does: 24 places below 2^-14 are kept.
            let alone = |c: f32| one_result(shape, c, |_| last, Accumulation::Truncated);
            let (kept, cut) = (last * 2.0f32.powi(-14), last * 2.0f32.powi(-15));
            assert_eq!(alone(kept), shape.k as f32 * last + kept);
            assert_eq!(alone(cut), shape.k as f32 * last);
        }
    }
}
