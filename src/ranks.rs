//! Ranks as threads of this process.

use std::ops::Range;

/// Runs `work` on one thread per item; `work` gets the rank, which is the item's position, and the item.
///
/// Returns when all threads have ended. A panic in `work` is passed on. Where items are members of a group
/// ([`Local`](crate::Local)), `work` should own them: one that is borrowed is not gone when `work` ends outside of a phase, and
/// whoever waits for it then waits until it takes part or is dropped.
///
/// # Errors
/// The error of the lowest rank that failed.
pub fn each<I, T, E>(items: Vec<I>, work: impl Fn(usize, I) -> Result<T, E> + Sync) -> Result<Vec<T>, E>
where
    I: Send,
    T: Send,
    E: Send,
{
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            items.into_iter().enumerate().map(|(rank, item)| scope.spawn(move || work(rank, item))).collect();
        // All are joined before the first error is returned, so that no panic is lost.
        let results: Vec<Result<T, E>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        results.into_iter().collect()
    })
}

/// Splits a buffer of `width` values a row into the parts of consecutive row ranges, one a rank.
///
/// # Panics
/// If the ranges do not begin at row 0, leave gaps, or reach beyond the buffer.
pub fn split_rows<T>(mut buffer: &mut [T], width: usize, ranges: impl Iterator<Item = Range<usize>>) -> Vec<&mut [T]> {
    let mut row = 0;
    ranges
        .map(|range| {
            assert_eq!(range.start, row, "first row of a rank");
            row = range.end;
            let (part, rest) = std::mem::take(&mut buffer).split_at_mut(range.len() * width);
            buffer = rest;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_ranks() {
        assert_eq!(each(vec![5, 6, 7], |rank, item| Ok::<_, ()>(rank * 10 + item)), Ok(vec![5, 16, 27]));
        assert_eq!(each(vec![1, 2, 3], |rank, item| if item > 1 { Err(rank) } else { Ok(()) }), Err(1));
    }

    #[test]
    fn parts_cover_the_buffer() {
        let mut buffer = [0; 10];
        for (rank, part) in split_rows(&mut buffer, 2, [0..1, 1..1, 1..5].into_iter()).into_iter().enumerate() {
            part.fill(rank + 1);
        }
        assert_eq!(buffer, [1, 1, 3, 3, 3, 3, 3, 3, 3, 3]);
    }
}
