//! Kernels, a row each. A new one is a row here, a template, and for a CPU an entry of the registry's interface.

use super::cuda::{INPUT_GRADIENT, LOGITS, WEIGHT_GRADIENT, Work};
use super::spelled::spelled;
use super::target::Target;
use super::types::Dtype;

spelled! {
    /// Which kernel.
    KernelKind, "kernel" {
        /// X as operand of the logits product.
        PackTokens = "pack_tokens",
        /// X as operand of the weight gradient.
        PackTokensGrad = "pack_tokens_grad",
        /// W as operand of both products of pass S.
        PackVocabulary = "pack_vocabulary",
        /// Pass S: logits, online softmax, A += E W.
        LogitsSoftmax = "logits_softmax",
        /// Another product of pass S: A₂ += E W with E relative to no reference.
        LogitsOperand = "logits_operand",
        /// Statistics of one chunk over its tiles, and E relative to one reference a row; CUDA.
        ReduceStatistics = "reduce_statistics",
        /// A += E W for one chunk; CUDA.
        Accumulate = "accumulate",
        /// A as plain rows, for targets whose pass S lays it out otherwise.
        UnpackAccumulator = "unpack_accumulator",
        /// Pass T from saved values.
        WeightGradSaved = "weight_grad_saved",
        /// Pass T that recomputes the logits.
        WeightGradRecompute = "weight_grad_recompute",
        /// Q of one chunk from recomputed logits; CUDA.
        LogitsGradient = "logits_gradient",
        /// Q of one chunk in place of saved E; CUDA.
        SavedGradient = "saved_gradient",
        /// Power of two that brings Q into the range of f16; CUDA.
        GradientScale = "gradient_scale",
        /// Flags of tiles that pass T may leave out; CUDA.
        FilterTiles = "filter_tiles",
        /// dW += transposed Q X for one chunk; CUDA.
        WeightGrad = "weight_grad",
        /// Gradient of a column input from the column sums of its tiles; CUDA.
        ReduceColumns = "reduce_columns",
        /// Merge of two shards' statistics and A.
        Merge = "merge",
        /// Results and dX from merged statistics.
        Finish = "finish",
        /// Raw dot products of one chunk in f32, for row programs of operators.
        Logits = "logits",
        /// Options of the logits, in place.
        RowLogits = "row_logits",
        /// Row statistics of an operator from the logits of one chunk.
        RowStatistics = "row_statistics",
        /// Q of an operator from the logits of one chunk.
        RowGradient = "row_gradient",
        /// Q of an operator in the dtype of X and W, for the products of one chunk; CUDA.
        RoundRows = "round_rows",
        /// A += Q W for one chunk, Q in f32; CPU.
        InputGrad = "input_grad",
        /// dW += transposed Q X for some rows of one chunk, Q in f32; CPU.
        VocabularyGrad = "vocabulary_grad",
        /// Copy of rows of a table.
        GatherRows = "gather_rows",
        /// Sum of rows into a table.
        ScatterAdd = "scatter_add",
        /// Which tokens count, their targets within the shard and their share of the loss, from ids on the device; CUDA.
        SelectTokens = "select_tokens",
        /// The loss over all tokens, on the device; CUDA.
        ReduceLoss = "reduce_loss",
    }
}

/// What there is to know of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Of which this is the row.
    pub kind: KernelKind,
    /// Stem of its template's file; kernels that differ in their programs alone share one.
    pub template: &'static str,
    /// Whose row programs it holds.
    pub programs: Programs,
    /// Type of the tensor that it writes for the caller.
    pub output: Output,
    /// Whether its text may depend on the chunk: always on GPUs, on CPUs if it is specialised.
    pub chunk: bool,
    /// Whether only operators call it: all of f32 tiles between their products.
    pub of_operators: bool,
    /// Types of X and W for which there is need of it.
    pub storages: &'static [Dtype],
    /// As a kernel of a CPU, if it is one.
    pub cpu: Option<OnCpu>,
    /// As a kernel of a GPU, if it is one.
    pub cuda: Option<OnCuda>,
}

/// Whose row programs a kernel holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// None.
    Nobody,
    /// Those of a loss.
    Loss,
    /// How the statistics of a loss merge: in its text on a GPU, as data on a CPU.
    Rules,
    /// Those of an operator or of the options of the logits, on a tile of logits.
    Rows,
}

/// Type of what a kernel writes for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It writes nothing for the caller.
    Nothing,
    /// f32: dX, dW, sums.
    F32,
    /// That of the tensor it reads.
    Storage,
}

/// A kernel of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnCpu {
    /// Its variant of the registry's `Entry`.
    pub entry: &'static str,
    /// What it reads and writes.
    pub sees: Sees,
}

