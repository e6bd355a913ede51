//! The host side of passes S, C1 and T, as a runtime would drive the kernels.

use super::device::Device;
use super::problem::Problem;
use std::ops::Range;

use vocabfuse_codegen::{Dtype, KernelKind};
use vocabfuse_ptx::Arg;

/// Rows and columns of a tile of E and Q.
const TILE_TOKENS: usize = 128;
const TILE_COLUMNS: usize = 256;

const P: fn(u64) -> Arg = Arg::Pointer;

/// How the caller's tensors lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Elements between rows beyond the columns.
    pub extra: usize,
}

impl Layout {
    pub const PLAIN: Layout = Layout { extra: 0 };

    fn upload(self, device: &mut Device, values: &[f64], columns: usize) -> u64 {
        let rows = values.chunks(columns.max(1));
        let spread: Vec<f64> =
            rows.flat_map(|r| r.iter().copied().chain(std::iter::repeat_n(f64::NAN, self.extra))).collect();
        device.elements(&spread, 0)
    }
}

/// What a rank keeps of a microbatch on its device.
pub struct Shard {
    pub columns: Range<usize>,
    pub tokens: usize,
    pub hidden: usize,
    stride: usize,
    x: u64,
    w: u64,
    row_stride: usize,
    bias: u64,
    pub targets: u64,
    upstream: u64,
    ones: u64,
    zeros: u64,
    scale: f32,
    /// Reference, then statistics: `[3][stride]`.
    pub state: u64,
    partials: u64,
    previous: u64,
    pub a: u64,
    /// One region a chunk when saving, else one for all.
    e: u64,
    saved_references: u64,
    pub peaks: u64,
    pub saved: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stages {
    Statistics,
    All,
}

impl Shard {
    pub fn new(device: &mut Device, problem: &Problem, columns: Range<usize>, saved: bool, layout: Layout) -> Shard {
        let (tokens, hidden) = (problem.tokens, problem.hidden);
        let stride = tokens.next_multiple_of(8);
        let local = |t: &usize| if columns.contains(t) { (*t - columns.start) as i32 } else { -1 };
        let chunks = columns.len().div_ceil(device.chunk);
        let regions = if saved { chunks } else { 1 };
        Shard {
            tokens,
            hidden,
            stride,
            x: layout.upload(device, &problem.x, hidden),
            w: layout.upload(device, &problem.w[columns.start * hidden..columns.end * hidden], hidden),
            row_stride: hidden + layout.extra,
            bias: problem.bias.as_ref().map_or(0, |b| device.floats(&b[columns.clone()])),
            targets: device.ints(&problem.targets.iter().map(local).collect::<Vec<_>>()),
            upstream: device.floats(&problem.upstream),
            ones: device.floats(&vec![1.0; problem.tokens]),
            zeros: device.floats(&vec![0.0; problem.tokens]),
            scale: problem.scale,
            state: device.room((1 + device.loss.statistics_rules().len()) * stride * 4),
            partials: device
                .room((1 + device.loss.statistics_rules().len()) * (device.chunk / TILE_COLUMNS) * stride * 4),
            previous: device.room(stride * 4),
            a: device.room(tokens * hidden * 4),
            e: device.room(regions * tokens * device.chunk * device.dtype.size()),
            saved_references: device.room(chunks * stride * 4),
            peaks: device.room(columns.len().div_ceil(TILE_COLUMNS) * stride * 4),
            columns,
            saved,
        }
    }

    fn chunks(&self, device: &Device) -> Vec<Range<usize>> {
        let end = self.columns.len();
        (0..end).step_by(device.chunk).map(|c| c..end.min(c + device.chunk)).collect()
    }

    fn e_of(&self, device: &Device, chunk: usize) -> u64 {
        let region = self.tokens * device.chunk * device.dtype.size();
        if self.saved { self.e + (chunk * region) as u64 } else { self.e }
    }

    fn w_of(&self, device: &Device, column: usize) -> u64 {
        self.w + (column * self.row_stride * device.dtype.size()) as u64
    }

