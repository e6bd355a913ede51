//! The checked-in kernels are what the generator writes today.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vocabfuse_codegen::Builder;
use vocabfuse_codegen::builder::MANIFEST;
use vocabfuse_codegen::manifest::{Manifest, hash};
use vocabfuse_testing::{Need, has};

fn check(root: &str, folders: BTreeSet<String>, files: BTreeMap<String, String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
    if !has(root.exists(), Need::Workspace, "the package on its own has no kernels to compare with") {
        return;
    }
    let mut found = BTreeSet::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(root.join(&folder)) else { continue };
        for entry in entries {
            let path = Path::new(&folder).join(entry.unwrap().file_name());
            if root.join(&path).is_file() {
                found.insert(path.to_string_lossy().into_owned());
            }
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
    let files = Builder::checked_in_files().unwrap();
    let places = files.keys().filter_map(|path| path.split_once('/')).map(|(place, _)| place.to_owned());
    check("../kernels-gen/src/cpu", places.chain(["".to_owned()]).collect(), files);
}

#[test]
fn checked_in_cuda_kernels_are_up_to_date() {
    let mut files = Builder::checked_in_cuda().unwrap().files().unwrap();
    // What the compiler found is beside what the generator says; the tests with NVRTC look at it.
    if let Ok(on_disk) =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gen").join(MANIFEST))
    {
        let found = Manifest::parse(&on_disk).unwrap();
        assert_eq!(found.bare().to_json(), files[MANIFEST], "{MANIFEST} differs; run `cargo xtask generate`");
        for entry in &found.kernels {
            let text = &files[&format!("cuda/{}.cu", entry.name)];
            let architectures: Vec<&str> = entry.resources.iter().map(|r| r.architecture.as_str()).collect();
            assert_eq!(
                entry.text,
                hash(text.as_bytes()),
                "{} was compiled before it changed; run `cargo xtask generate`",
                entry.name
            );
            assert_eq!(architectures, ["sm_80", "sm_90"], "{}", entry.name);
        }
        files.insert(MANIFEST.to_owned(), found.to_json());
    }
    check("../kernels-gen", BTreeSet::from(["cuda".to_owned()]), files);
}
