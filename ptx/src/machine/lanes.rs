//! Sets of lanes.

/// Lanes of a warp.
pub(crate) const WARP: usize = 32;

/// A set of lanes, one bit each.
pub(crate) type Mask = u32;

/// The lanes of `mask` in increasing order.
#[inline]
pub(crate) fn lanes(mask: Mask) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
