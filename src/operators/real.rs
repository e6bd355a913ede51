//! f32 and f64 alike.

use crate::matmul::{View, product};
use crate::plain::round;
use std::ops::{Add, Div, Mul, Neg, Sub};
use vocabfuse_codegen::Dtype;

/// The arithmetic of a composition: f64, which rounds nothing, or f32 with sums of independent lanes.
pub trait Real:
    Copy
    + PartialOrd
    + Send
    + Sync
    + std::fmt::Debug
    + Into<f64>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
    /// e^self
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// Sum in the way of a vectorised framework.
    fn sum(values: &[Self]) -> Self;
    /// Rounds to a dtype; f64 is not rounded.
    fn round_all(values: &mut [Self], dtype: Dtype);
    /// `[m, n] = [m, k] · [k, n]`; `a` and `b` may be stored as their transposes.
    fn product(a: (&[Self], bool), b: (&[Self], bool), extent: [usize; 3]) -> Vec<Self>;
}

impl Real for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }
    fn exp(self) -> f64 {
        self.exp()
    }
    fn ln(self) -> f64 {
        self.ln()
    }
    fn tanh(self) -> f64 {
        self.tanh()
    }
    fn sum(values: &[f64]) -> f64 {
        values.iter().sum()
    }
    fn round_all(_: &mut [f64], _: Dtype) {}

    fn product(a: (&[f64], bool), b: (&[f64], bool), [m, n, k]: [usize; 3]) -> Vec<f64> {
        let mut out = vec![0.0; m * n];
        for i in 0..m {
            for l in 0..k {
                let factor = if a.1 { a.0[l * m + i] } else { a.0[i * k + l] };
                for j in 0..n {
                    out[i * n + j] += factor * if b.1 { b.0[j * k + l] } else { b.0[l * n + j] };
                }
            }
        }
        out
    }
}

impl Real for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
    fn exp(self) -> f32 {
        self.exp()
    }
    fn ln(self) -> f32 {
        self.ln()
    }
    fn tanh(self) -> f32 {
        self.tanh()
    }
    fn sum(values: &[f32]) -> f32 {
        let parts = values.chunks_exact(32);
        let rest: f32 = parts.remainder().iter().sum();
        let lanes = parts.fold([0.0; 32], |mut lanes, part| {
            lanes.iter_mut().zip(part).for_each(|(lane, value)| *lane += value);
            lanes
        });
        lanes.iter().sum::<f32>() + rest
    }
    fn round_all(values: &mut [f32], dtype: Dtype) {
        round(values, dtype);
    }

    fn product(a: (&[f32], bool), b: (&[f32], bool), [m, n, k]: [usize; 3]) -> Vec<f32> {
        let mut out = vec![0.0; m * n];
        let left = if a.1 { View::new(a.0, k, m).t() } else { View::new(a.0, m, k) };
        let right = if b.1 { View::new(b.0, n, k).t() } else { View::new(b.0, k, n) };
        product(&mut out, left, right, 1.0, false);
        out
    }
}
