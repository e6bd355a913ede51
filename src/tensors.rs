//! Tensors of the vocabulary layers in safetensors files.

pub mod embedding;
pub mod operators;

use half::{bf16, f16};
use safetensors::tensor::{SafeTensorError, TensorView, View};
use safetensors::{Dtype as Stored, SafeTensors};
use std::borrow::Cow;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use vocabfuse_codegen::Dtype;
use vocabfuse_runtime::{Element, Error as RuntimeError, Matrix};

/// Tensors that an input file of cross-entropy may hold.
const KNOWN: &[&str] = &["x", "w", "targets", "bias", "upstream", "lse_upstream", "token_weights", "class_weights"];

/// A file that cannot be used; every message is one line.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A file that is no whole safetensors file.
    #[error("{path}: expected a whole safetensors file; {source}")]
    Format {
        /// The file.
        path: String,
        /// The reason.
        source: SafeTensorError,
    },
    /// A tensor that must be there.
    #[error("tensor {name}: missing; expected shape {expected}")]
    Missing {
        /// Name of the tensor.
        name: &'static str,
        /// Its shape in words.
        expected: &'static str,
    },
    /// A tensor that nothing reads, perhaps a misspelt one.
    #[error("tensor {name}: unknown; expected only {}", known.join(", "))]
    Unknown {
        /// Name of the tensor.
        name: String,
        /// Tensors that the file may hold.
        known: &'static [&'static str],
    },
    /// A tensor that others read, but nothing here.
    #[error("tensor {name}: nothing reads it here; expected only {}", read.join(", "))]
    Unused {
        /// Name of the tensor.
        name: String,
        /// Tensors that are read.
        read: Vec<&'static str>,
    },
    /// A tensor of the wrong shape.
    #[error("tensor {name}: shape {got:?}; expected {expected}")]
    Shape {
        /// Name of the tensor.
        name: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// What was expected.
        expected: String,
    },
    /// A tensor of the wrong element type.
    #[error("tensor {name}: dtype {got}; expected {expected}")]
    Dtype {
        /// Name of the tensor.
        name: &'static str,
        /// Its dtype as in the file.
        got: String,
        /// What was expected.
        expected: String,
    },
    /// A parameter that is not a number.
    #[error("tensor {name}: NaN at position {position}; expected numbers")]
    NotANumber {
        /// Name of the tensor.
        name: &'static str,
        /// Position in row-major order.
        position: usize,
    },
    /// A number that another element type does not hold.
    #[error(
        "tensor {name}: {value:?} at position {position}; expected at most {largest:?} in size, as {dtype} holds no more"
    )]
    Overflow {
        /// Name of the tensor.
        name: &'static str,
        /// The number.
        value: f32,
        /// Position in row-major order.
        position: usize,
        /// The element type.
        dtype: Dtype,
        /// Its largest number.
        largest: f32,
    },
}

/// Values of a tensor in their own type.
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// f32.
    F32(Vec<f32>),
    /// bf16.
    Bf16(Vec<bf16>),
    /// f16.
    F16(Vec<f16>),
}

impl Elements {
    /// Rounds f32 values to a dtype; those beyond its range become infinite.
    pub fn from_f32(values: Vec<f32>, dtype: Dtype) -> Elements {
        match dtype {
            Dtype::F32 => Elements::F32(values),
            Dtype::Bf16 => Elements::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            Dtype::F16 => Elements::F16(values.into_iter().map(f16::from_f32).collect()),
        }
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Elements::F32(_) => Dtype::F32,
            Elements::Bf16(_) => Dtype::Bf16,
            Elements::F16(_) => Dtype::F16,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(v) => v.len(),
            Elements::Bf16(v) => v.len(),
            Elements::F16(v) => v.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as f32, which holds all of them exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Elements::F32(v) => v.clone(),
            Elements::Bf16(v) => v.iter().map(|e| e.to_f32()).collect(),
            Elements::F16(v) => v.iter().map(|e| e.to_f32()).collect(),
        }
    }

    /// The values of the tensor `name` in another type; values that already have it are moved. Infinities and NaN stay
    /// what they are.
    ///
    /// # Errors
    /// [`TensorError::Overflow`] for a number that would become infinite.
    pub fn convert(self, name: &'static str, dtype: Dtype) -> Result<Elements, TensorError> {
        let (largest, fits): (f32, fn(f32) -> bool) = match dtype {
            _ if self.dtype() == dtype => return Ok(self),
            Dtype::F32 => (f32::MAX, |_| true),
            Dtype::Bf16 => (bf16::MAX.to_f32(), |v| bf16::from_f32(v).is_finite()),
            Dtype::F16 => (f16::MAX.to_f32(), |v| f16::from_f32(v).is_finite()),
        };
        let values = self.to_f32();
        match values.iter().position(|v| v.is_finite() && !fits(*v)) {
            Some(position) => Err(TensorError::Overflow { name, value: values[position], position, dtype, largest }),
            None => Ok(Elements::from_f32(values, dtype)),
        }
    }

    /// The values as a matrix of `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError::Shape`] if the number of values differs from `rows * columns`.
    pub fn matrix(&self, rows: usize, columns: usize) -> Result<Matrix<'_>, RuntimeError> {
        match self {
            Elements::F32(v) => Matrix::new(v, rows, columns),
            Elements::Bf16(v) => Matrix::new(v, rows, columns),
            Elements::F16(v) => Matrix::new(v, rows, columns),
        }
    }

    /// Some columns of the values as a matrix of `rows` rows.
    ///
    /// # Errors
    /// [`RuntimeError::Shape`] if the number of values differs from `rows * columns`, or a column is not there.
    pub fn columns(&self, rows: usize, columns: usize, range: Range<usize>) -> Result<Matrix<'_>, RuntimeError> {
        fn of<T: Element>(
            values: &[T],
            rows: usize,
            stride: usize,
            range: Range<usize>,
        ) -> Result<Matrix<'_>, RuntimeError> {
            let first = if rows == 0 { 0 } else { range.start };
            Matrix::with_stride(values.get(first..).unwrap_or_default(), rows, range.len(), stride)
        }
        self.matrix(rows, columns)?;
        match self {
            Elements::F32(v) => of(v, rows, columns, range),
            Elements::Bf16(v) => of(v, rows, columns, range),
            Elements::F16(v) => of(v, rows, columns, range),
        }
    }

    fn stored(&self) -> Stored {
        match self {
            Elements::F32(_) => Stored::F32,
            Elements::Bf16(_) => Stored::BF16,
            Elements::F16(_) => Stored::F16,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Elements::F32(v) => bytemuck::cast_slice(v),
            Elements::Bf16(v) => bytemuck::cast_slice(v),
            Elements::F16(v) => bytemuck::cast_slice(v),
        }
    }
}

