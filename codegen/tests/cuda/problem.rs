//! One microbatch, and its results in f64.

use super::device::rounded;
use vocabfuse_codegen::Dtype;

#[derive(Clone)]
pub struct Problem {
    pub tokens: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub x: Vec<f64>,
    pub w: Vec<f64>,
    pub bias: Option<Vec<f32>>,
    pub targets: Vec<usize>,
    pub upstream: Vec<f32>,
    pub scale: f32,
}

pub struct Expected {
    pub loss: Vec<f64>,
    pub lse: Vec<f64>,
    pub dx: Vec<f64>,
    pub dw: Vec<f64>,
    pub dbias: Vec<f64>,
    /// Sums of the absolute values of the terms of dX, dW and dbias.
    pub terms: [Vec<f64>; 3],
}

/// A reproducible generator of numbers in [-1, 1).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn next(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

impl Problem {
    pub fn new(tokens: usize, hidden: usize, vocab: usize, dtype: Dtype, seed: u64) -> Problem {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut values =
            |count: usize, size: f64| (0..count).map(|_| rounded(size * numbers.next(), dtype)).collect::<Vec<_>>();
        let size = (8.0 / hidden as f64).sqrt();
        let (x, w) = (values(tokens * hidden, 1.7 * size.sqrt()), values(vocab * hidden, 1.7 * size.sqrt()));
        let bias = values(vocab, 0.5).into_iter().map(|b| b as f32).collect();
        let targets = (0..tokens).map(|_| numbers.bits() as usize % vocab).collect();
        let upstream = (0..tokens).map(|_| (numbers.next() as f32 + 1.5) / tokens as f32).collect();
        Problem { tokens, hidden, vocab, x, w, bias: Some(bias), targets, upstream, scale: 0.75 }
    }

    pub fn logits(&self) -> Vec<f64> {
        let mut y = vec![0.0; self.tokens * self.vocab];
        for token in 0..self.tokens {
            for column in 0..self.vocab {
                let (x, w) =
                    (&self.x[token * self.hidden..][..self.hidden], &self.w[column * self.hidden..][..self.hidden]);
                let dot: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                y[token * self.vocab + column] =
                    f64::from(self.scale) * dot + self.bias.as_ref().map_or(0.0, |b| f64::from(b[column]));
            }
        }
        y
    }

    pub fn expected(&self) -> Expected {
        let y = self.logits();
        let mut e = Expected {
            loss: vec![0.0; self.tokens],
            lse: vec![0.0; self.tokens],
            dx: vec![0.0; self.tokens * self.hidden],
            dw: vec![0.0; self.vocab * self.hidden],
            dbias: vec![0.0; self.vocab],
            terms: [self.tokens * self.hidden, self.vocab * self.hidden, self.vocab].map(|count| vec![0.0; count]),
        };
        let [dx_terms, dw_terms, dbias_terms] = &mut e.terms;
        for token in 0..self.tokens {
            let row = &y[token * self.vocab..][..self.vocab];
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max == f64::NEG_INFINITY {
                (e.loss[token], e.lse[token]) = (f64::NAN, f64::NEG_INFINITY);
                continue;
            }
            let nan = row.iter().any(|y| y.is_nan());
            let lse = if nan { f64::NAN } else { max + row.iter().map(|y| (y - max).exp()).sum::<f64>().ln() };
            e.lse[token] = lse;
            e.loss[token] = lse - row[self.targets[token]];
            for (column, y) in row.iter().enumerate() {
                let p = (y - lse).exp() - f64::from(u8::from(column == self.targets[token]));
                let q = p * f64::from(self.upstream[token]);
                e.dbias[column] += q;
                dbias_terms[column] += q.abs();
                let q = q * f64::from(self.scale);
                let (token, column) = (token * self.hidden, column * self.hidden);
                for h in 0..self.hidden {
                    let (to_x, to_w) = (q * self.w[column + h], q * self.x[token + h]);
                    e.dx[token + h] += to_x;
                    e.dw[column + h] += to_w;
                    dx_terms[token + h] += to_x.abs();
                    dw_terms[column + h] += to_w.abs();
                }
            }
        }
        e
    }
}

/// The error of the worst row, as a share of the largest sum of terms in that row; infinite where exactly one of both is NaN. A row
/// that is small beside others, or beside its own terms, is judged by its own terms, down to a thousandth of the largest: in 16 bits
/// numerators below that lose digits.
pub fn error(found: &[f32], expected: &[f64], terms: &[f64], width: usize) -> f64 {
    assert_eq!((found.len(), terms.len()), (expected.len(), expected.len()));
    let one = |(f, e): (&f32, &f64)| match (f.is_nan(), e.is_nan()) {
        (true, true) => 0.0,
        (false, false) if f64::from(*f) == *e => 0.0,
        (false, false) => (f64::from(*f) - e).abs(),
        _ => f64::INFINITY,
    };
    let floor = terms.iter().copied().fold(0.0, f64::max) / 1024.0;
    let of_row = |((found, expected), terms): ((&[f32], &[f64]), &[f64])| {
        let difference = found.iter().zip(expected).map(one).fold(0.0, f64::max);
        if difference == 0.0 { 0.0 } else { difference / terms.iter().copied().fold(floor, f64::max) }
    };
    found.chunks(width).zip(expected.chunks(width)).zip(terms.chunks(width)).map(of_row).fold(0.0, f64::max)
}
