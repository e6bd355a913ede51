//! What the compiler made of CUDA kernels, as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use vocabfuse::codegen::manifest::{Entry, Resources};

/// One kernel on one architecture.
#[derive(Serialize)]
pub struct Row {
    name: String,
    dynamic_shared: usize,
    #[serde(flatten)]
    resources: Resources,
    /// Instructions issued for each tensor-core product of the main loop; null for other kernels.
    instructions_per_product: Option<f64>,
}

/// A row for each architecture that an entry was compiled for.
pub fn rows<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<Row> {
    let of = |entry: &'a Entry| {
        entry.resources.iter().map(move |resources| Row {
            name: entry.name.clone(),
            dynamic_shared: entry.dynamic_shared,
            instructions_per_product: resources.main_loop.map(|inner| inner.per_product()),
            resources: resources.clone(),
        })
    };
    entries.into_iter().flat_map(of).collect()
}

/// The rows for people.
pub fn table(rows: &[Row]) -> Table {
    let head = [
        "CUDA kernel",
        "for",
        "registers",
        "spilled B",
        "static B",
        "dynamic B",
        "blocks",
        "warps",
        "instructions a product",
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for row in rows {
        let r = &row.resources;
        table.add_row([
            row.name.clone(),
            r.architecture.clone(),
            r.registers.to_string(),
            r.spills.to_string(),
            r.static_shared.to_string(),
            row.dynamic_shared.to_string(),
            r.blocks.to_string(),
            r.warps.to_string(),
            row.instructions_per_product.map_or_else(String::new, |i| format!("{i:.2}")),
        ]);
    }
    for index in 2..head.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
