//! What a host needs to know of a CUDA kernel to launch it: one entry a kernel, as JSON beside the texts.

use crate::spec::{Along, Dtype, Extent, KernelSpec, Plan, Types};
use serde::{Deserialize, Serialize};

/// Elements that a pointer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The storage type of the kernel.
    Element,
    /// Its output type.
    Output,
    /// 32-bit float.
    F32,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// Byte.
    U8,
}

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Address of values that the kernel reads.
    Read(Data),
    /// Address of values that the kernel writes, and may read.
    Write(Data),
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// 32-bit float.
    F32,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Name in the text.
    pub name: String,
    /// Type in the spelling of Rust: `*const bf16`, `*mut f32`, `i64`.
    #[serde(rename = "type")]
    pub ty: String,
}

/// Names that a host binds values to, in the order of the kernel; as the registry's bindings of CPU kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bindings {
    /// Row statistics after the reference.
    pub statistics: Vec<String>,
    /// Scalars: parameters `uniform_<name>`.
    pub uniforms: Vec<String>,
    /// Values per token: parameters `row_<name>`.
    pub rows: Vec<String>,
    /// Values per vocabulary entry: parameters `column_<name>`, null for zero.
    pub columns: Vec<String>,
    /// Row outputs of the finish program, one array each in `outputs`.
    pub outputs: Vec<String>,
    /// Column gradients whose partial sums the kernel writes.
    pub column_gradients: Vec<String>,
}

/// Instructions of the main loop of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainLoop {
    /// All that are issued in one step.
    pub instructions: u32,
    /// Tensor-core products among them.
    pub products: u32,
    /// Matrix loads from shared memory among them.
    pub matrix_loads: u32,
    /// Asynchronous copies to shared memory among them.
    pub copies: u32,
}

impl MainLoop {
    /// Instructions issued for each product.
    pub fn per_product(&self) -> f64 {
        f64::from(self.instructions) / f64::from(self.products.max(1))
    }
}

/// What the compiler made of a kernel for one architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Architecture compiled for, such as `sm_80`.
    pub architecture: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spilled registers stored and loaded.
    pub spills: u32,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Blocks that fit on a multiprocessor.
    pub blocks: u32,
    /// Warps that fit on a multiprocessor.
    pub warps: u32,
    /// The main loop of a matrix product, where a disassembler was at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_loop: Option<MainLoop>,
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Name of the kernel, of its function and of its file.
    pub name: String,
    /// What it was generated from.
    pub spec: KernelSpec,
    /// Parameters in order.
    pub parameters: Vec<Parameter>,
    /// Program inputs and outputs in order.
    pub bindings: Bindings,
    /// What the blocks of the grid share out. Their number is the product of those along each extent, in whole clusters.
    pub grid: Vec<Along>,
    /// Blocks of a cluster.
    pub cluster: usize,
    /// Threads of a block, along x.
    pub block: usize,
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: usize,
    /// Blocking.
    pub plan: Plan,
    /// Hash of parameters and bindings: a host that was built for another must not launch the kernel.
    pub abi: String,
    /// Hash of the text that the resources are of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// What the compiler made of the text, one an architecture; empty unless it was compiled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resources>,
}

/// The entries of a set of kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the generator.
    pub version: String,
    /// One entry a kernel.
    pub kernels: Vec<Entry>,
}

impl Manifest {
    /// The manifest of entries.
    pub fn new(kernels: Vec<Entry>) -> Manifest {
        Manifest { version: env!("CARGO_PKG_VERSION").to_owned(), kernels }
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// The parser's error, with the place in the text.
    pub fn parse(text: &str) -> Result<Manifest, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// As JSON, with each entry on a line of its own.
    pub fn to_json(&self) -> String {
        let line = |entry: &Entry| format!("    {}", serde_json::to_string(entry).unwrap_or_default());
        let lines: Vec<String> = self.kernels.iter().map(line).collect();
        format!("{{\n  \"version\": {:?},\n  \"kernels\": [\n{}\n  ]\n}}\n", self.version, lines.join(",\n"))
    }

    /// The same without what a compiler found, as the generator alone writes it.
    pub fn bare(&self) -> Manifest {
        let bare = |entry: &Entry| Entry { text: String::new(), resources: vec![], ..entry.clone() };
        Manifest { version: self.version.clone(), kernels: self.kernels.iter().map(bare).collect() }
    }

    /// The entry of a kernel.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.kernels.iter().find(|e| e.name == name)
    }
}

impl Entry {
    /// Blocks of a launch over some extents, none if there is nothing to do. Without an extent that the kernel needs: which
    /// one.
    pub fn blocks(&self, of: impl Fn(Extent) -> Option<usize>) -> Result<usize, Extent> {
        let along = |along: &Along| of(along.extent).map(|count| count.div_ceil(along.per_block)).ok_or(along.extent);
        let blocks = self.grid.iter().map(along).try_fold(1, |blocks, along| Ok(blocks * along?))?;
        Ok(blocks.next_multiple_of(self.cluster.max(1)))
    }
}

impl Type {
    /// Spelling in CUDA.
    pub fn cuda(self) -> &'static str {
        match self {
            Type::Read(Data::Element) => "const Element*",
            Type::Read(Data::F32) => "const float*",
            Type::Read(Data::I32) => "const int*",
            Type::Read(Data::I64) => "const i64*",
            Type::Read(Data::U8) => "const u8*",
            Type::Write(Data::Element) => "Element*",
            Type::Read(Data::Output) => "const Output*",
            Type::Write(Data::Output) => "Output*",
            Type::Write(Data::F32) => "float*",
            Type::Write(Data::I32) => "int*",
            Type::Write(Data::I64) => "i64*",
            Type::Write(Data::U8) => "u8*",
            Type::I32 => "int",
            Type::I64 => "i64",
            Type::F32 => "float",
        }
    }

    /// Spelling in the manifest, for a kernel of some types.
    pub fn rust(self, types: Types) -> String {
        let data = |data| match data {
            Data::Element => types.storage.to_string(),
            Data::Output => types.output.unwrap_or(Dtype::F32).to_string(),
            Data::F32 => "f32".to_owned(),
            Data::I32 => "i32".to_owned(),
            Data::I64 => "i64".to_owned(),
            Data::U8 => "u8".to_owned(),
        };
        match self {
            Type::Read(to) => format!("*const {}", data(to)),
            Type::Write(to) => format!("*mut {}", data(to)),
            Type::I32 => "i32".to_owned(),
            Type::I64 => "i64".to_owned(),
            Type::F32 => "f32".to_owned(),
        }
    }
}

/// Hash of bytes as hexadecimal digits. FNV-1a: stable over versions of Rust, unlike the standard library's hasher; it
/// guards against accidents and is no defence against anybody.
pub fn hash(bytes: &[u8]) -> String {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Hash of what a host relies on when it launches a kernel.
pub fn abi_hash(parameters: &[Parameter], bindings: &Bindings) -> String {
    hash(serde_json::to_string(&(parameters, bindings)).unwrap_or_default().as_bytes())
}
