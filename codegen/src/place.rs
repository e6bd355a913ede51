//! Modules of CPU kernels.

use crate::spec::{Precision, Target};
use std::fmt;

/// Where CPU kernels share a prelude and a module: a target and, where its products are not exact, their precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Machine.
    pub target: Target,
    /// How its products of f32 are computed where they are not exact.
    pub precision: Option<Precision>,
}

/// The name of the module: `amx`, `amx_bf16x3`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.target.as_str())?;
        self.precision.map_or(Ok(()), |precision| write!(f, "_{precision}"))
    }
}
