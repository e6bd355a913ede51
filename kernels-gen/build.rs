//! With the feature `cubins`: compiles the CUDA kernels, or takes compiled ones from a folder, and embeds them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "cubins")]
    if let Err(message) = cubins::embed() {
        println!("cargo::error=feature cubins: {message}");
    }
}

#[cfg(feature = "cubins")]
mod cubins {
    use std::fs;
    use std::path::{Path, PathBuf};
    use vocabfuse_codegen::bundle::{self, Compiled, Text};
    use vocabfuse_codegen::compile::artifact::Artifact;
    use vocabfuse_codegen::manifest::hash;
    use vocabfuse_codegen::{Architecture, Builder, CrossEntropyForm};

    /// Architectures with commas between them, or the absolute path of a folder that `vocabfuse compile` wrote.
    const VARIABLE: &str = "VOCABFUSE_CUBINS";

    /// Forms of cross-entropy with commas between them, or `all`; without it the plain one. What a folder has is taken as it is.
    const FORMS: &str = "VOCABFUSE_CUBINS_LOSS";

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    pub fn embed() -> Result<()> {
        for variable in [VARIABLE, FORMS, vocabfuse_codegen::compile::VARIABLE] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let choice = std::env::var(VARIABLE).unwrap_or_default();
        let forms = std::env::var(FORMS).unwrap_or_default();
        let forms = if forms.is_empty() { vec![CrossEntropyForm::default()] } else { CrossEntropyForm::list(&forms)? };
        let texts = bundle::texts(&Builder::checked_in_cuda()?.forms(&forms)?)?;
        let artifacts = match Architecture::list(&choice) {
            Ok(architectures) => compiled(&texts, &architectures)?,
            Err(_) if Path::new(&choice).is_absolute() && Path::new(&choice).is_dir() => {
                carried(&texts, Path::new(&choice))?
            }
            Err(error) => {
                return Err(format!(
                    "{VARIABLE}: {error}; or the absolute path of a folder that `vocabfuse compile` wrote"
                )
                .into());
            }
        };
        bundle::write_artifacts(Path::new(&std::env::var("OUT_DIR")?), &artifacts)?;
        Ok(())
    }

    fn compiled(texts: &[Text], architectures: &[Architecture]) -> Result<Vec<Artifact>> {
        let Compiled { artifacts, faults } = bundle::compile(texts, &bundle::codes(architectures))?;
        // Slow, but not wrong.
        faults.iter().for_each(|fault| println!("cargo::warning={fault}"));
        Ok(artifacts)
    }

    fn carried(texts: &[Text], folder: &Path) -> Result<Vec<Artifact>> {
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|e| e == "bin"));
        paths.sort();
        let mut artifacts = vec![];
        for path in paths {
            let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            let artifact = Artifact::decode(&fs::read(&path)?).map_err(|e| named(&e))?;
            // Those of other chunks or losses are as good; of what is known here, the text must be the one that was compiled.
            if let Some(Text { entry, text, .. }) = texts.iter().find(|t| t.entry.name == artifact.label.kernel) {
                artifact.check(entry).map_err(|e| named(&e))?;
                if artifact.label.text != hash(text.as_bytes()) {
                    return Err(named(&"was compiled from another text; run `vocabfuse compile` anew").into());
                }
            }
            artifacts.push(artifact);
        }
        if artifacts.is_empty() {
            return Err(format!("no compiled kernel in {}", folder.display()).into());
        }
        Ok(artifacts)
    }
}
