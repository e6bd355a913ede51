//! NVRTC, loaded at run time.
//!
//! The library is looked for in the folder that `VOCABFUSE_NVRTC` names, then where the system's loader looks, then, unless
//! a folder was named, in `target/nvrtc` of the workspace or of the current folder.

use super::artifact::{Artifact, Label};
use super::occupancy::Architecture;
use super::{CompileError, Form, VARIABLE, log, options};
use crate::manifest::{Entry, Resources};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The compiler. There is one a process.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc(());

/// What the compiler made of a text.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// PTX text or cubin.
    pub code: Vec<u8>,
    /// The compiler's log; for cubins it holds the assembler's report.
    pub log: String,
}

const LIBRARY: &str = "libnvrtc.so.12";
const BUILTINS: &str = "libnvrtc-builtins.so.12.9";

// Folders below which a wheel or a toolkit keeps the libraries.
const WITHIN: [&str; 5] = ["", "lib", "lib64", "nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"];

impl Nvrtc {
    /// Loads the library.
    ///
    /// # Errors
    /// [`CompileError::Missing`] with the package that brings it.
    pub fn load() -> Result<Nvrtc, CompileError> {
        static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
        LOADED.get_or_init(load).clone().map(|()| Nvrtc(())).map_err(|searched| CompileError::Missing { searched })
    }

    /// The compiler with its exact version, such as `NVRTC 12.9.86`; the library itself tells only the first two numbers.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] if it cannot compile anything.
    pub fn version(self) -> Result<&'static str, CompileError> {
        static VERSION: OnceLock<String> = OnceLock::new();
        if let Some(version) = VERSION.get() {
            return Ok(version);
        }
        // PTX begins with a comment like "// Cuda compilation tools, release 12.9, V12.9.86".
        let ptx = String::from_utf8_lossy(&self.ptx("version", "", Architecture::ALL[0])?.code).into_owned();
        let tools = ptx.lines().find_map(|line| line.rsplit_once(", V"));
        let version = tools.map_or_else(|| ptx.lines().next().unwrap_or_default(), |(_, version)| version);
        Ok(VERSION.get_or_init(|| format!("NVRTC {}", version.trim())))
    }

    /// Compiles to PTX, with the version of the architecture as target.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] with the compiler's log.
    pub fn ptx(self, kernel: &str, text: &str, on: Architecture) -> Result<Compiled, CompileError> {
        compile(kernel, text, Form::Ptx, on)
    }

    /// Compiles to a cubin. Only this runs the assembler, which also checks what PTX leaves open.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] with the compiler's log.
    pub fn cubin(self, kernel: &str, text: &str, on: Architecture) -> Result<Compiled, CompileError> {
        compile(kernel, text, Form::Cubin, on)
    }

    /// Whether it can compile for an architecture: one that is newer than the library is unknown to it.
    pub fn supports(self, on: Architecture) -> bool {
        let mut count = 0;
        // SAFETY: the pointer leads to a number.
        if unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result().is_err() {
            return false;
        }
        let mut numbers = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the buffer has room for as many numbers as the library has said.
        let read = unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) }.result();
        read.is_ok() && numbers.iter().any(|number| u32::try_from(*number) == Ok(on.number))
    }

    /// Compiles a kernel to what a cache or a program keeps of it, and tells what is wrong with it short of being refused,
    /// see [`log::read`]; nothing is known of PTX.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] with the compiler's log, [`CompileError::Refused`] if it could not be launched.
    pub fn artifact(
        self,
        entry: &Entry,
        text: &str,
        form: Form,
        on: Architecture,
    ) -> Result<(Artifact, Vec<String>), CompileError> {
        let compiled = compile(&entry.name, text, form, on)?;
        let faults = match form {
            Form::Ptx => vec![],
            Form::Cubin => log::read(entry, on, &compiled.log)?.faults,
        };
        let label = Label { compiler: self.version()?.to_owned(), ..Label::of(entry, text, form, on) };
        Ok((Artifact { label, code: compiled.code }, faults))
    }

    /// Compiles a kernel to a cubin and checks what the assembler reports.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] with the compiler's log, [`CompileError::Refused`] for a spill, a warning of the
    /// assembler, too many registers or too few warps.
    pub fn checked_cubin(
        self,
        entry: &Entry,
        text: &str,
        on: Architecture,
    ) -> Result<(Vec<u8>, Resources), CompileError> {
        let compiled = self.cubin(&entry.name, text, on)?;
        let resources = log::check(entry, on, &compiled.log)?;
        Ok((compiled.code, resources))
    }
}

fn load() -> Result<(), String> {
    let mut searched = vec![];
    let chosen = std::env::var_os(VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = &chosen {
        searched.push(format!("{VARIABLE}={}", folder.display()));
        preload(folder);
    }
    // SAFETY: the libraries run no code of ours when loaded.
    let present = || unsafe { sys::is_culib_present() };
    if !present() {
        searched.push("the system's libraries".to_owned());
    }
    if !present() && chosen.is_none() {
        for folder in [Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc"), PathBuf::from("target/nvrtc")] {
            preload(&folder);
        }
        searched.push("target/nvrtc".to_owned());
    }
    if present() { Ok(()) } else { Err(searched.join(", ")) }
}

// A library that is loaded already is found by its name: so a folder that the system's loader does not know can be used
// without setting up the environment before the process starts.
fn preload(folder: &Path) {
    for within in WITHIN {
        let folder = folder.join(within);
        for library in [BUILTINS, LIBRARY] {
            let path = folder.join(library);
            // SAFETY: as for `present`.
            if path.is_file()
                && let Ok(library) = unsafe { libloading::Library::new(&path) }
            {
                // Kept for the rest of the process.
                std::mem::forget(library);
            }
        }
    }
}

// The code of a program that was compiled.
fn code(program: sys::nvrtcProgram, form: Form) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: the program is alive, the pointer leads to a size, and the buffer has the size asked for.
    unsafe {
        match form {
            Form::Ptx => {
                sys::nvrtcGetPTXSize(program, &raw mut size).result()?;
                let mut code = vec![0u8; size];
                sys::nvrtcGetPTX(program, code.as_mut_ptr().cast()).result()?;
                // The text ends with a zero byte.
                code.pop();
                Ok(code)
            }
            Form::Cubin => {
                sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
                let mut code = vec![0u8; size];
                sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
                Ok(code)
            }
        }
    }
}

fn compile(kernel: &str, text: &str, form: Form, on: Architecture) -> Result<Compiled, CompileError> {
    let rejected = |message: String| CompileError::Rejected { kernel: kernel.to_owned(), message };
    let text = CString::new(text).map_err(|e| rejected(e.to_string()))?;
    let name = CString::new(format!("{kernel}.cu")).map_err(|e| rejected(e.to_string()))?;
    let program = result::create_program(&text, Some(&name)).map_err(|e| rejected(format!("{e:?}")))?;
    // SAFETY: the program was created above and is destroyed below, once.
    let (compiled, log) = unsafe {
        let compiled = result::compile_program(program, &options(form, on));
        let log =
            result::get_program_log(program).map(|log| CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned());
        (compiled.and_then(|()| code(program, form)), log.unwrap_or_default())
    };
    // SAFETY: as above.
    let destroyed = unsafe { result::destroy_program(program) };
    let code = compiled.map_err(|e| rejected(format!("{e:?}\n{log}")))?;
    destroyed.map_err(|e| rejected(format!("{e:?}")))?;
    Ok(Compiled { code, log })
}
