//! CUDA kernels: header-free text from the templates under `cuda/`. How a host runs them: see [`crate::cuda`].

use super::Kernel;
use super::cuda_abi::{bindings, parameters, staged};
use super::statistic::statistics;
use crate::error::{Error, SpecError};
use crate::loss::{Loss, OPERAND_FACTOR};
use crate::lower::{Cuda, Fragment, Lowering, lower};
use crate::manifest::{Bindings, Entry, Parameter, Type, abi_hash};
use crate::program::{Input, LARGEST_POWER, NO_REFERENCE, Op, Program, Shape, ValueId};
use crate::render::{render, template};
use crate::spec::{Along, Cuda as Machine, Dtype, KernelKind, KernelSpec, Layout, Plan, WEIGHT_GRADIENT, Work};
use minijinja::value::Serde;
use minijinja::{Value, context};

/// What a host needs to know of a kernel to launch it, without its text.
///
/// # Errors
/// See [`Error`].
pub fn entry(spec: &KernelSpec, loss: &Loss) -> Result<Entry, Error> {
    entry_of(spec, &parameters(spec, loss)?, bindings(spec, loss))
}

pub(super) fn entry_of(spec: &KernelSpec, typed: &[(String, Type)], bindings: Bindings) -> Result<Entry, Error> {
    let spelled = |(name, ty): &(String, Type)| Parameter { name: name.clone(), ty: ty.rust(spec.types) };
    let parameters: Vec<Parameter> = typed.iter().map(spelled).collect();
    let Geometry { plan, grid, .. } = geometry(spec)?;
    Ok(Entry {
        name: spec.name(),
        spec: spec.clone(),
        abi: abi_hash(&parameters, &bindings),
        parameters,
        bindings,
        grid,
        cluster: plan.cluster,
        block: plan.threads,
        dynamic_shared: plan.shared,
        plan,
        text: String::new(),
        resources: vec![],
    })
}

/// How a target launches a kernel.
struct Geometry {
    machine: &'static Machine,
    work: Work,
    plan: Plan,
    grid: Vec<Along>,
}

fn geometry(spec: &KernelSpec) -> Result<Geometry, Error> {
    let (Some(machine), Some(on)) = (spec.target.cuda(), spec.kernel.row().cuda) else {
        let what = format!("kernel {} on target {} as CUDA text", spec.kernel, spec.target);
        return Err(SpecError::Unsupported { what, supported: "kernels and targets of GPUs".to_owned() }.into());
    };
    let (plan, grid) = ((machine.plan)(on.work, spec.types.storage), (machine.grid)(on.work));
    Ok(Geometry { machine, work: on.work, plan, grid })
}

/// The module that lists texts and manifest of CUDA kernels.
///
/// # Errors
/// See [`Error`].
pub fn emit_module(kernels: &[&Kernel]) -> Result<String, Error> {
    let names: Vec<String> = kernels.iter().map(|k| k.name.clone()).collect();
    render("cuda/module.rs.in", "module of cuda", context! { version => env!("CARGO_PKG_VERSION"), names => names })
}

pub(super) fn emit(spec: &KernelSpec, loss: &Loss) -> Result<Kernel, Error> {
    render_kernel(spec, program_context(spec, loss)?, &parameters(spec, loss)?)
}

/// A kernel from the context of its programs.
pub(super) fn render_kernel(
    spec: &KernelSpec,
    programs: Value,
    parameters: &[(String, Type)],
) -> Result<Kernel, Error> {
    let name = spec.name();
    let Geometry { machine, work, plan, .. } = geometry(spec)?;
    let cuda = |dtype| if dtype == Dtype::F32 { "float" } else { "u16" };
    let list: Vec<String> = parameters.iter().map(|(name, ty)| format!("{} {name}", ty.cuda())).collect();
    let common = context! {
        version => env!("CARGO_PKG_VERSION"),
        name => name.as_str(),
        spec_json => serde_json::to_string(spec).unwrap_or_default(),
        template => template(spec)?,
        signature => list.join(",\n    "),
        dtype => spec.types.storage.as_str(),
        precision => spec.precision().map_or("", |p| p.as_str()),
        storage => cuda(spec.types.storage),
        output => spec.types.output.map(cuda),
        element_bytes => spec.types.storage.size(),
        tile => Value::from(Serde(&plan)),
        chunk => spec.chunk,
        no_reference => format!("{NO_REFERENCE:e}"),
        largest_power => format!("{LARGEST_POWER:?}"),
        skip_rows => machine.tile_tokens,
        skip_columns => machine.tile_columns,
        ..product_context(work)
    };
    let text = render("cuda/kernel.cu.in", &name, context! { ..programs, ..common })?;
    Ok(Kernel { spec: spec.clone(), name, text, kernels: vec![spec.clone()] })
}

// Which operands hold the inner dimension contiguously, and whether tiles of Q may be left out.
fn product_context(work: Work) -> Value {
    let Work::Product(Layout { a_inner, b_inner, .. }) = work else { return context! {} };
    context! { a_rows => a_inner, b_rows => b_inner, skips => work == Work::Product(WEIGHT_GRADIENT) }
}

