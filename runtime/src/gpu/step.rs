//! A training step whose tensors live on the device: passes S, C1 and T of one rank, recorded once and replayed.

use super::Gpu;
use super::buffer::Buffer;
use super::driver::Argument::{F32, I32, I64, Pointer};
use super::driver::Graph;
use super::finish::{self, Finish, Results};
use super::kernels::Kernels;
use super::record::Recorder;
use super::s_pass::{self, Inputs, Saved, padded_hidden};
use super::t_pass::{self, Gradients, Reads, Ticket};
use super::tensor::DeviceTensor;
use crate::passes::{Extent, LayerInputs};
use crate::{CrossEntropy, Element, Error, Policy, Reduction, Result, Save};
use std::collections::BTreeMap;
use std::sync::Arc;
use vocabfuse_codegen::KernelKind;

/// What a step computes. Its sizes are fixed: a batch of fewer tokens has ignored ones.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// N
    pub tokens: usize,
    /// H
    pub hidden: usize,
    /// V
    pub vocab: usize,
    /// Whether logits have a bias.
    pub bias: bool,
    /// Whether the gradients of W and of the bias are added to what is there, instead of taking its place.
    pub add: bool,
    /// The loss. Tokens and classes have no weights, and nobody asks for the argmax.
    pub loss: CrossEntropy,
    /// Saved or recomputed probabilities, the chunk, the filter, what is frozen. One rank has one barrier, whatever the
    /// algorithm.
    pub policy: Policy,
}

/// A step of one rank that holds the whole vocabulary, replayed with whatever its tensors hold by then. On a GPU a replay is
/// one launch of a CUDA graph.
///
/// Tokens whose target is the ignored one take no part, whatever their row of X holds. The host checks no target: a token
/// whose target is none of the vocabulary has gradients of zero and a loss of NaN, and [`Step::unknown_targets`] counts it.
///
/// ```no_run
/// # fn main() -> Result<(), vocabfuse_runtime::Error> {
/// # use vocabfuse_runtime::{CrossEntropy, Gpu, Policy, Step, StepOptions};
/// # let (x, w, targets) = (vec![half::bf16::ONE; 64 * 128], vec![half::bf16::ONE; 1000 * 128], vec![7_i64; 64]);
/// let (loss, policy) = (CrossEntropy::default(), Policy::default());
/// let options = StepOptions { tokens: 64, hidden: 128, vocab: 1000, bias: false, add: false, loss, policy };
/// let step = Step::<half::bf16>::new(&Gpu::cuda(0)?, options)?;
/// step.x().upload(&x)?; // or a kernel of the trainer writes there
/// step.w().upload(&w)?;
/// step.targets().upload(&targets)?;
/// step.run()?; // S, C1 and T; nothing is read back
/// let loss = step.loss()?; // waits
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Step<T> {
    // Fields are dropped in this order: the graph names the memory of the others, and the recorder frees what was dropped
    // while it recorded.
    graph: Box<dyn Graph>,
    options: StepOptions,
    tensors: Tensors<T>,
    recorded: Recorded,
    _recorder: Arc<Recorder>,
}

#[derive(Debug)]
struct Tensors<T> {
    x: DeviceTensor<T>,
    w: DeviceTensor<T>,
    targets: DeviceTensor<i64>,
    upstream: DeviceTensor<f32>,
    bias: Option<DeviceTensor<f32>>,
    dx: DeviceTensor<f32>,
    dw: DeviceTensor<f32>,
    dbias: Option<DeviceTensor<f32>>,
    constants: Constants,
    /// The reduced loss.
    total: DeviceTensor<f32>,
    /// Tokens that count, and tokens whose target is none of the vocabulary.
    counts: DeviceTensor<i32>,
}

/// What nobody changes.
#[derive(Debug)]
struct Constants {
    /// The share of the target in its distribution, N.
    hard: DeviceTensor<f32>,
    /// Upstream gradients of the log-sum-exp, N.
    lse_upstream: DeviceTensor<f32>,
    /// Upstream gradients that are known after C1, N.
    later: DeviceTensor<f32>,
    /// Weights of classes, V; with label smoothing only.
    class_weight: Option<DeviceTensor<f32>>,
}

/// Memory that a replay writes besides the tensors.
#[derive(Debug)]
struct Recorded {
    outputs: Buffer,
    /// Where loss and lse begin in `outputs`, in bytes.
    loss: usize,
    lse: usize,
    _inputs: Inputs,
    _saved: Option<Saved>,
}

