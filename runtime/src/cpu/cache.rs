//! The sizes of the caches, and how much kernels take at a time because of them.

use std::path::Path;
use std::sync::OnceLock;
use vocabfuse_kernels::abi::{Blocking, Geometry, MOST_GRAD_PANELS};

/// Bytes of the data caches of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caches {
    pub(crate) l1: usize,
    pub(crate) l2: usize,
}

/// What most processors of the last ten years have at least.
const SMALL: Caches = Caches { l1: 32 << 10, l2: 256 << 10 };

impl Caches {
    /// Those of this machine, read once: from the processor, else from the system, else assumed to be small.
    pub(crate) fn of_this_machine() -> Caches {
        static CACHES: OnceLock<Caches> = OnceLock::new();
        *CACHES.get_or_init(|| {
            from_processor().or_else(|| from_system(Path::new("/sys/devices/system/cpu/cpu0/cache"))).unwrap_or(SMALL)
        })
    }

    /// From pairs of level and bytes; `None` unless both levels are there.
    fn from_levels(levels: impl Iterator<Item = (u8, usize)>) -> Option<Caches> {
        let mut bytes = [0; 2];
        for (level, size) in levels {
            if let 1 | 2 = level {
                bytes[usize::from(level) - 1] = size;
            }
        }
        let [l1, l2] = bytes;
        (l1 > 0 && l2 >= l1).then_some(Caches { l1, l2 })
    }

    /// How much kernels take at a time, for a chunk and the padded H.
    pub(crate) fn blocking(self, geometry: &Geometry, chunk: usize, hidden: usize) -> Blocking {
        let Geometry { panel, packed, packed_transpose, row_block, .. } = *geometry;
        // At least one of what there is, and no fraction of it.
        let whole = |bytes: usize, of: usize, unit: usize| (bytes / of.max(1) / unit * unit).max(unit);
        // A panel of X beside a strip of W that passes: pairs, which have the transpose, are read half as often, so that a
        // panel of them may fill L1.
        let x = if packed_transpose > 0 { self.l1 } else { self.l1 / 2 };
        let inner = whole(x, panel * packed, panel);
        let kept = if geometry.slices_inner { inner.min(hidden.max(panel)) } else { hidden.max(panel) };
        // W beside E: a quarter where it is sliced, else half, since E then has the rest for itself.
        let share = if geometry.slices_inner { 4 } else { 2 };
        let most = if geometry.slices_inner { 256 } else { 512 };
        let vocabulary = power(whole(self.l2 / share, kept * packed, row_block)).clamp(32, most);
        let e_panel = chunk.min(geometry.e_columns) * panel * geometry.e_bytes;
        let grad_panels = geometry.grad_panels.min(MOST_GRAD_PANELS);
        Blocking {
            inner,
            vocabulary,
            panels: whole(self.l2 / 2, e_panel, 1),
            grad_panels,
            grad_blocks: whole(self.l2 / 4, panel * panel * packed, 1),
            grad_rows: power(whole(self.l2 / 2, grad_panels * panel * packed, row_block)).clamp(32, chunk.min(512)),
        }
    }
}

