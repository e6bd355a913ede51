//! How the vocabulary is split over ranks.

use crate::{Error, Result};
use std::ops::Range;

/// Contiguous shards of the vocabulary, one a rank, of any size including none. Validated once, then reused.
///
/// The shards cover `stored` rows, of which the first `vocab` are classes; the rest are padding that never takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardLayout {
    bounds: Vec<usize>,
    vocab: usize,
}

impl ShardLayout {
    /// Shards of equal size, the first `vocab % ranks` one row larger. No padding.
    ///
    /// # Errors
    /// [`Error::Layout`] for zero ranks.
    pub fn even(vocab: usize, ranks: usize) -> Result<ShardLayout> {
        let ranks = positive(ranks)?;
        let bounds = (0..=ranks).map(|r| r * (vocab / ranks) + r.min(vocab % ranks)).collect();
        Ok(ShardLayout { bounds, vocab })
    }

    /// Shards of exactly equal size after padding the vocabulary to a multiple of `2 * ranks`.
    ///
    /// # Errors
    /// [`Error::Layout`] for zero ranks.
    pub fn padded(vocab: usize, ranks: usize) -> Result<ShardLayout> {
        let ranks = positive(ranks)?;
        let stored = vocab.next_multiple_of(2 * ranks);
        Ok(ShardLayout { bounds: (0..=ranks).map(|r| r * (stored / ranks)).collect(), vocab })
    }

    /// Explicit bounds: rank `r` has rows `bounds[r]..bounds[r + 1]`; equal neighbours are an empty shard.
    ///
    /// # Errors
    /// [`Error::Layout`] if the bounds do not start at 0, go backwards, or leave no rank.
    pub fn from_bounds(bounds: &[usize]) -> Result<ShardLayout> {
        let (Some(&first), Some(&vocab)) = (bounds.first(), bounds.last()) else {
            return Err(Error::Layout("no bounds given; expected 0, then the end of each rank's shard".to_owned()));
        };
        positive(bounds.len() - 1)?;
        let ranges: Vec<Range<usize>> = bounds.windows(2).map(|w| w[0]..w[1]).collect();
        if first != 0 {
            return Err(Error::Layout(format!("bounds begin at {first}; expected 0, or rows 0..{first} have no rank")));
        }
        ShardLayout::from_ranges(&ranges, vocab)
    }

    /// Explicit row ranges, one a rank, in order. `vocab` is the number of classes.
    ///
    /// # Errors
    /// [`Error::Layout`] for a gap, an overlap, a range that goes backwards, or fewer rows than classes.
    pub fn from_ranges(ranges: &[Range<usize>], vocab: usize) -> Result<ShardLayout> {
        positive(ranges.len())?;
        let mut bounds = vec![0];
        let mut end = 0;
        for (rank, range) in ranges.iter().enumerate() {
            if range.end < range.start {
                return Err(Error::Layout(format!("rank {rank} has rows {range:?}, which go backwards")));
            }
            if range.start != end {
                let fault = if range.start > end { "a gap" } else { "an overlap" };
                return Err(Error::Layout(format!(
                    "rank {rank} begins at row {}, expected {end}: {fault}",
                    range.start
                )));
            }
            end = range.end;
            bounds.push(end);
        }
        if end < vocab {
            return Err(Error::Layout(format!("the shards end at row {end}, expected at least {vocab}")));
        }
        Ok(ShardLayout { bounds, vocab })
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Number of classes.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Rows of W over all ranks, padding included.
    pub fn stored(&self) -> usize {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// Rows of W that a rank holds, padding included.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.bounds[rank]..self.bounds[rank + 1]
    }

    /// How many of a rank's rows are classes.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn classes(&self, rank: usize) -> usize {
        self.class_range(rank).len()
    }

    /// The classes of a rank, within `0..vocab` also where the shard is all padding.
    pub(crate) fn class_range(&self, rank: usize) -> Range<usize> {
        let range = self.range(rank);
        range.start.min(self.vocab)..range.end.min(self.vocab)
    }

    /// The rank that holds a row, which is below [`ShardLayout::stored`].
    pub(crate) fn owner(&self, row: usize) -> usize {
        // Of the bounds that are equal for empty shards, the last begins the one that has rows.
        self.bounds.partition_point(|bound| *bound <= row).saturating_sub(1)
    }
}

fn positive(ranks: usize) -> Result<usize> {
    if ranks == 0 { Err(Error::Layout("0 ranks; expected at least 1".to_owned())) } else { Ok(ranks) }
}
