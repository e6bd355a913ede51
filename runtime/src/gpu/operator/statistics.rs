//! The first phase on one shard.

use super::super::buffer::Buffer;
use super::super::driver::Argument::{I32, I64};
use super::super::driver::Driver;
use super::kernels::OperatorKernels;
use super::{CHUNK, chunks, inputs};
use crate::Result;
use crate::buffer;
use crate::operator::{RowJob, RowState};
use std::sync::Arc;
use vocabfuse_codegen::program::keys;

/// A [`RowState`] on the device.
struct State {
    /// References, statistics and what their sums have lost `[1 or 2 + statistics + sums][stride]`.
    rows: Buffer,
    /// Values at selected ids `[values][slots][stride]`.
    selected: Buffer,
    /// Values, noise and ids of the largest columns `[slots][stride]`.
    top: Option<[Buffer; 3]>,
}

/// Statistics of a shard.
pub(super) fn run(kernels: &OperatorKernels, job: &RowJob<'_>) -> Result<RowState> {
    let (driver, tokens, selection) = (kernels.driver(), job.rows.len(), job.selection);
    let mut state = RowState::identity(job.operator, tokens, selection.slots.max(job.top), kernels.host.panel);
    if tokens == 0 || job.classes == 0 {
        return Ok(state);
    }
    let inputs = inputs::load(kernels, job)?;
    let mut lost = state.lost(job.operator);
    let device = State::new(driver, &state, &lost)?;
    let ids = Buffer::with(driver, selection.ids.as_ref())?;
    let key = |i: usize| -> Vec<u32> { job.rows.iter().map(|row| keys(job.seed, *row)[i]).collect() };
    let random = [Buffer::with(driver, &key(0))?, Buffer::with(driver, &key(1))?];
    for chunk in chunks(job.classes) {
        inputs.iter().try_for_each(|input| input.fill(&chunk))?;
        let mut call = kernels.row_statistics()?.set([
            ("logits", inputs[0].logits.from(0)),
            ("logits_1", inputs[inputs.len() - 1].logits.from(0)),
            ("stride", I64(CHUNK as i64)),
            ("first_column", I32(chunk.start as i32)),
            ("columns", I32(chunk.len() as i32)),
            ("state", device.rows.from(0)),
            ("slots", I32(selection.slots as i32)),
            ("ids", ids.from(0)),
            ("token_stride", I64(state.padded() as i64)),
            ("selected", device.selected.from(0)),
            ("first_keys", random[0].from(0)),
            ("second_keys", random[1].from(0)),
            // Ids wrap around as those of the generator's numbers do.
            ("first_id", I32(job.first_id as u32 as i32)),
        ]);
        if let Some([values, noise, ids]) = &device.top {
            call = call.set([
                ("top_slots", I32(job.top as i32)),
                ("top_values", values.from(0)),
                ("top_noise", noise.from(0)),
                ("top_ids", ids.from(0)),
            ]);
        }
        call.launch_rows(tokens)?;
    }
    device.read(&mut state, &mut lost)?;
    state.restore(job.operator, &lost);
    Ok(state)
}

impl State {
    fn new(driver: &Arc<dyn Driver>, state: &RowState, lost: &[buffer::Buffer<f32>]) -> Result<State> {
        let joined = |parts: &mut dyn Iterator<Item = &buffer::Buffer<f32>>| {
            let values: Vec<f32> = parts.flat_map(|part| part.as_ref().iter().copied()).collect();
            Buffer::with(driver, &values)
        };
        let top = state.top.as_ref().map(|top| {
            let floats = |values: &buffer::Buffer<f32>| Buffer::with(driver, values.as_ref());
            Ok([floats(&top.values)?, floats(&top.noise)?, Buffer::with(driver, top.ids.as_ref())?])
        });
        Ok(State {
            rows: joined(&mut state.rows.iter().chain(lost))?,
            selected: joined(&mut state.selected.iter())?,
            top: top.transpose()?,
        })
    }

    fn read(&self, state: &mut RowState, lost: &mut [buffer::Buffer<f32>]) -> Result<()> {
        let split = |from: &Buffer, parts: &mut dyn Iterator<Item = &mut buffer::Buffer<f32>>| -> Result<()> {
            let mut first = 0;
            for part in parts {
                let values = from.floats(first * 4, part.len())?;
                part.as_mut().copy_from_slice(&values);
                first += values.len();
            }
            Ok(())
        };
        split(&self.rows, &mut state.rows.iter_mut().chain(lost))?;
        split(&self.selected, &mut state.selected.iter_mut())?;
        if let (Some(top), Some([values, noise, ids])) = (&mut state.top, &self.top) {
            values.read(bytemuck::cast_slice_mut(top.values.as_mut()))?;
            noise.read(bytemuck::cast_slice_mut(top.noise.as_mut()))?;
            ids.read(bytemuck::cast_slice_mut(top.ids.as_mut()))?;
        }
        Ok(())
    }
}
