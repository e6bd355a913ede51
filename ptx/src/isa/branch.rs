//! Control flow.

use crate::error::ParseErrorKind;
use crate::syntax::Statement;

/// A change of the program counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Branch {
    Jump {
        /// Index of the next instruction.
        target: u32,
        /// Whether all lanes that come to it go the same way, as `.uni` promises.
        uniform: bool,
    },
    /// End of the thread.
    Exit,
    /// Abort of the kernel.
    Trap,
}

pub(super) fn decode<'t>(s: &mut Statement<'_, 't>, label: &mut Option<&'t str>) -> Result<Branch, ParseErrorKind> {
    let uniform = s.take("uni");
    match s.head() {
        "bra" => {
            *label = Some(s.label()?);
            Ok(Branch::Jump { target: 0, uniform })
        }
        "ret" | "exit" => Ok(Branch::Exit),
        "trap" => Ok(Branch::Trap),
        _ => Err(s.unsupported()),
    }
}
