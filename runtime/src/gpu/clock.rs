//! Time on a CUDA stream, by events.
//!
//! Copies between host and device are left out: what is measured are the spans of the stream between them, with the gaps
//! between launches. A framework whose tensors live on the device has no such copies, so that is what compares with it.

use cudarc::driver::{DriverError, result::event, sys};

#[derive(Debug)]
struct Event(sys::CUevent);

// SAFETY: a handle of the driver, which any thread with the context may use.
unsafe impl Send for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `record` and destroyed once. A failure means that the context is gone, and the event too.
        let _ = unsafe { event::destroy(self.0) };
    }
}

fn record(stream: sys::CUstream) -> Result<Event, DriverError> {
    let event = Event(event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?);
    // SAFETY: the event was just created, and the stream is alive.
    unsafe { event::record(event.0, stream) }?;
    Ok(event)
}

/// Collects spans while it runs. Every call needs the context bound to its thread.
#[derive(Debug, Default)]
pub(super) struct Clock {
    running: bool,
    open: Option<Event>,
    spans: Vec<(Event, Event)>,
}

impl Clock {
    pub(super) fn start(&mut self) {
        *self = Clock { running: true, ..Clock::default() };
    }

    /// Work of the device follows.
    pub(super) fn begin(&mut self, stream: sys::CUstream) -> Result<(), DriverError> {
        if self.running && self.open.is_none() {
            self.open = Some(record(stream)?);
        }
        Ok(())
    }

    /// A copy from or to the host follows, or nothing.
    pub(super) fn end(&mut self, stream: sys::CUstream) -> Result<(), DriverError> {
        if let Some(begin) = self.open.take() {
            self.spans.push((begin, record(stream)?));
        }
        Ok(())
    }

    /// Milliseconds of all spans. The stream has been waited for since the last of them ended.
    pub(super) fn take(&mut self) -> Result<f64, DriverError> {
        let spans = std::mem::take(self).spans;
        // SAFETY: the events live, were recorded on one stream, and have happened.
        let times = spans.iter().map(|(begin, end)| unsafe { event::elapsed(begin.0, end.0) }.map(f64::from));
        times.sum()
    }
}
