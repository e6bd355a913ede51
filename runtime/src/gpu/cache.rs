//! Compiled kernels on disk.
//!
//! An entry is an [`Artifact`] in a file that is named for its text, its interface and the options of the compiler. An entry serves
//! everywhere, whatever compiler is installed. It is written to a temporary file and renamed, so it is there whole or not at all,
//! and a damaged entry is as good as none.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use vocabfuse_codegen::compile::artifact::{Artifact, Label};

/// Environment variable that names the folder.
const VARIABLE: &str = "VOCABFUSE_CACHE";

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The folder that `VOCABFUSE_CACHE` names, else one in the user's cache folder, if there is one.
    pub(super) fn new() -> Cache {
        let named = |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
        let users = || named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
        Cache { folder: named(VARIABLE).or_else(|| users().map(|folder| folder.join("vocabfuse"))) }
    }

    /// A folder of choice.
    pub(super) fn at(folder: &Path) -> Cache {
        Cache { folder: Some(folder.to_owned()) }
    }

    /// The code of a kernel, if it is there undamaged with such a label, whatever compiler it is of.
    pub(super) fn get(&self, wanted: &Label) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.join(wanted.file_name());
        let Artifact { label, code } = Artifact::decode(&fs::read(path).ok()?).ok()?;
        label.is_of(wanted).then_some(code)
    }

    /// Keeps a kernel. A folder that cannot be written costs time only.
    pub(super) fn put(&self, artifact: &Artifact) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, artifact) {
            tracing::warn!("kernel {} is not cached in {}: {error}", artifact.label.kernel, folder.display());
        }
    }
}

/// Keeps a kernel in a folder, which is made if it is missing.
pub(super) fn write(folder: &Path, artifact: &Artifact) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut entry = tempfile::NamedTempFile::new_in(folder)?;
    entry.write_all(&artifact.encode())?;
    entry.as_file().sync_all()?;
    entry.persist(folder.join(artifact.label.file_name())).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            kernel: "merge".to_owned(),
            abi: "0123".to_owned(),
            text: "4567".to_owned(),
            options: vec!["--gpu-architecture=sm_80".to_owned(), "-w".to_owned()],
            compiler: "NVRTC 12.9.86".to_owned(),
        }
    }

    fn artifact() -> Artifact {
        Artifact { label: label(), code: b"code\nwith lines\n".to_vec() }
    }

    #[test]
    fn an_entry_comes_back_for_its_own_label_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        assert_eq!(cache.get(&label()), None);
        cache.put(&artifact());
        assert_eq!(cache.get(&label()), Some(artifact().code));
        let text = |text: &str| text.to_owned();
        for other in [
            Label { kernel: text("finish"), ..label() },
            Label { abi: text("4567"), ..label() },
            Label { text: text("0123"), ..label() },
            Label { options: vec![text("--gpu-architecture=sm_80")], ..label() },
            Label { options: vec![text("--gpu-architecture=sm_90"), text("-w")], ..label() },
        ] {
            assert_eq!(cache.get(&other), None, "{other:?}");
        }
    }

    #[test]
    fn the_compiler_of_an_entry_does_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        cache.put(&artifact());
        for compiler in ["", "NVRTC 12.9.86", "NVRTC 13.1.2"] {
            let wanted = Label { compiler: compiler.to_owned(), ..label() };
            assert_eq!(cache.get(&wanted), Some(artifact().code), "{compiler:?}");
        }
    }

    #[test]
    fn a_damaged_entry_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let path = folder.path().join(label().file_name());
        cache.put(&artifact());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.get(&label()), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.get(&label()), None, "{at} bytes");
        }
        cache.put(&artifact());
        assert_eq!(cache.get(&label()), Some(artifact().code));
    }
}