/// Inputs of the layer: N tokens, hidden size H, V classes.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Hidden states, `[N, H]`.
    pub x: Elements,
    /// Weight, `[V, H]`.
    pub w: Elements,
    /// Class of each token, `[N]`. Not compared with V here.
    pub targets: Vec<i64>,
    /// Bias of each class, `[V]`.
    pub bias: Option<Vec<f32>>,
    /// Upstream gradient of each token, `[N]`.
    pub upstream: Option<Vec<f32>>,
    /// Upstream gradient of the lse of each token, `[N]`.
    pub lse_upstream: Option<Vec<f32>>,
    /// Weight of each token, `[N]`.
    pub token_weights: Option<Vec<f32>>,
    /// Weight of each class, `[V]`.
    pub class_weights: Option<Vec<f32>>,
    /// H.
    pub hidden: usize,
    /// V.
    pub vocab: usize,
}

impl Inputs {
    /// N.
    pub fn tokens(&self) -> usize {
        self.targets.len()
    }
}

/// Reads the inputs: `x` and `w` of f32, bf16 or f16, `targets` of i32 or i64, and optionally `bias`, `upstream`,
/// `lse_upstream`, `token_weights` and `class_weights` of any of the three float types.
///
/// All but `x` must be free of NaN. A NaN in `x` is left to the layer, where it stays in its row. So are infinities in `x`,
/// `w` and `bias`: the layer defines what infinite logits mean, and -inf may mask a class. The layer itself refuses infinite
/// weights of tokens and classes.
///
/// # Errors
/// [`TensorError`] for a file that is unreadable, truncated, or lacks a tensor; for a tensor with a wrong or mismatched
/// shape, a wrong dtype or a NaN; and for one with an unknown name.
pub fn read(path: &Path) -> Result<Inputs, TensorError> {
    let bytes = contents(path)?;
    let file = tensors(path, &bytes, KNOWN)?;
    let (x, w) = (required(&file, "x", "[N, H]")?, required(&file, "w", "[V, H]")?);
    let targets = required(&file, "targets", "[N]")?;

    let [tokens, hidden] = *x.shape() else { return Err(misshapen("x", &x, "[N, H]")) };
    let [vocab, columns] = *w.shape() else { return Err(misshapen("w", &w, "[V, H]")) };
    if hidden == 0 {
        return Err(misshapen("x", &x, "[N, H] with H of at least 1"));
    }
    if columns != hidden {
        return Err(misshapen("w", &w, format!("[V, {hidden}], as x has {hidden} columns")));
    }
    let vector = |name: &'static str, tensor: &TensorView<'_>, length: usize, of: &str| match tensor.shape() {
        [l] if *l == length => Ok(()),
        _ => Err(misshapen(name, tensor, format!("[{length}], {of}"))),
    };
    let per_token = "one value per row of x";
    vector("targets", &targets, tokens, per_token)?;
    let optional = |name: &'static str, length, of| {
        let Ok(tensor) = file.tensor(name) else { return Ok(None) };
        vector(name, &tensor, length, of)?;
        numbers(name, floats(name, &tensor)?).map(|e| Some(e.to_f32()))
    };
    Ok(Inputs {
        bias: optional("bias", vocab, "one value per row of w")?,
        upstream: optional("upstream", tokens, per_token)?,
        lse_upstream: optional("lse_upstream", tokens, per_token)?,
        token_weights: optional("token_weights", tokens, per_token)?,
        class_weights: optional("class_weights", vocab, "one value per row of w")?,
        x: floats("x", &x)?,
        w: numbers("w", floats("w", &w)?)?,
        targets: integers("targets", &targets)?,
        hidden,
        vocab,
    })
}