impl<T: Element + bytemuck::Pod> Step<T> {
    /// Allocates the tensors, compiles the kernels and records the step. Tensors begin as zeros, upstream gradients as
    /// ones.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes of 0; [`Error::Option`] for an unusable option or a dtype that the device's kernels do
    /// not have; [`Error::Missing`] or [`Error::Compile`] if a kernel cannot be compiled; [`Error::Device`] if the device
    /// has no room.
    pub fn new(gpu: &Gpu, options: StepOptions) -> Result<Step<T>> {
        let StepOptions { tokens, hidden, vocab, loss, policy, .. } = options;
        for (tensor, extent) in [("x", tokens), ("x", hidden), ("w", vocab)] {
            if extent == 0 || i32::try_from(extent).is_err() {
                let expected = "extents from 1 to 2^31 - 1".to_owned();
                return Err(Error::Shape { tensor, expected, found: extent.to_string() });
            }
        }
        loss.validate(vocab)?;
        policy.validate()?;
        if loss.argmax {
            return Err(Error::Option { option: "argmax", message: "expected false: a step gives none".to_owned() });
        }
        let programs = gpu.loss(&loss.programs(vocab).name)?;
        let kernels = Kernels::new(&gpu.library, programs, T::DTYPE, gpu.precision, policy.chunk)?;
        if policy.save == Save::Yes && !programs.can_save() {
            let message = format!("expected auto or no: the gradient of {} is made from logits", programs.name);
            return Err(Error::Option { option: "save", message });
        }
        let tensors = Tensors::new(gpu, &options)?;
        let recorder = Arc::new(Recorder::new(gpu.library.driver()));
        let recorded = record(&kernels.through(Arc::clone(&recorder) as _), &options, &tensors)?;
        let graph = recorder.finish()?;
        Ok(Step { graph, options, tensors, recorded, _recorder: recorder })
    }

    /// X `[N, H]`.
    pub fn x(&self) -> &DeviceTensor<T> {
        &self.tensors.x
    }

    /// W `[V, H]`.
    pub fn w(&self) -> &DeviceTensor<T> {
        &self.tensors.w
    }

    /// Target ids, N.
    pub fn targets(&self) -> &DeviceTensor<i64> {
        &self.tensors.targets
    }

    /// Upstream gradient of each token's loss, N; multiplies gradients only.
    pub fn upstream(&self) -> &DeviceTensor<f32> {
        &self.tensors.upstream
    }

    /// Bias, V, if there is one.
    pub fn bias(&self) -> Option<&DeviceTensor<f32>> {
        self.tensors.bias.as_ref()
    }

    /// dX `[N, H]`.
    pub fn dx(&self) -> &DeviceTensor<f32> {
        &self.tensors.dx
    }

    /// dW `[V, H]`.
    pub fn dw(&self) -> &DeviceTensor<f32> {
        &self.tensors.dw
    }

    /// Gradient of the bias, V, if there is one.
    pub fn dbias(&self) -> Option<&DeviceTensor<f32>> {
        self.tensors.dbias.as_ref()
    }

    /// Runs the step with what the tensors hold; does not wait.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn run(&self) -> Result<()> {
        self.graph.run()
    }

    /// The loss of the last run: one value, or N under reduction none. Waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn loss(&self) -> Result<Vec<f32>> {
        match self.options.loss.reduction {
            Reduction::None => self.recorded.outputs.floats(self.recorded.loss, self.options.tokens),
            Reduction::Sum | Reduction::Mean => self.tensors.total.download(),
        }
    }

    /// Log-sum-exp of the last run, N; 0 for ignored tokens. Waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn lse(&self) -> Result<Vec<f32>> {
        self.recorded.outputs.floats(self.recorded.lse, self.options.tokens)
    }

    /// How many targets of the last run were none of the vocabulary. Waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] if the device fails.
    pub fn unknown_targets(&self) -> Result<usize> {
        Ok(self.tensors.counts.download()?[1] as usize)
    }
}

impl<T: Element + bytemuck::Pod> Tensors<T> {
    fn new(gpu: &Gpu, options: &StepOptions) -> Result<Tensors<T>> {
        let StepOptions { tokens, hidden, vocab, bias, loss, .. } = *options;
        let width = padded_hidden(T::DTYPE, hidden);
        let column = || bias.then(|| DeviceTensor::vector(gpu, vocab)).transpose();
        let filled = |len: usize, value: f32| {
            let vector = DeviceTensor::vector(gpu, len)?;
            vector.upload(&vec![value; len]).map(|()| vector)
        };
        let constants = Constants {
            hard: filled(tokens, 1.0 - loss.label_smoothing)?,
            lse_upstream: filled(tokens, 0.0)?,
            later: filled(tokens, 1.0)?,
            class_weight: (loss.label_smoothing > 0.0).then(|| filled(vocab, 1.0)).transpose()?,
        };
        Ok(Tensors {
            x: DeviceTensor::zeros(gpu, tokens, hidden, width)?,
            w: DeviceTensor::zeros(gpu, vocab, hidden, width)?,
            targets: DeviceTensor::vector(gpu, tokens)?,
            upstream: filled(tokens, 1.0)?,
            bias: column()?,
            dx: DeviceTensor::zeros(gpu, tokens, hidden, width)?,
            dw: DeviceTensor::zeros(gpu, vocab, hidden, width)?,
            dbias: column()?,
            constants,
            total: DeviceTensor::vector(gpu, 1)?,
            counts: DeviceTensor::vector(gpu, 2)?,
        })
    }
}

