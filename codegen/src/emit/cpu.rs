//! CPU kernels: Rust text from the templates under `cpu/`.

use super::Kernel;
use super::statistic::{self, statistics_or_fewer};
use crate::error::{Error, SpecError};
use crate::loss::{Loss, Merge, OPERAND_FACTOR};
use crate::lower::{Fragment, Lowered, Lowering, Operand, RustSimd, lower};
use crate::place::Place;
use crate::program::{Kind, LARGEST_POWER, Program, Shape, Type, ValueId};
use crate::render::{render, template};
use crate::spec::{Dtype, KernelKind, KernelSpec, Precision};
use minijinja::value::Serde;
use minijinja::{Value, context};
use serde::Serialize;

const UNIFORM: Type = Type { kind: Kind::F32, shape: Shape::Uniform };

#[derive(Serialize)]
struct Field {
    name: &'static str,
    texts: String,
}

/// Names that a kernel binds, in the order of the fields of the registry's `Bindings`.
#[derive(Default)]
pub(super) struct Names<'a> {
    pub(super) statistics: Vec<&'a str>,
    pub(super) identities: Vec<String>,
    pub(super) sums: Vec<String>,
    pub(super) rules: Vec<String>,
    pub(super) statistics_uniforms: Vec<&'a str>,
    pub(super) statistics_columns: Vec<&'a str>,
    pub(super) uniforms: Vec<&'a str>,
    pub(super) rows: Vec<&'a str>,
    pub(super) columns: Vec<&'a str>,
    pub(super) outputs: Vec<&'a str>,
    pub(super) column_gradients: Vec<&'a str>,
}

impl<'a> Names<'a> {
    /// Those of the program that a kernel is named for.
    pub(super) fn of(program: &'a Program) -> Names<'a> {
        Names {
            uniforms: program.uniforms(),
            rows: program.row_inputs(),
            columns: program.column_inputs(),
            outputs: program.row_outputs().map(|(name, _)| name).collect(),
            column_gradients: program.column_gradients().map(|(name, _)| name).collect(),
            ..Names::default()
        }
    }

    /// Also the row statistics beside some references, with the values of a row that has seen no logit.
    pub(super) fn keep(&mut self, rules: &'a [(String, Merge)], references: usize) {
        self.rules = statistic::rules(rules, references);
        self.statistics = rules.iter().map(|(name, _)| name.as_str()).collect();
        self.identities = rules.iter().map(|(_, rule)| RustSimd.constant(rule.identity())).collect();
        let sums = rules.iter().enumerate().filter(|(_, (_, rule))| rule.is_sum());
        self.sums = sums.map(|(index, _)| index.to_string()).collect();
    }

    pub(super) fn context(self) -> Value {
        let field = |name, names: Vec<&str>| Field {
            name,
            texts: names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", "),
        };
        let fields = vec![
            field("statistics", self.statistics),
            Field { name: "identities", texts: self.identities.join(", ") },
            Field { name: "sums", texts: self.sums.join(", ") },
            Field { name: "rules", texts: self.rules.join(", ") },
            field("statistics_uniforms", self.statistics_uniforms),
            field("statistics_columns", self.statistics_columns),
            field("uniforms", self.uniforms),
            field("rows", self.rows),
            field("columns", self.columns),
            field("outputs", self.outputs),
            field("column_gradients", self.column_gradients),
        ];
        Value::from(Serde(&fields))
    }
}

/// One kernel before it shares a text with others.
#[derive(Clone, Debug)]
pub struct Part {
    /// What it was generated from.
    pub spec: KernelSpec,
    /// Its functions, which may be those of other kernels too.
    body: String,
    bindings: Value,
    shared: bool,
    /// Whether optional row outputs are computed.
    optional: bool,
}

impl Part {
    /// Whether both have the same functions, and so stand in one text.
    pub fn is_like(&self, other: &Part) -> bool {
        let (a, b) = (&self.spec, &other.spec);
        (a.kernel, a.place(), a.chunk) == (b.kernel, b.place(), b.chunk) && self.body == other.body
    }