/// What a kernel of CPUs reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Tensors of a dtype, and packed operands of products.
    Tensors,
    /// Packed operands and f32.
    Operands,
    /// A as products lay it out.
    Accumulator,
    /// Rows of tables of a dtype.
    Tables,
    /// f32 only.
    Values,
}

impl Sees {
    /// Whether it packs or multiplies operands, whose form the target and the precision decide.
    pub fn operands(self) -> bool {
        matches!(self, Sees::Tensors | Sees::Operands)
    }

    /// Whether it runs on the target of values: it sees nothing that a product has laid out.
    pub fn no_products(self) -> bool {
        matches!(self, Sees::Tables | Sees::Values)
    }
}

/// A kernel of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnCuda {
    /// What its blocks share out.
    pub work: Work,
    /// Whether it sees tensors of a dtype.
    pub typed: bool,
}

const fn on_cpu(entry: &'static str, sees: Sees) -> Option<OnCpu> {
    Some(OnCpu { entry, sees })
}

const fn typed(work: Work) -> Option<OnCuda> {
    Some(OnCuda { work, typed: true })
}

const fn untyped(work: Work) -> Option<OnCuda> {
    Some(OnCuda { work, typed: false })
}

/// A kernel that nobody has, to be completed.
const ROW: Row = Row {
    kind: KernelKind::Merge,
    template: "",
    programs: Programs::Nobody,
    output: Output::Nothing,
    chunk: false,
    of_operators: false,
    storages: Dtype::ALL,
    cpu: None,
    cuda: None,
};

/// The rows, in the order of [`KernelKind::ALL`].
static ROWS: [Row; KernelKind::ALL.len()] = [
    Row { kind: KernelKind::PackTokens, template: "pack_tokens", cpu: on_cpu("PackTokens", Sees::Tensors), ..ROW },
    Row {
        kind: KernelKind::PackTokensGrad,
        template: "pack_tokens_grad",
        cpu: on_cpu("PackTokens", Sees::Tensors),
        ..ROW
    },
    Row {
        kind: KernelKind::PackVocabulary,
        template: "pack_vocabulary",
        cpu: on_cpu("PackVocabulary", Sees::Tensors),
        ..ROW
    },
    Row {
        kind: KernelKind::LogitsSoftmax,
        template: "logits_softmax",
        programs: Programs::Loss,
        chunk: true,
        cpu: on_cpu("LogitsSoftmax", Sees::Tensors),
        cuda: typed(Work::Product(LOGITS)),
        ..ROW
    },
    Row {
        kind: KernelKind::LogitsOperand,
        template: "logits_softmax",
        programs: Programs::Loss,
        chunk: true,
        cpu: on_cpu("LogitsSoftmax", Sees::Tensors),
        cuda: typed(Work::Product(LOGITS)),
        ..ROW
    },
    Row {
        kind: KernelKind::ReduceStatistics,
        template: "reduce_statistics",
        programs: Programs::Loss,
        chunk: true,
        cuda: typed(Work::TokenGroups),
        ..ROW
    },
    Row {
        kind: KernelKind::Accumulate,
        template: "accumulate",
        chunk: true,
        cuda: typed(Work::Product(INPUT_GRADIENT)),
        ..ROW
    },
    Row {
        kind: KernelKind::UnpackAccumulator,
        template: "unpack_accumulator",
        cpu: on_cpu("UnpackAccumulator", Sees::Accumulator),
        ..ROW
    },
    Row {
        kind: KernelKind::WeightGradSaved,
        template: "weight_grad",
        programs: Programs::Loss,
        output: Output::F32,
        chunk: true,
        cpu: on_cpu("WeightGrad", Sees::Tensors),
        ..ROW
    },
    Row {
        kind: KernelKind::WeightGradRecompute,
        template: "weight_grad",
        programs: Programs::Loss,
        output: Output::F32,
        cpu: on_cpu("WeightGrad", Sees::Tensors),
        ..ROW
    },
    Row {
        kind: KernelKind::LogitsGradient,
        template: "logits_gradient",
        programs: Programs::Loss,
        chunk: true,
        cuda: typed(Work::Product(LOGITS)),
        ..ROW
    },
    Row {
        kind: KernelKind::SavedGradient,
        template: "saved_gradient",
        programs: Programs::Loss,
        chunk: true,
        cuda: typed(Work::Tiles),
        ..ROW
    },
    Row {
        kind: KernelKind::GradientScale,
        template: "gradient_scale",
        storages: &[Dtype::F16],
        cuda: typed(Work::Whole),
        ..ROW
    },
    Row { kind: KernelKind::FilterTiles, template: "filter_tiles", cuda: untyped(Work::TileTokens), ..ROW },
    Row {
        kind: KernelKind::WeightGrad,
        template: "weight_grad",
        output: Output::F32,
        chunk: true,
        cuda: typed(Work::Product(WEIGHT_GRADIENT)),
        ..ROW
    },
    Row {
        kind: KernelKind::ReduceColumns,
        template: "reduce_columns",
        output: Output::F32,
        cuda: untyped(Work::ColumnGroups),
        ..ROW
    },
    Row {
        kind: KernelKind::Merge,
        template: "merge",
        programs: Programs::Rules,
        cpu: on_cpu("Merge", Sees::Values),
        cuda: untyped(Work::Rows),
        ..ROW
    },
    Row {
        kind: KernelKind::Finish,
        template: "finish",
        programs: Programs::Loss,
        output: Output::F32,
        cpu: on_cpu("Finish", Sees::Values),
        cuda: typed(Work::Rows),
        ..ROW
    },
    Row {
        kind: KernelKind::Logits,
        template: "logits",
        of_operators: true,
        cpu: on_cpu("RawLogits", Sees::Operands),
        cuda: typed(Work::Product(LOGITS)),
        ..ROW
    },
    Row {
        kind: KernelKind::RowLogits,
        template: "row_logits",
        programs: Programs::Rows,
        of_operators: true,
        cpu: on_cpu("RowLogits", Sees::Values),
        cuda: untyped(Work::Rows),
        ..ROW
    },
    Row {
        kind: KernelKind::RowStatistics,
        template: "row_statistics",
        programs: Programs::Rows,
        of_operators: true,
        cpu: on_cpu("RowStatistics", Sees::Values),
        cuda: untyped(Work::Rows),
        ..ROW
    },
    Row {
        kind: KernelKind::RowGradient,
        template: "row_gradient",
        programs: Programs::Rows,
        of_operators: true,
        cpu: on_cpu("RowGradient", Sees::Values),
        cuda: untyped(Work::Rows),
        ..ROW
    },
    Row { kind: KernelKind::RoundRows, template: "round_rows", of_operators: true, cuda: typed(Work::Rows), ..ROW },
    Row {
        kind: KernelKind::InputGrad,
        template: "input_grad",
        of_operators: true,
        cpu: on_cpu("InputGrad", Sees::Operands),
        ..ROW
    },
    Row {
        kind: KernelKind::VocabularyGrad,
        template: "vocabulary_grad",
        output: Output::F32,
        of_operators: true,
        cpu: on_cpu("VocabularyGrad", Sees::Operands),
        ..ROW
    },
    Row {
        kind: KernelKind::GatherRows,
        template: "gather_rows",
        output: Output::Storage,
        cpu: on_cpu("GatherRows", Sees::Tables),
        cuda: typed(Work::Rows),
        ..ROW
    },
    Row {
        kind: KernelKind::ScatterAdd,
        template: "scatter_add",
        output: Output::F32,
        cpu: on_cpu("ScatterAdd", Sees::Tables),
        cuda: typed(Work::Rows),
        ..ROW
    },
    Row { kind: KernelKind::SelectTokens, template: "select_tokens", cuda: untyped(Work::Whole), ..ROW },
    Row {
        kind: KernelKind::ReduceLoss,
        template: "reduce_loss",
        output: Output::F32,
        cuda: untyped(Work::Whole),
        ..ROW
    },
];

