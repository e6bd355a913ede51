//! The checked-in kernels are what the generator writes today.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vocabfuse_codegen::{Builder, Target};

fn check(root: &str, folders: &[&str], files: BTreeMap<String, String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    if !root.exists() {
        // The package on its own, without the workspace, has nothing to compare with.
        return;
    }
    let mut found = BTreeSet::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
        for entry in entries {
            found.insert(format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    let expected: BTreeSet<String> = files.keys().cloned().collect();
    assert_eq!(found, expected, "files differ; run `cargo xtask generate`");
    for (name, text) in files {
        let on_disk = std::fs::read_to_string(root.join(&name)).unwrap();
        assert!(on_disk == text, "{name} differs from what the generator writes; run `cargo xtask generate`");
    }
}

#[test]
fn checked_in_kernels_are_up_to_date() {
    let targets: Vec<&str> = Target::CPU.iter().map(|t| t.as_str()).collect();
    check("../kernels-gen/src", &targets, Builder::checked_in().unwrap().files().unwrap());
}

#[test]
fn checked_in_cuda_kernels_are_up_to_date() {
    check("../kernels-gen", &["cuda"], Builder::cuda().files().unwrap());
}
