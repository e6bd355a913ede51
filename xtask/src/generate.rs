//! Keeps kernels-gen in step with the generator.

use crate::test::install;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vocabfuse_codegen::Builder;
use vocabfuse_codegen::builder::MANIFEST;
use vocabfuse_codegen::compile::measure::{Bench, DEFAULT_ARCHITECTURES};
use vocabfuse_codegen::compile::occupancy::Architecture;
use vocabfuse_codegen::compile::tools;
use vocabfuse_codegen::manifest::Manifest;

fn folder(within: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels-gen")).join(within)
}

/// Writes files below `root`, in the place of all that its folder `old` holds.
fn replace(files: &BTreeMap<String, String>, root: &Path, old: &str) -> Result<()> {
    let old = root.join(old);
    if old.exists() {
        std::fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
    }
    for (name, text) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().context("a generated file has a folder")?)?;
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Replaces all generated files: Rust kernels under `src`, CUDA texts beside it, with a manifest of what NVRTC made of
/// them. Only texts that changed are compiled.
pub fn write() -> Result<()> {
    let (cpu, mut cuda) = (Builder::checked_in_files()?, Builder::checked_in_cuda()?.files()?);
    cuda.insert(MANIFEST.to_owned(), manifest()?.to_json());
    replace(&cpu, &folder("src/cpu"), "")?;
    replace(&cuda, &folder(""), "cuda")?;
    println!("{} files", cpu.len() + cuda.len());
    Ok(())
}

fn manifest() -> Result<Manifest> {
    let builder = Builder::checked_in_cuda()?;
    // One that cannot be read has nothing to reuse.
    let old = std::fs::read_to_string(folder(MANIFEST)).unwrap_or_default();
    let known = Manifest::parse(&old).unwrap_or_else(|_| Manifest::new(vec![]));
    let architectures = DEFAULT_ARCHITECTURES.iter().filter_map(|name| Architecture::parse(name));
    let mut manifest = Manifest::new(builder.entries()?);
    install()?;
    let bench = Bench::new()?;
    ensure!(bench.disassembles(), "nvdisasm was not found; {}", tools::INSTALL);
    bench.complete(&mut manifest, &builder.generate()?, &architectures.collect::<Vec<_>>(), &known)?;
    Ok(manifest)
}
