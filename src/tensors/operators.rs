//! Tensors of operators on the distribution over the vocabulary.

use super::{Elements, TensorError, contents, floats, integers, misshapen, numbers, required, tensors};
use safetensors::SafeTensors;
use std::path::Path;

/// Tensors that an input file may hold.
const KNOWN: &[&str] = &[
    "x",
    "w",
    "bias",
    "logits",
    "teacher_x",
    "teacher_w",
    "teacher_bias",
    "teacher_logits",
    "ids",
    "upstream",
    "entropy_upstream",
];

/// Raw logits, or what they are products of.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// X `[N, H]` and W `[V, H]`.
    Linear {
        /// X.
        x: Elements,
        /// W.
        w: Elements,
        /// H.
        hidden: usize,
    },
    /// Logits `[N, V]`.
    Logits(Elements),
}

/// One distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Where its logits come from.
    pub source: Source,
    /// Bias, `[V]`.
    pub bias: Option<Vec<f32>>,
}

impl Distribution {
    /// H; 0 of given logits.
    pub fn hidden(&self) -> usize {
        match self.source {
            Source::Linear { hidden, .. } => hidden,
            Source::Logits(_) => 0,
        }
    }
}

/// Ids of each token. Not compared with V here.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenIds {
    /// The ids, row-major.
    pub values: Vec<i64>,
    /// `[N]`, or `[N, k]` with k of at least 1; the log-probabilities have it too.
    pub shape: Vec<usize>,
}

impl TokenIds {
    /// k, which is 1 for `[N]`.
    pub fn per_token(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }
}

/// Inputs of an operator on N tokens and V classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// The distribution, or the student.
    pub of: Distribution,
    /// The teacher, which only a divergence has.
    pub teacher: Option<Distribution>,
    /// Ids, which only log-probabilities have.
    pub ids: Option<TokenIds>,
    /// Upstream gradients: one for each id of log-probabilities, else `[N]`.
    pub upstream: Option<Vec<f32>>,
    /// Upstream gradients `[N]` of entropies beside log-probabilities.
    pub entropy_upstream: Option<Vec<f32>>,
    /// N.
    pub tokens: usize,
    /// V.
    pub vocab: usize,
}

/// What an operator reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A second distribution.
    pub teacher: bool,
    /// Ids.
    pub ids: bool,
    /// Upstream gradients.
    pub upstream: bool,
    /// Upstream gradients of entropies beside others.
    pub entropy_upstream: bool,
}

impl Wanted {
    /// Refuses tensors that nobody would read.
    fn check(self, file: &SafeTensors<'_>) -> Result<(), TensorError> {
        let mut read = vec![];
        let mut side = |logits: &'static str, linear: [&'static str; 2], bias: &'static str| {
            read.extend(if file.tensor(logits).is_ok() { vec![logits] } else { linear.to_vec() });
            read.push(bias);
        };
        side("logits", ["x", "w"], "bias");
        if self.teacher {
            side("teacher_logits", ["teacher_x", "teacher_w"], "teacher_bias");
        }
        for (wanted, name) in
            [(self.ids, "ids"), (self.upstream, "upstream"), (self.entropy_upstream, "entropy_upstream")]
        {
            read.extend(wanted.then_some(name));
        }
        let mut names = file.names();
        names.sort_unstable();
        match names.into_iter().find(|name| !read.contains(name)) {
            Some(name) => Err(TensorError::Unused { name: name.to_owned(), read }),
            None => Ok(()),
        }
    }
}

