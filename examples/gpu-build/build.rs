//! Compiles the CUDA kernels of one loss, dtype and chunk for an A100 and an H100, and for all newer GPUs as PTX.

use vocabfuse_codegen::{Architecture, Builder, Dtype};

#[path = "src/poly.rs"]
mod poly;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Builder::cuda().loss(poly::poly()?).dtypes(&[Dtype::Bf16]).chunks(&[poly::CHUNK]);
    builder.architectures(&Architecture::list("sm_80,sm_90")?).embed_cuda()?;
    // The folder in which the tests of this workspace install NVRTC; elsewhere VOCABFUSE_NVRTC names one.
    println!("cargo::rerun-if-changed=../../target/nvrtc");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/poly.rs");
    Ok(())
}
