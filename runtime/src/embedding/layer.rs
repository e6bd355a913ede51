//! The input layer of one rank, in an order that the types enforce.

use super::additions::{Additions, local};
use super::select::Select;
use crate::check::{self, expect, fingerprint, shape};
use crate::comm::{Local, Pending, Turn};
use crate::debug::shown;
use crate::matrix::OwnedMatrix;
use crate::{Cpu, Device, Dtype, Error, Matrix, Result, ShardLayout};
use std::marker::PhantomData;
use std::sync::Arc;

/// The input embedding on one rank, over the same shards as an [`OutputLayer`](crate::OutputLayer).
///
/// A table that both layers use is one buffer: [`InputLayer::backward`] and [`OutputLayer::t_pass`] add into one dW.
///
/// ```
/// use vocabfuse_runtime::{Cpu, InputLayer, Local, Matrix, ShardLayout};
///
/// # fn main() -> Result<(), vocabfuse_runtime::Error> {
/// let table = [0.0_f32, 0.1, 1.0, 1.1, 2.0, 2.1]; // V = 3, H = 2
/// let layer = InputLayer::new(&Cpu::new(None)?, &ShardLayout::even(3, 1)?, 0, None)?;
/// let comm = Local::group(1).remove(0);
///
/// let embedded = layer.lookup(&comm, &[2, 0, 2], Matrix::new(&table, 3, 2)?)?.start_select().wait()?;
/// assert_eq!(embedded.x.to_f32(), [2.0, 2.1, 0.0, 0.1, 2.0, 2.1]);
///
/// let (dx, mut dw) = ([1.0_f32; 6], [0.0; 6]);
/// layer.backward(&embedded.table_grad, Matrix::new(&dx, 3, 2)?, &mut dw)?;
/// assert_eq!(dw, [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// [`OutputLayer::t_pass`]: crate::OutputLayer::t_pass
#[derive(Clone, Debug)]
pub struct InputLayer<D: Device = Cpu> {
    device: D,
    layout: ShardLayout,
    rank: usize,
    padding: Option<i64>,
}

/// Everything about a microbatch that outlives the lookup. Nothing of it points at memory of the caller.
struct Job<D: Device> {
    layer: InputLayer<D>,
    ids: Arc<[i64]>,
    /// Of the table.
    dtype: Dtype,
    hidden: usize,
}

/// After the lookup: the rows that this rank owns.
#[must_use = "dropped, it ends the collective for all ranks"]
pub struct Lookup<D: Device = Cpu> {
    job: Job<D>,
    rows: D::Gathered,
    kernel: &'static str,
    turn: Turn,
}

/// While the collective runs.
#[must_use = "dropped, it ends the collective for all ranks"]
pub struct Selecting<D: Device = Cpu> {
    job: Job<D>,
    pending: Pending,
}

/// After the collective.
#[derive(Debug)]
pub struct Embedded {
    /// X `[N, H]` in the dtype of the table, shared by the ranks of a process.
    pub x: Arc<OwnedMatrix>,
    /// The ticket for [`InputLayer::backward`]. A frozen table needs no backward: drop it.
    pub table_grad: TableGrad,
}

/// What [`InputLayer::backward`] needs besides the gradient of X: the ids. It holds no memory of the caller.
#[derive(Clone, Debug)]
pub struct TableGrad {
    ids: Arc<[i64]>,
    hidden: usize,
}

shown!(Lookup of job, Selecting of job);

impl<D: Device> InputLayer<D> {
    /// The layer of `rank` in `layout`. The row of the id `padding` is looked up like any other, but has no gradient.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is no such rank, [`Error::Option`] if the padding id is none of the vocabulary.
    pub fn new(device: &D, layout: &ShardLayout, rank: usize, padding: Option<i64>) -> Result<InputLayer<D>> {
        check::rank(layout, rank)?;
        let vocab = layout.vocab();
        match padding {
            Some(id) if !within(id, vocab) => {
                Err(Error::Option { option: "padding_idx", message: format!("expected an id in 0..{vocab}, got {id}") })
            }
            _ => Ok(InputLayer { device: device.clone(), layout: layout.clone(), rank, padding }),
        }
    }

    /// Gathers the rows of this rank's `table` `[V_d, H]` (f32, bf16 or f16) that the global `ids` (N) name: local work. It
    /// takes the rank's place in the collective, without waiting; every rank of the group does so in the same order. Ids of
    /// other ranks are left to them; rows that pad the vocabulary are no ids.
    ///
    /// Every id is checked before any row is read.
    ///
    /// # Errors
    /// [`Error::Id`], [`Error::Shape`] naming the tensor; [`Error::Kernel`] if the registry lacks the kernel;
    /// [`Error::Layout`] if `comm` is not this rank of a group of the layout's size. An error on one rank is that of the
    /// collective on all others.
    pub fn lookup(&self, comm: &Local, ids: &[i64], table: Matrix<'_>) -> Result<Lookup<D>> {
        let gather = || {
            check::member(&self.layout, self.rank, comm)?;
            self.gather(ids, table)
        };
        let (turn, (rows, kernel)) = comm.turn().after(gather)?;
        let job = Job { layer: self.clone(), ids: ids.into(), dtype: table.dtype(), hidden: table.columns() };
        Ok(Lookup { job, rows, kernel, turn })
    }

