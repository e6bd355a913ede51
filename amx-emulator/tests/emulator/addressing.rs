//! Addressing forms, executed: every base register, indices with scale, both displacements, no base,
//! no index, 32-bit addresses, addresses relative to the instruction.

use std::arch::asm;

use crate::common::*;

const ROWS: usize = 5;
const COLSB: usize = 12;
const STRIDE: usize = 48;

fn configure() {
    emulated();
    Config::new([(ROWS as u8, COLSB as u16); 8]).load();
}

fn memory() -> [u8; 4096] {
    Random(11).bytes()
}

/// Whether tile 2 holds the rows that lie `stride` bytes apart from `from` on.
fn check(memory: &[u8], from: usize, stride: usize) {
    let mut tile = [[0_u8; 64]; 16];
    // SAFETY: a full tile.
    unsafe { tile_store!("tmm2", tile.as_mut_ptr(), 64_usize) };
    for (m, row) in tile.iter().take(ROWS).enumerate() {
        let start = from + m * stride;
        assert_eq!(row[..COLSB], memory[start..start + COLSB], "row {m}");
    }
}

/// Loads tile 2 and stores it again through `[base + index * scale + displacement]`.
macro_rules! form {
    ($base:tt, $index:tt, $scale:literal, $displacement:literal) => {{
        let mut memory = memory();
        let start = 1024_usize;
        let base = (memory.as_ptr() as usize + start).wrapping_add_signed(-($displacement));
        // SAFETY: the operand denotes rows inside `memory`.
        unsafe {
            asm!(concat!("tileloadd tmm2, [", $base, "+", $index, "*", $scale, "+", $displacement, "]"),
                in($base) base, in($index) STRIDE / $scale, options(nostack));
        }
        check(&memory, start, STRIDE);
        let original = memory;
        memory.fill(0);
        let base = (memory.as_mut_ptr() as usize + start).wrapping_add_signed(-($displacement));
        // SAFETY: as above.
        unsafe {
            asm!(concat!("tilestored [", $base, "+", $index, "*", $scale, "+", $displacement, "], tmm2"),
                in($base) base, in($index) STRIDE / $scale, options(nostack));
        }
        for (n, &byte) in memory.iter().enumerate() {
            let (row, column) = (n.wrapping_sub(start) / STRIDE, n.wrapping_sub(start) % STRIDE);
            let inside = n >= start && row < ROWS && column < COLSB;
            assert_eq!(byte, if inside { original[n] } else { 0 });
        }
    }};
}

#[test]
fn bases_indices_scales_and_displacements() {
    configure();
    form!("rax", "rcx", 1, 0);
    form!("rcx", "rax", 2, 1);
    form!("rdx", "rsi", 4, -1);
    form!("rsi", "rdx", 8, 127);
    form!("rdi", "r8", 1, -128);
    form!("r8", "rdi", 2, 128);
    form!("r9", "r12", 4, -129);
    form!("r10", "r13", 8, 0x10_0000);
    form!("r11", "r9", 1, -0x4000_0000);
    form!("r12", "r10", 2, 0);
    form!("r12", "r13", 4, 64);
    form!("r12", "r11", 8, 4096);
    form!("r13", "r12", 1, 0);
    form!("r13", "r14", 2, -64);
    form!("r13", "r15", 4, -4096);
    form!("r14", "r12", 8, 0);
    form!("r15", "r13", 1, 0x7fff_ffff);
}

/// `rbx` and `rbp` are not available as operands, so the block swaps them in.
macro_rules! swapped {
    ($register:tt, $operand:literal, $base:expr, $index:expr) => {
        asm!(
            concat!("xchg ", $register, ", rax"),
            concat!("tileloadd tmm2, [", $operand, "]"),
            concat!("xchg ", $register, ", rax"),
            inout("rax") $base => _, in("rcx") $index, options(nostack, readonly),
        )
    };
}

#[test]
fn rbx_and_rbp() {
    configure();
    let memory = memory();
    let start = memory.as_ptr() as usize + 256;
    // SAFETY: the operands denote rows inside `memory`; the swapped register gets its value back.
    unsafe {
        swapped!("rbx", "rbx + rcx*2", start, STRIDE / 2);
        check(&memory, 256, STRIDE);
        swapped!("rbp", "rbp + rcx*4", start, STRIDE / 4);
        check(&memory, 256, STRIDE);
        swapped!("rbp", "rbp + rcx + 0x1000", start - 0x1000, STRIDE);
        check(&memory, 256, STRIDE);
        // The other way round: as index.
        swapped!("rbx", "rcx + rbx*8", STRIDE / 8, start);
        check(&memory, 256, STRIDE);
        swapped!("rbp", "rcx + rbp + 16", STRIDE, start - 16);
        check(&memory, 256, STRIDE);
    }
}

