//! Bounds of cross-entropy.

use super::gradients::{Derivative, Sums};
use super::logits::{BLOCK, Logits, Row, Softmax};
use super::{Arithmetic, EPSILON, TINY};
use crate::problem::{Outputs, Problem};

/// What the outputs of a problem may be off by: values of loss and lse, rows of dX and dW, values of dBias. `truth` is what
/// they should be.
pub fn cross_entropy(problem: &Problem<'_, f64>, truth: &Outputs<f64>, arithmetic: Arithmetic) -> Outputs<f64> {
    let logits = Logits::new(problem.distribution(), problem.vocab, arithmetic);
    let mut sums = Sums::new(&logits, arithmetic);
    let tokens = problem.tokens();
    let (mut losses, mut lse) = (vec![0.0; tokens], vec![0.0; tokens]);
    let factors = problem.gradient_factors();
    for first in (0..tokens).step_by(BLOCK) {
        let block = first..tokens.min(first + BLOCK);
        for (token, row) in block.clone().zip(logits.rows(block)) {
            let Some(target) = problem.target(token) else { continue };
            let Some(softmax) = &row.softmax else {
                if row.is_odd() {
                    // Both may be infinite.
                    (losses[token], lse[token]) = (f64::INFINITY, f64::INFINITY);
                    sums.unknown(None);
                }
                continue;
            };
            let of_token = Token::new(problem, (&row, softmax), target, [factors[token], problem.lse_factor(token)]);
            lse[token] = of_token.lse_error;
            losses[token] = of_token.loss();
            let derivatives: Vec<Derivative> =
                (0..problem.vocab).map(|class| of_token.derivative(class, arithmetic.filter)).collect();
            sums.token(token, &derivatives, of_token.largest_product());
        }
    }
    let dbias = truth.dbias.as_deref().unwrap_or_default();
    let rounding = |want: f64| TINY + if want.is_finite() { 4.0 * EPSILON * want.abs() } else { 0.0 };
    let losses = problem.reduce_sizes(losses);
    let loss = losses.iter().zip(&truth.loss).map(|(bound, want)| bound + rounding(*want)).collect();
    let rows = sums.rows(&truth.dx, &truth.dw, dbias);
    let dbias = problem.bias.map(|_| rows.dbias);
    Outputs { loss, lse, argmax: vec![], dx: rows.dx, dw: rows.dw, dbias }
}

/// One token that has a target and a distribution.
struct Token<'a> {
    problem: &'a Problem<'a, f64>,
    row: &'a Row,
    softmax: &'a Softmax,
    target: usize,
    /// What derivatives of the loss are multiplied by, and those of lse.
    factor: f64,
    lse_factor: f64,
    /// What the target distribution gives to the target alone, and to all classes beside that.
    hard: f64,
    shares: f64,
    /// Probability of all classes but the target, and what it is off by.
    others: f64,
    of_others: f64,
    /// What the logarithm of the ratio of the two is off by.
    of_surprise: f64,
    lse_error: f64,
}

