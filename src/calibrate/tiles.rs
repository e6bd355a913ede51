//! Products of AMX tiles.

use super::Loop;

/// Operations of a step: four products of 16 x 16 x 32.
const STEP: usize = 4 * 16 * 16 * 32 * 2;

pub(super) fn from_l1() -> Option<Loop> {
    available().then_some(Loop { isa: "AMX", run: |steps| amx::products(steps, amx::Operands::InL1), step: STEP })
}

pub(super) fn from_registers() -> Option<Loop> {
    available().then_some(Loop { isa: "AMX", run: |steps| amx::products(steps, amx::Operands::InTiles), step: STEP })
}

/// Whether the processor has tiles and the system lets this process use them.
fn available() -> bool {
    vocabfuse_runtime::Cpu::available_targets().contains(&vocabfuse_runtime::Target::Amx)
}

#[cfg(not(target_arch = "x86_64"))]
mod amx {
    pub(super) enum Operands {
        InL1,
        InTiles,
    }

    /// There are no tiles to run on, so nobody asks.
    pub(super) fn products(_: usize, _: Operands) -> f32 {
        0.0
    }
}

#[cfg(target_arch = "x86_64")]
mod amx {
    use std::arch::asm;
    use std::hint::black_box;

    #[derive(Clone, Copy)]
    pub(super) enum Operands {
        /// Each tile product waits for one load.
        InL1,
        /// All operands are loaded once.
        InTiles,
    }

    /// Bytes of a tile.
    const TILE: usize = 1024;
    /// Steps until operands repeat: 8 of 4 tiles are 32 KB, which L1 holds whole.
    const OPERANDS: usize = 8 * 4 * TILE;
    /// bf16 of 2^-8, so that sums grow slowly.
    const VALUE: u16 = 0x3b80;

    /// Eight tiles of 16 rows of 64 bytes, by palette 1.
    #[repr(C, align(64))]
    struct Configuration([u8; 64]);

    #[repr(C, align(64))]
    struct Aligned<T, const N: usize>([T; N]);

    /// The sum of all elements of four tiles, after steps of 32 products of 2^-16 each to every one.
    pub(super) fn products(steps: usize, operands: Operands) -> f32 {
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = 64; // bytes of a row
            configuration.0[48 + tile] = 16; // rows
        }
        let values = black_box(Box::new(Aligned([VALUE; OPERANDS / 2])));
        let mut sums = Aligned([0_f32; TILE]);
        let mask = match operands {
            Operands::InL1 => OPERANDS - 1,
            Operands::InTiles => 0,
        };
        // SAFETY: tiles are there, or the loop is not handed out. They live in this one block only, from the configuration
        // to the release; loads stay within `values`, whose size is a power of two, since the offset is masked by it, and the
        // four stores fill `sums`.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{values} + {row}]",
                "tileloadd tmm5, [{values} + {row} + 1024]",
                "tileloadd tmm6, [{values} + {row} + 2048]",
                "tileloadd tmm7, [{values} + {row} + 3072]",
                "test {steps}, {steps}",
                "jz 5f",
                "test {mask}, {mask}",
                "jz 4f",
                "3:",
                "lea {at}, [{values} + {offset}]",
                "tileloadd tmm6, [{at} + {row} + 2048]",
                "tileloadd tmm4, [{at} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{at} + {row} + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{at} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {offset}, 4096",
                "and {offset}, {mask}",
                "dec {steps}",
                "jnz 3b",
                "jmp 5f",
                "4:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {steps}",
                "jnz 4b",
                "5:",
                "tilestored [{sums} + {row}], tmm0",
                "tilestored [{sums} + {row} + 1024], tmm1",
                "tilestored [{sums} + {row} + 2048], tmm2",
                "tilestored [{sums} + {row} + 3072], tmm3",
                "tilerelease",
                configuration = in(reg) &raw const configuration,
                values = in(reg) values.0.as_ptr(),
                row = in(reg) 64_usize,
                steps = inout(reg) steps => _,
                mask = in(reg) mask,
                offset = inout(reg) 0_usize => _,
                at = out(reg) _,
                sums = in(reg) sums.0.as_mut_ptr(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        sums.0.iter().sum()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use vocabfuse_amx_emulator::{Backend, install, thread_counters};

        #[test]
        fn every_step_is_four_products_of_32_pairs() {
            let Ok(backend) = install() else {
                vocabfuse_testing::skipped(vocabfuse_testing::Need::Amx, "no AMX here and nothing to emulate it on");
                return;
            };
            for (operands, loads) in [(Operands::InL1, 4 + 4 * 20), (Operands::InTiles, 4)] {
                let before = thread_counters();
                let total = products(20, operands);
                // Each step adds 32 products of 2^-16 to each of 4 x 256 sums.
                assert_eq!(total, 20.0 * 32.0 / 65536.0 * 1024.0);
                let run = thread_counters().since(&before);
                if backend == Backend::Emulated {
                    assert_eq!((run.tile_products(), run.tile_loads()), (4 * 20, loads));
                }
            }
            assert_eq!(products(0, Operands::InL1), 0.0);
        }
    }
}