    fn row_tiles(&self) -> usize {
        self.tokens.div_ceil(TILE_TOKENS)
    }

    fn logits(&self, device: &mut Device, chunk: usize, columns: &Range<usize>, references: u64, e: u64) {
        let peaks = self.peaks + (columns.start / TILE_COLUMNS * self.stride * 4) as u64;
        let w = self.w_of(device, columns.start);
        let _ = chunk;
        let arguments = [
            ("x", P(self.x)),
            ("x_stride", Arg::I64(self.row_stride as i64)),
            ("w", P(w)),
            ("w_stride", Arg::I64(self.row_stride as i64)),
            ("tokens", Arg::I32(self.tokens as i32)),
            ("hidden", Arg::I32(self.hidden as i32)),
            ("first_column", Arg::I32(columns.start as i32)),
            ("columns", Arg::I32(columns.len() as i32)),
            ("classes", Arg::I32(self.columns.len() as i32)),
            ("targets", P(self.targets)),
            ("references", P(references)),
            ("uniform_logit_scale", Arg::F32(self.scale)),
            ("column_bias", P(self.bias)),
            ("partials", P(self.partials)),
            ("partial_stride", Arg::I64(self.stride as i64)),
            ("e", P(e)),
            ("peaks", P(peaks)),
        ];
        device.run(KernelKind::LogitsSoftmax, &arguments);
    }

    fn accumulate(&self, device: &mut Device, chunk: usize, columns: &Range<usize>, previous: u64, e_references: u64) {
        let arguments = [
            ("e", P(self.e_of(device, chunk))),
            ("w", P(self.w_of(device, columns.start))),
            ("w_stride", Arg::I64(self.row_stride as i64)),
            ("tokens", Arg::I32(self.tokens as i32)),
            ("hidden", Arg::I32(self.hidden as i32)),
            ("columns", Arg::I32(columns.len() as i32)),
            ("a", P(self.a)),
            ("a_stride", Arg::I64(self.hidden as i64)),
            ("first", Arg::I32(i32::from(chunk == 0))),
            ("previous", P(previous)),
            ("references", P(self.state)),
            ("e_references", P(e_references)),
            ("scale", P(0)),
        ];
        device.run(KernelKind::Accumulate, &arguments);
    }

    /// Pass S: statistics, and with `Stages::All` A.
    pub fn s_pass(&self, device: &mut Device, stages: Stages) {
        for (index, columns) in self.chunks(device).iter().enumerate() {
            let keeps = stages == Stages::All || self.saved;
            let e = if keeps { self.e_of(device, index) } else { 0 };
            let references = if index == 0 { 0 } else { self.state };
            self.logits(device, index, columns, references, e);
            let saved_references =
                if self.saved { self.saved_references + (index * self.stride * 4) as u64 } else { 0 };
            let arguments = [
                ("partials", P(self.partials)),
                ("partial_stride", Arg::I64(self.stride as i64)),
                ("state", P(self.state)),
                ("state_stride", Arg::I64(self.stride as i64)),
                ("first", Arg::I32(i32::from(index == 0))),
                ("tokens", Arg::I32(self.tokens as i32)),
                ("columns", Arg::I32(columns.len() as i32)),
                ("e", P(e)),
                ("previous", P(self.previous)),
                ("saved_references", P(saved_references)),
            ];
            device.run(KernelKind::ReduceStatistics, &arguments);
            if stages == Stages::All {
                self.accumulate(device, index, columns, self.previous, 0);
            }
        }
    }

    /// A relative to the merged references in `state`, after a barrier that merged statistics only.
    pub fn accumulate_merged(&self, device: &mut Device) {
        for (index, columns) in self.chunks(device).iter().enumerate() {
            if self.saved {
                let relative = self.saved_references + (index * self.stride * 4) as u64;
                self.accumulate(device, index, columns, 0, relative);
            } else {
                // No logit exceeds the merged reference by more than the window, so no tile takes another.
                self.logits(device, index, columns, self.state, self.e);
                self.accumulate(device, index, columns, 0, 0);
            }
        }
    }

