//! The text: a file, or all text files of a folder.

use super::TrainError;
use ignore::WalkBuilder;
use std::io::Read;
use std::path::Path;

/// Most bytes of text that are read: the first files in the order of their paths.
pub const LIMIT: usize = 8 << 20;

/// Text of one or more files.
#[derive(Debug)]
pub struct Corpus {
    /// One text a file.
    pub texts: Vec<String>,
}

impl Corpus {
    /// Reads a file, or what is text in a folder: hidden, ignored (.gitignore) and binary files are left out, and so is
    /// the folder `except`, that results of earlier runs do not become text of the next.
    ///
    /// # Errors
    /// [`TrainError::Io`] if the path or a file cannot be read, [`TrainError::Text`] if a single file is no text.
    pub fn read(path: &Path, except: &Path) -> Result<Corpus, TrainError> {
        if std::fs::metadata(path).map_err(TrainError::io(path))?.is_file() {
            let text = read_text(path, LIMIT)?;
            let text = text.ok_or_else(|| TrainError::Text(format!("{} is not UTF-8 text", path.display())))?;
            return Ok(Corpus { texts: vec![text] });
        }
        let mut texts = vec![];
        let mut left = LIMIT;
        let except = except.canonicalize().ok();
        // Settings outside the folder must not change what is read.
        let walk = WalkBuilder::new(path)
            .require_git(false)
            .git_global(false)
            .parents(false)
            .sort_by_file_path(|a, b| a.cmp(b))
            .filter_entry(move |e| except.is_none() || e.path().is_file() || e.path().canonicalize().ok() != except)
            .build();
        for entry in walk {
            let entry = entry.map_err(|e| TrainError::Text(e.to_string()))?;
            if left == 0 {
                break;
            }
            if entry.file_type().is_some_and(|t| t.is_file())
                && let Some(text) = read_text(entry.path(), left)?
            {
                left -= text.len();
                texts.push(text);
            }
        }
        Ok(Corpus { texts })
    }

    /// Bytes of text.
    pub fn bytes(&self) -> usize {
        self.texts.iter().map(String::len).sum()
    }
}

/// The first `limit` bytes of a file, less a character that they cut; `None` if they are no text.
fn read_text(path: &Path, limit: usize) -> Result<Option<String>, TrainError> {
    let mut bytes = vec![];
    let file = std::fs::File::open(path).map_err(TrainError::io(path))?;
    file.take(limit as u64).read_to_end(&mut bytes).map_err(TrainError::io(path))?;
    if let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_give_their_text_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("b.txt", "zwei".as_bytes());
        write("a.txt", b"one");
        write("c.bin", b"\0\x01\x02");
        write("d.bin", &[0xff, 0xfe, 0x00, 0x41]);
        write(".hidden", b"hidden");
        write("built.txt", b"ignored");
        write(".gitignore", b"built.txt\n");
        let out = folder.path().join("out");
        std::fs::create_dir(&out).unwrap();
        write("out/loss.csv", b"result");
        assert_eq!(Corpus::read(folder.path(), &out).unwrap().texts, ["one", "zwei"]);
        let read = |name: &str| Corpus::read(&folder.path().join(name), &out);
        assert_eq!(read("b.txt").unwrap().bytes(), 4);
        assert!(read("c.bin").is_err() && read("nothing").is_err());
    }

    #[test]
    fn a_cut_character_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "aé").unwrap();
        assert_eq!(read_text(file.path(), 2).unwrap().unwrap(), "a");
    }
}
