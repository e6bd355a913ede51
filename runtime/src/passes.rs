//! What a device has to do for passes S, C1 and T, and what it is told about a microbatch.
//!
//! The layer, the algorithms and the collectives are written once over this trait. It is public only because it bounds
//! public types; its module is not, so nobody else can implement it.

use crate::buffer::SharedPointer;
use crate::filter::Filter;
use crate::{Dtype, GradientMut, Matrix, Result};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;

/// What a layer gives to row programs besides values per token.
#[derive(Clone, Copy, Debug)]
pub struct LayerInputs<'a> {
    /// Rows of W that are classes.
    pub classes: usize,
    /// Scalars by name.
    pub uniforms: &'a BTreeMap<String, f32>,
    /// Bias of the shard.
    pub bias: Option<&'a [f32]>,
    /// Weights of the classes of the shard.
    pub class_weight: Option<&'a [f32]>,
}

/// Names of the values per class that a layer gives.
pub(crate) const COLUMNS: [&str; 2] = ["bias", CLASS_WEIGHT];
/// The weights of classes.
pub(crate) const CLASS_WEIGHT: &str = "class_weight";

impl LayerInputs<'_> {
    /// A scalar of a row program by name.
    pub fn uniform(&self, name: &str) -> Option<f32> {
        self.uniforms.get(name).copied()
    }

    /// Values per class by name, if there is such a name; they are zero where the caller has none.
    pub fn column(&self, name: &str) -> Option<Option<&[f32]>> {
        match name {
            "bias" => Some(self.bias),
            "class_weight" => Some(self.class_weight),
            _ => None,
        }
    }
}

/// Inputs of pass S on one shard.
#[derive(Clone, Copy, Debug)]
pub struct SPass<'a> {
    /// X `[N, H]`.
    pub x: Matrix<'a>,
    /// W_d `[V_d, H]`, classes only.
    pub w: Matrix<'a>,
    /// Everything else that row programs read.
    pub inputs: LayerInputs<'a>,
    /// Rows of X that take part: the tokens.
    pub rows: &'a [u32],
    /// Shard-local target of each token, padded to whole panels with -1.
    pub targets: &'a [i32],
    /// Leaves tiles out of the products, if given; a device may also do without.
    pub filter: Option<&'a Filter>,
}

/// Everything that turns merged rows into results.
#[derive(Clone, Copy, Debug)]
pub struct FinishJob<'a> {
    /// What row programs read.
    pub inputs: LayerInputs<'a>,
    /// H.
    pub hidden: usize,
    /// Row of X of each token.
    pub rows: &'a [u32],
    /// Values per token that the finish program reads besides statistics.
    pub values: &'a [(&'static str, Vec<f32>)],
}

/// Sizes that decide how much memory passes need.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Tokens that count.
    pub tokens: usize,
    /// H.
    pub hidden: usize,
    /// Classes of the shard.
    pub classes: usize,
}

/// What is asked of the passes, as far as memory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Ranks that merge their rows.
    pub ranks: usize,
    /// Barriers until dX.
    pub barriers: usize,
    /// Whether dX is wanted.
    pub dx: bool,
    /// Whether dW is wanted.
    pub dw: bool,
    /// Whether a filter leaves tiles out.
    pub filter: bool,
    /// Whether numerators are saved.
    pub saved: bool,
}

/// The merged rows of some tokens, and their results.
pub struct Block<D: Passes> {
    /// The tokens.
    pub tokens: Range<usize>,
    /// Their rows; A is gone once it is finished.
    pub rows: D::Rows,
    /// What the finish program made of them, at the last barrier of a microbatch.
    pub results: Option<D::Results>,
}

impl<D: Passes> Block<D> {
    /// Rows and results, at the last barrier.
    pub fn finished(&self) -> Option<Finished<'_, D>> {
        Some(Finished { tokens: self.tokens.clone(), rows: &self.rows, results: self.results.as_ref()? })
    }
}

/// The merged rows of some tokens with their results.
pub struct Finished<'a, D: Passes> {
    /// The tokens.
    pub tokens: Range<usize>,
    /// Their rows.
    pub rows: &'a D::Rows,
    /// What the finish program made of them.
    pub results: &'a D::Results,
}

/// Where pass T adds.
#[derive(Debug)]
pub struct Sums<'a> {
    /// dW_d `[V_d, H]` row-major, f32 or of the type of W; overwritten, rows of padding included, if it says so.
    pub dw: GradientMut<'a>,
    /// Gradient of the bias.
    pub dbias: Option<&'a mut [f32]>,
}

/// Everything that pass T of one shard works on.
pub struct TPass<'a, D: Passes> {
    /// What pass S was given, W only if there are no numerators, and the filter of this pass.
    pub pass: SPass<'a>,
    /// What pass S has left.
    pub kept: &'a D::Kept,
    /// What C1 left.
    pub ticket: &'a D::Ticket,
    /// Numerators of the softmax, if they were kept.
    pub saved: Option<Numerators<'a, D>>,
    /// Upstream gradient of each token, padded to whole panels.
    pub upstream: &'a [f32],
    /// Where the gradients are added.
    pub sums: Sums<'a>,
}

/// Numerators that pass T reads.
pub enum Numerators<'a, D: Passes> {
    /// The pass may overwrite them.
    Once(D::Saved),
    /// Another pass reads them again.
    Again(&'a D::Saved),
}

impl<D: Passes> Numerators<'_, D> {
    /// The numerators.
    pub fn get(&self) -> &D::Saved {
        match self {
            Numerators::Once(saved) => saved,
            Numerators::Again(saved) => saved,
        }
    }
}

