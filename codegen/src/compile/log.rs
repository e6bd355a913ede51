//! The report of the assembler (`-Xptxas -v`), which NVRTC puts into its log.

use super::CompileError;
use super::occupancy::{Architecture, occupancy};
use crate::manifest::{Entry, Resources};

/// Figures of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spill stores.
    pub spill_stores: u32,
    /// Bytes of spill loads.
    pub spill_loads: u32,
    /// Bytes of stack a thread.
    pub stack: u32,
    /// Bytes of static shared memory.
    pub static_shared: u32,
}

// The number before `what` on a line: "Used 40 registers" for " registers".
fn number_before(line: &str, what: &str) -> Option<u32> {
    let before = line[..line.find(what)?].trim_end();
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Reads the figures of the one kernel that the log reports.
pub fn figures(log: &str) -> Option<Figures> {
    let mut found = Figures::default();
    for line in log.lines() {
        if let Some(stores) = number_before(line, " bytes spill stores") {
            found.spill_stores = stores;
            found.spill_loads = number_before(line, " bytes spill loads").unwrap_or(0);
            found.stack = number_before(line, " bytes stack frame").unwrap_or(0);
        }
        if let Some(registers) = number_before(line, " registers") {
            found.registers = registers;
            found.static_shared = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    (found.registers > 0).then_some(found)
}

/// Warnings C75xx of the assembler: it gave up overlapping matrix instructions.
pub fn serialized(log: &str) -> Option<&str> {
    log.lines().find(|line| {
        line.match_indices("C75").any(|(at, _)| line[at + 3..].bytes().take(2).filter(u8::is_ascii_digit).count() == 2)
    })
}

/// Most registers a thread can have.
pub const MAX_REGISTERS: u32 = 255;
/// Fewest warps on a multiprocessor: two for each of its four schedulers.
pub const MIN_WARPS: u32 = 8;

/// The resources of a compiled kernel, unless it breaks a rule.
///
/// # Errors
/// [`CompileError::Refused`] for a spill, a C75xx warning, too many registers or too few warps.
pub fn check(entry: &Entry, architecture: Architecture, log: &str) -> Result<Resources, CompileError> {
    let refused = |rule: String| {
        Err(CompileError::Refused { kernel: entry.name.clone(), architecture: architecture.name(), rule })
    };
    let Some(found) = figures(log) else { return refused("the log has no resource report".to_owned()) };
    if found.spill_stores + found.spill_loads > 0 {
        return refused(format!(
            "{} bytes of spill stores and {} of spill loads; expected none",
            found.spill_stores, found.spill_loads
        ));
    }
    if let Some(line) = serialized(log) {
        return refused(format!("the assembler warns: {}", line.trim()));
    }
    if found.registers > MAX_REGISTERS {
        return refused(format!("{} registers; expected at most {MAX_REGISTERS}", found.registers));
    }
    let shared = found.static_shared as usize + entry.dynamic_shared;
    let (blocks, warps) = occupancy(architecture, entry.block as u32, found.registers, shared);
    if warps < MIN_WARPS {
        return refused(format!("{warps} warps fit on a multiprocessor; expected at least {MIN_WARPS}"));
    }
    Ok(Resources {
        architecture: architecture.name(),
        registers: found.registers,
        spills: 0,
        static_shared: found.static_shared,
        blocks,
        warps,
        main_loop: None,
    })
}
