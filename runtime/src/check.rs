//! Checks that layers share, each an error that names the tensor and what was expected.

use crate::{Error, Local, Matrix, Result, ShardLayout};
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};

pub(crate) fn shape(tensor: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Error {
    Error::Shape { tensor, expected: expected.into(), found: found.into() }
}

/// A number of elements.
pub(crate) fn expect(tensor: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(shape(tensor, format!("{expected} elements"), found.to_string())) }
}

/// A rank that the layout has.
pub(crate) fn rank(layout: &ShardLayout, rank: usize) -> Result<()> {
    let ranks = layout.ranks();
    if rank < ranks {
        return Ok(());
    }
    Err(Error::Layout(format!("rank {rank} of {ranks}; expected a rank below the number of ranks")))
}

/// The rows of W that a rank holds, few enough for 32-bit ids within the shard.
pub(crate) fn shard(layout: &ShardLayout, rank: usize, tensor: &'static str, weight: &Matrix<'_>) -> Result<()> {
    let owned = layout.range(rank);
    if weight.rows() != owned.len() {
        let expected = format!("the {} rows {owned:?} of rank {rank}", owned.len());
        return Err(shape(tensor, expected, format!("{} rows", weight.rows())));
    }
    if i32::try_from(owned.len()).is_err() {
        return Err(shape(tensor, "fewer than 2^31 rows a rank", owned.len().to_string()));
    }
    Ok(())
}

/// A member of a group that is this rank of the layout.
pub(crate) fn member(layout: &ShardLayout, rank: usize, comm: &Local) -> Result<()> {
    let (size, ranks) = (comm.size(), layout.ranks());
    if size == ranks && comm.rank() == rank {
        return Ok(());
    }
    let found = comm.rank();
    Err(Error::Layout(format!("rank {found} of {size} in the group; expected rank {rank} of {ranks}")))
}

/// A number that values which differ are not expected to share: the same in every build, as ranks compare it.
pub(crate) fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = SipHasher13::new();
    value.hash(&mut hasher);
    hasher.finish()
}
