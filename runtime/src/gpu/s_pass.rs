//! Pass S of one shard on a device, chunk by chunk of the vocabulary.

use super::buffer::Buffer;
use super::call::Call;
use super::driver::Argument::{self, I32, I64, Pointer};
use super::kernels::Kernels;
use super::range::{Bound, bring_into_range};
use super::rows::{Operand, Rows, Targets, pointer};
use super::t_pass::threshold;
use crate::passes::{CLASS_WEIGHT, COLUMNS, Demand, Extent, LayerInputs, SPass};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use vocabfuse_codegen::{Dtype, KernelKind};

/// Inputs of a microbatch on the device.
///
/// Rows of X and W are laid out so that kernels copy 16 bytes at a time and whole sectors are read: `width` elements apart,
/// zeros behind column H. The kernels take `width` for H.
#[derive(Debug)]
pub struct Inputs {
    pub(super) tokens: usize,
    pub(super) classes: usize,
    /// X `[tokens, width]`: tokens that count.
    pub(super) x: Buffer,
    /// W_d `[classes, width]`.
    pub(super) w: Arc<Buffer>,
    pub(super) width: usize,
    /// Values per class by name; null where the caller has none.
    pub(super) columns: Vec<(&'static str, Option<Arc<Buffer>>)>,
    /// Shard-local targets, -1 where another shard owns them.
    pub(super) targets: Buffer,
    /// Largest logit of each token in each tile of columns, `[tiles][tokens]`, which pass S finds; only for filtering.
    pub(super) peaks: Option<Arc<Buffer>>,
}

impl Inputs {
    /// Where the peaks from a tile of columns on are.
    pub(super) fn peaks(&self, tile: usize) -> Argument {
        self.peaks.as_ref().map_or(Pointer(0), |peaks| peaks.from(tile * self.tokens * 4))
    }

    /// Values per class by name; null is zero.
    pub(super) fn column(&self, name: &str) -> Option<Argument> {
        self.columns.iter().find(|(known, _)| *known == name).map(|(_, values)| pointer(values.as_deref()))
    }
}

/// Saved numerators of the softmax, for pass T.
#[derive(Debug)]
pub struct Saved {
    /// `[chunks][tokens][chunk]`.
    pub(super) values: Buffer,
    /// `[chunks][tokens]`: what each chunk is relative to.
    pub(super) references: Buffer,
}

/// H rounded up to whole sectors of 32 bytes, in which a GPU reads memory.
pub(super) fn padded_hidden(dtype: Dtype, hidden: usize) -> usize {
    hidden.next_multiple_of(32 / dtype.size())
}

/// Columns of the shard, a chunk at a time.
pub(super) fn chunks(kernels: &Kernels, classes: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let chunk = kernels.chunk;
    (0..classes).step_by(chunk).map(move |first| first..classes.min(first + chunk)).enumerate()
}

/// Bytes of E of one chunk.
pub(super) fn region(kernels: &Kernels, tokens: usize) -> usize {
    tokens * kernels.chunk * kernels.dtype.size()
}

/// Bytes over inputs, outputs and saved values that the passes of one shard need.
pub(super) fn working_set(kernels: &Kernels, extent: Extent, demand: Demand) -> usize {
    let Extent { tokens, hidden, classes } = extent;
    let width = padded_hidden(kernels.dtype, hidden);
    let parts = 1 + kernels.statistics().len();
    let state = parts * tokens * 4 * (1 + kernels.column_tiles(kernels.chunk)) + 2 * tokens * 4;
    let peaks = if demand.filter { kernels.column_tiles(classes) * tokens * 4 } else { 0 };
    let e = if demand.saved { 0 } else { region(kernels, tokens) };
    if !demand.dx {
        return state + peaks + if demand.dw { e } else { 0 };
    }
    let targets = tokens * width * kernels.dtype.size();
    let operand = match (kernels.loss().has(KernelKind::LogitsOperand), kernels.loss().shares_operand()) {
        (false, _) => 0,
        (true, true) => tokens.min(1),
        (true, false) => tokens,
    };
    // The second product has room of its own for what it multiplies.
    let (products, second) = ((tokens + operand) * width * 4, region(kernels, operand));
    // Ranks copy the rows of their block before they merge them.
    let copy = if demand.ranks > 1 { products.div_ceil(demand.ranks) } else { 0 };
    state + peaks + e + products + targets + second.max(copy)
}

/// Bytes of saved values.
pub(super) fn saved_bytes(kernels: &Kernels, extent: Extent) -> usize {
    extent.classes.div_ceil(kernels.chunk) * (region(kernels, extent.tokens) + extent.tokens * 4)
}

impl Saved {
    fn new(kernels: &Kernels, tokens: usize, classes: usize) -> Result<Saved> {
        let chunks = classes.div_ceil(kernels.chunk);
        Ok(Saved {
            values: Buffer::new(kernels.driver(), chunks * region(kernels, tokens))?,
            references: Buffer::new(kernels.driver(), chunks * tokens * 4)?,
        })
    }

