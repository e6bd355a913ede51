//! Generates the kernels of one chunk size that the library does not ship.

use std::path::Path;
use vocabfuse_codegen::{Builder, Dtype, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Builder::new().targets(&[Target::Scalar, Target::Avx2]).dtypes(&[Dtype::F32]).chunks(&[1024]);
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("kernels.rs"), builder.bundle()?)?;
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