    /// The function of the kernel, with the constants that its template declares: how tensors are stored, where they are only
    /// loaded and stored, and whether optional outputs are computed.
    fn function(&self) -> String {
        let declared =
            self.body.split_once("fn kernel<").and_then(|(_, rest)| rest.split_once(">(")).map(|(list, _)| list);
        let constants = declared.into_iter().flat_map(|list| list.split(", ")).map(|constant| match constant {
            "const STORED: u8" => self.spec.types.storage.as_str().to_uppercase(),
            _ => self.optional.to_string(),
        });
        let constants: Vec<String> = constants.collect();
        if constants.is_empty() { "kernel".to_owned() } else { format!("kernel::<{}>", constants.join(", ")) }
    }
}

pub(super) fn part(spec: &KernelSpec, loss: &Loss) -> Result<Part, Error> {
    let shared = spec.kernel == KernelKind::LogitsOperand && loss.shares_operand();
    let part = render_part(spec, program_context(spec, loss)?, bindings(spec, loss))?;
    let optional = loss.optional.as_ref().is_some_and(|optional| optional.computed);
    Ok(Part { shared, optional, ..part })
}

/// A kernel from the context of its programs and the names that they bind.
pub(super) fn render_part(spec: &KernelSpec, programs: Value, bindings: Value) -> Result<Part, Error> {
    let common = context! {
        chunk => spec.chunk,
        dtype => spec.types.storage.as_str(),
        storage => if spec.types.storage == Dtype::F32 { "f32" } else { "u16" },
        ..place_context(spec.place())
    };
    let body = render(&template(spec)?, &spec.name(), context! { ..programs, ..common })?;
    Ok(Part { spec: spec.clone(), body, bindings, shared: false, optional: false })
}

/// The text of kernels that have the same functions: each is an entry of the registry.
///
/// # Errors
/// See [`Error`].
pub fn assemble(parts: &[Part]) -> Result<Kernel, Error> {
    let Some(first) = parts.first() else {
        return Err(Error::Empty);
    };
    let name = first.spec.text_name();
    let entries = parts.iter().map(|part| {
        context! {
            name => part.spec.name(),
            spec => spec_strings(&part.spec),
            bindings => part.bindings.clone(),
            shared => part.shared,
            function => part.function(),
        }
    });
    let context = context! {
        version => env!("CARGO_PKG_VERSION"),
        spec_json => serde_json::to_string(&first.spec).unwrap_or_default(),
        template => template(&first.spec)?,
        body => first.body.trim_end(),
        kernels => entries.collect::<Vec<_>>(),
        entry => first.spec.kernel.row().cpu.map(|on| on.entry),
    };
    let text = render("cpu/kernel.rs.in", &name, context)?;
    let kernels = parts.iter().map(|part| part.spec.clone()).collect();
    Ok(Kernel { spec: first.spec.clone(), name, text, kernels })
}

/// The prelude that the kernels of a place share.
///
/// # Errors
/// See [`Error`].
pub fn emit_prelude(place: Place) -> Result<String, Error> {
    let context = context! { version => env!("CARGO_PKG_VERSION"), ..place_context(place) };
    render(&format!("cpu/prelude_{}.rs.in", place.target), &format!("prelude of {place}"), context)
}

/// The module that lists the kernels of a place. `inline` puts prelude and kernels into it instead of naming their files.
///
/// # Errors
/// See [`Error`].
pub fn emit_module(place: Place, kernels: &[&Kernel], inline: bool) -> Result<String, Error> {
    let kernels: Vec<Value> =
        kernels.iter().map(|k| context! { name => k.name.as_str(), text => k.text.as_str() }).collect();
    let context = context! {
        version => env!("CARGO_PKG_VERSION"),
        target => place.target.as_str(),
        precision => place.precision.map(Precision::as_str),
        prelude => emit_prelude(place)?,
        kernels => kernels,
        inline => inline,
    };
    render("cpu/module.rs.in", &format!("module of {place}"), context)
}

/// The module that lists the modules of some places.
///
/// # Errors
/// See [`Error`].
pub fn emit_places(places: &[Place]) -> Result<String, Error> {
    let place = |place: &Place| {
        let products = place.precision.map(|precision| format!(", products of f32 in {precision}"));
        context! {
            name => place.to_string(),
            title => format!("target {}{}", place.target, products.unwrap_or_default()),
            condition => place.target.cpu().and_then(|cpu| cpu.condition),
        }
    };
    let places: Vec<Value> = places.iter().map(place).collect();
    render("cpu/places.rs.in", "module of places", context! { version => env!("CARGO_PKG_VERSION"), places })
}

