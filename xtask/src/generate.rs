//! Keeps kernels-gen in step with the generator.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vocabfuse_codegen::{Builder, Target};

fn folder(within: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-gen")).join(within)
}

fn replace(files: &BTreeMap<String, String>, root: &Path, folders: &[&str]) -> Result<()> {
    for folder in folders {
        let old = root.join(folder);
        if old.exists() {
            std::fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
        }
    }
    for (name, text) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().context("a generated file has a folder")?)?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Replaces all generated files: Rust kernels under `src`, CUDA texts beside it.
pub fn write() -> Result<()> {
    let (cpu, cuda) = (Builder::checked_in()?.files()?, Builder::cuda().files()?);
    let targets: Vec<&str> = Target::CPU.iter().map(|t| t.as_str()).collect();
    replace(&cpu, &folder("src"), &targets)?;
    replace(&cuda, &folder(""), &["cuda"])?;
    println!("{} files", cpu.len() + cuda.len());
    Ok(())
}
