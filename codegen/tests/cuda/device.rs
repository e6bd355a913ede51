//! A device for the tests: kernels compiled by NVRTC, run by the PTX interpreter.

use half::{bf16, f16};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use vocabfuse_codegen::compile::nvrtc::Nvrtc;
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::emit::{cuda_entry, emit};
use vocabfuse_codegen::manifest::Entry;
use vocabfuse_codegen::spec::Extent;
use vocabfuse_codegen::{Dtype, KernelKind, KernelSpec, Loss, Precision, Target};
use vocabfuse_ptx::{Accumulation, Arg, Class, Launch, Memory, Module, Report, launch};

/// A compiled kernel.
pub struct Compiled {
    pub entry: Entry,
    pub module: Module,
}

/// Bank conflicts and uncoalesced sectors of the main loops' instructions, over all launches of a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub matrix_loads: u64,
    pub matrix_load_conflicts: u64,
    pub copies: u64,
    pub copy_conflicts: u64,
    pub shared_conflicts: u64,
    pub copy_bytes: u64,
    pub copy_sectors: u64,
    pub products: u64,
}

pub struct Device {
    pub dtype: Dtype,
    pub precision: Option<Precision>,
    pub chunk: usize,
    pub loss: Loss,
    pub memory: Memory,
    pub seed: u64,
    pub accumulation: Accumulation,
    pub traffic: BTreeMap<String, Traffic>,
}

impl Device {
    pub fn new(dtype: Dtype, precision: Option<Precision>, chunk: usize, loss: Loss, seed: u64) -> Device {
        let (memory, accumulation, traffic) = (Memory::new(), Accumulation::default(), BTreeMap::new());
        Device { dtype, precision, chunk, loss, memory, seed, accumulation, traffic }
    }

    // Every kernel is compiled once a process.
    fn compiled(&self, kind: KernelKind) -> Arc<Compiled> {
        static KERNELS: Mutex<BTreeMap<String, Arc<Compiled>>> = Mutex::new(BTreeMap::new());
        let (dtype, chunk) = (self.dtype, self.chunk);
        let spec =
            KernelSpec::with_precision(kind, Target::Sm80, dtype, self.precision, chunk, &self.loss.name).unwrap();
        let name = spec.name();
        if let Some(known) = KERNELS.lock().unwrap().get(&name) {
            return known.clone();
        }
        let kernel = emit(&spec, &self.loss).unwrap();
        let nvrtc = Nvrtc::load().unwrap_or_else(|e| panic!("{e}"));
        let ptx =
            nvrtc.ptx(&name, &kernel.text, Architecture::parse("sm_80").unwrap()).unwrap_or_else(|e| panic!("{e}"));
        let text = String::from_utf8(ptx.code).unwrap();
        let module = Module::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = Arc::new(Compiled { entry: cuda_entry(&spec, &self.loss).unwrap(), module });
        KERNELS.lock().unwrap().insert(name, compiled.clone());
        compiled
    }

    /// Launches a kernel with its parameters by name; every parameter is given once.
    pub fn run(&mut self, kind: KernelKind, arguments: &[(&str, Arg)]) -> Report {
        self.run_rows(kind, 0, arguments)
    }

    /// Launches a kernel whose blocks share out rows.
    pub fn run_rows(&mut self, kind: KernelKind, rows: usize, arguments: &[(&str, Arg)]) -> Report {
        let compiled = self.compiled(kind);
        let name = compiled.entry.name.clone();
        assert_eq!(arguments.len(), compiled.entry.parameters.len(), "{name}: {:?}", compiled.entry.parameters);
        let ordered: Vec<Arg> = compiled
            .entry
            .parameters
            .iter()
            .map(|p| {
                arguments
                    .iter()
                    .find(|(n, _)| *n == p.name)
                    .unwrap_or_else(|| panic!("{name} needs {}", p.name))
                    .1
                    .clone()
            })
            .collect();
        let extent = |extent: Extent| match extent {
            Extent::Rows => Some(rows),
            named => arguments.iter().find(|(name, _)| *name == named.as_str()).map(|(_, value)| match value {
                Arg::I32(count) => *count as usize,
                other => panic!("{name}: {named} is {other:?}"),
            }),
        };
        let blocks = compiled.entry.blocks(extent).unwrap_or_else(|extent| panic!("{name} needs {extent}"));
        self.seed += 1;
        let shape = Launch {
            grid: [blocks as u32, 1, 1],
            block: [compiled.entry.block as u32, 1, 1],
            dynamic_shared: compiled.entry.dynamic_shared,
            seed: self.seed,
            resident_blocks: 1 + self.seed as usize % 2,
            instruction_limit: 200_000_000,
            accumulation: self.accumulation,
            ..Launch::default()
        };
        let kernel = compiled.module.kernel(&name).unwrap();
        let report = launch(kernel, &shape, &ordered, &mut self.memory).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(report.is_clean(), "{name}: {:#?} {:#?}", report.races, report.uninitialized);
        let sum = self.traffic.entry(name).or_default();
        for line in &report.lines {
            match line.class {
                Class::MatrixLoad => {
                    sum.matrix_loads += line.warps;
                    sum.matrix_load_conflicts += line.shared.conflicts();
                }
                Class::AsyncCopy => {
                    sum.copies += line.warps;
                    sum.copy_conflicts += line.shared.conflicts();
                    sum.copy_bytes += line.global.bytes;
                    sum.copy_sectors += line.global.sectors;
                }
                Class::LoadShared | Class::StoreShared => sum.shared_conflicts += line.shared.conflicts(),
                Class::MatrixMultiply => sum.products += line.warps,
                _ => {}
            }
        }
        report
    }

    pub fn floats(&mut self, values: &[f32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.memory.alloc_with(&bytes).unwrap()
    }

    pub fn ints(&mut self, values: &[i32]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.memory.alloc_with(&bytes).unwrap()
    }

    /// Values as elements of the device's dtype, after `pad` elements that nobody reads.
    pub fn elements(&mut self, values: &[f64], pad: usize) -> u64 {
        let mut bytes = vec![0xff; pad * self.dtype.size()];
        for value in values {
            match self.dtype {
                Dtype::Bf16 => bytes.extend(bf16::from_f64(*value).to_le_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f64(*value).to_le_bytes()),
                Dtype::F32 => bytes.extend((*value as f32).to_le_bytes()),
            }
        }
        self.memory.alloc_with(&bytes).unwrap() + (pad * self.dtype.size()) as u64
    }

    /// Room that nothing has written yet.
    pub fn room(&mut self, bytes: usize) -> u64 {
        self.memory.alloc(bytes).unwrap()
    }

    pub fn read_floats(&self, address: u64, count: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * count];
        self.memory.read(address, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn read_elements(&self, address: u64, count: usize) -> Vec<f64> {
        let size = self.dtype.size();
        let mut bytes = vec![0; size * count];
        self.memory.read(address, &mut bytes).unwrap();
        let one = |b: &[u8]| match self.dtype {
            Dtype::Bf16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            Dtype::F16 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            Dtype::F32 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
        };
        bytes.chunks_exact(size).map(one).collect()
    }
}

/// A value rounded to a dtype.
pub fn rounded(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Bf16 => bf16::from_f64(value).to_f64(),
        Dtype::F16 => f16::from_f64(value).to_f64(),
        Dtype::F32 => f64::from(value as f32),
    }
}
