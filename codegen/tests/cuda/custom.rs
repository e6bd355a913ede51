//! A loss of one's own: every operation and every rule of merging that cross-entropy does not use.

use super::device::Device;
use super::host::{Layout, Shard, Stages};
use super::problem::Problem;
use std::collections::BTreeMap;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::emit::{cuda_entry, emit};
use vocabfuse_codegen::program::{Graph, Tile};
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Loss, Target};

const CAP: f32 = 3.0;

fn softcapped() -> Loss {
    let g = Graph::new("statistics");
    let z = g.logit().mul_add(g.uniform("logit_scale"), g.column("bias"));
    let y = (z / CAP).tanh() * CAP;
    let y = g.column_id().less_than(g.classes()).select(y, f32::NEG_INFINITY);
    let e = y.exp_above(g.reference());
    g.row_output("rest", e.sum());
    g.row_output("target_logit", g.column_id().equals(g.target()).select(y, 0.0).sum());
    g.row_output("largest", y.min(2.5).max(z * 0.25).largest());
    g.row_output("others", ((z * z).exp() / (z.exp() + 1.0) - (-z.exp())).min(4.0).sum());
    g.store(e);
    let statistics = g.finish().unwrap();
    let g = Graph::new("finish");
    let lse = g.row("rest").ln() - g.constant(0.0).above(g.reference());
    let surprise = g.row("rest").ln() - g.row("target_logit").above(g.reference());
    g.row_output("loss", surprise + g.row("others").ln_1p() * g.row("largest"));
    g.row_output("lse", lse);
    g.row_output("a_factor", g.uniform("logit_scale") / g.row("rest"));
    g.row_output("bound", g.uniform("logit_scale").magnitude());
    g.row_output("target_factor", -g.uniform("logit_scale") * g.row("rest") / g.row("rest"));
    let finish = g.finish().unwrap();
    let g = Graph::new("gradient");
    let at_target = g.column_id().equals(g.target()).select(g.row("target_factor"), 0.0);
    let derivative = g.stored().mul_add(g.row("a_factor"), at_target) * g.row("upstream");
    g.store(derivative);
    g.column_gradient("bias", derivative / g.uniform("logit_scale"));
    let gradient = g.finish().unwrap();
    let loss = Loss { name: "softcapped".to_owned(), statistics, finish, gradient, operand: None, optional: None };
    loss.verify().unwrap();
    loss
}

#[test]
fn its_statistics_are_those_of_the_interpreter() {
    if crate::nvrtc().is_none() {
        return;
    }
    let loss = softcapped();
    let problem = Problem::new(20, 40, 700, Dtype::Bf16, 21);
    let mut device = Device::new(Dtype::Bf16, None, 512, loss.clone(), 5);
    let shard = Shard::new(&mut device, &problem, 0..700, true, Layout::PLAIN);
    shard.s_pass(&mut device, Stages::All);
    let stride = 24;
    let state = device.read_floats(shard.state, 5 * stride);
    let bias = problem.bias.as_ref().unwrap();
    let unscaled = Problem { bias: None, scale: 1.0, ..problem.clone() };
    let tile = Tile {
        rows: 20,
        columns: 700,
        logit: unscaled.logits(),
        classes: 700,
        target: problem.targets.iter().map(|t| *t as i64).collect(),
        reference: state[..20].iter().map(|r| f64::from(*r)).collect(),
        column: BTreeMap::from([("bias".to_owned(), bias.iter().map(|b| f64::from(*b)).collect())]),
        uniform: BTreeMap::from([("logit_scale".to_owned(), f64::from(problem.scale))]),
        ..Tile::default()
    };
    let expected = loss.statistics.interpret(&tile);
    for (slot, (name, _)) in loss.statistics_rules().iter().enumerate() {
        for row in 0..20 {
            let (found, expected) = (f64::from(state[(slot + 1) * stride + row]), expected.row[name][row]);
            assert!(
                (found - expected).abs() <= 2e-6 * expected.abs().max(1.0),
                "{name} of row {row}: {found} {expected}"
            );
        }
    }
}

#[test]
fn its_kernels_do_not_spill() {
    let loss = softcapped();
    let Some(nvrtc) = crate::nvrtc() else { return };
    let on = Architecture::ALL[0];
    for kind in [KernelKind::LogitsSoftmax, KernelKind::LogitsGradient, KernelKind::Merge, KernelKind::Finish] {
        let spec = KernelSpec::new(kind, Target::Sm80, Dtype::Bf16, 8192, &loss.name).unwrap();
        let (entry, text) = (cuda_entry(&spec, &loss).unwrap(), emit(&spec, &loss).unwrap().text);
        let (_, resources) = nvrtc.checked_cubin(&entry, &text, on).unwrap_or_else(|e| panic!("{e}"));
        println!("{}: {resources:?}", entry.name);
    }
}
