//! Generates the CPU kernels of the focal loss.

use std::path::Path;
use vocabfuse_codegen::{Builder, Dtype, Target};

#[path = "src/focal.rs"]
mod focal;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Builder::new().targets(&[Target::Scalar, Target::Avx2]).dtypes(&[Dtype::F32]).chunks(&[512]);
    let kernels = builder.loss(focal::focal()?).bundle()?;
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("kernels.rs"), kernels)?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/focal.rs");
    Ok(())
}
