//! Row programs: text, rules, and the f64 interpreter.

use proptest::prelude::*;
use std::collections::BTreeMap;
use vocabfuse_codegen::loss::{CrossEntropyForm, FINISH_OUTPUTS, Loss, Merge};
use vocabfuse_codegen::program::{
    Binary, Graph, Input, Op, Output, Program, ProgramError, Reduce, Shape, Tile, ValueId, reference_of,
};
use vocabfuse_codegen::{Error, cross_entropy};

#[test]
fn cross_entropy_programs() {
    let loss = cross_entropy().unwrap();
    insta::assert_snapshot!(format!("{}\n{}\n{}", loss.statistics, loss.finish, loss.gradient));
    assert_eq!(
        loss.statistics_rules(),
        [("rest".to_owned(), Merge::ScaledSum { reference: 0 }), ("target_logit".to_owned(), Merge::Sum)]
    );
}

fn input(input: Input) -> Op {
    Op::Input(input)
}

fn program(ops: Vec<Op>, outputs: Vec<Output>) -> Result<Program, ProgramError> {
    Program::new("test", ops, outputs)
}

const A: ValueId = ValueId(0);
const B: ValueId = ValueId(1);

#[test]
fn operands_come_first() {
    let error = program(vec![Op::Binary(Binary::Add, A, A)], vec![]).unwrap_err();
    assert_eq!(error, ProgramError::Undefined { value: 0, operand: 0 });
}

#[test]
fn kinds_are_checked() {
    let ops = vec![input(Input::Logit(0)), input(Input::ColumnId), Op::Binary(Binary::Add, A, B)];
    assert!(matches!(program(ops, vec![]), Err(ProgramError::Kind { value: 2, .. })));
    let ops = vec![
        input(Input::Logit(0)),
        input(Input::ColumnId),
        Op::Compare(vocabfuse_codegen::program::Compare::Eq, A, B),
    ];
    assert!(matches!(program(ops, vec![]), Err(ProgramError::Kind { value: 2, .. })));
    let ops = vec![input(Input::Logit(0)), Op::Select(A, A, A)];
    assert!(matches!(program(ops, vec![]), Err(ProgramError::Kind { value: 1, .. })));
}

#[test]
fn reductions_run_over_columns_and_end_there() {
    let ops = vec![input(Input::Row("r".into())), Op::Reduce(Reduce::Sum, A)];
    assert_eq!(program(ops, vec![]), Err(ProgramError::ReductionShape { value: 1, found: Shape::Row }));
    let ops = vec![input(Input::Logit(0)), Op::Reduce(Reduce::Sum, A), Op::Binary(Binary::Add, A, B)];
    assert_eq!(program(ops, vec![]), Err(ProgramError::ReductionUsed { value: 2, operand: 1 }));
}

#[test]
fn the_reference_is_only_for_quotients() {
    let ops = vec![input(Input::Logit(0)), input(Input::Reference(0)), Op::Binary(Binary::Add, A, B)];
    assert_eq!(program(ops, vec![Output::Store(ValueId(2))]), Err(ProgramError::ReferenceUsed { value: 2 }));
    let g = Graph::new("two");
    let (y, r) = (g.logit(), g.reference());
    g.store(y.exp_above(r) + (y * 2.0).exp_above(r));
    assert!(matches!(g.finish(), Err(ProgramError::TwoReferenced { .. })));
    let g = Graph::new("max");
    g.row_output("m", g.logit().exp_above(g.reference()).largest());
    assert!(matches!(g.finish(), Err(ProgramError::Outputs(_))));
}

