//! What `run` needs to know of an operator, and which there are.

use super::check::Expected;
use super::measure::Costs;
use super::{cross_entropy, distribution, embedding, logits, products};
use anyhow::bail;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, ValueEnum};
use serde::Serialize;
use vocabfuse::bounds::Arithmetic;
use vocabfuse::{Device, Policy, ShardLayout};

/// An operator with its inputs, read and checked.
pub trait Operator {
    /// What it works on.
    fn sizes(&self) -> Sizes;

    /// Runs it on every rank.
    fn run<D: Device>(&self, place: &Place<'_, D>) -> anyhow::Result<Results>;

    /// What the outputs should be. Values that belong to ids are those of the ids that were picked.
    fn expected(&self, outputs: &[Tensor], arithmetic: Arithmetic) -> anyhow::Result<Vec<Expected>>;
}

/// Sizes for the report.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sizes {
    pub tokens: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub dtype: &'static str,
}

/// Where and how to run.
pub struct Place<'a, D: Device> {
    pub device: &'a D,
    pub layout: &'a ShardLayout,
    pub policy: Policy,
}

/// An output to write.
pub struct Tensor {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
    /// In place of values.
    pub ids: Option<Vec<i64>>,
}

impl Tensor {
    /// One of floats.
    pub fn floats(name: &'static str, shape: Vec<usize>, values: Vec<f32>) -> Tensor {
        Tensor { name, shape, values, ids: None }
    }
}

/// Outputs, and what they cost.
pub struct Results {
    pub outputs: Vec<Tensor>,
    pub costs: Costs,
}

/// Operators by their spelling on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Loss, lse and gradients of cross-entropy
    CrossEntropy,
    /// Rows of the table that ids name, and the gradient of the table
    Embedding,
    /// Log-probabilities of ids
    Logprobs,
    /// Entropies
    Entropy,
    /// Log-probabilities of ids and entropies, in one pass
    LogprobsEntropy,
    /// Divergence of a student from a teacher
    Kl,
    /// The largest logits
    TopK,
    /// One id a token, drawn from its distribution
    Sample,
}

impl Op {
    /// Names of the options that it takes beside those of all operators.
    fn options(self) -> Vec<String> {
        match self {
            Op::CrossEntropy => {
                let own = [names::<products::Options>(), names::<cross_entropy::Options>()].concat();
                [own, names::<logits::Options>()].concat()
            }
            Op::Embedding => names::<embedding::Options>(),
            Op::Logprobs | Op::Entropy | Op::LogprobsEntropy | Op::Kl | Op::TopK | Op::Sample => {
                let one = |name: &str| vec![name.to_owned()];
                let own = match self {
                    Op::Kl => one("reverse"),
                    Op::TopK => one("k"),
                    Op::Sample => one("seed"),
                    _ => vec![],
                };
                debug_assert!(own.iter().all(|name| names::<distribution::Options>().contains(name)));
                // They have no policy.
                [own, one("precision"), names::<logits::Options>()].concat()
            }
        }
    }

    /// Refuses options of other operators.
    pub fn check(self, given: &Given) -> anyhow::Result<()> {
        let own = self.options();
        for other in Op::value_variants() {
            let options = other.options();
            if let Some(odd) = given.0.iter().find(|name| options.contains(name) && !own.contains(name)) {
                let (odd, op, other) = (odd.replace('_', "-"), spelling(self), spelling(*other));
                bail!("option --{odd}: not one of --op {op}; expected --op {other}");
            }
        }
        Ok(())
    }
}

fn spelling(op: Op) -> String {
    op.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn names<T: clap::Args>() -> Vec<String> {
    T::augment_args(Command::new("run")).get_arguments().map(|option| option.get_id().to_string()).collect()
}

/// Names of the options that the command line gives; the others have their defaults.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<String>);

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }
    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let given = |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        Ok(Given(matches.ids().filter(given).map(ToString::to_string).collect()))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}
