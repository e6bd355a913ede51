//! The two models, trained step by step side by side.

use super::adam::Adam;
use super::data::{Data, Microbatch};
use super::layer::{Cost, Fused, LayerBatch, Plain, VocabularyLayer};
use super::model::{self, Activations};
use super::parameters::Parameters;
use super::{Config, TrainError};
use std::time::{Duration, Instant};
use vocabfuse::Cpu;

/// Losses are means over the tokens of the step, before its update of the weights.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Loss with the vocabulary layer of vocabfuse.
    pub loss: f64,
    /// Loss with the plain f32 layer.
    pub reference_loss: f64,
    /// Time of the step with the former.
    pub time: Duration,
    /// Time of the step with the latter.
    pub reference_time: Duration,
    /// What the vocabulary layer of vocabfuse took of its step.
    pub layer: Cost,
}

/// Two models that begin alike and see the same data.
pub struct Twins<'a> {
    data: &'a Data,
    config: Config,
    fused: Learner<Fused>,
    plain: Learner<Plain>,
    steps: usize,
}

impl<'a> Twins<'a> {
    /// Fresh models.
    ///
    /// # Errors
    /// [`TrainError::Layer`] if the options of the vocabulary layer are unusable.
    pub fn new(data: &'a Data, cpu: &Cpu, config: Config) -> Result<Twins<'a>, TrainError> {
        let fused = Learner::new(Fused::new(cpu, data.vocab, &config)?, data.vocab, &config);
        let plain = Learner::new(Plain::new(config.hidden), data.vocab, &config);
        Ok(Twins { data, config, fused, plain, steps: 0 })
    }

    /// One step of both models.
    ///
    /// # Errors
    /// [`TrainError`] if a layer refuses its input.
    pub fn step(&mut self) -> Result<Step, TrainError> {
        let Config { seed, microbatches, tokens, .. } = self.config;
        let batches = self.data.draw(seed, self.steps, microbatches, tokens);
        let start = Instant::now();
        let loss = self.fused.step(&batches)?;
        let between = Instant::now();
        let reference_loss = self.plain.step(&batches)?;
        self.steps += 1;
        let layer = self.fused.layer.cost();
        Ok(Step { loss, reference_loss, time: between - start, reference_time: between.elapsed(), layer })
    }

    /// Barriers of a rank per microbatch so far.
    pub fn barriers_per_microbatch(&self) -> f64 {
        self.fused.layer.barriers() as f64 / (self.steps * self.config.microbatches) as f64
    }
}

struct Learner<L> {
    layer: L,
    parameters: Parameters,
    gradient: Parameters,
    adam: Adam,
}

impl<L: VocabularyLayer> Learner<L> {
    fn new(layer: L, vocab: usize, config: &Config) -> Learner<L> {
        Learner {
            layer,
            parameters: Parameters::random(vocab, config.hidden, config.seed),
            gradient: Parameters::zeros(vocab, config.hidden),
            adam: Adam::new(vocab, config.hidden),
        }
    }

    fn step(&mut self, batches: &[Microbatch]) -> Result<f64, TrainError> {
        let Learner { layer, parameters, gradient, adam } = self;
        gradient.clear();
        let kept: Vec<Activations> = batches.iter().map(|b| model::forward(parameters, &b.contexts)).collect();
        let layer_batches: Vec<LayerBatch<'_>> =
            batches.iter().zip(&kept).map(|(b, k)| LayerBatch { x: &k.x, targets: &b.targets }).collect();
        let mut dw = std::mem::take(&mut gradient.output);
        let loss = layer.step(&parameters.output, &layer_batches, &mut dw, &mut |i, dx| {
            model::backward(parameters, &batches[i].contexts, &kept[i], dx, gradient);
        });
        gradient.output = dw;
        let tokens: usize = batches.iter().map(|b| b.targets.len()).sum();
        let loss = loss? / tokens as f64;
        adam.step(parameters, gradient, 1.0 / tokens as f32);
        Ok(loss)
    }
}