// Shared memory of the epilogue, which begins where the stages do: the tile of 16-bit values, then the column inputs.
fn scratch_context(spec: &KernelSpec, plan: Plan, staged: &[String], rows: usize) -> Value {
    let tile = if spec.types.storage.size() == 2 { plan.m * (plan.n * 2 + 16) } else { 0 };
    context! { staged => staged.to_vec(), scratch_offset => tile, scratch_bytes => staged.len() * plan.n * 4 + rows }
}

fn program_context(spec: &KernelSpec, loss: &Loss) -> Result<Value, Error> {
    let (statistics, values) = statistics(&loss.statistics, 1, &Cuda);
    let listed = Value::from(Serde(&statistics));
    let Geometry { plan, .. } = geometry(spec)?;
    let staged = staged(spec.kernel, loss);
    let element = |v: ValueId| (v, Shape::Element);
    Ok(match spec.kernel {
        KernelKind::LogitsSoftmax | KernelKind::LogitsOperand => {
            let operand = spec.kernel == KernelKind::LogitsOperand;
            let p = if operand { loss.operand.as_ref().ok_or_else(|| incomplete(loss))? } else { &loss.statistics };
            let store = p.store().ok_or_else(|| incomplete(loss))?;
            let (statistics, values) = if operand { (vec![], vec![]) } else { (statistics, values) };
            let wanted: Vec<_> = std::iter::once(store).chain(values).map(element).collect();
            // What is relative to no reference moves none.
            let map = match p.referenced(0) {
                Some(referenced) => lowered(p, "m", &[element(referenced)])?,
                None => {
                    let nothing = Cuda.constant(f32::NEG_INFINITY);
                    Value::from(Serde(&Fragment { results: vec![nothing], ..Fragment::default() }))
                }
            };
            let f16 = spec.types.storage == Dtype::F16;
            // A value a row and warp for the peak, each statistic and the reference.
            let rows = (statistics.len() + 2) * (plan.n / 64) * plan.m * 4;
            context! {
                statistics => Value::from(Serde(&statistics)),
                map => map,
                weigh => lowered(p, "w", &wanted)?,
                // f16 holds E up to 65504 = e^11.
                window => if f16 { "6.9" } else { "13.8" },
                window_reason => if f16 { ": f16 cannot hold more" } else { "" },
                ..scratch_context(spec, plan, &staged, rows)
            }
        }
        KernelKind::LogitsGradient | KernelKind::SavedGradient => {
            let (Some(restored), Some(store)) = (loss.statistics.store(), loss.gradient.store()) else {
                return Err(incomplete(loss));
            };
            let columns: Vec<ValueId> = loss.gradient.column_gradients().map(|(_, v)| v).collect();
            if columns.len() > 1 {
                let what = format!("{} column gradients in loss {}", columns.len(), loss.name);
                return Err(SpecError::Unsupported { what, supported: "at most one".to_owned() }.into());
            }
            let wanted: Vec<_> = std::iter::once(store).chain(columns.iter().copied()).map(element).collect();
            context! {
                restore => lowered(&loss.statistics, "s", &[element(restored)])?,
                gradient => lowered(&loss.gradient, "g", &wanted)?,
                column_gradients => columns.len(),
                ..scratch_context(spec, plan, &staged, (plan.m / 64) * plan.n * 4)
            }
        }
        KernelKind::ReduceStatistics | KernelKind::Merge => {
            context! { statistics => listed, operand => loss.operand.is_some() }
        }
        KernelKind::Finish => {
            let position = |name: &str| loss.finish.row_outputs().position(|(n, _)| n == name);
            let wanted: Vec<_> = loss.finish.row_outputs().map(|(_, v)| (v, Shape::Row)).collect();
            let known = |op: &Op| !matches!(op, Op::Input(i) if !matches!(i, Input::Row(_) | Input::Uniform(_) | Input::Reference(_)));
            if let Some(index) = loss.finish.ops().iter().position(|op| !known(op)) {
                return Err(Error::Lowering {
                    program: loss.finish.name().to_owned(),
                    value: ValueId(index as u32).to_string(),
                    message: "a finish program reads row values, scalars and the reference only".to_owned(),
                });
            }
            context! {
                finish => lowered(&loss.finish, "f", &wanted)?,
                a_factor => position("a_factor"),
                target_factor => position("target_factor"),
                operand_factor => loss.operand.as_ref().and_then(|_| position(OPERAND_FACTOR)),
            }
        }
        _ => context! {},
    })
}

fn incomplete(loss: &Loss) -> Error {
    Error::Lowering {
        program: loss.name.clone(),
        value: "store".to_owned(),
        message: "the loss is incomplete; build it so that Loss::verify holds".to_owned(),
    }
}

pub(super) fn lowered(program: &Program, prefix: &str, wanted: &[(ValueId, Shape)]) -> Result<Value, Error> {
    Ok(Value::from(Serde(&lower(program, &Cuda, prefix, wanted)?)))
}
