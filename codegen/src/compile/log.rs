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

/// What the report says of a kernel that can be launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Registers, shared memory and occupancy.
    pub resources: Resources,
    /// Rules that it breaks, which make it slow but not wrong, each with the figure that breaks it: a spill, a C75xx warning,
    /// too many registers or too few warps.
    pub faults: Vec<String>,
}

/// Reads the log of a kernel.
///
/// # Errors
/// [`CompileError::Refused`] if no block fits on a multiprocessor, or the log has no report.
pub fn read(entry: &Entry, architecture: Architecture, log: &str) -> Result<Findings, CompileError> {
    let Some(found) = figures(log) else {
        return Err(refused(entry, architecture, "the log has no resource report".to_owned()));
    };
    let shared = found.static_shared as usize + entry.dynamic_shared;
    let (blocks, warps) = occupancy(architecture, entry.block as u32, found.registers, shared);
    let few = format!("{warps} warps fit on a multiprocessor; expected at least {MIN_WARPS}");
    if blocks == 0 {
        return Err(refused(entry, architecture, few));
    }
    let spills = found.spill_stores + found.spill_loads;
    let spilled = || {
        format!("{} bytes of spill stores and {} of spill loads; expected none", found.spill_stores, found.spill_loads)
    };
    let registers = || format!("{} registers; expected at most {MAX_REGISTERS}", found.registers);
    let faults = [
        (spills > 0).then(spilled),
        serialized(log).map(|line| format!("the assembler warns: {}", line.trim())),
        (found.registers > MAX_REGISTERS).then(registers),
        (warps < MIN_WARPS).then_some(few),
    ];
    let resources = Resources {
        architecture: architecture.name(),
        registers: found.registers,
        spills,
        static_shared: found.static_shared,
        blocks,
        warps,
        main_loop: None,
    };
    Ok(Findings { resources, faults: faults.into_iter().flatten().collect() })
}

/// The resources of a compiled kernel, unless it breaks a rule.
///
/// # Errors
/// [`CompileError::Refused`] for what [`read()`] refuses, and for a fault.
pub fn check(entry: &Entry, architecture: Architecture, log: &str) -> Result<Resources, CompileError> {
    let Findings { resources, faults } = read(entry, architecture, log)?;
    match faults.into_iter().next() {
        Some(fault) => Err(refused(entry, architecture, fault)),
        None => Ok(resources),
    }
}

fn refused(entry: &Entry, architecture: Architecture, rule: String) -> CompileError {
    CompileError::Refused { kernel: entry.name.clone(), architecture: architecture.name(), rule }
}