impl<'a> Token<'a> {
    fn new(
        problem: &'a Problem<'a, f64>,
        (row, softmax): (&'a Row, &'a Softmax),
        target: usize,
        [factor, lse_factor]: [f64; 2],
    ) -> Token<'a> {
        let beside = || (0..softmax.p.len()).filter(|class| *class != target);
        let others: f64 = beside().map(|class| softmax.p[class]).sum();
        let error: f64 = beside().map(|class| softmax.error(class)).sum();
        let of_ratio = softmax.relative(target) * (others + error) + error + 4.0 * EPSILON * others;
        let of_target = row.rounding[target] + softmax.of_log_total;
        Token {
            problem,
            row,
            softmax,
            target,
            factor,
            lse_factor,
            hard: problem.smoothed(target, target).0,
            shares: (0..problem.vocab).map(|class| problem.smoothed(target, class).1).sum(),
            others,
            of_others: of_ratio.min(1.0),
            of_surprise: of_ratio.min(of_target),
            lse_error: softmax.of_log_total + 2.0 * EPSILON * softmax.lse().abs() + TINY,
        }
    }

    fn z_loss(&self) -> f64 {
        self.problem.options.z_loss
    }

    /// What p is multiplied by for all classes: the shares, and the derivative of z-loss.
    fn soft(&self) -> f64 {
        self.shares + 2.0 * self.z_loss() * self.softmax.lse()
    }

    fn loss(&self) -> f64 {
        let Softmax { max, log_total, p, of_log_total, .. } = self.softmax;
        let surprise = (max - self.row.y[self.target]) + log_total;
        let of_hard =
            if self.hard == 0.0 { 0.0 } else { self.hard.abs() * (self.of_surprise + 4.0 * EPSILON * surprise.abs()) };
        let of_class = |class: usize| {
            let (share, below) = (self.problem.smoothed(self.target, class).1, max - self.row.y[class]);
            let error = self.row.rounding[class] + of_log_total + 4.0 * EPSILON * (below + log_total.abs());
            if share == 0.0 { 0.0 } else { share.abs() * error }
        };
        let lse = self.softmax.lse().abs();
        let of_lse = self.z_loss() * ((2.0 * lse + self.lse_error) * self.lse_error + 4.0 * EPSILON * lse * lse);
        let sum = of_hard + (0..p.len()).map(of_class).sum::<f64>() + of_lse;
        if sum.is_finite() { sum } else { 0.0 }
    }

    /// The largest product of a factor and a probability, of classes beside the target.
    fn largest_product(&self) -> f64 {
        let beside = self.softmax.p.iter().enumerate().filter(|(class, _)| *class != self.target);
        let largest = beside.map(|(_, p)| *p).fold(0.0, f64::max);
        (self.factor.abs() * (self.hard.abs() + self.soft().abs()) + self.lse_factor.abs()) * largest
    }

    fn derivative(&self, class: usize, filter: Option<f64>) -> Derivative {
        let (p, factor, at_target) = (self.softmax.p[class], self.factor.abs(), class == self.target);
        let share = self.problem.smoothed(self.target, class).1;
        let (of_others, of_target) = if at_target { (0.0, self.hard * self.others) } else { (self.hard, 0.0) };
        let factor_of_p = factor * (of_others.abs() + self.soft().abs()) + self.lse_factor.abs();
        let of_p = factor_of_p * p;
        let size = of_p + factor * (share.abs() + of_target.abs());
        // The factor of z-loss is lse itself.
        let of_lse = factor * 2.0 * self.z_loss() * self.lse_error * self.softmax.most(class);
        let at_target = if at_target { self.hard.abs() * self.of_others } else { 0.0 };
        let error = factor_of_p * self.softmax.error(class) + of_lse + factor * at_target;
        let (slope, of_slope) = self.row.slope(class);
        let omitted = filter.map_or(0.0, |filter| {
            let by_loss = (of_others + self.soft()) * p - share - of_target;
            let value = self.factor * by_loss + self.lse_factor * p;
            let within = |value: f64| if slope * value <= 1.01 * filter * self.most() { value } else { 0.0 };
            within(of_p) + within(value.abs())
        });
        let error = (slope + of_slope) * error + size * of_slope;
        // No product with a factor that f32 cannot hold is a number.
        let largest = factor_of_p * self.problem.options.logit_scale.abs().max(1.0);
        let error = if largest > f64::from(f32::MAX) { f64::INFINITY } else { error };
        Derivative { size: slope * size, error, omitted: slope * omitted }
    }

    /// The most that a derivative can be, as the gradient filter takes it.
    fn most(&self) -> f64 {
        let by_lse = 2.0 * self.z_loss() * self.softmax.lse().abs();
        self.factor.abs() * (self.hard + 2.0 * self.shares + by_lse) + self.lse_factor.abs()
    }
}