    /// Merges another shard into this one; `with_a` merges A too.
    pub fn merge(&self, device: &mut Device, other: &Shard, with_a: bool) {
        let arguments = [
            ("state", P(self.state)),
            ("state_stride", Arg::I64(self.stride as i64)),
            ("other_state", P(other.state)),
            ("other_stride", Arg::I64(other.stride as i64)),
            ("hidden", Arg::I32(self.hidden as i32)),
            ("a", P(if with_a { self.a } else { 0 })),
            ("a_stride", Arg::I64(self.hidden as i64)),
            ("other_a", P(other.a)),
            ("other_a_stride", Arg::I64(other.hidden as i64)),
        ];
        device.run_rows(KernelKind::Merge, self.tokens, &arguments);
    }

    /// The merged state of `other`, as a broadcast would bring it.
    pub fn adopt(&self, device: &mut Device, other: &Shard) {
        let values = device.read_floats(other.state, 3 * self.stride);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        device.memory.write(self.state, &bytes).unwrap();
    }

    /// Results and dX from merged statistics and A; target rows come packed, by token.
    pub fn finish(&self, device: &mut Device, problem: &Problem) -> Results {
        let rows: Vec<f64> =
            problem.targets.iter().flat_map(|t| problem.w[t * self.hidden..][..self.hidden].to_vec()).collect();
        let target_rows = device.elements(&rows, 0);
        let index = device.ints(&(0..self.tokens as i32).collect::<Vec<_>>());
        let results = Results {
            dx: device.room(self.tokens * self.hidden * 4),
            outputs: device.room(5 * self.stride * 4),
            stride: self.stride,
        };
        let arguments = [
            ("references", P(self.state)),
            ("uniform_logit_scale", Arg::F32(self.scale)),
            ("row_rest", P(self.state + (self.stride * 4) as u64)),
            ("row_target_logit", P(self.state + (2 * self.stride * 4) as u64)),
            ("row_hard", P(self.ones)),
            ("row_upstream", P(self.upstream)),
            ("row_lse_upstream", P(self.zeros)),
            ("uniform_z_loss", Arg::F32(0.0)),
            ("hidden", Arg::I32(self.hidden as i32)),
            ("a", P(self.a)),
            ("a_stride", Arg::I64(self.hidden as i64)),
            ("target_rows", P(target_rows)),
            ("target_stride", Arg::I64(self.hidden as i64)),
            ("target_index", P(index)),
            ("rows", P(0)),
            ("dx", P(results.dx)),
            ("dx_stride", Arg::I64(self.hidden as i64)),
            ("outputs", P(results.outputs)),
            ("output_stride", Arg::I64(self.stride as i64)),
        ];
        device.run_rows(KernelKind::Finish, self.tokens, &arguments);
        results
    }

