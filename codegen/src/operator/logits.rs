//! Options of the logits that operators read.

use crate::program::{Graph, Program, ProgramError};

/// How a raw dot product becomes a logit: y = z = logit_scale (x · w) + bias, or y = softcap tanh(z / softcap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogitsForm {
    /// Logits are capped.
    pub softcap: bool,
}

impl LogitsForm {
    /// All forms.
    pub const ALL: &[LogitsForm] = &[LogitsForm { softcap: false }, LogitsForm { softcap: true }];

    /// Name: part of kernel names.
    pub fn name(self) -> &'static str {
        if self.softcap { "softcap" } else { "affine" }
    }

    /// The program: it stores y in place of the dot product.
    ///
    /// # Errors
    /// None for the program as it stands; the verifier's type is kept so that callers treat every program alike.
    pub fn program(self) -> Result<Program, ProgramError> {
        let g = Graph::new(&format!("logits.{}", self.name()));
        let z = g.logit().mul_add(g.uniform("logit_scale"), g.column("bias"));
        g.store(if self.softcap { (z / g.uniform("softcap")).tanh() * g.uniform("softcap") } else { z });
        g.finish()
    }
}
