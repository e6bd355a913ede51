//! Compiled kernels on disk.
//!
//! An entry is named for the hash of everything that decides its code. It is written to a temporary file and renamed, so
//! it is there whole or not at all, and it carries its own checksum: a damaged entry is as good as none.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Environment variable that names the folder.
const VARIABLE: &str = "VOCABFUSE_CACHE";

const MAGIC: &str = "vocabfuse kernel 1";

/// A folder of compiled kernels.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

/// What decides the code of a kernel, and what its caller relies on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    pub(super) name: &'a str,
    /// Architecture, form and compiler.
    pub(super) flags: &'a str,
    pub(super) text: &'a str,
    /// Hash of parameters and bindings.
    pub(super) abi: &'a str,
}

// FNV-1a: the same in every version of Rust. It guards against accidents, not against anybody.
fn hash(parts: &[&[u8]]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |h, part| step(part.iter().fold(h, step), &0xff))
}

impl Key<'_> {
    fn file(&self) -> String {
        let hash = hash(&[self.name.as_bytes(), self.flags.as_bytes(), self.text.as_bytes()]);
        format!("{}-{hash:016x}.bin", self.name)
    }

    fn header(&self, code: &[u8]) -> String {
        let checksum = hash(&[code]);
        format!("{MAGIC}\n{}\n{}\n{}\n{checksum:016x}\n", self.name, self.flags, self.abi)
    }
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

    /// The code of a kernel, if it is there undamaged and has the interface that the caller knows.
    pub(super) fn get(&self, key: &Key<'_>) -> Option<Vec<u8>> {
        let entry = fs::read(self.folder.as_ref()?.join(key.file())).ok()?;
        // The header ends with its fifth line; it is compared whole.
        let (end, _) = entry.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(4)?;
        let (header, code) = entry.split_at(end + 1);
        (header == key.header(code).as_bytes()).then(|| code.to_vec())
    }

    /// Keeps the code of a kernel. A folder that cannot be written costs time only.
    pub(super) fn put(&self, key: &Key<'_>, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, key, code) {
            tracing::warn!("kernel {} is not cached in {}: {error}", key.name, folder.display());
        }
    }
}

fn write(folder: &Path, key: &Key<'_>, code: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(key.header(code).as_bytes())?;
    file.write_all(code)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(key.file())).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key<'_> = Key { name: "merge", flags: "sm_80 ptx", text: "text", abi: "0123" };

    #[test]
    fn an_entry_comes_back_for_its_own_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        assert_eq!(cache.get(&KEY), None);
        cache.put(&KEY, b"code\nwith lines\n");
        assert_eq!(cache.get(&KEY).as_deref(), Some(&b"code\nwith lines\n"[..]));
        for other in [
            Key { name: "finish", ..KEY },
            Key { flags: "sm_90 ptx", ..KEY },
            Key { text: "other", ..KEY },
            Key { abi: "4567", ..KEY },
        ] {
            assert_eq!(cache.get(&other), None, "{other:?}");
        }
    }

    #[test]
    fn a_damaged_entry_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let path = folder.path().join(KEY.file());
        cache.put(&KEY, b"some code");
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.get(&KEY), None, "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.get(&KEY), None, "{at} bytes");
        }
        cache.put(&KEY, b"some code");
        assert_eq!(cache.get(&KEY).as_deref(), Some(&b"some code"[..]));
    }
}
