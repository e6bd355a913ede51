//! Parsers of option values. They list what is valid, in errors and in the help.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::fmt::Display;
use std::str::FromStr;
use vocabfuse::codegen::{Architecture, CrossEntropyForm, Operator, operator};
use vocabfuse::{Algorithm, Dtype, KernelKind, Policy, Reduction, Save, Target};

fn words<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>())
}

pub fn dtype() -> impl TypedValueParser<Value = Dtype> {
    words(Dtype::ALL.iter().map(|v| v.as_str()))
}

pub fn target() -> impl TypedValueParser<Value = Target> {
    words(Target::ALL.iter().map(|v| v.as_str()))
}

pub fn kernel() -> impl TypedValueParser<Value = Kernels> {
    words(std::iter::once("all").chain(KernelKind::ALL.iter().map(|v| v.as_str())))
}

pub fn reduction() -> impl TypedValueParser<Value = Reduction> {
    words(["none", "sum", "mean"])
}

fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    words(["naive", "one", "two"])
}

pub fn save() -> impl TypedValueParser<Value = Save> {
    words(["auto", "yes", "no"])
}

/// All kernels, or one.
#[derive(Clone, Copy, Debug)]
pub enum Kernels {
    All,
    One(KernelKind),
}

impl FromStr for Kernels {
    type Err = vocabfuse::codegen::SpecError;
    fn from_str(text: &str) -> Result<Kernels, Self::Err> {
        if text == "all" { Ok(Kernels::All) } else { text.parse().map(Kernels::One) }
    }
}

/// Most threads of a kind, be they ranks or workers: beyond it a system may refuse them.
const MOST_THREADS: usize = 1024;

/// A whole number of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    at_least(text, 1)
}

/// A whole number of at least `least`.
pub fn at_least(text: &str, least: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n >= least);
    number.ok_or_else(|| format!("expected a whole number of at least {least}"))
}

/// A number of ranks or threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=MOST_THREADS).contains(n));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MOST_THREADS}"))
}

/// Bounds of shards, from 0 to V. Whether they fit the vocabulary is seen later.
pub fn bounds(text: &str) -> Result<Vec<usize>, String> {
    let bounds: Result<Vec<usize>, _> = text.split(',').map(|bound| bound.trim().parse()).collect();
    let bounds = bounds.map_err(|_| "expected whole numbers with commas between them, as in 0,5,5,100".to_owned())?;
    if bounds.len() > MOST_THREADS + 1 {
        return Err(format!("expected at most {MOST_THREADS} shards"));
    }
    Ok(bounds)
}

/// A target id, which may be negative.
pub fn id(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "expected a whole number".to_owned())
}

/// A chunk that kernels can be generated for.
pub fn chunk(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().map_err(|_| "expected a power of two from 256 to 65536".to_owned())?;
    vocabfuse::codegen::spec::check_chunk(number).map_err(|e| e.to_string())
}

/// A GPU that kernels can be compiled for.
pub fn architecture(text: &str) -> Result<Architecture, String> {
    text.parse().map_err(|e: vocabfuse::codegen::SpecError| e.to_string())
}

/// Forms of cross-entropy.
#[derive(Clone, Debug)]
pub struct Losses(pub Vec<CrossEntropyForm>);

/// Names of forms of cross-entropy with commas between them, or `all`.
pub fn losses(text: &str) -> Result<Losses, String> {
    CrossEntropyForm::list(text).map(Losses).map_err(|e| e.to_string())
}

/// Operators.
#[derive(Clone, Debug)]
pub struct Operators(pub Vec<Operator>);

/// Names of operators with commas between them, `all` or `none`.
pub fn operators(text: &str) -> Result<Operators, String> {
    let all = operator::all().map_err(|e| e.to_string())?;
    let one = |name: &str| {
        let known = all.iter().find(|operator| operator.name == name.trim()).cloned();
        let names = || all.iter().map(|operator| operator.name.as_str()).collect::<Vec<_>>().join(", ");
        known.ok_or_else(|| format!("expected all, none, or some of {}, got {name:?}", names()))
    };
    match text {
        "all" => Ok(Operators(all)),
        "none" => Ok(Operators(vec![])),
        names => names.split(',').map(one).collect::<Result<_, _>>().map(Operators),
    }
}

/// A finite number for which `valid` holds.
fn number<T: FromStr + Copy + Into<f64> + Display>(
    text: &str,
    valid: fn(f64) -> bool,
    what: &str,
) -> Result<T, String> {
    let number = text.parse::<T>().ok().filter(|n| (*n).into().is_finite() && valid((*n).into()));
    number.ok_or_else(|| format!("expected {what}"))
}

pub fn nonzero(text: &str) -> Result<f32, String> {
    number(text, |n| n.is_normal(), "a finite, normal number other than 0")
}

pub fn above_zero(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0, "a finite number above 0")
}

pub fn at_least_zero(text: &str) -> Result<f32, String> {
    number(text, |n| n >= 0.0, "a finite number of at least 0")
}

pub fn part(text: &str) -> Result<f32, String> {
    number(text, |n| (0.0..=1.0).contains(&n), "a number from 0 to 1")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, |n| n > 0.0 && n < 1.0, "a number above 0 and below 1")
}

/// Options that change time and memory, and, but for the filter, results by no more than rounding.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PolicyArgs {
    /// Barriers a microbatch: naive 3, one 2, two 1
    #[arg(long, default_value = "two", value_parser = algorithm())]
    algorithm: Algorithm,
    /// Keep the softmax numerators of pass S for pass T, or recompute them; auto keeps them if they fit into memory
    #[arg(long, default_value = "auto", value_parser = save())]
    save: Save,
    /// Vocabulary entries a kernel works on at a time: a power of two that `vocabfuse list` shows [default: the device's choice]
    #[arg(long, value_name = "C", value_parser = chunk)]
    chunk: Option<usize>,
    /// Leave tiles out of dX and dW in which every derivative is at most X of the most that one of its token can be; above 0, below 1
    #[arg(long, value_name = "X", value_parser = share)]
    filter: Option<f32>,
}

impl PolicyArgs {
    /// The policy, with a limit on the bytes over inputs and outputs of a rank.
    pub fn policy(self, memory_budget: Option<usize>) -> Policy {
        let PolicyArgs { algorithm, save, chunk, filter, .. } = self;
        Policy { algorithm, save, chunk, filter, memory_budget, ..Policy::default() }
    }
}
