//! Finds kernels by what they compute.

use crate::abi::{Entry, Geometry, Rule};

/// One generated kernel. The fields mirror the specification it was generated from; strings are in the spelling of
/// kernel names (`bf16`, `avx512`, `cross_entropy`).
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Full name.
    pub name: &'static str,
    /// Which kernel: `logits_softmax`, `merge`, ...
    pub kernel: &'static str,
    /// Target.
    pub target: &'static str,
    /// Element type of the tensors it reads.
    pub dtype: &'static str,
    /// How it multiplies f32 where its products are not exact, else empty.
    pub precision: &'static str,
    /// Chunk of the vocabulary it is specialised for, 0 if it takes any.
    pub chunk: usize,
    /// Loss whose programs it runs, empty if none.
    pub loss: &'static str,
    /// Names of program inputs and outputs, in the order in which the kernel takes them.
    pub bindings: &'static Bindings,
    /// Blocking of the family.
    pub geometry: Geometry,
    /// The function.
    pub entry: Entry,
}

/// Names that the host binds arrays to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bindings {
    /// Row statistics after the references.
    pub statistics: &'static [&'static str],
    /// What each statistic is of a row that has seen no logit.
    pub identities: &'static [f32],
    /// Which of them are sums: behind all statistics the kernel takes an array for each of what its roundings have lost.
    pub sums: &'static [usize],
    /// How each statistic merges.
    pub rules: &'static [Rule],
    /// Whether the product of the kernel is the same for all tokens.
    pub shared: bool,
    /// Scalars of the statistics program.
    pub statistics_uniforms: &'static [&'static str],
    /// Column inputs of the statistics program.
    pub statistics_columns: &'static [&'static str],
    /// Scalars of the program that the kernel is named for.
    pub uniforms: &'static [&'static str],
    /// Row inputs of that program.
    pub rows: &'static [&'static str],
    /// Column inputs of that program.
    pub columns: &'static [&'static str],
    /// Row outputs of that program.
    pub outputs: &'static [&'static str],
    /// Column gradients of that program.
    pub column_gradients: &'static [&'static str],
}

impl Bindings {
    /// No names.
    pub const NONE: Bindings = Bindings {
        statistics: &[],
        identities: &[],
        sums: &[],
        rules: &[],
        shared: false,
        statistics_uniforms: &[],
        statistics_columns: &[],
        uniforms: &[],
        rows: &[],
        columns: &[],
        outputs: &[],
        column_gradients: &[],
    };
}

/// A set of kernels: the ones of this crate, and any that a downstream crate generated.
#[derive(Clone, Debug)]
pub struct Registry {
    kernels: Vec<&'static Kernel>,
}

impl Default for Registry {
    /// The kernels of this crate that this architecture can compile.
    fn default() -> Registry {
        let mut registry = Registry { kernels: vec![] };
        crate::cpu::KERNELS.iter().for_each(|texts| {
            registry.extend(texts);
        });
        registry
    }
}

impl Registry {
    /// Adds the kernels of some texts; of two that compute the same, the one added last is used.
    pub fn extend(&mut self, texts: &'static [&'static [Kernel]]) -> &mut Registry {
        self.kernels.extend(texts.iter().copied().flatten());
        self
    }

    /// All kernels, in the order of addition.
    pub fn iter(&self) -> impl Iterator<Item = &'static Kernel> + '_ {
        self.kernels.iter().copied()
    }

    /// The last added kernel for which `wanted` holds.
    pub fn find(&self, wanted: impl Fn(&Kernel) -> bool) -> Option<&'static Kernel> {
        self.kernels.iter().rev().copied().find(|k| wanted(k))
    }
}
