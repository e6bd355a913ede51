//! ldmatrix against the layout of the PTX ISA.

use crate::support::{Numbers, one_warp, run_words};
use vocabfuse_ptx::Class;

/// Rows of 16 bytes are stored to shared memory, and lane `l` gives the address
/// of row `order[l]`.
fn load(count: usize, transposed: bool, words: &[u32], order: &[u32; 32]) -> (Vec<u32>, u64) {
    let names: Vec<String> = (0..count).map(|i| format!("%r{}", 10 + i)).collect();
    let suffix = if transposed { ".trans" } else { "" };
    let mut body = String::from("mov.u32 %r0, dynamic;\n");
    for i in 0..4 {
        body += &format!(
            "ld.global.u32 %r1, [%mine+{}];\nshl.b32 %r2, %tid, 2;\nadd.s32 %r2, %r2, %r0;\n\
             st.shared.u32 [%r2+{}], %r1;\n",
            128 * i,
            128 * i
        );
    }
    body += &format!(
        "bar.warp.sync -1;\nld.global.u32 %r3, [%mine+512];\nshl.b32 %r3, %r3, 4;\n\
         add.s32 %r3, %r3, %r0;\n\
         ldmatrix.sync.aligned.m8n8.x{count}{suffix}.shared.b16 {{{}}}, [%r3];\n",
        names.join(", ")
    );
    for (i, name) in names.iter().enumerate() {
        body += &format!("st.global.u32 [%result+{}], {name};\n", 128 * i);
    }
    let input: Vec<u32> = words.iter().chain(order).copied().collect();
    let run = run_words(&body, &one_warp(), &input, 32 * count).unwrap();
    assert!(run.report.is_clean());
    let line = run.report.lines.iter().find(|l| l.class == Class::MatrixLoad).unwrap();
    (run.out, line.shared.conflicts())
}

#[test]
fn fragments_follow_the_isa() {
    let words = Numbers::new(2).u32s(128);
    let mut order: [u32; 32] = std::array::from_fn(|i| i as u32);
    order.reverse();
    order.swap(3, 17);
    let half = |row: u32, column: usize| {
        let word = words[row as usize * 4 + column / 2];
        word >> (16 * (column % 2)) & 0xffff
    };
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            let (out, _) = load(count, transposed, &words, &order);
            for matrix in 0..count {
                // The matrix as rows of elements, then the thread's two of a row.
                let row = |r: usize| (0..8).map(|c| half(order[8 * matrix + r], c)).collect();
                let rows: Vec<Vec<u32>> = (0..8).map(row).collect();
                let column = |c: usize| rows.iter().map(|row| row[c]).collect();
                let m: Vec<Vec<u32>> = match transposed {
                    false => rows.clone(),
                    true => (0..8).map(column).collect(),
                };
                for lane in 0..32 {
                    let row = &m[lane / 4];
                    let wanted = row[2 * (lane % 4)] | row[2 * (lane % 4) + 1] << 16;
                    assert_eq!(out[32 * matrix + lane], wanted, "x{count} {transposed} {lane}");
                }
            }
        }
    }
}

#[test]
fn rows_in_the_same_banks_conflict() {
    let words = vec![0; 128];
    // Eight consecutive rows fill the 32 banks once.
    let straight = std::array::from_fn(|i| i as u32);
    assert_eq!(load(4, false, &words, &straight).1, 0);
    // Rows eight apart share four banks; there are four of them, each twice.
    let strided = std::array::from_fn(|i| (i as u32 % 4) * 8 + i as u32 / 8);
    assert_eq!(load(4, false, &words, &strided).1, 4 * 3);
}
