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
    use vocabfuse_codegen::compile::Form;
    use vocabfuse_codegen::compile::artifact::Artifact;
    use vocabfuse_codegen::compile::measure::in_parallel;
    use vocabfuse_codegen::compile::nvrtc::Nvrtc;
    use vocabfuse_codegen::compile::occupancy::Architecture;
    use vocabfuse_codegen::manifest::{Manifest, hash};

    /// Architectures with commas between them, or the absolute path of a folder that `vocabfuse compile` wrote.
    const VARIABLE: &str = "VOCABFUSE_CUBINS";

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    pub fn embed() -> Result<()> {
        for variable in [VARIABLE, vocabfuse_codegen::compile::VARIABLE] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        println!("cargo::rerun-if-changed=cuda");
        let choice = std::env::var(VARIABLE).unwrap_or_default();
        let named = choice.split(',').map(|name| Architecture::parse(name.trim())).collect::<Option<Vec<_>>>();
        let artifacts = match named {
            Some(architectures) => compiled(&architectures)?,
            None if Path::new(&choice).is_absolute() && Path::new(&choice).is_dir() => carried(Path::new(&choice))?,
            None => {
                let known: Vec<String> = Architecture::ALL.iter().map(|a| a.name()).collect();
                let known = known.join(", ");
                return Err(format!(
                    "{VARIABLE}={choice:?}; expected architectures such as sm_80,sm_90 (of {known}), or the absolute \
                     path of a folder that `vocabfuse compile` wrote"
                )
                .into());
            }
        };
        let out = PathBuf::from(std::env::var("OUT_DIR")?);
        let mut text = String::from("/// Cubins with their labels.\npub const CUBINS: &[&[u8]] = &[\n");
        for (index, artifact) in artifacts.iter().enumerate() {
            fs::write(out.join(format!("{index}.bin")), artifact.encode())?;
            text += &format!("    include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{index}.bin\")),\n");
        }
        fs::write(out.join("cubins.rs"), text + "];\n")?;
        Ok(())
    }

    fn manifest() -> Result<Manifest> {
        Ok(Manifest::parse(&fs::read_to_string("cuda/manifest.json")?)?)
    }

    fn text(kernel: &str) -> Result<String> {
        Ok(fs::read_to_string(format!("cuda/{kernel}.cu"))?)
    }

    fn compiled(architectures: &[Architecture]) -> Result<Vec<Artifact>> {
        let (nvrtc, manifest) = (Nvrtc::load()?, manifest()?);
        let jobs: Vec<_> = manifest.kernels.iter().flat_map(|e| architectures.iter().map(move |a| (e, *a))).collect();
        let one = |job: usize| {
            let (entry, on) = jobs[job];
            let text = text(&entry.name).map_err(|e| e.to_string())?;
            nvrtc.artifact(entry, &text, Form::Cubin, on).map_err(|e| e.to_string())
        };
        Ok(in_parallel(jobs.len(), one).into_iter().collect::<std::result::Result<_, _>>()?)
    }

    fn carried(folder: &Path) -> Result<Vec<Artifact>> {
        println!("cargo::rerun-if-changed={}", folder.display());
        let manifest = manifest()?;
        let mut paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|e| e == "bin"));
        paths.sort();
        let mut artifacts = vec![];
        for path in paths {
            let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            let artifact = Artifact::decode(&fs::read(&path)?).map_err(|e| named(&e))?;
            // Those of other chunks are as good; what is checked in must be what was compiled.
            if let Some(entry) = manifest.find(&artifact.label.kernel) {
                artifact.check(entry).map_err(|e| named(&e))?;
                if artifact.label.text != hash(text(&entry.name)?.as_bytes()) {
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
