//! The disassembler, where it is installed.

use super::{CompileError, VARIABLE};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to get it.
pub const INSTALL: &str = "install it with `pip install --target target/nvrtc nvidia-cuda-nvdisasm==13.5.37`";

// Where a wheel keeps the program below its folder.
const WITHIN: [&str; 4] = ["nvidia/cu13/bin", "nvidia/cuda_nvdisasm/bin", "bin", ""];

/// The disassembler in the folder of NVRTC, in `target/nvrtc`, or on the path of the shell.
pub fn nvdisasm() -> Option<PathBuf> {
    let chosen = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc");
    let folders = chosen.into_iter().chain([workspace, PathBuf::from("target/nvrtc")]);
    let installed = folders.flat_map(|f| WITHIN.map(|w| f.join(w)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = installed.chain(std::env::split_paths(&path));
    candidates.map(|folder| folder.join("nvdisasm")).find(|program| program.is_file())
}

/// The listing of a cubin.
///
/// # Errors
/// [`CompileError::Tool`] if the program cannot be run or rejects the cubin.
pub fn disassemble(program: &Path, cubin: &[u8]) -> Result<String, CompileError> {
    let failed = |message: String| CompileError::Tool { tool: program.display().to_string(), message };
    // The program reads files only.
    let run = || {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(cubin)?;
        Command::new(program).arg("-c").arg(file.path()).output()
    };
    let output = run().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
