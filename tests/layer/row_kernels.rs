//! The kernels that move rows, called as the runtime calls them.

use half::{bf16, f16};
use vocabfuse_kernels::abi::{Entry, GatherRows, ScatterAdd};
use vocabfuse_kernels::{Kernel, Registry};
use vocabfuse_runtime::Cpu;

fn kernels(name: &str) -> Vec<&'static Kernel> {
    let targets: Vec<&str> = Cpu::available_targets().into_iter().map(|t| t.as_str()).collect();
    let found: Vec<_> =
        Registry::default().iter().filter(|k| k.kernel == name && targets.contains(&k.target)).collect();
    assert!(!found.is_empty());
    found
}

/// Values in the bytes of a dtype.
fn bytes(dtype: &str, values: &[f32]) -> Vec<u8> {
    let one = |v: &f32| match dtype {
        "f32" => v.to_le_bytes().to_vec(),
        "bf16" => bf16::from_f32(*v).to_le_bytes().to_vec(),
        _ => f16::from_f32(*v).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

// Bytes on a 64-byte boundary, as the kernels expect of the runtime's buffers.
fn aligned(bytes: &[u8]) -> (Vec<u8>, usize) {
    let mut buffer = vec![0xaa; bytes.len() + 64];
    let start = buffer.as_ptr().align_offset(64);
    buffer[start..start + bytes.len()].copy_from_slice(bytes);
    (buffer, start)
}

#[test]
fn gather_copies_the_rows_asked_for() {
    let (rows, columns, stride) = (9, 21, 25);
    let table: Vec<f32> = (0..rows * stride).map(|i| i as f32 - 100.0).collect();
    let ids = [8u32, 0, 3, 3, 7];
    for kernel in kernels("gather_rows") {
        let Entry::GatherRows(run) = kernel.entry else { panic!("{} has another entry", kernel.name) };
        let (source, start) = aligned(&bytes(kernel.dtype, &table));
        let expected: Vec<f32> = ids.iter().flat_map(|id| table[*id as usize * stride..][..columns].to_vec()).collect();
        let expected = bytes(kernel.dtype, &expected);
        let (mut out, out_start) = aligned(&vec![0; expected.len()]);
        let args = GatherRows {
            table: source[start..].as_ptr(),
            row_stride: stride,
            ids: ids.as_ptr(),
            count: ids.len(),
            columns,
            out: out[out_start..].as_mut_ptr(),
        };
        // SAFETY: the table has `rows` rows, the output room for one row an id.
        unsafe { run(&args) };
        assert_eq!(out[out_start..][..expected.len()], expected, "{}", kernel.name);
        assert!(out[out_start + expected.len()..].iter().all(|b| *b == 0xaa), "{} wrote beyond its rows", kernel.name);
    }
}

#[test]
fn scatter_adds_repeated_ids_in_order() {
    let (columns, stride) = (19, 23);
    let rows: Vec<f32> = (0..4 * stride).map(|i| (i % 37) as f32 * 0.25).collect();
    let (ids, order) = ([2u32, 0, 2, 2, 1], [3u32, 1, 0, 3, 2]);
    for kernel in kernels("scatter_add") {
        let Entry::ScatterAdd(run) = kernel.entry else { panic!("{} has another entry", kernel.name) };
        let (source, start) = aligned(&bytes(kernel.dtype, &rows));
        let mut table = vec![1.0f32; 3 * columns];
        let mut expected = table.clone();
        for (id, row) in ids.iter().zip(&order) {
            for column in 0..columns {
                expected[*id as usize * columns + column] += rows[*row as usize * stride + column];
            }
        }
        let args = ScatterAdd {
            rows: source[start..].as_ptr(),
            row_stride: stride,
            ids: ids.as_ptr(),
            order: order.as_ptr(),
            count: ids.len(),
            columns,
            table: table.as_mut_ptr(),
            table_stride: columns,
        };
        // SAFETY: order names rows of the source, ids rows of the table.
        unsafe { run(&args) };
        assert_eq!(table, expected, "{}", kernel.name);
    }
}
