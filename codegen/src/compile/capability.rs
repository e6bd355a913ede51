//! Which compiled code a GPU runs.

use super::Form;
use super::occupancy::Architecture;

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Compute capability times ten.
    pub number: u32,
    /// Whether it runs machine code; the interpreter takes PTX only.
    pub cubins: bool,
}

/// Compute capabilities of integrated GPUs. Machine code of a GPU on a board does not run on them, nor theirs on it.
const INTEGRATED: [u32; 4] = [87, 88, 101, 110];

impl Capability {
    /// The capability of a GPU by its version, such as 9 and 0.
    pub fn of(major: u32, minor: u32) -> Capability {
        Capability { number: major * 10 + minor, cubins: true }
    }

    /// All code that runs, the best first; none on a device older than all architectures.
    ///
    /// First the machine code of its own architecture, then that of earlier ones of the same major version. Then PTX, of
    /// which the driver makes machine code: of its own architecture and of every earlier one, so that a device that is
    /// newer than this program has kernels too.
    pub fn codes(self) -> Vec<(Form, Architecture)> {
        let known = || Architecture::general().rev().filter(|a| a.number <= self.number);
        let cubins = known().filter(|a| self.cubins && self.runs_cubin_of(a.number));
        cubins.map(|a| (Form::Cubin, a)).chain(known().map(|a| (Form::Ptx, a))).collect()
    }

    fn runs_cubin_of(self, number: u32) -> bool {
        let integrated = INTEGRATED.contains(&self.number) || INTEGRATED.contains(&number);
        number == self.number || !integrated && number / 10 == self.number / 10
    }
}
