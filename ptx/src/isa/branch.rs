//! Control flow.

use crate::error::ParseErrorKind;
use crate::syntax::Statement;

/// A change of the program counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Branch {
    Jump {
        /// Index of the next instruction.
        target: u32,
    },
    /// End of the thread.
    Exit,
    /// Abort of the kernel.
    Trap,
}

pub(super) fn decode<'t>(s: &mut Statement<'_, 't>, label: &mut Option<&'t str>) -> Result<Branch, ParseErrorKind> {
    // `.uni` promises that no lane diverges; nothing is gained by it here.
    s.take("uni");
    match s.head() {
        "bra" => {
            *label = Some(s.label()?);
            Ok(Branch::Jump { target: 0 })
        }
        "ret" | "exit" => Ok(Branch::Exit),
        "trap" => Ok(Branch::Trap),
        _ => Err(s.unsupported()),
    }
}
