//! How a raw dot product becomes a logit, and how the logit depends on it: one transform for losses and operators.

use crate::bundle::fingerprint;
use crate::program::{Expr, Graph, Program, ProgramError};

/// z = logit_scale (x · w) + bias, and the logit is y = z, or y = softcap tanh(z / softcap).
///
/// The derivative of y by the dot product is that of y by z, the slope, times the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogitsForm {
    /// Logits are capped.
    pub softcap: bool,
}

/// A logit in a program.
#[derive(Clone, Copy)]
pub struct Logit<'g> {
    /// y
    pub y: Expr<'g>,
    /// dy/dz where that is not 1 everywhere.
    pub slope: Option<Expr<'g>>,
}

impl LogitsForm {
    /// All forms.
    pub const ALL: &[LogitsForm] = &[LogitsForm { softcap: false }, LogitsForm { softcap: true }];

    /// Name: part of kernel names.
    pub fn name(self) -> &'static str {
        if self.softcap { "softcap" } else { "affine" }
    }

    /// The logit of a program that reads dot products, the uniforms `logit_scale` and `softcap`, and the column `bias`.
    pub fn of(self, g: &Graph) -> Logit<'_> {
        let z = g.logit().mul_add(g.uniform("logit_scale"), g.column("bias"));
        if !self.softcap {
            return Logit { y: z, slope: None };
        }
        let t = z / g.uniform("softcap");
        // 1 - tanh² has no digit left where logits reach the cap; 4 q / (1 + q)² with q = e^(-2 |t|) has all of them.
        let q = (t.magnitude() * -2.0).exp();
        Logit { y: t.tanh() * g.uniform("softcap"), slope: Some(q * 4.0 / ((q + 1.0) * (q + 1.0))) }
    }

    /// The program that stores y in place of the dot product.
    ///
    /// # Errors
    /// None for the program as it stands; the verifier's type is kept so that callers treat every program alike.
    pub fn program(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("logits.{}", self.name()));
        g.store(self.of(&g).y);
        g.finish()
    }

    /// Hash of the programs, as [`fingerprint`].
    ///
    /// # Errors
    /// As [`LogitsForm::program`].
    pub fn fingerprint(self) -> Result<String, ProgramError> {
        Ok(fingerprint(&(self.program()?, self.slope_program()?)))
    }

    /// The program that stores the slope, if the form has one. It has the operations and inputs of [`LogitsForm::program`],
    /// in the same order, so that one kernel can run both.
    ///
    /// # Errors
    /// As [`LogitsForm::program`].
    pub fn slope_program(self) -> Result<Option<Program>, ProgramError> {
        let g = Graph::new(&format!("logits.{}.slope", self.name()));
        let Some(slope) = self.of(&g).slope else { return Ok(None) };
        g.store(slope);
        g.finish().map(Some)
    }
}
