//! Row outputs that a loss computes or leaves out: they make no texts of their own.

use vocabfuse_codegen::loss::Optional;
use vocabfuse_codegen::program::Graph;
use vocabfuse_codegen::{Builder, CrossEntropyForm, Dtype, KernelKind, Loss, Program, Target, cross_entropy};

/// Texts of pass S and of the finish program for some losses on all CPUs.
fn texts(losses: &[Loss]) -> Vec<vocabfuse_codegen::emit::Kernel> {
    let builder = Builder::new().kernels(&[KernelKind::LogitsSoftmax, KernelKind::Finish]);
    losses.iter().cloned().fold(builder, Builder::loss).generate().unwrap()
}

#[test]
fn argmax_adds_no_text() {
    for softcap in [false, true] {
        for smoothing in [false, true] {
            let form = |argmax| CrossEntropyForm { softcap, smoothing, argmax }.loss().unwrap();
            let (one, both) = (texts(&[form(false)]), texts(&[form(false), form(true)]));
            let names =
                |texts: &[vocabfuse_codegen::emit::Kernel]| texts.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
            assert_eq!(names(&one), names(&both));
            for (one, both) in one.iter().zip(&both) {
                assert_eq!(2 * one.kernels.len(), both.kernels.len(), "{}", one.name);
                let entries = both.text.split("/// Registry entries.").nth(1).unwrap();
                assert_eq!(entries.matches("true>),").count(), one.kernels.len(), "{}", one.name);
                assert_eq!(entries.matches("false>),").count(), one.kernels.len(), "{}", one.name);
            }
        }
    }
}

/// Cross-entropy with the number of logits over a threshold, if asked for.
fn counting(counted: bool) -> Loss {
    let base = cross_entropy().unwrap();
    let statistics = |counted: bool| -> Program {
        let g = Graph::new("counting.statistics");
        let exists = g.column_id().less_than(g.classes());
        let y = exists.select(g.logit() * g.uniform("logit_scale") + g.column("bias"), f32::NEG_INFINITY);
        let is_target = g.column_id().equals(g.target());
        let rest = is_target.select(f32::NEG_INFINITY, y).exp_above(g.reference());
        g.row_output("rest", rest.sum());
        g.row_output("target_logit", is_target.select(y, 0.0).sum());
        if counted {
            g.row_output("over", g.uniform("threshold").less_than(y).select(1.0, 0.0).sum());
        }
        g.store(rest);
        g.finish().unwrap()
    };
    Loss {
        name: if counted { "counting".to_owned() } else { "plain".to_owned() },
        statistics: statistics(counted),
        optional: Some(Optional {
            computed: counted,
            statistics: statistics(true),
            finish: base.finish.clone(),
            required_statistics: 2,
            required_outputs: base.finish.row_outputs().count(),
        }),
        ..base
    }
}

#[test]
fn a_loss_of_ones_own_may_have_optional_statistics() {
    let (plain, counting) = (counting(false), counting(true));
    counting.verify().unwrap();
    let both = texts(&[plain.clone(), counting]);
    assert_eq!(both.len(), texts(&[plain]).len());
    let softmax = both.iter().find(|t| t.name.starts_with("logits_softmax")).unwrap();
    // Sums keep what they lose behind all statistics, of which there are more where the optional one is computed.
    assert!(softmax.text.contains("state(if OPTIONAL { 4 } else { 3 }, token)"), "{}", softmax.text);
    assert!(softmax.text.contains("if OPTIONAL { inputs.uniform(1) }"), "{}", softmax.text);
}

#[test]
fn a_program_that_is_not_part_of_the_whole_one_has_a_text_of_its_own() {
    let base = cross_entropy().unwrap();
    let g = Graph::new("own.finish");
    for (name, value) in base.finish.row_outputs().map(|(name, _)| name).zip([1.0, 2.0, 3.0, 4.0, 5.0]) {
        g.row_output(name, g.row("upstream") * value);
    }
    let own = Loss { name: "own".to_owned(), finish: g.finish().unwrap(), ..base.clone() };
    own.verify().unwrap();
    let builder = Builder::new().targets(&[Target::Scalar]).dtypes(&[Dtype::F32]);
    let texts =
        builder.loss(base).loss(own).kernels(&[KernelKind::LogitsSoftmax, KernelKind::Finish]).generate().unwrap();
    let of = |kind| texts.iter().filter(|t| t.spec.kernel == kind).collect::<Vec<_>>();
    assert_eq!(of(KernelKind::LogitsSoftmax).len(), 1, "the statistics are the same");
    let [plain, own] = of(KernelKind::Finish)[..] else { panic!("{texts:?}") };
    assert!(plain.text.contains("kernel::<false>") && !own.text.contains("OPTIONAL"), "{}", own.text);
}