fn contents(path: &Path) -> Result<Vec<u8>, TensorError> {
    let failed = |source| TensorError::Io { path: path.display().to_string(), source };
    // A device may have no end, and a pipe may never begin.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("expected a regular file")));
    }
    std::fs::read(path).map_err(failed)
}

/// The tensors of a file that holds no others than those known.
fn tensors<'a>(path: &Path, bytes: &'a [u8], known: &'static [&'static str]) -> Result<SafeTensors<'a>, TensorError> {
    let damaged = |source| TensorError::Format { path: path.display().to_string(), source };
    let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
    let mut names = file.names();
    names.sort_unstable();
    match names.into_iter().find(|n| !known.contains(n)) {
        Some(name) => Err(TensorError::Unknown { name: name.to_owned(), known }),
        None => Ok(file),
    }
}

fn required<'a>(
    file: &SafeTensors<'a>,
    name: &'static str,
    expected: &'static str,
) -> Result<TensorView<'a>, TensorError> {
    file.tensor(name).map_err(|_| TensorError::Missing { name, expected })
}

fn misshapen(name: &'static str, tensor: &TensorView<'_>, expected: impl Into<String>) -> TensorError {
    TensorError::Shape { name, got: tensor.shape().to_vec(), expected: expected.into() }
}

fn mistyped(name: &'static str, tensor: &TensorView<'_>, expected: &str) -> TensorError {
    TensorError::Dtype { name, got: tensor.dtype().to_string(), expected: expected.to_owned() }
}

fn elements<const SIZE: usize, T>(tensor: &TensorView<'_>, read: impl Fn([u8; SIZE]) -> T) -> Vec<T> {
    // Tensors in a file need not be aligned for their type.
    tensor.data().as_chunks::<SIZE>().0.iter().map(|bytes| read(*bytes)).collect()
}

fn floats(name: &'static str, tensor: &TensorView<'_>) -> Result<Elements, TensorError> {
    Ok(match tensor.dtype() {
        Stored::F32 => Elements::F32(elements(tensor, f32::from_le_bytes)),
        Stored::BF16 => Elements::Bf16(elements(tensor, bf16::from_le_bytes)),
        Stored::F16 => Elements::F16(elements(tensor, f16::from_le_bytes)),
        _ => return Err(mistyped(name, tensor, "F32, BF16 or F16")),
    })
}

fn integers(name: &'static str, tensor: &TensorView<'_>) -> Result<Vec<i64>, TensorError> {
    match tensor.dtype() {
        Stored::I64 => Ok(elements(tensor, i64::from_le_bytes)),
        Stored::I32 => Ok(elements(tensor, |bytes| i64::from(i32::from_le_bytes(bytes)))),
        _ => Err(mistyped(name, tensor, "I64 or I32")),
    }
}

fn numbers(name: &'static str, values: Elements) -> Result<Elements, TensorError> {
    let nan = match &values {
        Elements::F32(v) => v.iter().position(|e| e.is_nan()),
        Elements::Bf16(v) => v.iter().position(|e| e.is_nan()),
        Elements::F16(v) => v.iter().position(|e| e.is_nan()),
    };
    nan.map_or(Ok(values), |position| Err(TensorError::NotANumber { name, position }))
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Output {
    /// Name in the file.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Values, row-major.
    pub values: Written,
}

/// Values to write.
#[derive(Clone, Debug)]
pub enum Written {
    /// Floats.
    Floats(Elements),
    /// Ids.
    Ids(Vec<i64>),
}

impl View for &Output {
    fn dtype(&self) -> Stored {
        match &self.values {
            Written::Floats(values) => values.stored(),
            Written::Ids(_) => Stored::I64,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        match &self.values {
            Written::Floats(values) => values.bytes().into(),
            Written::Ids(ids) => bytemuck::cast_slice(ids).into(),
        }
    }
    fn data_len(&self) -> usize {
        self.data().len()
    }
}

/// Writes tensors to a safetensors file: whole, or not at all.
///
/// The bytes go to a temporary file in the same folder, which is synced and then takes the place of `path`.
///
/// # Errors
/// [`TensorError::Io`] if the file cannot be written; [`TensorError::Format`] if the tensors cannot be laid out.
pub fn write(path: &Path, tensors: &[Output]) -> Result<(), TensorError> {
    let name = || path.display().to_string();
    let failed = |source| TensorError::Io { path: name(), source };
    let bytes = safetensors::serialize(tensors.iter().map(|t| (t.name, t)), None)
        .map_err(|source| TensorError::Format { path: name(), source })?;
    write_whole(path, &bytes).map_err(failed)
}

/// Writes a file that appears whole or not at all.
///
/// # Errors
/// Those of the file system.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = temporary(path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn temporary(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".vocabfuse-");
    // A temporary file is private by default, but it becomes a file like any other.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
