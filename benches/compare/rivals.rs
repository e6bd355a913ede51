//! The competitors of this process: the fused layer, with saved and with recomputed probabilities and in bf16x3, and the plain
//! composition.

use crate::data::{self, Shape};
use crate::memory;
use anyhow::{Context, Result, bail};
use bytemuck::allocation::zeroed_vec;
use half::{bf16, f16};
use std::time::Instant;
use vocabfuse::plain;
use vocabfuse::problem::{Options, Problem};
use vocabfuse::{
    Batch, Cpu, CrossEntropy, Dtype, GradientMut, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Precision,
    Save, Shard, ShardLayout, Upstream,
};

/// A matrix in the dtype of the problem.
enum Values {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Values {
    fn read(path: &std::path::Path, count: usize, dtype: Dtype) -> Result<Values> {
        Ok(match dtype {
            Dtype::F32 => Values::F32(data::read_as(path, count, |v| v)?),
            Dtype::Bf16 => Values::Bf16(data::read_as(path, count, bf16::from_f32)?),
            Dtype::F16 => Values::F16(data::read_as(path, count, f16::from_f32)?),
        })
    }

    /// Of memory that nobody has touched, as competitors allocate theirs.
    fn zeros(count: usize, dtype: Dtype) -> Values {
        match dtype {
            Dtype::F32 => Values::F32(zeroed_vec(count)),
            Dtype::Bf16 => Values::Bf16(zeroed_vec(count)),
            Dtype::F16 => Values::F16(zeroed_vec(count)),
        }
    }

    /// As a gradient that is written for the first time.
    fn gradient(&mut self) -> GradientMut<'_> {
        let gradient: GradientMut<'_> = match self {
            Values::F32(values) => values.into(),
            Values::Bf16(values) => values.into(),
            Values::F16(values) => values.into(),
        };
        gradient.overwriting()
    }

    /// Some rows, one after the other.
    fn rows(&self, rows: &[usize], columns: usize) -> Vec<f32> {
        let at = |i: usize| match self {
            Values::F32(values) => values[i],
            Values::Bf16(values) => values[i].to_f32(),
            Values::F16(values) => values[i].to_f32(),
        };
        rows.iter().flat_map(|row| (row * columns..(row + 1) * columns).map(at)).collect()
    }

    fn matrix(&self, rows: usize, columns: usize) -> Result<Matrix<'_>> {
        Ok(match self {
            Values::F32(values) => Matrix::new(values, rows, columns)?,
            Values::Bf16(values) => Matrix::new(values, rows, columns)?,
            Values::F16(values) => Matrix::new(values, rows, columns)?,
        })
    }
}

enum Way {
    Fused { layer: Box<OutputLayer>, comm: Local, x: Values, w: Values, device: String, save: bool },
    Plain { x: Vec<f32>, w: Vec<f32>, dtype: Dtype },
}

/// What is kept of a run.
pub struct Results {
    pub loss: f64,
    /// Sampled rows of dW, one after the other.
    pub rows: Vec<f32>,
}

/// A competitor with its inputs.
pub struct Rival {
    way: Way,
    shape: Shape,
    targets: Vec<i64>,
    rows: Vec<usize>,
    results: Option<Results>,
    /// Bytes in memory when the inputs were there and nothing had run on them.
    loaded: Option<u64>,
}

impl Rival {
    /// Reads the inputs and runs twice: on a tiny problem before memory is looked at, which starts threads and loads
    /// code, and on the inputs themselves.
    pub fn load(name: &str, shape: &Shape, rows: Vec<usize>) -> Result<Rival> {
        if !matches!(name, "plain" | "vocabfuse-saved" | "vocabfuse-recompute" | "vocabfuse-bf16x3") {
            bail!("no competitor {name:?} here");
        }
        rayon::ThreadPoolBuilder::new().num_threads(shape.threads).build_global()?;
        let tiny = tempfile::tempdir()?;
        let small = Shape { folder: tiny.path().to_owned(), tokens: 64, hidden: 64, vocab: 256, ..shape.clone() };
        data::make(&small, 0, 0)?;
        Rival::read(name, &small, vec![])?.run()?;

        let mut rival = Rival::read(name, shape, rows)?;
        rival.loaded = memory::resident();
        rival.run()?;
        memory::forget_peak();
        Ok(rival)
    }