#[test]
fn outputs_are_checked() {
    assert!(matches!(program(vec![input(Input::Logit(0))], vec![]), Err(ProgramError::Outputs(_))));
    let g = Graph::new("column as store");
    g.store(g.column("bias"));
    assert!(g.finish().is_ok(), "the same for all tokens");
    let g = Graph::new("row as store");
    g.store(g.row("r"));
    assert!(matches!(g.finish(), Err(ProgramError::Output { .. })));
    let g = Graph::new("position without its maximum");
    g.row_output("argmax", g.logit().id_of_largest(g.column_id().float()));
    g.row_output("largest", (g.logit() * 2.0).largest());
    assert!(matches!(g.finish(), Err(ProgramError::Outputs(_))));
    let g = Graph::new("element as row");
    g.row_output("x", g.logit());
    assert!(matches!(g.finish(), Err(ProgramError::Output { .. })));
    let g = Graph::new("twice");
    g.row_output("x", g.logit().largest());
    g.row_output("x", (g.logit() * 2.0).largest());
    assert!(matches!(g.finish(), Err(ProgramError::Outputs(_))));
    assert!(program(vec![input(Input::Logit(0))], vec![Output::Store(ValueId(7))]).is_err());
}

#[test]
fn equal_expressions_share_a_value() {
    let g = Graph::new("shared");
    g.store(g.logit() * 2.0 + g.logit() * 2.0);
    assert_eq!(g.finish().unwrap().ops().len(), 4);
}

#[test]
fn a_loss_must_fit_together() {
    let good = cross_entropy().unwrap();
    let without = |name: &str| {
        let g = Graph::new("finish");
        for output in FINISH_OUTPUTS.iter().filter(|o| **o != name) {
            g.row_output(output, g.row("rest"));
        }
        Loss { finish: g.finish().unwrap(), ..good.clone() }
    };
    let error = without("a_factor").verify().unwrap_err().to_string();
    assert!(error.contains("a_factor"), "{error}");
    let swapped = Loss { statistics: good.gradient.clone(), ..good.clone() };
    assert!(swapped.verify().is_err());
    let no_store = Loss { gradient: good.finish.clone(), ..good };
    assert!(matches!(Error::from(no_store.verify().unwrap_err()), Error::Program(_)));
}

fn tile(rows: usize, columns: usize, logit: Vec<f64>, targets: Vec<i64>) -> Tile {
    Tile {
        rows,
        columns,
        logit,
        classes: columns as i64,
        target: targets,
        reference: vec![0.0; rows],
        uniform: BTreeMap::from([("logit_scale".to_owned(), 1.0)]),
        ..Tile::default()
    }
}

/// The three programs of a loss on one tile that is the whole vocabulary.
struct Run {
    row: BTreeMap<String, Vec<f64>>,
    store: Vec<f64>,
    dbias: Vec<f64>,
    /// Store of the operand program.
    operand: Vec<f64>,
}

fn interpret(loss: &Loss, mut t: Tile, reference: f64) -> Run {
    let rows = t.rows;
    t.reference = vec![reference; rows];
    for name in ["z_loss", "first_class"] {
        t.uniform.entry(name.to_owned()).or_insert(0.0);
    }
    for (name, value) in [("hard", 1.0), ("upstream", 1.0), ("lse_upstream", 0.0)] {
        t.row.entry(name.to_owned()).or_insert_with(|| vec![value; rows]);
    }
    let statistics = loss.statistics.interpret(&t);
    let mut finish = Tile { columns: 1, ..t.clone() };
    finish.row.extend(statistics.row.clone());
    let result = loss.finish.interpret(&finish);
    let mut gradient = Tile { stored: statistics.store, row: result.row.clone(), ..t.clone() };
    gradient.row.insert("upstream".to_owned(), vec![1.0; rows]);
    let gradient = loss.gradient.interpret(&gradient);
    let operand = loss.operand.as_ref().map_or_else(Vec::new, |p| p.interpret(&t).store);
    Run { row: result.row, store: gradient.store, dbias: gradient.column_gradient["bias"].clone(), operand }
}