#[test]
fn rsp_as_base() {
    configure();
    let mut area = [0_u8; 1024];
    area.copy_from_slice(&memory()[..1024]);
    let mut tile_source = [0_u8; 1024];
    // SAFETY: the block moves its own stack down by 1 KiB beyond the red zone, copies `area` there,
    // loads rows from inside the copy, and moves the stack up again.
    unsafe {
        asm!(
            "sub rsp, 1152",
            "mov rdi, rsp",
            "mov ecx, 1024",
            "rep movsb",
            "tileloadd tmm2, [rsp + rdx*8 + 24]",
            "tileloadd tmm3, [rsp + rdx*8]",
            "add rsp, 1152",
            inout("rsi") area.as_ptr() => _, in("rdx") STRIDE / 8,
            out("rdi") _, out("rcx") _,
        );
        tile_store!("tmm3", tile_source.as_mut_ptr(), STRIDE);
    }
    check(&area, 24, STRIDE);
    assert_eq!(tile_source[..COLSB], area[..COLSB]);
}

#[test]
fn without_index_all_rows_are_the_first() {
    configure();
    let memory = memory();
    // SAFETY: one row inside `memory`, in the forms with their special encodings.
    unsafe {
        asm!("tileloadd tmm2, [rax]", in("rax") memory.as_ptr(), options(nostack));
        check(&memory, 0, 0);
        asm!("tileloadd tmm2, [r12 + 7]", in("r12") memory.as_ptr(), options(nostack));
        check(&memory, 7, 0);
        asm!("tileloadd tmm2, [r13]", in("r13") memory.as_ptr(), options(nostack));
        check(&memory, 0, 0);
    }
}

/// A page below 4 GiB with the bytes of `memory`: at `address`, or anywhere where that is zero.
fn low_page(address: usize) -> usize {
    let place = if address == 0 { libc::MAP_32BIT } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: a fresh private mapping, which replaces no other, filled over its whole length.
    unsafe {
        let page = libc::mmap(
            std::ptr::without_provenance_mut(address),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | place,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(memory().as_ptr(), page.cast(), 4096);
        page as usize
    }
}

#[test]
fn without_base_and_with_short_addresses() {
    configure();
    let page = low_page(0);
    low_page(0x2000_0000);
    let memory = memory();
    // SAFETY: the operands denote rows inside the page.
    unsafe {
        // The upper halves of the registers do not count.
        let high = 0xdead_beef_usize << 32;
        asm!("tileloadd tmm2, [eax + ecx*2 + 0x100]",
            in("rax") page | high, in("rcx") (STRIDE / 2) | high, options(nostack));
        check(&memory, 0x100, STRIDE);
        asm!("tileloadd tmm2, [r13d + r12d]",
            in("r13") page | high, in("r12") STRIDE | high, options(nostack));
        check(&memory, 0, STRIDE);
        // A stride may be negative in 32 bits, too: the sum wraps at 4 GiB.
        asm!("tileloadd tmm2, [eax + ecx]",
            in("rax") page + 16, in("rcx") u32::MAX - 3, options(nostack));
        let mut rows = [[0_u8; 64]; 16];
        tile_store!("tmm2", rows.as_mut_ptr(), 64_usize);
        for m in 0..ROWS {
            assert_eq!(rows[m][..COLSB], memory[16 - 4 * m..][..COLSB]);
        }
        // Without base, the displacement alone is the start.
        asm!("tileloadd tmm2, [rcx*8 + 0x20000040]", in("rcx") STRIDE / 8, options(nostack));
        check(&memory, 0x40, STRIDE);
        asm!("tileloadd tmm2, [0x20000123]", options(nostack));
        check(&memory, 0x123, 0);
    }
}

#[test]
fn configurations_at_all_kinds_of_addresses() {
    emulated();
    static STATIC: Config = Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        colsb: [8, 12, 16, 20, 24, 28, 32, 36, 0, 0, 0, 0, 0, 0, 0, 0],
        rows: [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    // SAFETY: each operand denotes a live configuration.
    unsafe {
        asm!("ldtilecfg [rip + {}]", sym STATIC, options(nostack));
        assert_eq!(Config::stored(), STATIC);
        let table = [Config::full(), STATIC, Config::new([(3, 20); 8])];
        let start = table.as_ptr() as usize;
        asm!("ldtilecfg [r12 + r13*8 - 64]", in("r12") start, in("r13") 16_usize, options(nostack));
        assert_eq!(Config::stored(), STATIC);
        asm!("ldtilecfg [r13]", in("r13") start, options(nostack));
        assert_eq!(Config::stored(), Config::full());
        asm!("ldtilecfg [rdx*4]", in("rdx") (start + 128) / 4, options(nostack));
        assert_eq!(Config::stored(), table[2]);
        let mut target = [Config::EMPTY; 2];
        asm!("sttilecfg [r12 + 64]", in("r12") target.as_mut_ptr(), options(nostack));
        assert_eq!(target, [Config::EMPTY, table[2]]);
        asm!("push rax", "push rax", "lea rsp, [rsp - 64]", "sttilecfg [rsp + 8]", "ldtilecfg [rsp + 8]",
            "lea rsp, [rsp + 80]", in("rax") 0_usize);
        assert_eq!(Config::stored(), table[2]);
    }
}
