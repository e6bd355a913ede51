//! Collectives between the ranks of a layer.

mod local;

pub use local::Local;

pub(crate) use local::{Finish, Merged, Pending};

/// What a rank has communicated so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Points at which the rank waited for all others.
    pub barriers: u64,
    /// Collectives launched.
    pub launches: u64,
    /// Bytes that the rank contributed.
    pub bytes: u64,
}