/// The largest power of two that is not above; it divides a chunk.
fn power(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

#[cfg(target_arch = "x86_64")]
fn from_processor() -> Option<Caches> {
    use raw_cpuid::CacheType::{Data, Unified};
    let caches = raw_cpuid::CpuId::new().get_cache_parameters()?;
    let data = caches.filter(|c| matches!(c.cache_type(), Data | Unified));
    Caches::from_levels(data.map(|c| {
        let lines = c.associativity() * c.physical_line_partitions() * c.sets();
        (c.level(), lines * c.coherency_line_size())
    }))
}

#[cfg(not(target_arch = "x86_64"))]
fn from_processor() -> Option<Caches> {
    None
}

/// From the folder in which Linux describes the caches of a processor.
fn from_system(folder: &Path) -> Option<Caches> {
    let caches = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
        let size = size.trim().strip_suffix('K')?.parse::<usize>().ok()? << 10;
        (kind.trim() != "Instruction").then_some((level.trim().parse().ok()?, size))
    });
    Caches::from_levels(caches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vocabfuse_kernels::{Kernel, Registry};

    fn geometry(target: &str, dtype: &str) -> Geometry {
        let registry = Registry::default();
        let wanted = |k: &Kernel| k.kernel == "logits_softmax" && k.target == target && k.dtype == dtype;
        let kernel = registry.find(wanted);
        kernel.expect("a kernel").geometry
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn blocks_follow_the_caches() {
        let kib = |l1: usize, l2: usize| Caches { l1: l1 << 10, l2: l2 << 10 };
        // Haswell, Zen 2 and 3, Zen 4, Sapphire Rapids, Lion Cove.
        let processors = [kib(32, 256), kib(32, 512), kib(32, 1024), kib(48, 2048), kib(48, 3072)];
        // f32 of the last two is bf16x3.
        let exact = [("scalar", "f32"), ("avx2", "f32"), ("avx512", "f32"), ("avx512bf16", "bf16"), ("amx", "bf16")];
        for (target, dtype) in exact.into_iter().chain([("avx512bf16", "f32"), ("amx", "f32")]) {
            let Some(g) = (cfg!(target_os = "linux") || target != "amx").then(|| geometry(target, dtype)) else {
                continue;
            };
            for caches in processors {
                for (chunk, hidden) in [(512, 64), (512, 1024), (2048, 4096), (8192, 16384)] {
                    let b = caches.blocking(&g, chunk, hidden);
                    assert!(b.inner % g.panel == 0 && b.inner * g.panel * g.packed <= caches.l1, "{b:?}");
                    assert!(b.vocabulary.is_multiple_of(g.row_block) && b.vocabulary >= 32, "{b:?}");
                    assert!(512 % b.grad_rows == 0 && b.grad_rows >= 32 && b.grad_panels <= MOST_GRAD_PANELS, "{b:?}");
                    let e = b.panels * chunk.min(g.e_columns) * g.panel * g.e_bytes;
                    assert!(b.panels == 1 || e <= caches.l2 / 2, "{target} {caches:?} {b:?}");
                    let q = b.grad_panels * g.panel * g.packed * b.grad_rows;
                    assert!(b.grad_rows == 32 || q <= caches.l2 / 2, "{target} {caches:?} {b:?}");
                    assert!(b.grad_blocks * g.panel * g.panel * g.packed <= caches.l2 / 4, "{target} {caches:?} {b:?}");
                }
            }
        }
        let zen4 = kib(32, 1024).blocking(&geometry("avx512", "f32"), 512, 1024);
        let expected =
            Blocking { inner: 128, vocabulary: 256, panels: 8, grad_panels: 16, grad_blocks: 64, grad_rows: 256 };
        assert_eq!(zen4, expected);
        let small = kib(32, 256).blocking(&geometry("avx2", "f32"), 512, 1024);
        assert_eq!((small.inner, small.panels, small.grad_rows), (256, 4, 128));
    }

    #[test]
    fn sizes_are_read_from_the_system() {
        let folder = tempfile::tempdir().unwrap();
        for (index, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "64K"),
            (2, "2", "Unified", "2048K"),
            (3, "3", "Unified", "1M"),
        ] {
            let cache = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&cache).unwrap();
            for (name, value) in [("level", level), ("type", kind), ("size", size)] {
                std::fs::write(cache.join(name), format!("{value}\n")).unwrap();
            }
        }
        assert_eq!(from_system(folder.path()), Some(Caches { l1: 48 << 10, l2: 2 << 20 }));
        assert_eq!(from_system(Path::new("/nowhere")), None);
        assert_eq!(Caches::from_levels([(1, 0), (2, 1 << 20)].into_iter()), None);
        let caches = Caches::of_this_machine();
        assert!(caches.l1 >= 4 << 10 && caches.l2 >= caches.l1, "{caches:?}");
    }
}
