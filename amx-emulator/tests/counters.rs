//! The counters. One test only: the process-wide ones see every thread.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use std::arch::asm;

use common::*;
use vocabfuse_amx_emulator::{Counters, counters, reset_counters, thread_counters};

/// One of each, on tiles of 3 rows of 8 bytes, 2 rows of 12 and 3 rows of 12.
fn one_of_each() {
    let mut config = Config::new([(3, 12); 8]);
    (config.rows[1], config.colsb[1]) = (3, 8);
    (config.rows[2], config.colsb[2]) = (2, 12);
    config.load();
    let mut buffer = [0_u8; 1024];
    // SAFETY: a full tile is room for all.
    unsafe {
        asm!("tilezero tmm0", options(nostack));
        tile_load!("tmm1", buffer.as_ptr(), 64_usize);
        asm!("tileloaddt1 tmm2, [{} + {}]", in(reg) buffer.as_ptr(), in(reg) 64_usize, options(nostack));
        asm!("tdpbf16ps tmm0, tmm1, tmm2", "tdpbf16ps tmm0, tmm1, tmm2", options(nostack));
        asm!("tdpfp16ps tmm0, tmm1, tmm2", options(nostack));
        tile_store!("tmm0", buffer.as_mut_ptr(), 64_usize);
        Config::stored();
        asm!("tilerelease", options(nostack));
    }
}

#[test]
fn instructions_bytes_and_work() {
    if !emulated() {
        one_of_each();
        assert_eq!(counters(), Counters::default());
        return;
    }
    one_of_each();
    reset_counters();
    assert_eq!(counters(), Counters::default());
    let before = thread_counters();
    one_of_each();
    let mine = thread_counters().since(&before);
    assert_eq!(mine, counters());
    let Counters {
        ldtilecfg,
        sttilecfg,
        tilerelease,
        tilezero,
        tileloadd,
        tileloaddt1,
        tilestored,
        tdpbf16ps,
        tdpfp16ps,
        bytes_loaded,
        bytes_stored,
        multiply_adds,
        ..
    } = mine;
    assert_eq!([ldtilecfg, sttilecfg, tilerelease, tilezero], [1; 4]);
    assert_eq!([tileloadd, tileloaddt1, tilestored], [1; 3]);
    assert_eq!([tdpbf16ps, tdpfp16ps], [2, 1]);
    assert_eq!((mine.tile_loads(), mine.tile_products()), (2, 3));
    assert_eq!(bytes_loaded, 3 * 8 + 2 * 12);
    assert_eq!(bytes_stored, 3 * 12);
    assert_eq!(multiply_adds, 3 * (3 * 4 * 3));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    one_of_each();
                }
                assert_eq!(thread_counters().tilezero, 50);
            });
        }
    });
    assert_eq!(counters().tdpbf16ps, 2 * 201);
    assert_eq!(counters().bytes_loaded, 201 * mine.bytes_loaded);
    assert_eq!(thread_counters().since(&before), mine);
}
