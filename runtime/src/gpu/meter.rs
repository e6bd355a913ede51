//! Bytes of device memory in use and the most so far, and how often memory and host were asked for something.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Calls of a device that a step in its steady state does without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Allocations.
    pub allocations: u64,
    /// Copies from the host.
    pub uploads: u64,
    /// Copies to the host.
    pub downloads: u64,
}

/// Counts what buffers hold. It counts what was asked for, not what a pool of the driver keeps.
#[derive(Debug, Default)]
pub struct Meter {
    now: AtomicUsize,
    peak: AtomicUsize,
    allocations: AtomicU64,
    uploads: AtomicU64,
    downloads: AtomicU64,
}

impl Meter {
    /// A buffer appears.
    pub(super) fn add(&self, bytes: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.hold(bytes);
    }

    /// Memory outlives its buffer.
    pub(super) fn hold(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// A buffer goes.
    pub(super) fn remove(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The host writes.
    pub(super) fn upload(&self) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
    }

    /// The host reads.
    pub(super) fn download(&self) {
        self.downloads.fetch_add(1, Ordering::Relaxed);
    }

    /// All calls so far.
    pub(super) fn traffic(&self) -> Traffic {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic { allocations: of(&self.allocations), uploads: of(&self.uploads), downloads: of(&self.downloads) }
    }

    /// The peak, which begins anew at what is in use.
    pub(super) fn take_peak(&self) -> usize {
        self.peak.swap(self.now.load(Ordering::Relaxed), Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_of_what_lives_together() {
        let meter = Meter::default();
        meter.add(100);
        meter.remove(100);
        meter.add(60);
        assert_eq!(meter.take_peak(), 100);
        meter.add(10);
        assert_eq!(meter.take_peak(), 70);
    }
}
