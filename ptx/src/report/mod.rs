//! What a launch reports: counters, races and reads of unwritten memory.

mod banks;
mod counters;
mod recorder;
mod sectors;

pub use counters::{Class, ClassCounts, GlobalCounters, LineCounters, Report, SharedCounters};
pub(crate) use recorder::Recorder;
