//! Cross-entropy with the options that change what is computed for every logit.
//!
//! z = logit_scale · (x · w) + bias, y = softcap · tanh(z / softcap) or y = z, and per token
//!
//! loss = hard · (lse - y_target) + Σ_j s_j (lse - y_j) + z_loss · lse²
//!
//! with `hard` = (1 - smoothing) · class weight of the target, and s_j = smoothing / V · class weight of j over the whole
//! vocabulary.

use super::{Loss, Optional};
use crate::error::SpecError;
use crate::logits::{Logit, LogitsForm};
use crate::program::{Expr, Graph, Program, ProgramError};

/// The options of cross-entropy that have kernels of their own; the others are scalars and row values of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CrossEntropyForm {
    /// Logits are capped: y = c tanh(z / c).
    pub softcap: bool,
    /// Targets are smoothed over the vocabulary.
    pub smoothing: bool,
    /// The class of the largest logit is an output.
    pub argmax: bool,
}

impl CrossEntropyForm {
    /// All forms, the one without options first.
    pub fn all() -> Vec<CrossEntropyForm> {
        let bit = |i: usize, bit: usize| i >> bit & 1 == 1;
        (0..8).map(|i| CrossEntropyForm { softcap: bit(i, 0), smoothing: bit(i, 1), argmax: bit(i, 2) }).collect()
    }

    /// Those of a list of names, such as `cross_entropy,cross_entropy_softcap`, or `all`.
    ///
    /// # Errors
    /// [`SpecError::Unknown`] for a name that is none, with those that are.
    pub fn list(names: &str) -> Result<Vec<CrossEntropyForm>, SpecError> {
        let all = CrossEntropyForm::all();
        if names == "all" {
            return Ok(all);
        }
        let one = |name: &str| {
            all.iter().copied().find(|form| form.name() == name).ok_or_else(|| SpecError::Unknown {
                option: "loss",
                value: name.to_owned(),
                expected: format!("all, {}", all.iter().map(|form| form.name()).collect::<Vec<_>>().join(", ")),
            })
        };
        names.split(',').map(|name| one(name.trim())).collect()
    }

    /// Name of the loss, `cross_entropy_softcap` for instance.
    pub fn name(self) -> String {
        let part = |wanted: bool, name: &'static str| if wanted { name } else { "" };
        let CrossEntropyForm { softcap, smoothing, argmax } = self;
        let parts = [part(softcap, "_softcap"), part(smoothing, "_smoothing"), part(argmax, "_argmax")];
        format!("cross_entropy{}", parts.concat())
    }

    /// The programs.
    ///
    /// The target column is kept out of the sum, of the stored tile and of the reference: with `rest` the mass of all
    /// other columns, p_target - 1 = -rest / total and lse - y_target = ln(1 + rest / e_target) have full relative
    /// precision also where p_target is near 1, which a difference of rounded probabilities has not, and the stored values
    /// of the other columns stay within the range of a narrow dtype. e_target may overflow to infinity; then p_target is 1.
    ///
    /// # Errors
    /// None for the programs as they stand; the verifier's type is kept so that callers treat every loss alike.
    pub fn loss(self) -> Result<Loss, ProgramError> {
        let loss = Loss {
            name: self.name(),
            statistics: self.statistics()?,
            finish: self.finish()?,
            gradient: self.gradient()?,
            operand: if self.smoothing { Some(self.operand()?) } else { None },
            optional: Some(self.optional()?),
        };
        loss.verify()?;
        Ok(loss)
    }

    /// The largest logit and its id, which only the epilogue sees.
    fn optional(self) -> Result<Optional, ProgramError> {
        let [whole, fewer] = [true, false].map(|argmax| CrossEntropyForm { argmax, ..self });
        Ok(Optional {
            computed: self.argmax,
            statistics: whole.statistics()?,
            finish: whole.finish()?,
            required_statistics: fewer.statistics()?.rules().len(),
            required_outputs: fewer.finish()?.row_outputs().count(),
        })
    }

