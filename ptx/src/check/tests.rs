//! Histories of accesses in a fixed order, which schedules would vary.

use super::{Accessor, Clock, Conflict, GlobalShadow, Hazard, SharedShadow};

/// Clocks of two blocks of two warps each.
fn clocks() -> [Clock; 4] {
    [0, 1, 2, 3].map(|warp| Clock::new(warp / 2 * 2, warp as usize % 2, 2))
}

/// All warps of a block arrive at a barrier and go on.
fn barrier(clocks: &mut [Clock]) {
    let mut all = clocks[0].clone();
    for clock in clocks.iter_mut() {
        all.join(clock);
        clock.tick();
    }
    for clock in clocks.iter_mut() {
        clock.join(&all);
    }
}

fn by(clock: &Clock, lane: usize) -> Accessor<'_> {
    Accessor::new(clock, Some(lane), 7)
}

fn kind(conflict: Option<Conflict>) -> Option<Hazard> {
    conflict.map(|c| c.kind)
}

#[test]
fn a_write_after_a_read_needs_a_barrier() {
    let mut clocks = clocks();
    let mut shadow = SharedShadow::new(64, 2);
    assert_eq!(shadow.read(16, 16, 0, by(&clocks[0], 3)), None);
    let conflict = shadow.write(28, 4, by(&clocks[1], 5));
    assert_eq!(kind(conflict), Some(Hazard::WriteAfterRead));
    let earlier = conflict.unwrap().earlier;
    assert_eq!((earlier.warp(), earlier.lane(), earlier.instruction()), (0, Some(3), 7));

    assert_eq!(shadow.read(32, 16, 0, by(&clocks[0], 3)), None);
    barrier(&mut clocks[..2]);
    assert_eq!(shadow.write(32, 16, by(&clocks[1], 5)), None);
}

#[test]
fn splitting_cells_keeps_what_every_warp_read() {
    let clocks = clocks();
    let mut shadow = SharedShadow::new(64, 2);
    shadow.read(8, 4, 0, by(&clocks[0], 0));
    shadow.read(12, 4, 1, by(&clocks[1], 0));
    assert_eq!(shadow.write(61, 1, by(&clocks[0], 0)), None);
    // Own reads do not conflict, those of the other warp do, byte by byte.
    for byte in 8..12 {
        assert_eq!(shadow.write(byte, 1, by(&clocks[0], 0)), None);
        let conflict = shadow.write(byte + 4, 1, by(&clocks[0], 0));
        assert_eq!(kind(conflict), Some(Hazard::WriteAfterRead));
    }
    let conflict = shadow.write(9, 1, by(&clocks[1], 0));
    assert_eq!(kind(conflict), Some(Hazard::WriteAfterWrite));
}

#[test]
fn several_lanes_that_read_are_all_remembered() {
    let clocks = clocks();
    let mut shadow = SharedShadow::new(64, 2);
    shadow.read(0, 4, 0, by(&clocks[0], 1));
    assert_eq!(shadow.write(0, 4, by(&clocks[0], 1)), None);
    shadow.read(4, 4, 0, by(&clocks[0], 1));
    shadow.read(4, 4, 0, by(&clocks[0], 2));
    let conflict = shadow.write(4, 4, by(&clocks[0], 2));
    assert_eq!(kind(conflict), Some(Hazard::WriteAfterRead));
    assert_eq!(conflict.unwrap().earlier.lane(), None);
}

#[test]
fn a_pending_copy_conflicts_with_everyone_until_it_completes() {
    let mut clocks = clocks();
    let mut shadow = SharedShadow::new(64, 2);
    assert_eq!(shadow.write(0, 16, by(&clocks[0], 4).pending()), None);
    let own = shadow.read(0, 4, 0, by(&clocks[0], 4));
    assert_eq!(kind(own), Some(Hazard::Pending));
    shadow.complete(0, 16, by(&clocks[0], 4));
    assert_eq!(shadow.read(0, 4, 0, by(&clocks[0], 4)), None);
    let other = shadow.read(0, 4, 1, by(&clocks[1], 4));
    assert_eq!(kind(other), Some(Hazard::ReadAfterWrite));
    barrier(&mut clocks[..2]);
    assert_eq!(shadow.read(0, 4, 1, by(&clocks[1], 4)), None);
}

#[test]
fn global_reads_by_others_conflict_with_a_write() {
    let clocks = clocks();
    let mut shadow = GlobalShadow::new(1);
    let shadow = shadow.of(0, 64);
    // One reader, of the own block and of another.
    for (at, reader) in [(0, 0), (4, 2)] {
        shadow.read(at, 4, by(&clocks[reader], 0));
        let conflict = shadow.write(at, 4, by(&clocks[1], 0));
        assert_eq!(kind(conflict), Some(Hazard::WriteAfterRead));
    }
    // The writer is the last, or the first, of many readers.
    for (at, writer) in [(8, 3), (12, 0), (16, 1)] {
        for reader in [0, 1, 2, 3] {
            shadow.read(at, 4, by(&clocks[reader], 0));
        }
        let conflict = shadow.write(at, 4, by(&clocks[writer], 0));
        assert_eq!(kind(conflict), Some(Hazard::WriteAfterRead));
    }
    shadow.read(20, 4, by(&clocks[1], 6));
    assert_eq!(shadow.write(20, 4, by(&clocks[1], 6)), None);
}

#[test]
fn a_barrier_of_one_block_orders_no_other() {
    let mut clocks = clocks();
    let mut shadow = GlobalShadow::new(1);
    let shadow = shadow.of(0, 64);
    assert_eq!(shadow.write(0, 8, by(&clocks[0], 0)), None);
    barrier(&mut clocks[..2]);
    barrier(&mut clocks[2..]);
    assert_eq!(shadow.read(0, 8, by(&clocks[1], 0)), None);
    let conflict = shadow.read(4, 2, by(&clocks[2], 0));
    assert_eq!(kind(conflict), Some(Hazard::ReadAfterWrite));
}

#[test]
fn strong_accesses_race_with_weak_ones_only() {
    let clocks = clocks();
    let mut shadow = GlobalShadow::new(1);
    let shadow = shadow.of(0, 64);
    assert_eq!(shadow.write(0, 4, by(&clocks[0], 0).strong()), None);
    assert_eq!(shadow.read(0, 4, by(&clocks[3], 0).strong()), None);
    assert_eq!(shadow.write(0, 4, by(&clocks[2], 0).strong()), None);
    let weak = shadow.read(0, 4, by(&clocks[1], 0));
    assert_eq!(kind(weak), Some(Hazard::ReadAfterWrite));
}