/// Reads the inputs: `x` and `w`, or `logits` in their place, of f32, bf16 or f16, optionally `bias`; for a teacher the same
/// as `teacher_x` and so on; `ids` of i32 or i64, `[N]` or `[N, k]`; optionally `upstream`, of log-probabilities in the shape of `ids` (where there
/// is one a token, `[N]` and `[N, 1]` are both fine), and `entropy_upstream` `[N]`.
///
/// Parameters must be free of NaN. A NaN in `x` or `logits` is left to the operator, where it stays in its row. Infinities
/// are left to it too, and -inf may mask a class.
///
/// # Errors
/// [`TensorError`] for a file that is unreadable, truncated, or lacks a tensor; for a tensor with a wrong or mismatched
/// shape, a wrong dtype or a NaN; and for one with an unknown name, or that the operator does not read.
pub fn read(path: &Path, wanted: Wanted) -> Result<Inputs, TensorError> {
    let bytes = contents(path)?;
    let file = tensors(path, &bytes, KNOWN)?;
    wanted.check(&file)?;
    let (of, tokens, vocab) = distribution(&file, ["x", "w", "logits", "bias"])?;
    let names = ["teacher_x", "teacher_w", "teacher_logits", "teacher_bias"];
    let teacher = if wanted.teacher { Some(distribution(&file, names)?) } else { None };
    if let Some((teacher, ..)) = teacher.as_ref().filter(|(_, n, v)| (*n, *v) != (tokens, vocab)) {
        let (name, wrong) = match teacher.source {
            Source::Linear { .. } => ("teacher_w", "teacher_w"),
            Source::Logits(_) => ("teacher_logits", "teacher_logits"),
        };
        let expected = format!("{tokens} tokens and {vocab} classes, as the student has");
        return Err(misshapen(name, &required(&file, wrong, "")?, expected));
    }
    let ids = if wanted.ids {
        let ids = required(&file, "ids", "[N] or [N, k]")?;
        match *ids.shape() {
            [n] if n == tokens => {}
            [n, k] if n == tokens && k > 0 => {}
            _ => return Err(misshapen("ids", &ids, format!("[{tokens}] or [{tokens}, k], some for each token"))),
        }
        Some(TokenIds { values: integers("ids", &ids)?, shape: ids.shape().to_vec() })
    } else {
        None
    };
    let upstream_shapes = match ids.as_ref().map(TokenIds::per_token) {
        None => vec![vec![tokens]],
        Some(1) => vec![vec![tokens], vec![tokens, 1]],
        Some(k) => vec![vec![tokens, k]],
    };
    Ok(Inputs {
        of,
        teacher: teacher.map(|(teacher, ..)| teacher),
        upstream: values(&file, "upstream", &upstream_shapes)?,
        entropy_upstream: values(&file, "entropy_upstream", &[vec![tokens]])?,
        ids,
        tokens,
        vocab,
    })
}

/// A distribution by the names of its tensors, with N and V.
fn distribution(
    file: &SafeTensors<'_>,
    [x_name, w_name, logits_name, bias_name]: [&'static str; 4],
) -> Result<(Distribution, usize, usize), TensorError> {
    if let Ok(logits) = file.tensor(logits_name) {
        let [tokens, vocab] = *logits.shape() else { return Err(misshapen(logits_name, &logits, "[N, V]")) };
        let source = Source::Logits(floats(logits_name, &logits)?);
        return Ok((Distribution { source, bias: values(file, bias_name, &[vec![vocab]])? }, tokens, vocab));
    }
    let (x, w) = (required(file, x_name, "[N, H]")?, required(file, w_name, "[V, H]")?);
    let [tokens, hidden] = *x.shape() else { return Err(misshapen(x_name, &x, "[N, H]")) };
    let [vocab, columns] = *w.shape() else { return Err(misshapen(w_name, &w, "[V, H]")) };
    if hidden == 0 {
        return Err(misshapen(x_name, &x, "[N, H] with H of at least 1"));
    }
    if columns != hidden {
        return Err(misshapen(w_name, &w, format!("[V, {hidden}], as {x_name} has {hidden} columns")));
    }
    let source = Source::Linear { x: floats(x_name, &x)?, w: numbers(w_name, floats(w_name, &w)?)?, hidden };
    Ok((Distribution { source, bias: values(file, bias_name, &[vec![vocab]])? }, tokens, vocab))
}

/// Optional values of one of some shapes.
fn values(file: &SafeTensors<'_>, name: &'static str, shapes: &[Vec<usize>]) -> Result<Option<Vec<f32>>, TensorError> {
    let Ok(tensor) = file.tensor(name) else { return Ok(None) };
    if !shapes.iter().any(|shape| shape == tensor.shape()) {
        let expected: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
        return Err(misshapen(name, &tensor, expected.join(" or ")));
    }
    Ok(Some(numbers(name, floats(name, &tensor)?)?.to_f32()))
}