    /// Bytes held.
    pub(super) fn held(&self) -> usize {
        self.values.bytes() + self.references.bytes()
    }

    /// E of a chunk, and what it is relative to.
    pub(super) fn chunk(&self, kernels: &Kernels, tokens: usize, index: usize) -> (Argument, Argument) {
        (self.values.from(index * region(kernels, tokens)), self.references.from(index * tokens * 4))
    }
}

/// An error for an extent that kernels cannot count.
pub(super) fn check_extent(tensor: &'static str, extent: usize) -> Result<()> {
    i32::try_from(extent).map(|_| ()).map_err(|_| {
        let expected = "extents below 2^31".to_owned();
        Error::Shape { tensor, expected, found: extent.to_string() }
    })
}

/// Copies the inputs to the device. Tokens that count are gathered there.
pub(super) fn load(kernels: &Kernels, pass: &SPass<'_>) -> Result<Inputs> {
    let driver = kernels.driver();
    for (tensor, rows) in [("x", pass.x.rows()), ("w", pass.inputs.classes), ("x", pass.x.columns())] {
        check_extent(tensor, rows)?;
    }
    let width = padded_hidden(kernels.dtype, pass.x.columns());
    let tokens = pass.rows.len();
    let mut x = Buffer::matrix(driver, pass.x, width)?;
    if tokens < pass.x.rows() {
        let all = x;
        x = Buffer::new(driver, tokens * width * kernels.dtype.size())?;
        gather(kernels, &all, &Buffer::with(driver, pass.rows)?, width, &x, tokens)?;
    }
    let column = |name| {
        // Copied from memory of ours: if the caller has pinned his, it might be read after he has it back.
        let values = pass.inputs.column(name).flatten().map(<[f32]>::to_vec);
        Ok((name, values.map(|values| Buffer::with(driver, &values).map(Arc::new)).transpose()?))
    };
    let filtered = threshold(pass.filter.map(|f| f.threshold), kernels).is_some();
    let classes = pass.inputs.classes;
    let peaks = filtered.then(|| Buffer::new(driver, kernels.column_tiles(classes) * tokens * 4));
    Ok(Inputs {
        tokens,
        classes,
        x,
        w: Arc::new(Buffer::matrix(driver, pass.w, width)?),
        width,
        columns: COLUMNS.into_iter().map(column).collect::<Result<_>>()?,
        targets: Buffer::with(driver, &pass.targets[..tokens])?,
        peaks: peaks.transpose()?.map(Arc::new),
    })
}

/// Rows of a table, zeros where an id is negative; all are `width` elements apart.
pub(super) fn gather(
    kernels: &Kernels,
    table: &Buffer,
    ids: &Buffer,
    width: usize,
    out: &Buffer,
    rows: usize,
) -> Result<()> {
    let call = kernels.call(KernelKind::GatherRows)?.set([
        ("table", table.from(0)),
        ("table_stride", I64(width as i64)),
        ("ids", ids.from(0)),
        ("columns", I32(width as i32)),
        ("out", out.from(0)),
        ("out_stride", I64(width as i64)),
    ]);
    call.launch_rows(rows)
}

/// B: the rows of W of the targets that this shard owns.
pub(super) fn gather_targets(kernels: &Kernels, inputs: &Inputs, pass: &SPass<'_>) -> Result<Targets> {
    let mut index = vec![-1; pass.rows.len()];
    let mut ids: Vec<i32> = vec![];
    for (position, target) in index.iter_mut().zip(pass.targets) {
        if *target >= 0 {
            *position = ids.len() as i32;
            ids.push(*target);
        }
    }
    let driver = kernels.driver();
    let rows = Buffer::new(driver, ids.len() * inputs.width * kernels.dtype.size())?;
    gather(kernels, &inputs.w, &Buffer::with(driver, &ids)?, inputs.width, &rows, ids.len())?;
    Ok(Targets { index: Arc::new(index), rows: Some(Arc::new(rows)) })
}

/// A product of one chunk with W.
struct Accumulation {
    tokens: usize,
    /// Whether it is the first chunk, before which there is nothing to add to.
    first: bool,
    e: Argument,
    a: Argument,
    /// References that A is relative to, if not `references`.
    previous: Argument,
    references: Argument,
    /// References that E is relative to, if not `references`.
    e_references: Argument,
    /// What E has been multiplied by, and its inverse, if anything.
    scale: Argument,
}

/// One microbatch on its way through pass S.
pub(super) struct Walk<'a> {
    kernels: &'a Kernels,
    inputs: &'a Inputs,
    /// What row programs read.
    layer: LayerInputs<'a>,
    /// Statistics of each tile of a chunk.
    partials: Buffer,
    /// References before a chunk.
    previous: Buffer,
    /// E of one chunk, where none is saved.
    e: Option<Buffer>,
}