fn spec_strings(spec: &KernelSpec) -> Value {
    context! {
        kernel => spec.kernel.as_str(),
        target => spec.target.as_str(),
        dtype => spec.types.storage.as_str(),
        precision => spec.precision().map(Precision::as_str),
        chunk => spec.chunk,
        loss => spec.loss.as_deref(),
    }
}

fn place_context(place: Place) -> Value {
    let features = place.target.cpu().map(|cpu| cpu.features.join(",")).unwrap_or_default();
    let attribute =
        if features.is_empty() { String::new() } else { format!("#[target_feature(enable = \"{features}\")]") };
    context! {
        tile => Value::from(Serde(&place.target.tile(place.precision))),
        features => features,
        largest_power => format!("{LARGEST_POWER:?}"),
        attribute => attribute,
    }
}

fn program_context(spec: &KernelSpec, loss: &Loss) -> Result<Value, Error> {
    Ok(match spec.kernel {
        KernelKind::LogitsSoftmax => {
            let whole = loss.optional.as_ref().map(|o| (&o.statistics, o.required_statistics, o.computed));
            let Shared { program: p, required, optional } = shared(&loss.statistics, whole, Shape::Element)?;
            let (statistics, values) = statistics_or_fewer(p, 1, &RustSimd, required);
            // A statistic that selects has two values.
            let computed = statistics.iter().find(|s| s.optional).map_or(values.len(), |s| s.value - 1);
            let values: Vec<_> = values.into_iter().map(|v| (v, Shape::Element)).collect();
            let store = (p.store().ok_or_else(|| incomplete(loss))?, Shape::Element);
            let mut lowered = Lowered::new(p, &RustSimd, "w");
            let mut weigh = lowered.add(&[&[store], &values[..computed]].concat())?;
            let mut extra = lowered.add(&values[computed..])?;
            weigh.results.append(&mut extra.results);
            // What the gradient filter measures stored values against: the sum of them.
            let mass = statistics.iter().find(|s| s.rule == "ScaledSum").map(|s| s.slot);
            context! {
                map => map(p)?,
                weigh => Value::from(Serde(&weigh)),
                extra => Value::from(Serde(&if_optional(extra))),
                optional,
                statistics => Value::from(Serde(&statistics)),
                mass => mass.ok_or_else(|| incomplete(loss))?,
            }
        }
        KernelKind::LogitsOperand => {
            let p = loss.operand.as_ref().ok_or_else(|| incomplete(loss))?;
            let store = p.store().ok_or_else(|| incomplete(loss))?;
            let nothing: [usize; 0] = [];
            // A further product is not filtered.
            context! {
                map => map(p)?,
                weigh => lowered(p, "w", &[(store, Shape::Element)])?,
                extra => Value::from(Serde(&Fragment::default())),
                optional => false,
                statistics => Value::from(Serde(&nothing)),
                mass => 0,
            }
        }
        KernelKind::WeightGradSaved | KernelKind::WeightGradRecompute => {
            let saved = spec.kernel == KernelKind::WeightGradSaved;
            let (Some(restored), Some(store)) = (loss.statistics.store(), loss.gradient.store()) else {
                return Err(incomplete(loss));
            };
            let mut wanted = vec![(store, Shape::Element)];
            wanted.extend(loss.gradient.column_gradients().map(|(_, v)| (v, Shape::Element)));
            let columns = wanted.len() - 1;
            if columns > 1 {
                return Err(SpecError::Unsupported {
                    what: format!("{columns} column gradients in loss {}", loss.name),
                    supported: "at most one".to_owned(),
                }
                .into());
            }
            context! {
                saved => saved,
                restore => lowered(&loss.statistics, "s", &[(restored, Shape::Element)])?,
                gradient => lowered(&loss.gradient, "g", &wanted)?,
                column_gradients => columns,
            }
        }
        KernelKind::Finish => {
            let whole = loss.optional.as_ref().map(|o| (&o.finish, o.required_outputs, o.computed));
            let Shared { program: p, required, optional } = shared(&loss.finish, whole, Shape::Row)?;
            let outputs: Vec<_> = p.row_outputs().map(|(_, v)| (v, Shape::Row)).collect();
            let mut lowered = Lowered::new(p, &RustSimd, "f");
            let finish = lowered.add(&outputs[..required])?;
            let extra = lowered.add(&outputs[required..])?;
            let position = |name: &str| p.row_outputs().position(|(known, _)| known == name);
            context! {
                finish => Value::from(Serde(&finish)),
                extra => Value::from(Serde(&extra)),
                optional,
                a_factor => position("a_factor"),
                target_factor => position("target_factor"),
                operand_factor => loss.operand.as_ref().and_then(|_| position(OPERAND_FACTOR)),
            }
        }
        _ => context! {},
    })
}

