//! The input embedding: rows of a table that is split over ranks, and the gradient of those rows.
//!
//! Every rank knows all ids. It gathers the rows that it owns, one collective brings the rows of all ranks together, and
//! the gradient is added to the owned rows without communication.

mod additions;
mod layer;
mod select;
mod tables;

pub use layer::{Embedded, InputLayer, Lookup, Selecting, TableGrad};

pub(crate) use additions::Additions;
pub(crate) use tables::Tables;