/// The work of a device. See [`crate::Device`].
pub trait Passes: Clone + Debug + Send + Sync + 'static {
    /// The kernels of one dtype and chunk.
    type Kernels: Send + Sync;
    /// A microbatch's inputs on the device, while a pass runs or the ranks meet.
    type Inputs: Send;
    /// What the device keeps of them for pass T: nothing that could be read again.
    type Kept: Send + Sync;
    /// Per-token state of one shard, or of several merged ones.
    type Rows: Send + Sync + 'static;
    /// B of one shard: rows of W of the targets that it owns.
    type Targets: Send + Sync;
    /// Numerators of the softmax that pass S keeps for pass T.
    type Saved: Send + Sync;
    /// What the finish program gives for some tokens.
    type Results: Send + Sync + 'static;
    /// What pass T needs of the merged rows.
    type Ticket: Send + Sync;

    /// The memory that rows live in; ranks of one group have to agree on it.
    fn place(&self) -> String;

    /// How rows of H columns are laid out there, and by what programs they merge and finish; ranks of one group have to
    /// agree on that too.
    fn form(&self, kernels: &Self::Kernels, hidden: usize) -> String;

    /// The kernels for a loss, a dtype and a chunk; `None` takes the device's choice.
    fn kernels(&self, loss: &str, dtype: Dtype, chunk: Option<usize>) -> Result<Self::Kernels>;

    /// Whether pass T of the loss can run from saved values.
    fn can_save(kernels: &Self::Kernels) -> bool;

    /// Names of the kernels that a microbatch calls.
    fn names(kernels: &Self::Kernels, saved: bool) -> Vec<&'static str>;

    /// Tokens are split over ranks, and arrays over tokens are padded, in multiples of this.
    fn panel(kernels: &Self::Kernels) -> usize;

    /// Bytes over inputs, outputs and saved values that the passes of one shard need.
    fn working_set(&self, kernels: &Self::Kernels, extent: Extent, demand: Demand) -> usize;

    /// Bytes of saved values.
    fn saved_bytes(kernels: &Self::Kernels, extent: Extent) -> usize;

    /// Bytes of saved values that are held.
    fn held(saved: &Self::Saved) -> usize;

    /// Brings the inputs to the device.
    fn load(&self, kernels: &Self::Kernels, pass: &SPass<'_>) -> Result<Self::Inputs>;

    /// Lets go of what can be brought again.
    fn keep(inputs: Self::Inputs) -> Self::Kept;

    /// Pass S: statistics, and with `accumulate` A and B. Numerators are kept if `save`.
    fn s_pass(
        &self,
        kernels: &Self::Kernels,
        inputs: &Self::Inputs,
        pass: &SPass<'_>,
        accumulate: bool,
        save: bool,
    ) -> Result<(Self::Rows, Option<Self::Saved>)>;

    /// The references alone, which merge to their maximum.
    fn references(&self, kernels: &Self::Kernels, rows: &Self::Rows) -> Result<Self::Rows>;

    /// Makes rows relative to merged references, none of which is below theirs.
    fn raise(&self, kernels: &Self::Kernels, rows: &mut Self::Rows, references: &Self::Rows) -> Result<()>;

    /// A and B relative to merged references. The statistics are the merged ones if the rank `leads`, else those of
    /// rows that have seen no logit, so that over all ranks they merge to the merged ones.
    fn accumulate(
        &self,
        kernels: &Self::Kernels,
        inputs: &Self::Inputs,
        pass: &SPass<'_>,
        merged: Self::Rows,
        saved: Option<&mut Self::Saved>,
        leads: bool,
    ) -> Result<Self::Rows>;

    /// Number of tokens.
    fn tokens(rows: &Self::Rows) -> usize;

    /// Bytes that a transport moves.
    fn bytes(rows: &Self::Rows) -> usize;

    /// B.
    fn targets(rows: &Self::Rows) -> Self::Targets;

    /// A copy of some tokens, a range that begins at a panel. B stays with its shard.
    fn block(&self, kernels: &Self::Kernels, rows: &Self::Rows, tokens: Range<usize>) -> Result<Self::Rows>;

    /// Merges the same tokens of another shard, which begin at `start` there.
    fn merge(&self, kernels: &Self::Kernels, rows: &mut Self::Rows, other: &Self::Rows, start: usize) -> Result<()>;

    /// The state of all tokens, without A, from blocks in their order.
    fn concatenate(&self, kernels: &Self::Kernels, blocks: &[&Block<Self>]) -> Result<Self::Rows>;

    /// Results of merged rows, the tokens `range` of the whole; dX of these tokens is written if `dx` is given.
    ///
    /// `owners` are the shards that hold target rows. Every row of `dx` that the range names is written by nobody
    /// else meanwhile.
    fn finish(
        &self,
        kernels: &Self::Kernels,
        rows: &Self::Rows,
        range: Range<usize>,
        job: &FinishJob<'_>,
        owners: &[Self::Targets],
        dx: Option<SharedPointer<f32>>,
    ) -> Result<Self::Results>;

    /// Drops A, once dX is written.
    fn finished(rows: &mut Self::Rows);

    /// Whether the finish program has an output of that name.
    fn gives(kernels: &Self::Kernels, output: &str) -> bool;

    /// An output of the finish program by name, for all tokens. An error if there is none.
    fn output(&self, kernels: &Self::Kernels, blocks: &[Finished<'_, Self>], name: &str) -> Result<Vec<f32>>;

    /// What pass T needs, for all tokens.
    fn ticket(&self, kernels: &Self::Kernels, blocks: &[Finished<'_, Self>]) -> Result<Self::Ticket>;

    /// Pass T: adds to dW and to the gradient of the bias.
    fn t_pass(&self, kernels: &Self::Kernels, pass: TPass<'_, Self>) -> Result<()>;
}