    /// Pass T. Returns dW and dbias, added to what was there.
    pub fn t_pass(
        &self,
        device: &mut Device,
        results: &Results,
        before: f32,
        skip: Option<(u64, usize)>,
    ) -> (Vec<f32>, Vec<f32>) {
        let (classes, hidden) = (self.columns.len(), self.hidden);
        let dw = device.floats(&vec![before; classes * hidden]);
        let dbias = device.floats(&vec![before; classes]);
        let partials = device.room(self.row_tiles() * device.chunk * 4);
        let scale = if device.dtype == Dtype::F16 {
            let scale = device.room(8);
            let arguments = [
                ("row_upstream", P(self.ones)),
                ("row_bound", P(results.output(4))),
                ("count", Arg::I32(self.tokens as i32)),
                ("scale", P(scale)),
            ];
            device.run(KernelKind::GradientScale, &arguments);
            scale
        } else {
            0
        };
        for (index, columns) in self.chunks(device).iter().enumerate() {
            let q = self.e_of(device, index);
            let shared = [
                ("references", P(self.state)),
                ("tokens", Arg::I32(self.tokens as i32)),
                ("first_column", Arg::I32(columns.start as i32)),
                ("columns", Arg::I32(columns.len() as i32)),
                ("classes", Arg::I32(classes as i32)),
                ("targets", P(self.targets)),
                ("uniform_logit_scale", Arg::F32(self.scale)),
                ("row_target_factor", P(results.output(3))),
                ("row_a_factor", P(results.output(2))),
                ("row_upstream", P(self.ones)),
                ("scale", P(scale)),
                ("column_partials", P(partials)),
            ];
            let mut arguments = shared.to_vec();
            if self.saved {
                arguments.push(("values", P(q)));
                arguments.push(("saved_references", P(self.saved_references + (index * self.stride * 4) as u64)));
                device.run(KernelKind::SavedGradient, &arguments);
            } else {
                let w = self.w_of(device, columns.start);
                arguments.extend([
                    ("x", P(self.x)),
                    ("x_stride", Arg::I64(self.row_stride as i64)),
                    ("w", P(w)),
                    ("w_stride", Arg::I64(self.row_stride as i64)),
                    ("hidden", Arg::I32(hidden as i32)),
                    ("column_bias", P(self.bias)),
                    ("q", P(q)),
                ]);
                device.run(KernelKind::LogitsGradient, &arguments);
            }
            let arguments = [
                ("column_partials", P(partials)),
                ("partial_stride", Arg::I64(device.chunk as i64)),
                ("row_tiles", Arg::I32(self.row_tiles() as i32)),
                ("columns", Arg::I32(columns.len() as i32)),
                ("gradient", P(dbias + 4 * columns.start as u64)),
                ("beta", Arg::I32(1)),
            ];
            device.run(KernelKind::ReduceColumns, &arguments);
            let (flags, flag_stride) = skip.unwrap_or((0, 0));
            let flags = if flags == 0 { 0 } else { flags + (columns.start / TILE_COLUMNS * flag_stride) as u64 };
            let arguments = [
                ("q", P(q)),
                ("x", P(self.x)),
                ("x_stride", Arg::I64(self.row_stride as i64)),
                ("tokens", Arg::I32(self.tokens as i32)),
                ("hidden", Arg::I32(hidden as i32)),
                ("columns", Arg::I32(columns.len() as i32)),
                ("dw", P(dw + (columns.start * hidden * 4) as u64)),
                ("dw_stride", Arg::I64(hidden as i64)),
                ("beta", Arg::I32(1)),
                ("scale", P(scale)),
                ("skip", P(flags)),
                ("skip_stride", Arg::I64(flag_stride as i64)),
            ];
            device.run(KernelKind::WeightGrad, &arguments);
        }
        let after = |device: &Device, at, count| {
            device.read_floats(at, count).into_iter().map(|v| v - before).collect::<Vec<_>>()
        };
        (after(device, dw, classes * hidden), after(device, dbias, classes))
    }

    /// Flags of tiles under a threshold.
    pub fn filter(&self, device: &mut Device, results: &Results, log2_threshold: f32) -> (u64, usize) {
        let stride = self.row_tiles();
        let skip = device.room(self.columns.len().div_ceil(TILE_COLUMNS) * stride);
        for columns in self.chunks(device) {
            let offset = columns.start / TILE_COLUMNS;
            let arguments = [
                ("peaks", P(self.peaks + (offset * self.stride * 4) as u64)),
                ("peak_stride", Arg::I64(self.stride as i64)),
                ("lse", P(results.output(1))),
                ("targets", P(self.targets)),
                ("tokens", Arg::I32(self.tokens as i32)),
                ("first_column", Arg::I32(columns.start as i32)),
                ("columns", Arg::I32(columns.len() as i32)),
                ("log2_threshold", Arg::F32(log2_threshold)),
                ("skip", P(skip + (offset * stride) as u64)),
                ("skip_stride", Arg::I64(stride as i64)),
            ];
            device.run(KernelKind::FilterTiles, &arguments);
        }
        (skip, stride)
    }
}

/// Outputs of `finish`: loss, lse, a_factor, target_factor.
pub struct Results {
    pub dx: u64,
    outputs: u64,
    stride: usize,
}

impl Results {
    pub fn output(&self, index: usize) -> u64 {
        self.outputs + (index * self.stride * 4) as u64
    }
}