proptest! {
    // Statistics, finish and gradient together are softmax cross-entropy, whatever the reference.
    #[test]
    fn interpreted_cross_entropy_is_cross_entropy(
        logits in prop::collection::vec(-20.0..20.0f64, 12),
        target in 0..4i64,
        reference in -8..8i32,
    ) {
        let run = interpret(&cross_entropy().unwrap(), tile(3, 4, logits.clone(), vec![target; 3]), reference.into());
        for row in 0..3 {
            let y = &logits[row * 4..][..4];
            let lse = y.iter().map(|y| y.exp()).sum::<f64>().ln();
            prop_assert!((run.row["loss"][row] - (lse - y[target as usize])).abs() < 1e-9);
            prop_assert!((run.row["lse"][row] - lse).abs() < 1e-9);
            for (column, y) in y.iter().enumerate() {
                let expected = (y - lse).exp() - f64::from(column as i64 == target);
                prop_assert!((run.store[row * 4 + column] - expected).abs() < 1e-9);
                prop_assert!(run.store[row * 4 + column].abs() <= run.row["bound"][row] + 1e-12);
            }
        }
        for column in 0..4 {
            let sum: f64 = (0..3).map(|row| run.store[row * 4 + column]).sum();
            prop_assert!((run.dbias[column] - sum).abs() < 1e-12);
        }
    }

    // The derivative that every form stores is that of its loss, and what multiplies W adds up to it.
    #[test]
    fn interpreted_gradients_are_derivatives(
        logits in prop::collection::vec(-3.0..3.0f64, 8),
        target in 0..4i64,
        form in 0..8usize,
        z_loss in 0.0..0.5f64,
        lse_upstream in -1.0..1.0f64,
    ) {
        let form = CrossEntropyForm::all()[form];
        let loss = form.loss().unwrap();
        let weights = [0.5, 2.0, 1.0, 0.25];
        let share = 0.3 / 4.0;
        let run = |logits: &[f64]| {
            let mut t = tile(2, 4, logits.to_vec(), vec![target; 2]);
            t.uniform.extend([
                ("logit_scale".to_owned(), 1.5),
                ("softcap".to_owned(), 1.25),
                ("z_loss".to_owned(), z_loss),
                ("smoothing_share".to_owned(), share),
                ("smoothing_total".to_owned(), share * weights.iter().sum::<f64>()),
            ]);
            t.column.insert("class_weight".to_owned(), weights.to_vec());
            t.row.insert("upstream".to_owned(), vec![0.7; 2]);
            t.row.insert("lse_upstream".to_owned(), vec![lse_upstream; 2]);
            t.row.insert("hard".to_owned(), vec![0.7 * weights[target as usize]; 2]);
            interpret(&loss, t, 1.0)
        };
        let at = run(&logits);
        for i in 0..8 {
            let objective = |delta: f64| {
                let mut moved = logits.clone();
                moved[i] += delta;
                let row = run(&moved).row;
                0.7 * row["loss"][i / 4] + lse_upstream * row["lse"][i / 4]
            };
            let numerical = (objective(1e-5) - objective(-1e-5)) / 2e-5;
            prop_assert!((at.store[i] - numerical).abs() < 1e-8, "{form:?} {i}: {} {numerical}", at.store[i]);
            prop_assert!(at.store[i].abs() <= at.row["bound"][i / 4] + 1e-12, "{form:?} {i}");
        }
        prop_assert_eq!(at.operand.len(), if form.smoothing { 8 } else { 0 });
    }
}

#[test]
fn padded_columns_and_dead_rows() {
    let loss = CrossEntropyForm { argmax: true, ..CrossEntropyForm::default() }.loss().unwrap();
    let mut t = tile(2, 3, vec![1.0, 2.0, 99.0, f64::NEG_INFINITY, f64::NEG_INFINITY, 5.0], vec![0, 0]);
    t.classes = 2;
    let run = interpret(&loss, t, 0.0);
    assert_eq!(run.store[2], 0.0, "a padded column has no mass");
    assert!((run.row["loss"][0] - (1.0f64.exp() + 2.0f64.exp()).ln() + 1.0).abs() < 1e-12);
    assert!(run.row["loss"][1].is_nan());
    assert_eq!((run.row["a_factor"][1], run.row["target_factor"][1]), (0.0, 0.0));
    assert_eq!(run.row["argmax"], [1.0, -1.0]);
}

