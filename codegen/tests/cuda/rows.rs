//! Kernels of the input layer.

use super::device::{Device, rounded};
use super::problem::Numbers;
use vocabfuse_codegen::{Dtype, KernelKind, cross_entropy};
use vocabfuse_ptx::Arg;

const P: fn(u64) -> Arg = Arg::Pointer;

fn device(dtype: Dtype) -> Device {
    Device::new(dtype, None, 512, cross_entropy().unwrap(), 3)
}

#[test]
fn gathered_rows_are_copies_and_zeros() {
    if crate::nvrtc().is_none() {
        return;
    }
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        // Rows of whole pieces, of parts of pieces, and such that do not begin at 16 bytes.
        for (columns, stride, pad) in [(64, 64, 0), (600, 608, 0), (37, 40, 0), (64, 64, 1), (64, 65, 0)] {
            let mut d = device(dtype);
            let mut numbers = Numbers(77);
            let table: Vec<f64> = (0..10 * stride).map(|_| rounded(numbers.next(), dtype)).collect();
            let ids = [3, -1, 9, 3, 0, -5];
            let (from, to) = (d.elements(&table, pad), d.room(ids.len() * columns * dtype.size()));
            let id_list = d.ints(&ids);
            let arguments = [
                ("table", P(from)),
                ("table_stride", Arg::I64(stride as i64)),
                ("ids", P(id_list)),
                ("columns", Arg::I32(columns as i32)),
                ("out", P(to)),
                ("out_stride", Arg::I64(columns as i64)),
            ];
            d.run_rows(KernelKind::GatherRows, ids.len(), &arguments);
            let found = d.read_elements(to, ids.len() * columns);
            for (row, id) in found.chunks(columns).zip(ids) {
                let zeros = vec![0.0; columns];
                let expected = if id < 0 { &zeros[..] } else { &table[id as usize * stride..][..columns] };
                assert_eq!(row, expected, "{dtype} {columns} {stride} {pad} id {id}");
            }
        }
    }
}

#[test]
fn scattered_rows_add_up_in_order() {
    if crate::nvrtc().is_none() {
        return;
    }
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (columns, stride) = (300, 304);
        let mut d = device(dtype);
        let mut numbers = Numbers(78);
        let rows: Vec<f64> = (0..6 * stride).map(|_| rounded(numbers.next(), dtype)).collect();
        let before: Vec<f32> = (0..8 * columns).map(|_| numbers.next() as f32).collect();
        let (from, table) = (d.elements(&rows, 0), d.floats(&before));
        let (ids, starts, order) = (d.ints(&[5, 0, 7]), d.ints(&[0, 3, 4, 6]), d.ints(&[4, 0, 2, 1, 3, 5]));
        let arguments = [
            ("rows", P(from)),
            ("row_stride", Arg::I64(stride as i64)),
            ("ids", P(ids)),
            ("starts", P(starts)),
            ("order", P(order)),
            ("columns", Arg::I32(columns as i32)),
            ("table", P(table)),
            ("table_stride", Arg::I64(columns as i64)),
        ];
        d.run_rows(KernelKind::ScatterAdd, 3, &arguments);
        let mut expected = before;
        for (id, list) in [(5, vec![4, 0, 2]), (0, vec![1]), (7, vec![3, 5])] {
            for (c, to) in expected[id * columns..][..columns].iter_mut().enumerate() {
                // Rounded once.
                *to = list.iter().fold(f64::from(*to), |sum, row| sum + rows[row * stride + c]) as f32;
            }
        }
        assert_eq!(d.read_floats(table, 8 * columns), expected, "{dtype}: bit by bit");
    }
}

/// Rows that lie 2^33 bytes and more from where their tensor begins. Only those that are named exist: a tensor begins
/// that much before them.
#[test]
fn offsets_have_64_bits() {
    if crate::nvrtc().is_none() {
        return;
    }
    for dtype in [Dtype::Bf16, Dtype::F32] {
        let (columns, far) = (40, 5);
        // Elements from one row to the next, so that the product of id and stride needs 35 bits.
        let stride = (1u64 << 32) + 8;
        let begin = |address: u64, size: usize| address - far * stride * size as u64;
        let mut d = device(dtype);
        let mut numbers = Numbers(79);
        let row: Vec<f64> = (0..columns).map(|_| rounded(numbers.next(), dtype)).collect();
        let (from, to) = (d.elements(&row, 0), d.room(columns * dtype.size()));
        let ids = d.ints(&[far as i32]);
        let arguments = [
            ("table", P(begin(from, dtype.size()))),
            ("table_stride", Arg::I64(stride as i64)),
            ("ids", P(ids)),
            ("columns", Arg::I32(columns as i32)),
            ("out", P(to)),
            ("out_stride", Arg::I64(stride as i64)),
        ];
        d.run_rows(KernelKind::GatherRows, 1, &arguments);
        assert_eq!(d.read_elements(to, columns), row, "{dtype}");

        let sums = d.floats(&vec![1.0; columns]);
        let (starts, order) = (d.ints(&[0, 1]), d.ints(&[far as i32]));
        let arguments = [
            ("rows", P(begin(from, dtype.size()))),
            ("row_stride", Arg::I64(stride as i64)),
            ("ids", P(ids)),
            ("starts", P(starts)),
            ("order", P(order)),
            ("columns", Arg::I32(columns as i32)),
            ("table", P(begin(sums, 4))),
            ("table_stride", Arg::I64(stride as i64)),
        ];
        d.run_rows(KernelKind::ScatterAdd, 1, &arguments);
        let expected: Vec<f32> = row.iter().map(|v| 1.0 + *v as f32).collect();
        assert_eq!(d.read_floats(sums, columns), expected, "{dtype}");
    }
}
