//! Memory spaces, each with bounds and with a record of which bytes were written.

mod global;
mod local;
mod shared;
mod written;

pub use global::Memory;
pub(crate) use local::LocalMemory;
pub(crate) use shared::SharedMemory;
pub(crate) use written::Written;

use crate::error::Space;

/// Length of the windows through which generic addresses reach the shared,
/// local and parameter spaces.
const WINDOW: u64 = 1 << 24;

/// First generic address of a space.
pub(crate) const fn window(space: Space) -> u64 {
    match space {
        Space::Global => 0,
        Space::Shared => 0x0100_0000_0000,
        Space::Local => 0x0110_0000_0000,
        Space::Param => 0x0120_0000_0000,
    }
}

/// The space and the offset in it of a generic address.
pub(crate) fn resolve_generic(address: u64) -> (Space, u64) {
    for space in [Space::Shared, Space::Local, Space::Param] {
        let offset = address.wrapping_sub(window(space));
        if offset < WINDOW {
            return (space, offset);
        }
    }
    (Space::Global, address)
}

/// Why an access cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfBounds,
    Misaligned,
}

/// Reads up to sixteen bytes as a little-endian number.
#[inline]
pub(crate) fn read_bytes(bytes: &[u8]) -> u128 {
    match *bytes {
        [a, b, c, d] => u128::from(u32::from_le_bytes([a, b, c, d])),
        [a, b] => u128::from(u16::from_le_bytes([a, b])),
        _ => {
            let mut value = [0; 16];
            let n = bytes.len().min(16);
            value[..n].copy_from_slice(&bytes[..n]);
            u128::from_le_bytes(value)
        }
    }
}

/// Writes the low bytes of a little-endian number.
#[inline]
pub(crate) fn write_bytes(bytes: &mut [u8], value: u128) {
    let n = bytes.len().min(16);
    bytes[..n].copy_from_slice(&value.to_le_bytes()[..n]);
}