    /// The rows of this rank, and the kernel that gathered them.
    fn gather(&self, ids: &[i64], table: Matrix<'_>) -> Result<(D::Gathered, &'static str)> {
        let vocab = self.layout.vocab();
        if let Some((position, &id)) = ids.iter().enumerate().find(|(_, id)| !within(**id, vocab)) {
            return Err(Error::Id { tensor: "ids", position, id, vocab });
        }
        if i32::try_from(ids.len()).is_err() {
            return Err(shape("ids", "fewer than 2^31 ids", ids.len().to_string()));
        }
        check::shard(&self.layout, self.rank, "w", &table)?;
        if table.columns() == 0 || i32::try_from(table.columns()).is_err() {
            return Err(shape("w", "1 to 2^31 - 1 columns (H)", table.columns().to_string()));
        }
        let kernels = self.device.row_kernels(table.dtype())?;
        let owned = self.layout.range(self.rank);
        let rows: Vec<u32> = ids.iter().filter_map(|id| local(*id, &owned)).collect();
        let gathered = self.device.gather(&kernels, table, &rows)?;
        let [kernel, _] = D::row_kernel_names(&kernels);
        Ok((gathered, kernel))
    }

    /// Adds the gradient `dx` `[N, H]` (f32, bf16 or f16) of X to the rows `dw` `[V_d, H]` of this rank, row-major: no
    /// communication. Rows of one id add up in f64 in the order of N and are rounded once, whatever the number of threads and ranks is.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the tensor; [`Error::Kernel`] if the registry lacks the kernel.
    pub fn backward(&self, ticket: &TableGrad, dx: Matrix<'_>, dw: &mut [f32]) -> Result<()> {
        let TableGrad { ids, hidden } = ticket;
        if (dx.rows(), dx.columns()) != (ids.len(), *hidden) {
            let found = format!("{} x {}", dx.rows(), dx.columns());
            return Err(shape("dy", format!("{} x {hidden}, as x has", ids.len()), found));
        }
        let owned = self.layout.range(self.rank);
        expect("dw", owned.len() * *hidden, dw.len())?;
        let kernels = self.device.row_kernels(dx.dtype())?;
        let additions = Additions::new(ids, owned, self.padding);
        self.device.scatter_add(&kernels, dx, &additions, dw)
    }

    /// Name of the kernel that [`InputLayer::backward`] calls for a gradient of some dtype.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the registry lacks it.
    pub fn backward_kernel(&self, dtype: Dtype) -> Result<&'static str> {
        self.device.row_kernels(dtype).map(|kernels| D::row_kernel_names(&kernels)[1])
    }
}

fn within(id: i64, vocab: usize) -> bool {
    usize::try_from(id).is_ok_and(|id| id < vocab)
}

impl<D: Device> Job<D> {
    /// For reports.
    fn summary(&self) -> String {
        format!("rank {} of {} ids, H {}, {}", self.layer.rank, self.ids.len(), self.hidden, self.dtype)
    }

    // Whether a rank will ask for the gradient is left out: the collective is the same for a frozen table.
    fn agreement(&self) -> String {
        let InputLayer { device, layout, padding, .. } = &self.layer;
        format!(
            "input embedding with rows in {}, N {}, H {}, V {}, {} ranks with layout {:016x}, dtype {}, padding_idx {padding:?}, ids {:016x}",
            device.place(),
            self.ids.len(),
            self.hidden,
            layout.vocab(),
            layout.ranks(),
            fingerprint(layout),
            self.dtype,
            fingerprint(&self.ids),
        )
    }
}

impl<D: Device> Lookup<D> {
    /// Name of the kernel that gathered the rows.
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// Starts the one collective; does not wait.
    pub fn start_select(self) -> Selecting<D> {
        let Lookup { job, rows, turn, .. } = self;
        let bytes = D::gathered_bytes(&rows);
        let pending = turn.start(&job.agreement(), rows, bytes);
        Selecting { job, pending }
    }
}

impl<D: Device> Selecting<D> {
    /// Waits for all ranks.
    ///
    /// # Errors
    /// [`Error::Disagreement`] if a rank runs another job, [`Error::RankGone`] if one left or dropped its part, and the
    /// error of a rank that failed.
    pub fn wait(self) -> Result<Embedded> {
        let Selecting { job, pending } = self;
        let Job { dtype, hidden, .. } = job;
        let select = Select::<D> { device: PhantomData, ids: &job.ids, layout: &job.layer.layout, dtype, hidden };
        let outcome = pending.wait(&select)?;
        let x = outcome.output.unwrap_or_else(|| Arc::new(OwnedMatrix::zeros(dtype, 0, hidden)));
        Ok(Embedded { x, table_grad: TableGrad { ids: job.ids, hidden } })
    }
}