/// Loss, lse and derivatives of one row of logits, with the reference that a kernel would take.
fn one_row(form: CrossEntropyForm, y: &[f64], target: i64, smoothing: f64) -> Run {
    let loss = form.loss().unwrap();
    let mut t = tile(1, y.len(), y.to_vec(), vec![target]);
    let share = smoothing / y.len() as f64;
    t.uniform.extend([
        ("softcap".to_owned(), 1.0),
        ("smoothing_share".to_owned(), share),
        ("smoothing_total".to_owned(), smoothing),
    ]);
    t.column.insert("class_weight".to_owned(), vec![1.0; y.len()]);
    t.row.insert("hard".to_owned(), vec![1.0 - smoothing]);
    let largest = y.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    interpret(&loss, t, f64::from(reference_of(largest as f32)))
}

// Worked out by hand: of logits 1, 2, 3 the probabilities are .09003057, .24472847 and .66524096, and lse is 3.40760596; those of
// 0 and -1 are .73105858 and .26894142.
#[test]
fn a_common_offset_changes_nothing() {
    let smoothed = CrossEntropyForm { smoothing: true, ..CrossEntropyForm::default() };
    for offset in [0.0, 1e4, 1e7, 1e8] {
        let y = [1.0, 2.0, 3.0].map(|y| y + offset);
        let run = one_row(CrossEntropyForm::default(), &y, 1, 0.0);
        assert!((run.row["loss"][0] - 1.407_605_964).abs() < 1e-9, "{offset}: {}", run.row["loss"][0]);
        for (got, want) in run.store.iter().zip([0.090_030_573, 0.244_728_471 - 1.0, 0.665_240_956]) {
            assert!((got - want).abs() < 1e-9, "{offset}: {got} for {want}");
        }
        let run = one_row(smoothed, &[offset + 2.0, offset - 1.0], 0, 0.1);
        assert!((run.row["loss"][0] - 0.198_587_352).abs() < 1e-9, "{offset}: {}", run.row["loss"][0]);
    }
    // Neighbours at 1e30 in f32 are 2^76 apart.
    let (y, step) = (f64::from(1e30f32), 2f64.powi(76));
    let run = one_row(CrossEntropyForm::default(), &[y, y, y], 0, 0.0);
    assert!((run.row["loss"][0] - 3f64.ln()).abs() < 1e-9);
    let run = one_row(CrossEntropyForm::default(), &[y + step, y], 1, 0.0);
    assert_eq!((run.row["loss"][0], run.store.as_slice()), (step, [1.0, -1.0].as_slice()));
    let run = one_row(smoothed, &[y + step, y], 0, 0.1);
    assert!((run.row["loss"][0] / (0.05 * step) - 1.0).abs() < 1e-12);
}

#[test]
fn differences_and_sums_of_logits_are_refused() {
    let g = Graph::new("difference");
    g.store(g.logit() - g.logit() * 2.0);
    let error = g.finish().unwrap_err();
    assert!(matches!(error, ProgramError::Offset { value: 3, .. }), "{error}");
    assert!(error.to_string().contains("from the reference"), "{error}");
    let g = Graph::new("sum");
    let y = g.logit().mul_add(g.uniform("logit_scale"), g.column("bias"));
    g.row_output("weighted", (g.column("class_weight") * y).sum());
    assert!(matches!(g.finish(), Err(ProgramError::Offset { .. })));
    // One of many is exact, and so is a distance.
    let g = Graph::new("target and distances");
    let y = g.logit();
    g.row_output("target", g.column_id().equals(g.target()).select(y, 0.0).sum());
    g.row_output("weights", g.column("class_weight").sum());
    g.row_output("weighted", (g.column("class_weight") * y.above(g.reference())).sum());
    assert!(g.finish().is_ok());
    // Across programs: lse and a logit are both logits.
    let good = cross_entropy().unwrap();
    let g = Graph::new("finish");
    let lse = g.row("rest").ln() - g.constant(0.0).above(g.reference());
    for output in FINISH_OUTPUTS {
        g.row_output(output, if output == "loss" { lse - g.row("target_logit") } else { g.row("rest") });
    }
    let error = Loss { finish: g.finish().unwrap(), ..good }.verify().unwrap_err();
    assert!(matches!(error, ProgramError::Offset { .. }), "{error}");
}