/// Everything from targets to dW, in the order of the device. Nothing of it runs now.
fn record<T: Element + bytemuck::Pod>(
    kernels: &Kernels,
    options: &StepOptions,
    tensors: &Tensors<T>,
) -> Result<Recorded> {
    let StepOptions { tokens, hidden, vocab, add, loss, policy, .. } = *options;
    let (driver, width) = (kernels.driver(), padded_hidden(T::DTYPE, hidden));
    // 0 is the number of tokens that count.
    let divisor = if loss.reduction == Reduction::Mean { loss.normalizer.unwrap_or(0.0) } else { 1.0 };
    let room = |bytes: usize| Buffer::new(driver, bytes);
    let (active, local, factors) = (room(tokens * 4)?, room(tokens * 4)?, room(tokens * 4)?);
    let select = kernels.call(KernelKind::SelectTokens)?.set([
        ("targets", tensors.targets.buffer.from(0)),
        ("upstream", tensors.upstream.buffer.from(0)),
        ("tokens", I32(tokens as i32)),
        ("vocab", I64(vocab as i64)),
        ("first_class", I64(0)),
        ("classes", I32(vocab as i32)),
        // No vocabulary has such an id.
        ("ignored", I64(loss.ignore_index.unwrap_or(i64::MIN))),
        ("divisor", F32(divisor)),
        ("rows", active.from(0)),
        ("local", local.from(0)),
        ("factors", factors.from(0)),
        ("counts", tensors.counts.buffer.from(0)),
    ]);
    select.launch()?;
    let x = room(tokens * width * T::DTYPE.size())?;
    s_pass::gather(kernels, &tensors.x.buffer, &active, width, &x, tokens)?;

    let mut uniforms: BTreeMap<String, f32> = loss.programs(vocab).uniforms;
    // Every class has weight 1.
    uniforms.insert("smoothing_total".to_owned(), loss.label_smoothing);
    uniforms.insert("first_class".to_owned(), 0.0);
    let layer = LayerInputs { classes: vocab, uniforms: &uniforms, bias: None, class_weight: None };
    let filter = t_pass::threshold(policy.filter, kernels);
    let peaks = filter.map(|_| room(kernels.column_tiles(vocab) * tokens * 4)).transpose()?;
    let shared = |tensor: Option<&DeviceTensor<f32>>| tensor.map(|tensor| Arc::clone(&tensor.buffer));
    let constants = &tensors.constants;
    let columns =
        vec![("bias", shared(tensors.bias.as_ref())), ("class_weight", shared(constants.class_weight.as_ref()))];
    let w = Arc::clone(&tensors.w.buffer);
    let inputs = Inputs { tokens, classes: vocab, x, w, width, columns, targets: local, peaks: peaks.map(Arc::new) };
    let saves = kernels.loss().can_save()
        && !policy.frozen_weight
        && policy.saves(s_pass::saved_bytes(kernels, Extent { tokens, hidden, classes: vocab }));
    let saved = saves.then(|| s_pass::saved(kernels, &inputs)).transpose()?;
    let accumulate = !policy.frozen_input;
    let walk = s_pass::Walk::new(kernels, &inputs, layer, accumulate && !saves)?;
    let mut rows = walk.statistics(accumulate, saved.as_ref())?;
    if accumulate {
        rows.operand = walk.operand()?;
    }
    let with = Finish {
        layer,
        tokens: &[
            ("hard", constants.hard.buffer.from(0)),
            ("upstream", factors.from(0)),
            ("lse_upstream", constants.lse_upstream.buffer.from(0)),
        ],
        target_rows: inputs.w.from(0),
        target_index: inputs.targets.from(0),
        dx: if accumulate { tensors.dx.buffer.from(0) } else { Pointer(0) },
    };
    let Results { outputs } = finish::launch(kernels, &rows, &with)?;
    let place = |name: &str| Ok(kernels.output(name)? * tokens * 4);
    let (losses, lse) = (place("loss")?, place("lse")?);

    let ticket = Ticket { references: rows.state, outputs };
    let to = Gradients {
        layer,
        ticket: &ticket,
        upstream: &constants.later.buffer,
        saved: saved.as_ref().map(|saved| (saved, Reads::Once)),
        dw: &tensors.dw.buffer,
        dbias: tensors.dbias.as_ref().map(|dbias| &*dbias.buffer),
        add,
    };
    if !policy.frozen_weight {
        t_pass::Walk::new(kernels, &inputs, to, filter)?.run()?;
    }
    let reduce = kernels.call(KernelKind::ReduceLoss)?.set([
        ("rows", active.from(0)),
        ("counts", tensors.counts.buffer.from(0)),
        ("tokens", I32(tokens as i32)),
        ("divisor", F32(divisor)),
        ("loss", ticket.outputs.from(losses)),
        ("lse", ticket.outputs.from(lse)),
        ("total", tensors.total.buffer.from(0)),
    ]);
    // After pass T, whose filter reads the lse of all tokens.
    reduce.launch()?;
    Ok(Recorded { outputs: ticket.outputs, loss: losses, lse, _inputs: inputs, _saved: saved })
}
