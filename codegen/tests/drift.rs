//! The checked-in kernels are what the generator writes today.

use std::collections::BTreeSet;
use std::path::Path;
use vocabfuse_codegen::{Builder, Target};

#[test]
fn checked_in_kernels_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gen/src");
    if !folder.exists() {
        // The package on its own, without the workspace, has nothing to compare with.
        return;
    }
    let files = Builder::new().files().unwrap();
    let mut found = BTreeSet::new();
    for target in Target::ALL {
        let Ok(entries) = std::fs::read_dir(folder.join(target.as_str())) else { continue };
        for entry in entries {
            found.insert(format!("{target}/{}", entry.unwrap().file_name().to_string_lossy()));
        }
    }
    let expected: BTreeSet<String> = files.keys().cloned().collect();
    assert_eq!(found, expected, "files differ; run `cargo xtask generate`");
    for (name, text) in files {
        let on_disk = std::fs::read_to_string(folder.join(&name)).unwrap();
        assert!(on_disk == text, "{name} differs from what the generator writes; run `cargo xtask generate`");
    }
}
