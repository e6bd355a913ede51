//! How often each instruction was emulated.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Defines the public snapshot, the live atomic counters and the passage from one to the other from
/// one list of fields, so that they cannot drift apart.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident,)*) => {
        /// A snapshot of what was emulated: instructions by kind, and the work they did.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $field: u64,)* }

        impl Counters {
            /// What was counted since the snapshot `earlier`. Wraps where `earlier` is the later one.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(earlier.$field),)* }
            }
        }

        /// Counters that a signal handler may advance: lock-free atomics and nothing else.
        pub(crate) struct Live { $(pub(crate) $field: AtomicU64,)* }

        impl Live {
            const fn new() -> Self {
                Self { $($field: AtomicU64::new(0),)* }
            }

            fn snapshot(&self) -> Counters {
                Counters { $($field: self.$field.load(Relaxed),)* }
            }

            fn reset(&self) {
                $(self.$field.store(0, Relaxed);)*
            }
        }
    };
}

counters! {
    /// Executed `LDTILECFG`.
    ldtilecfg,
    /// Executed `STTILECFG`.
    sttilecfg,
    /// Executed `TILERELEASE`.
    tilerelease,
    /// Executed `TILEZERO`.
    tilezero,
    /// Executed `TILELOADD`.
    tileloadd,
    /// Executed `TILELOADDT1`.
    tileloaddt1,
    /// Executed `TILESTORED`.
    tilestored,
    /// Executed `TDPBF16PS`.
    tdpbf16ps,
    /// Executed `TDPFP16PS`.
    tdpfp16ps,
    /// Bytes that `TILELOADD` and `TILELOADDT1` read, by the configured shapes.
    bytes_loaded,
    /// Bytes that `TILESTORED` wrote, by the configured shapes.
    bytes_stored,
    /// Scalar multiply-adds of the tile products, by the configured shapes.
    multiply_adds,
}

impl Counters {
    /// Tile loads of both kinds.
    #[must_use]
    pub fn tile_loads(&self) -> u64 {
        self.tileloadd.wrapping_add(self.tileloaddt1)
    }

    /// Tile products of both kinds.
    #[must_use]
    pub fn tile_products(&self) -> u64 {
        self.tdpbf16ps.wrapping_add(self.tdpfp16ps)
    }
}

static PROCESS: Live = Live::new();

thread_local! {
    static THREAD: Live = const { Live::new() };
}

/// Advances one counter by `amount`, for the process and for the calling thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) fn add(counter: impl Fn(&Live) -> &AtomicU64, amount: u64) {
    counter(&PROCESS).fetch_add(amount, Relaxed);
    THREAD.with(|live| counter(live).fetch_add(amount, Relaxed));
}

/// What all threads of the process had emulated since the start or the last [`reset_counters`].
///
/// The fields are read one after the other: for figures that belong together, call this while no
/// thread executes AMX instructions.
#[must_use]
pub fn counters() -> Counters {
    PROCESS.snapshot()
}

/// What the calling thread had emulated since it started; [`reset_counters`] leaves it alone.
///
/// Unlike [`counters`], this is not disturbed by tests that run beside the caller's.
#[must_use]
pub fn thread_counters() -> Counters {
    THREAD.with(Live::snapshot)
}

/// Sets the counters of the process back to zero.
pub fn reset_counters() {
    PROCESS.reset();
}
