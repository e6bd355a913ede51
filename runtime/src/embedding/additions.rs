//! Which rows are added where, in an order that nothing but the ids decides.

use std::ops::Range;

/// Additions `table[ids[i]] += rows[order[i]]`, sorted by id, then by row. Equal ids lie together, so that work can be
/// split without changing the order of any sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Additions {
    /// Row of the table.
    pub(crate) ids: Vec<u32>,
    /// Row to add.
    pub(crate) order: Vec<u32>,
}

impl Additions {
    /// The additions of a shard that holds the ids `owned`: the position of every id is added to the row of that id, but
    /// for the id `padding`.
    pub(crate) fn new(ids: &[i64], owned: Range<usize>, padding: Option<i64>) -> Additions {
        let mut pairs: Vec<(u32, u32)> = vec![];
        for (row, &id) in ids.iter().enumerate() {
            if Some(id) == padding {
                continue;
            }
            if let Some(local) = local(id, &owned) {
                pairs.push((local, row as u32));
            }
        }
        pairs.sort_unstable();
        let (ids, order) = pairs.into_iter().unzip();
        Additions { ids, order }
    }

    /// For each row of the table that is added to, where its additions lie.
    pub(crate) fn runs(&self) -> Vec<(u32, Range<usize>)> {
        let mut end = 0;
        let run = |same: &[u32]| {
            let start = end;
            end += same.len();
            (same[0], start..end)
        };
        self.ids.chunk_by(|a, b| a == b).map(run).collect()
    }
}

/// Position of an id in a shard, if the shard holds it.
pub(super) fn local(id: i64, owned: &Range<usize>) -> Option<u32> {
    let id = usize::try_from(id).ok().filter(|id| owned.contains(id))?;
    u32::try_from(id - owned.start).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_lie_together_in_the_order_of_rows() {
        let additions = Additions::new(&[7, 2, 9, 7, 5, 2, 7, -1, 10], 5..10, Some(5));
        assert_eq!(additions, Additions { ids: vec![2, 2, 2, 4], order: vec![0, 3, 6, 2] });
        assert_eq!(additions.runs(), [(2, 0..3), (4, 3..4)]);
        assert_eq!(Additions::new(&[1, 2], 2..2, None).runs(), []);
    }
}
