//! Whether AMX tiles can be used here.

use std::sync::OnceLock;

/// What is missing; `None` if tiles can be used. The first call asks the system for its permission, which holds for the
/// calling thread and for all threads that are started afterwards.
pub(super) fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<&'static str>> = OnceLock::new();
    *MISSING.get_or_init(|| {
        let of_system = || (!permitted()).then_some("the system does not permit AMX tiles");
        Tiles::reported().missing().or_else(of_system)
    })
}

/// What the processor reports of tiles.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    /// Bits of CPUID leaf 7.
    amx_tile: bool,
    amx_bf16: bool,
    /// Highest palette, EAX of leaf 0x1D; 0 where there is no such leaf.
    palettes: u32,
    /// EAX, EBX and ECX of leaf 0x1D for palette 1; zeros where there is none.
    palette: [u32; 3],
}

impl Tiles {
    fn reported() -> Tiles {
        const TILE_INFORMATION: u32 = 0x1d;
        let features = raw_cpuid::CpuId::new().get_extended_feature_info();
        // Beyond the highest leaf a processor reports that of another one.
        let leaf = |sub| match raw_cpuid::cpuid!(0).eax {
            highest if highest < TILE_INFORMATION => [0; 3],
            _ => {
                let leaf = raw_cpuid::cpuid!(TILE_INFORMATION, sub);
                [leaf.eax, leaf.ebx, leaf.ecx]
            }
        };
        let palettes = leaf(0)[0];
        Tiles {
            amx_tile: features.as_ref().is_some_and(|f| f.has_amx_tile()),
            amx_bf16: features.as_ref().is_some_and(|f| f.has_amx_bf16()),
            palettes,
            palette: if palettes > 0 { leaf(1) } else { [0; 3] },
        }
    }

    /// What the kernels need and is not there.
    fn missing(self) -> Option<&'static str> {
        let Tiles { amx_tile, amx_bf16, palettes, palette: [sizes, names, rows] } = self;
        let (low, high) = (|register: u32| register & 0xffff, |register: u32| register >> 16);
        if !amx_tile || !amx_bf16 {
            Some("the processor lacks AMX tiles or their products of bf16")
        } else if palettes == 0 {
            Some("the processor has AMX, but reports no palette of tiles (CPUID leaf 0x1D)")
        } else if low(sizes) < 8192 || high(sizes) < 1024 || low(names) < 64 || high(names) < 8 || low(rows) < 16 {
            Some("the processor has AMX, but palette 1 (CPUID leaf 0x1D) has less than 8 tiles of 16 rows of 64 bytes")
        } else {
            None
        }
    }
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: the system call takes two integers and changes nothing but the permission mask of the process.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Sapphire Rapids reports.
    const USABLE: Tiles =
        Tiles { amx_tile: true, amx_bf16: true, palettes: 1, palette: [1024 << 16 | 8192, 8 << 16 | 64, 16] };

    #[test]
    fn tiles_need_both_features_and_a_palette_of_full_size() {
        assert_eq!(USABLE.missing(), None);
        assert_eq!(Tiles { palettes: 2, palette: [2048 << 16 | 16384, 16 << 16 | 128, 32], ..USABLE }.missing(), None);
        let features = "the processor lacks AMX tiles or their products of bf16";
        assert_eq!(Tiles { amx_tile: false, ..USABLE }.missing(), Some(features));
        assert_eq!(Tiles { amx_bf16: false, ..USABLE }.missing(), Some(features));
        let without = Tiles { palettes: 0, palette: [0; 3], ..USABLE }.missing();
        assert_eq!(without, Some("the processor has AMX, but reports no palette of tiles (CPUID leaf 0x1D)"));
    }

    #[test]
    fn a_palette_with_less_of_anything_is_refused() {
        let [sizes, names, rows] = USABLE.palette;
        for palette in [
            [0; 3],
            [1024 << 16 | 4096, names, rows],
            [512 << 16 | 8192, names, rows],
            [sizes, 4 << 16 | 64, rows],
            [sizes, 8 << 16 | 32, rows],
            [sizes, names, 8],
        ] {
            let missing = Tiles { palette, ..USABLE }.missing();
            assert!(missing.is_some_and(|text| text.contains("8 tiles of 16 rows of 64 bytes")), "{palette:?}");
        }
    }
}
