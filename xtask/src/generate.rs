//! Keeps kernels-gen in step with the generator.

use anyhow::{Context, Result};
use std::path::PathBuf;
use vocabfuse_codegen::{Builder, Target};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-gen/src"))
}

/// Replaces all generated files.
pub fn write() -> Result<()> {
    let files = Builder::new().files()?;
    for target in Target::ALL {
        let old = folder().join(target.as_str());
        if old.exists() {
            std::fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
        }
    }
    for (name, text) in &files {
        let path = folder().join(name);
        std::fs::create_dir_all(path.parent().context("a generated file has a folder")?)?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{} files", files.len());
    Ok(())
}
