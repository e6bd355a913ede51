//! How many blocks of a kernel fit on a multiprocessor.

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
    /// The architectures that kernels of target sm_80 are compiled for, and sm_90a.
    pub const ALL: &[Architecture] = &[
        Architecture {
            number: 80,
            specific: false,
            threads: 2048,
            blocks: 32,
            shared: 164 << 10,
            shared_a_block: 163 << 10,
        },
        Architecture {
            number: 86,
            specific: false,
            threads: 1536,
            blocks: 16,
            shared: 100 << 10,
            shared_a_block: 99 << 10,
        },
        Architecture {
            number: 89,
            specific: false,
            threads: 1536,
            blocks: 24,
            shared: 100 << 10,
            shared_a_block: 99 << 10,
        },
        Architecture {
            number: 90,
            specific: false,
            threads: 2048,
            blocks: 32,
            shared: 228 << 10,
            shared_a_block: 227 << 10,
        },
        Architecture {
            number: 90,
            specific: true,
            threads: 2048,
            blocks: 32,
            shared: 228 << 10,
            shared_a_block: 227 << 10,
        },
    ];

    /// The architecture of a name such as `sm_80`.
    pub fn parse(name: &str) -> Option<Architecture> {
        Architecture::ALL.iter().copied().find(|a| a.name() == name)
    }

    /// The name: `sm_80`.
    pub fn name(self) -> String {
        format!("sm_{}{}", self.number, if self.specific { "a" } else { "" })
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