impl<'a> Walk<'a> {
    /// `keeps_e` says whether E of a chunk is needed although it is not saved.
    pub(super) fn new(
        kernels: &'a Kernels,
        inputs: &'a Inputs,
        layer: LayerInputs<'a>,
        keeps_e: bool,
    ) -> Result<Walk<'a>> {
        let (driver, tokens) = (kernels.driver(), inputs.tokens);
        let parts = 1 + kernels.statistics().len();
        let partials = Buffer::new(driver, parts * kernels.column_tiles(kernels.chunk) * tokens * 4)?;
        let previous = Buffer::new(driver, tokens * 4)?;
        let e = keeps_e.then(|| Buffer::new(driver, region(kernels, tokens))).transpose()?;
        Ok(Walk { kernels, inputs, layer, partials, previous, e })
    }

    /// Statistics, and with `accumulate` A, of a shard that has seen nothing yet.
    pub(super) fn statistics(&self, accumulate: bool, saved: Option<&Saved>) -> Result<Rows> {
        let (kernels, tokens, classes) = (self.kernels, self.inputs.tokens, self.inputs.classes);
        if classes == 0 {
            let mut rows = Rows::identity(kernels, tokens, self.inputs.width)?;
            rows.a = if accumulate { Some(self.zeros()?) } else { None };
            return Ok(rows);
        }
        let mut rows = Rows::new(kernels, tokens, self.inputs.width)?;
        if accumulate {
            rows.a = Some(Buffer::new(kernels.driver(), tokens * self.inputs.width * 4)?);
        }
        for (index, columns) in chunks(kernels, classes) {
            let (e, saved_references) = match saved {
                Some(saved) => saved.chunk(kernels, tokens, index),
                None => (pointer(self.e.as_ref()), Pointer(0)),
            };
            let references = if index == 0 { Pointer(0) } else { rows.state_part(0) };
            self.logits(&columns, references, e)?;
            let call = kernels.call(KernelKind::ReduceStatistics)?.set([
                ("partials", self.partials.from(0)),
                ("partial_stride", I64(tokens as i64)),
                ("state", rows.state_part(0)),
                ("state_stride", I64(tokens as i64)),
                ("first", I32(i32::from(index == 0))),
                ("tokens", I32(tokens as i32)),
                ("columns", I32(columns.len() as i32)),
                ("e", e),
                ("previous", self.previous.from(0)),
                ("saved_references", saved_references),
            ]);
            call.launch()?;
            if accumulate {
                let product = self.product(&rows, index, e);
                self.accumulate(&columns, &Accumulation { previous: self.previous.from(0), ..product })?;
            }
        }
        Ok(rows)
    }

    /// A relative to the references in `rows`, none of which is below those of this shard.
    pub(super) fn relative(&self, rows: &mut Rows, saved: Option<&Saved>) -> Result<()> {
        let (kernels, tokens, classes) = (self.kernels, self.inputs.tokens, self.inputs.classes);
        if classes == 0 {
            rows.a = Some(self.zeros()?);
            return Ok(());
        }
        rows.a = Some(Buffer::new(kernels.driver(), tokens * self.inputs.width * 4)?);
        for (index, columns) in chunks(kernels, classes) {
            match saved {
                Some(saved) => {
                    let (e, references) = saved.chunk(kernels, tokens, index);
                    let product = self.product(rows, index, e);
                    self.accumulate(&columns, &Accumulation { e_references: references, ..product })?;
                }
                None => {
                    let e = pointer(self.e.as_ref());
                    self.logits(&columns, rows.state_part(0), e)?;
                    self.accumulate(&columns, &self.product(rows, index, e))?;
                }
            }
        }
        Ok(())
    }

    /// A += E W of a chunk, with nothing relative to another reference than that of the rows.
    fn product(&self, rows: &Rows, chunk: usize, e: Argument) -> Accumulation {
        Accumulation {
            tokens: self.inputs.tokens,
            first: chunk == 0,
            e,
            a: pointer(rows.a.as_ref()),
            previous: Pointer(0),
            references: rows.state_part(0),
            e_references: Pointer(0),
            scale: Pointer(0),
        }
    }

    fn zeros(&self) -> Result<Buffer> {
        Buffer::with(self.kernels.driver(), &vec![0.0f32; self.inputs.tokens * self.inputs.width])
    }

    // Address of W from a column of the logits on.
    fn w(&self, column: usize) -> Argument {
        self.inputs.w.from(column * self.inputs.width * self.kernels.dtype.size())
    }

    fn logits(&self, columns: &Range<usize>, references: Argument, e: Argument) -> Result<()> {
        let tokens = self.inputs.tokens;
        let call = self.logits_of(KernelKind::LogitsSoftmax, tokens, columns)?.set([
            ("references", references),
            ("partials", self.partials.from(0)),
            ("partial_stride", I64(tokens as i64)),
            ("e", e),
            ("peaks", self.inputs.peaks(self.kernels.column_tiles(columns.start))),
        ]);
        call.launch()
    }

    /// A₂, if the loss has one.
    pub(super) fn operand(&self) -> Result<Option<Operand>> {
        let (kernels, width, classes) = (self.kernels, self.inputs.width, self.inputs.classes);
        if !kernels.loss().has(KernelKind::LogitsOperand) {
            return Ok(None);
        }
        let shared = kernels.loss().shares_operand();
        let tokens = if shared { self.inputs.tokens.min(1) } else { self.inputs.tokens };
        if classes == 0 {
            let values = Buffer::with(kernels.driver(), &vec![0.0f32; tokens * width])?;
            return Ok(Some(Operand { values, shared }));
        }
        let values = Buffer::new(kernels.driver(), tokens * width * 4)?;
        let room = Buffer::new(kernels.driver(), region(kernels, tokens))?;
        let scale = self.operand_scale()?;
        let scale = pointer(scale.as_ref());
        for (index, columns) in chunks(kernels, classes) {
            let call = self.logits_of(KernelKind::LogitsOperand, tokens, &columns)?;
            let call = call.set([("references", Pointer(0)), ("scale", scale), ("e", room.from(0))]);
            call.launch()?;
            let product = Accumulation {
                tokens,
                first: index == 0,
                e: room.from(0),
                a: values.from(0),
                previous: Pointer(0),
                references: Pointer(0),
                e_references: Pointer(0),
                scale,
            };
            self.accumulate(&columns, &product)?;
        }
        Ok(Some(Operand { values, shared }))
    }

    /// What brings A₂'s operand into the range of f16: it is at most as large as the weights of the classes, of whatever size
    /// these are.
    fn operand_scale(&self) -> Result<Option<Buffer>> {
        let weighted = self.kernels.loss().operand.iter().any(|p| p.column_inputs().contains(&CLASS_WEIGHT));
        if self.kernels.dtype != Dtype::F16 || !weighted {
            return Ok(None);
        }
        let Some(values) = self.inputs.column(CLASS_WEIGHT) else { return Ok(None) };
        let scale = Buffer::new(self.kernels.driver(), 8)?;
        let bound = Bound { values, upstream: Pointer(0), count: self.inputs.classes };
        bring_into_range(self.kernels, &bound, scale.from(0))?;
        Ok(Some(scale))
    }

    /// A call of a kernel that makes something of the logits of a chunk.
    fn logits_of(&self, kind: KernelKind, tokens: usize, columns: &Range<usize>) -> Result<Call<'_>> {
        let (kernels, inputs, width) = (self.kernels, self.inputs, self.inputs.width);
        kernels
            .call(kind)?
            .set([
                ("x", inputs.x.from(0)),
                ("x_stride", I64(width as i64)),
                ("w", self.w(columns.start)),
                ("w_stride", I64(width as i64)),
                ("tokens", I32(tokens as i32)),
                ("hidden", I32(width as i32)),
                ("first_column", I32(columns.start as i32)),
                ("columns", I32(columns.len() as i32)),
                ("classes", I32(inputs.classes as i32)),
                ("targets", inputs.targets.from(0)),
            ])
            .uniforms(|name| self.layer.uniform(name))?
            .columns(|name| inputs.column(name))
    }

    fn accumulate(&self, columns: &Range<usize>, product: &Accumulation) -> Result<()> {
        let width = self.inputs.width;
        let call = self.kernels.call(KernelKind::Accumulate)?.set([
            ("e", product.e),
            ("w", self.w(columns.start)),
            ("w_stride", I64(width as i64)),
            ("tokens", I32(product.tokens as i32)),
            ("hidden", I32(width as i32)),
            ("columns", I32(columns.len() as i32)),
            ("a", product.a),
            ("a_stride", I64(width as i64)),
            ("first", I32(i32::from(product.first))),
            ("previous", product.previous),
            ("references", product.references),
            ("e_references", product.e_references),
            ("scale", product.scale),
        ]);
        call.launch()
    }
}

/// Room for the saved values of a shard.
pub(super) fn saved(kernels: &Kernels, inputs: &Inputs) -> Result<Saved> {
    Saved::new(kernels, inputs.tokens, inputs.classes)
}
