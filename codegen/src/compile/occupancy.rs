//! How many blocks of a kernel fit on a multiprocessor.

use crate::error::SpecError;
use std::str::FromStr;

/// Limits of a multiprocessor, by compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// Compute capability times ten.
    pub number: u32,
    /// Whether the architecture-specific instructions are used (the `a` in sm_90a).
    pub specific: bool,
    /// Threads.
    pub threads: u32,
    /// Blocks.
    pub blocks: u32,
    /// Bytes of shared memory, of which every block takes 1 KB besides its own.
    pub shared: usize,
    /// Most bytes of shared memory of a block.
    pub shared_a_block: usize,
}

const REGISTERS: u32 = 65536;
const RESERVED: usize = 1024;

impl Architecture {
    /// The architectures that kernels of target sm_80 are compiled for, and sm_90a. The limits are those of the table of
    /// technical specifications in the CUDA programming guide; all have 65536 registers a multiprocessor.
    pub const ALL: &[Architecture] = &[
        Architecture::of(80, 2048, 32, 164),
        Architecture::of(86, 1536, 16, 100),
        Architecture::of(87, 1536, 16, 164),
        Architecture::of(89, 1536, 24, 100),
        Architecture::of(90, 2048, 32, 228),
        Architecture { specific: true, ..Architecture::of(90, 2048, 32, 228) },
        Architecture::of(100, 2048, 32, 228),
        Architecture::of(103, 2048, 32, 228),
        Architecture::of(120, 1536, 24, 100),
        Architecture::of(121, 1536, 24, 100),
    ];

    const fn of(number: u32, threads: u32, blocks: u32, shared_kb: usize) -> Architecture {
        let shared = shared_kb << 10;
        Architecture { number, specific: false, threads, blocks, shared, shared_a_block: shared - RESERVED }
    }

    /// Those whose code needs no architecture-specific instructions, by number.
    pub fn general() -> impl DoubleEndedIterator<Item = Architecture> {
        Architecture::ALL.iter().copied().filter(|a| !a.specific)
    }

    /// The architecture of a name such as `sm_80`.
    pub fn parse(name: &str) -> Option<Architecture> {
        Architecture::ALL.iter().copied().find(|a| a.name() == name)
    }

    /// Those of a list such as `sm_80,sm_90`.
    ///
    /// # Errors
    /// [`SpecError::Unknown`] for a name that is none, with those that are.
    pub fn list(names: &str) -> Result<Vec<Architecture>, SpecError> {
        names.split(',').map(|name| name.trim().parse()).collect()
    }

    /// The name: `sm_80`.
    pub fn name(self) -> String {
        format!("sm_{}{}", self.number, if self.specific { "a" } else { "" })
    }
}

impl FromStr for Architecture {
    type Err = SpecError;

    fn from_str(name: &str) -> Result<Architecture, SpecError> {
        Architecture::parse(name).ok_or_else(|| SpecError::Unknown {
            option: "architecture",
            value: name.to_owned(),
            expected: Architecture::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Blocks and warps that fit on a multiprocessor; none if a block needs more than there is.
pub fn occupancy(on: Architecture, threads: u32, registers: u32, shared: usize) -> (u32, u32) {
    if shared > on.shared_a_block || threads == 0 || threads > 1024 {
        return (0, 0);
    }
    let warps = threads.div_ceil(32);
    // Registers are given out by 256 a warp, and a warp belongs to one of four schedulers.
    let a_warp = (registers * 32).next_multiple_of(256).max(256);
    let by_registers = REGISTERS / 4 / a_warp * 4 / warps;
    let by_shared = (on.shared / (shared + RESERVED).next_multiple_of(128)) as u32;
    let blocks = by_registers.min(by_shared).min(on.threads / (warps * 32)).min(on.blocks);
    (blocks, blocks * warps)
}