/// The program that the functions of a kernel compute, in whole or without its optional row outputs.
struct Shared<'a> {
    program: &'a Program,
    /// How many row outputs are not optional.
    required: usize,
    /// Whether there are optional ones.
    optional: bool,
}

/// A program of a loss, or the whole one that it is a part of, with the number of row outputs that are not optional and
/// whether the loss has the others. It is a part if what both compute has the same statements.
fn shared<'a>(own: &'a Program, whole: Option<(&'a Program, usize, bool)>, shape: Shape) -> Result<Shared<'a>, Error> {
    let alone = Shared { program: own, required: own.row_outputs().count(), optional: false };
    let Some((program, required, computed)) = whole else { return Ok(alone) };
    let count = if computed { program.row_outputs().count() } else { required };
    let rules = program.rules();
    let statements = |p: &Program| {
        let stored = p.store().map(|v| (v, Shape::Element));
        let rows = p.row_outputs().take(count).map(|(_, v)| (v, shape));
        lower(p, &RustSimd, "", &stored.into_iter().chain(rows).collect::<Vec<_>>())
    };
    let part = own.row_outputs().map(|(name, _)| name).eq(program.row_outputs().take(count).map(|(name, _)| name))
        && rules.starts_with(&own.rules())
        && statements(own)? == statements(program)?;
    Ok(if part { Shared { program, required, optional: true } } else { alone })
}

/// What the reference of a row is raised to.
fn map(p: &Program) -> Result<Value, Error> {
    match p.referenced(0) {
        Some(referenced) => lowered(p, "m", &[(referenced, Shape::Element)]),
        // What is relative to no reference moves none.
        None => Ok(Value::from(Serde(&Fragment { results: vec![splat(f32::NEG_INFINITY)], ..Fragment::default() }))),
    }
}

/// Statements outside of all loops that only optional outputs need: what they read may not be there.
fn if_optional(extra: Fragment) -> Fragment {
    let guarded = |statement: String| match statement.trim_end_matches(';').split_once(" = ") {
        Some((name, value)) => format!("{name} = if OPTIONAL {{ {value} }} else {{ Default::default() }};"),
        None => statement,
    };
    Fragment { uniform: extra.uniform.into_iter().map(guarded).collect(), ..extra }
}

fn splat(value: f32) -> String {
    RustSimd.broadcast(&Operand { text: RustSimd.constant(value), ty: UNIFORM }, Shape::Element)
}

fn incomplete(loss: &Loss) -> Error {
    Error::Lowering {
        program: loss.name.clone(),
        value: "store".to_owned(),
        message: "the loss is incomplete; build it so that Loss::verify holds".to_owned(),
    }
}

pub(super) fn lowered(program: &Program, prefix: &str, wanted: &[(ValueId, Shape)]) -> Result<Value, Error> {
    let fragment: Fragment = lower(program, &RustSimd, prefix, wanted)?;
    Ok(Value::from(Serde(&fragment)))
}

fn bindings(spec: &KernelSpec, loss: &Loss) -> Value {
    let program = match spec.kernel {
        KernelKind::LogitsSoftmax => Some(&loss.statistics),
        KernelKind::LogitsOperand => loss.operand.as_ref(),
        KernelKind::WeightGradSaved | KernelKind::WeightGradRecompute => Some(&loss.gradient),
        KernelKind::Finish => Some(&loss.finish),
        _ => None,
    };
    let mut names = program.map(Names::of).unwrap_or_default();
    let rules = loss.statistics_rules();
    if matches!(spec.kernel, KernelKind::LogitsSoftmax | KernelKind::Finish) {
        names.keep(&rules, 1);
    }
    if spec.kernel == KernelKind::WeightGradRecompute {
        names.statistics_uniforms = loss.statistics.uniforms();
        names.statistics_columns = loss.statistics.column_inputs();
    }
    names.context()
}