    fn read(name: &str, shape: &Shape, rows: Vec<usize>) -> Result<Rival> {
        let (dtype, n, h, v) = (shape.dtype()?, shape.tokens, shape.hidden, shape.vocab);
        let way = if name == "plain" {
            let read = |path, count| data::read_as(path, count, |v| v);
            Way::Plain { x: read(&shape.x(), n * h)?, w: read(&shape.w(), v * h)?, dtype }
        } else {
            let save = name == "vocabfuse-saved";
            let policy = Policy { save: if save { Save::Yes } else { Save::No }, ..Policy::default() };
            let precision = (name == "vocabfuse-bf16x3").then_some(Precision::Bf16x3);
            let cpu = Cpu::new(Some(shape.threads))?.with_precision(precision);
            let layout = ShardLayout::even(v, 1)?;
            Way::Fused {
                layer: Box::new(OutputLayer::new(&cpu, &layout, 0, CrossEntropy::default(), policy)?),
                comm: Local::group(1).pop().context("a group of one")?,
                x: Values::read(&shape.x(), n * h, dtype)?,
                w: Values::read(&shape.w(), v * h, dtype)?,
                device: cpu.target().to_string(),
                save,
            }
        };
        let targets = data::read(&shape.targets())?;
        Ok(Rival { way, shape: shape.clone(), targets, rows, results: None, loaded: None })
    }

    /// Runs forward and backward; milliseconds. Outputs are allocated within that time, as an eager framework does.
    pub fn run(&mut self) -> Result<f64> {
        let (n, h, v) = (self.shape.tokens, self.shape.hidden, self.shape.vocab);
        let start = Instant::now();
        let (loss, dx, dw) = match &self.way {
            Way::Fused { layer, comm, x, w, .. } => {
                let batch = Batch::new(x.matrix(n, h)?, &self.targets);
                let shard = Shard { weight: w.matrix(v, h)?, bias: None };
                let done = layer.s_pass(comm, batch, shard)?.start_combine().wait()?;
                let mut dw = Values::zeros(v * h, self.shape.dtype()?);
                layer.t_pass(
                    done.weight_grad,
                    Operands::new(batch.x, shard),
                    Gradients { dw: dw.gradient(), dbias: None },
                    Upstream::One,
                )?;
                (done.loss[0], done.dx, dw)
            }
            Way::Plain { x, w, dtype } => {
                let options = Options::default();
                let targets = &self.targets;
                let problem = Problem::new(x, w, targets, h, options);
                let out = plain::cross_entropy(&problem, *dtype)?;
                (out.loss[0], out.dx.into(), Values::F32(out.dw))
            }
        };
        let ms = start.elapsed().as_secs_f64() * 1e3;
        std::hint::black_box(&dx);
        let rows = dw.rows(&self.rows, h);
        self.results = Some(Results { loss: f64::from(loss), rows });
        Ok(ms)
    }

    /// What the last run gave.
    pub fn results(&self) -> Option<&Results> {
        self.results.as_ref()
    }

    /// Matrix products of N H V multiplications that the method needs, dW and dX included.
    pub fn products(&self) -> usize {
        match self.way {
            Way::Fused { save: false, .. } => 4,
            _ => 3,
        }
    }

    /// Bytes of dW and dX. The layer's dW is of the type of W, as a framework's is; the plain composition's is f32.
    pub fn output_bytes(&self) -> usize {
        let Shape { tokens, hidden, vocab, .. } = self.shape;
        let of_dw = match (&self.way, self.shape.dtype()) {
            (Way::Fused { .. }, Ok(dtype)) => dtype.size(),
            _ => size_of::<f32>(),
        };
        hidden * (tokens * size_of::<f32>() + vocab * of_dw)
    }

    /// What the matrix products run on.
    pub fn device(&self) -> &str {
        match &self.way {
            Way::Fused { device, .. } => device,
            Way::Plain { .. } => "gemm crate",
        }
    }

    /// Peak memory of the runs over the inputs.
    pub fn peak_bytes(&self) -> Option<u64> {
        Some(memory::peak()?.saturating_sub(self.loaded?))
    }
}
