//! Bytes of device memory in use, and the most so far.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what buffers hold. It counts what was asked for, not what a pool of the driver keeps.
#[derive(Debug, Default)]
pub struct Meter {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Meter {
    /// A buffer appears.
    pub(super) fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    /// A buffer goes.
    pub(super) fn remove(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
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
