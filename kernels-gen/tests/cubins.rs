//! What a build with the feature `cubins` embeds.

use std::collections::BTreeSet;
use vocabfuse_codegen::compile::artifact::Artifact;
use vocabfuse_codegen::manifest::{Manifest, hash};
use vocabfuse_kernels::{CUBINS, cuda};

#[test]
fn each_is_code_of_the_text_and_interface_that_are_checked_in() {
    let manifest = Manifest::parse(cuda::MANIFEST).unwrap();
    let mut found = BTreeSet::new();
    for bytes in CUBINS {
        let artifact = Artifact::decode(bytes).unwrap();
        let kernel = artifact.label.kernel.clone();
        let ptx = artifact.label.options[0].contains("=compute_");
        let begins = if ptx { &b"//"[..] } else { b"\x7fELF" };
        assert!(artifact.code.strip_prefix(b"\n").unwrap_or(&artifact.code).starts_with(begins), "{kernel}");
        let (Some(entry), Some(text)) = (manifest.find(&kernel), cuda::text(&kernel)) else {
            // There are also those of an embedding in f32, and a folder may hold those of other chunks.
            continue;
        };
        assert_eq!(artifact.check(entry), Ok(()), "{kernel}");
        assert_eq!(artifact.label.text, hash(text.as_bytes()), "{kernel}");
        found.insert((artifact.label.options, kernel));
    }
    let options: BTreeSet<_> = found.iter().map(|(options, _)| options).collect();
    assert_eq!(found.len(), options.len() * manifest.kernels.len(), "every kernel for every architecture");
    assert!(options.len() > 1, "machine code, and PTX for newer GPUs");
}