    /// y, and its derivative by z where that is not 1.
    fn capped<'g>(self, g: &'g Graph) -> (Expr<'g>, Option<Expr<'g>>) {
        let Logit { y, slope } = LogitsForm { softcap: self.softcap }.of(g);
        (y, slope)
    }

    fn statistics(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("{}.statistics", self.name()));
        let (y, slope) = self.capped(&g);
        let exists = g.column_id().less_than(g.classes());
        let y = exists.select(y, f32::NEG_INFINITY);
        let is_target = g.column_id().equals(g.target());
        let rest = is_target.select(f32::NEG_INFINITY, y).exp_above(g.reference());
        g.row_output("rest", rest.sum());
        g.row_output("target_logit", is_target.select(y, 0.0).sum());
        if self.smoothing {
            // The target is apart here too, since the reference does not know it.
            let share = exists.select(g.column("class_weight") * g.uniform("smoothing_share"), 0.0);
            let of_rest = is_target.select(0.0, share);
            g.row_output("target_share", is_target.select(share, 0.0).sum());
            g.row_output("rest_share", of_rest.sum());
            // A class without a share may be masked: it adds nothing, and not zero times -inf.
            let distance = of_rest * y.above(g.reference());
            g.row_output("rest_distance", of_rest.equals(0.0).select(0.0, distance).sum());
        }
        if let Some(slope) = slope {
            g.row_output("target_slope", is_target.select(slope, 0.0).sum());
        }
        if self.argmax {
            g.row_output("argmax", y.id_of_largest(g.column_id().float() + g.uniform("first_class")));
            g.row_output("largest", y.largest());
        }
        g.store(slope.map_or(rest, |slope| rest * slope));
        g.finish()
    }

    /// What the smoothed part of the target distribution is multiplied by W for: class weight times dy/dz.
    fn operand(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("{}.operand", self.name()));
        g.store(self.spread(&g));
        g.finish()
    }

    fn spread<'g>(self, g: &'g Graph) -> Expr<'g> {
        let weight = g.column("class_weight");
        let weight = if self.softcap { self.capped(g).1.map_or(weight, |slope| weight * slope) } else { weight };
        g.column_id().less_than(g.classes()).select(weight, 0.0)
    }

    fn finish(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("{}.finish", self.name()));
        let softmax = Softmax::of(&g);
        let (scale, hard) = (g.uniform("logit_scale"), g.row("hard"));
        let hard_and_share = if self.smoothing { hard + g.row("target_share") } else { hard };
        // A target without weight may be masked, and then there may be no others.
        let mut loss = hard_and_share.equals(0.0).select(0.0, hard_and_share * softmax.cross_entropy);
        // What p is multiplied by besides `hard`.
        let mut soft = g.uniform("z_loss") * 2.0 * softmax.lse;
        if self.smoothing {
            // Σ s_j (lse - y_j) over the other classes, with both measured from the reference.
            let share = g.row("rest_share");
            let rest = share * softmax.log_total - g.row("rest_distance");
            loss = loss + share.equals(0.0).select(0.0, rest);
            soft = soft + g.uniform("smoothing_total");
        }
        loss = loss + g.uniform("z_loss") * softmax.lse * softmax.lse;
        g.row_output("loss", softmax.dead.select(f32::NAN, loss));
        g.row_output("lse", softmax.dead.select(f32::NEG_INFINITY, softmax.lse));

        let (upstream, by_lse) = (g.row("upstream"), g.row("lse_upstream"));
        let slope = if self.softcap { g.row("target_slope") } else { g.constant(1.0) };
        let others = upstream * (hard + soft) + by_lse;
        let at_target = upstream * (soft * softmax.p_target - hard * softmax.p_rest) + by_lse * softmax.p_target;
        g.row_output("a_factor", softmax.dead.select(0.0, scale * others / softmax.total));
        g.row_output("target_factor", softmax.dead.select(0.0, scale * slope * at_target));
        // The derivative at the target lies between what it is where p_target is 0 and where it is 1.
        let certain = upstream * soft + by_lse;
        let mut bound = others.magnitude().max((upstream * hard).magnitude()).max(certain.magnitude());
        if self.smoothing {
            let factor = -(scale * upstream * g.uniform("smoothing_share"));
            g.row_output("operand_factor", softmax.dead.select(0.0, factor));
            bound = bound + upstream.magnitude() * g.uniform("smoothing_total");
        }
        g.row_output("bound", softmax.dead.select(0.0, bound * scale.magnitude()));
        if self.argmax {
            // A NaN among the logits leaves no largest one.
            let largest = g.row("largest");
            g.row_output("argmax", largest.equals(largest).select(g.row("argmax"), -1.0));
        }
        g.finish()
    }

    fn gradient(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("{}.gradient", self.name()));
        let at_target = g.column_id().equals(g.target()).select(g.row("target_factor"), 0.0);
        let mut derivative = g.stored().mul_add(g.row("a_factor"), at_target);
        if self.smoothing {
            derivative = self.spread(&g).mul_add(g.row("operand_factor"), derivative);
        }
        let derivative = derivative * g.row("upstream");
        g.store(derivative);
        // The factors hold the logit scale; the bias is added after it.
        g.column_gradient("bias", derivative / g.uniform("logit_scale"));
        g.finish()
    }
}

/// Cross-entropy without options that have kernels of their own.
///
/// # Errors
/// As [`CrossEntropyForm::loss`].
pub fn cross_entropy() -> Result<Loss, ProgramError> {
    CrossEntropyForm::default().loss()
}

/// What the finish program of a softmax knows of a token, from the statistics `rest` and `target_logit`.
pub struct Softmax<'g> {
    /// Whether all logits are -inf: there is no distribution, the loss is NaN and all gradients are zero.
    pub dead: Expr<'g>,
    /// Sum of e^(y - reference) over all classes.
    pub total: Expr<'g>,
    /// Probability of the target.
    pub p_target: Expr<'g>,
    /// Probability of all other classes, with full relative precision.
    pub p_rest: Expr<'g>,
    /// lse - y_target, with full relative precision.
    pub cross_entropy: Expr<'g>,
    /// Logarithm of the sum of e^y, measured from the reference.
    pub log_total: Expr<'g>,
    /// Logarithm of the sum of e^y.
    pub lse: Expr<'g>,
}

impl<'g> Softmax<'g> {
    /// From the row statistics of one of the cross-entropies.
    pub fn of(g: &'g Graph) -> Softmax<'g> {
        let (rest, target_logit, reference) = (g.row("rest"), g.row("target_logit"), g.reference());
        let e_target = target_logit.exp_above(reference);
        let total = rest + e_target;
        let unlikely = e_target.less_than(rest);
        // Both forms are exact; each is used where it does not overflow.
        let near = (rest / e_target).ln_1p();
        let above = target_logit.above(reference);
        let far = total.ln() - above;
        let p_rest = rest / total;
        Softmax {
            dead: total.equals(0.0),
            total,
            p_target: unlikely.select(e_target / total, g.constant(1.0) - p_rest),
            p_rest,
            cross_entropy: unlikely.select(far, near),
            log_total: unlikely.select(total.ln(), above + near),
            lse: unlikely.select(total.ln() - g.constant(0.0).above(reference), target_logit + near),
        }
    }
}
