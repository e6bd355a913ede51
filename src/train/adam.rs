//! Adam, on f32 weights.

use super::parameters::Parameters;
use rayon::prelude::*;

const RATE: f32 = 2e-3;
const FIRST: f32 = 0.9;
const SECOND: f32 = 0.999;
const EPSILON: f32 = 1e-8;

/// Moments of the gradients.
#[derive(Debug)]
pub struct Adam {
    mean: Parameters,
    square: Parameters,
    steps: i32,
}

impl Adam {
    /// An optimizer of weights of this shape.
    pub fn new(vocab: usize, hidden: usize) -> Adam {
        Adam { mean: Parameters::zeros(vocab, hidden), square: Parameters::zeros(vocab, hidden), steps: 0 }
    }

    /// One step along `scale * gradient`.
    pub fn step(&mut self, weights: &mut Parameters, gradient: &Parameters, scale: f32) {
        const PART: usize = 1 << 14;
        self.steps += 1;
        let rate = RATE / (1.0 - FIRST.powi(self.steps));
        let correction = 1.0 / (1.0 - SECOND.powi(self.steps));
        let moments = self.mean.parts_mut().into_iter().zip(self.square.parts_mut());
        for ((w, g), (m, s)) in weights.parts_mut().into_iter().zip(gradient.parts()).zip(moments) {
            let parts = w.par_chunks_mut(PART).zip(g.par_chunks(PART));
            parts.zip(m.par_chunks_mut(PART).zip(s.par_chunks_mut(PART))).for_each(|((w, g), (m, s))| {
                for (((w, g), m), s) in w.iter_mut().zip(g).zip(m).zip(s) {
                    let g = g * scale;
                    *m = FIRST * *m + (1.0 - FIRST) * g;
                    *s = SECOND * *s + (1.0 - SECOND) * g * g;
                    *w -= rate * *m / ((*s * correction).sqrt() + EPSILON);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_the_rate_against_the_sign() {
        let mut weights = Parameters::zeros(2, 1);
        let mut gradient = Parameters::zeros(2, 1);
        gradient.output = vec![5.0, -0.01];
        Adam::new(2, 1).step(&mut weights, &gradient, 0.5);
        assert!((weights.output[0] + RATE).abs() < 1e-6 && (weights.output[1] - RATE).abs() < 1e-6);
        assert!(weights.hidden.iter().all(|&w| w == 0.0));
    }
}
