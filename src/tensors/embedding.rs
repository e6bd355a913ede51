//! Tensors of the input embedding.

use super::{Elements, TensorError, contents, floats, integers, misshapen, numbers, required, tensors};
use std::path::Path;

/// Tensors that an input file may hold.
const KNOWN: &[&str] = &["ids", "w", "dy"];

/// Inputs of a lookup: N ids, hidden size H, V rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Inputs {
    /// Row of each token, `[N]`. Not compared with V here.
    pub ids: Vec<i64>,
    /// The table, `[V, H]`.
    pub w: Elements,
    /// Gradient of the result, `[N, H]`.
    pub dy: Option<Elements>,
    /// H.
    pub hidden: usize,
    /// V.
    pub vocab: usize,
}

/// Reads the inputs: `ids` of i32 or i64, `w` and optionally `dy` of f32, bf16 or f16. `w` must be free of NaN; its
/// infinities are looked up like other values.
///
/// # Errors
/// [`TensorError`] for a file that is unreadable, truncated, or lacks a tensor; for a tensor with a wrong or mismatched
/// shape, a wrong dtype or a NaN; and for one with an unknown name.
pub fn read(path: &Path) -> Result<Inputs, TensorError> {
    let bytes = contents(path)?;
    let file = tensors(path, &bytes, KNOWN)?;
    let (ids, w) = (required(&file, "ids", "[N]")?, required(&file, "w", "[V, H]")?);
    let [tokens] = *ids.shape() else { return Err(misshapen("ids", &ids, "[N]")) };
    let [vocab, hidden] = *w.shape() else { return Err(misshapen("w", &w, "[V, H]")) };
    if hidden == 0 {
        return Err(misshapen("w", &w, "[V, H] with H of at least 1"));
    }
    let dy = match file.tensor("dy") {
        Err(_) => None,
        Ok(dy) if dy.shape() == [tokens, hidden] => Some(floats("dy", &dy)?),
        Ok(dy) => return Err(misshapen("dy", &dy, format!("[{tokens}, {hidden}], a row of w for each id"))),
    };
    Ok(Inputs { ids: integers("ids", &ids)?, w: numbers("w", floats("w", &w)?)?, dy, hidden, vocab })
}