impl KernelKind {
    /// What there is to know of the kernel.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Whether targets of the same language as this one have the kernel.
    pub fn is_on(self, target: Target) -> bool {
        if target.is_cuda() { self.row().cuda.is_some() } else { self.row().cpu.is_some() }
    }

    /// Whether the text for a target holds row programs.
    pub fn has_programs(self, target: Target) -> bool {
        match self.row().programs {
            Programs::Nobody => false,
            Programs::Rules => target.is_cuda(),
            Programs::Loss | Programs::Rows => true,
        }
    }

    /// Whether the kernel runs a program of an operator on a tile of logits.
    pub fn is_rows(self) -> bool {
        self.row().programs == Programs::Rows
    }

    /// Whether the kernel packs or multiplies operands on a target.
    pub fn has_operands(self, target: Target) -> bool {
        if target.is_cuda() {
            self.row().cuda.is_some_and(|on| matches!(on.work, Work::Product(_)))
        } else {
            self.row().cpu.is_some_and(|on| on.sees.operands())
        }
    }

    /// Whether the text for a target depends on what tensors are made of.
    pub(super) fn is_typed(self, target: Target) -> bool {
        if target.is_cuda() {
            return self.row().cuda.is_some_and(|on| on.typed);
        }
        self.row().cpu.is_some_and(|on| match on.sees {
            Sees::Tensors | Sees::Tables => true,
            // Operands are f32 there, whatever they were packed from.
            Sees::Operands => !target.multiplies_f32(),
            Sees::Accumulator | Sees::Values => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_its_row() {
        for kind in KernelKind::ALL {
            let row = kind.row();
            assert_eq!(row.kind, *kind);
            assert!(!row.template.is_empty() && (row.cpu.is_some() || row.cuda.is_some()), "{kind}");
        }
    }
}
