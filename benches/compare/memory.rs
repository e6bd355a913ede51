//! Memory of this process, as Linux counts it.

/// Bytes of the process that are in memory now.
pub fn resident() -> Option<u64> {
    field("VmRSS:")
}

/// The most bytes that were in memory since the start, or since [`forget_peak`].
pub fn peak() -> Option<u64> {
    field("VmHWM:")
}

/// Lets the peak begin anew at what is in memory now, so that getting ready does not count. Where the system does not
/// allow it the peak covers the whole process, which errs against the competitor.
pub fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn field(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
