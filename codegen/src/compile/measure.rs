//! What the compiler and the disassembler tell of kernels, for the manifest and for people.

use super::nvrtc::Nvrtc;
use super::occupancy::Architecture;
use super::{CompileError, sass, tools};
use crate::emit::Kernel;
use crate::manifest::{Entry, MainLoop, Manifest, Resources, hash};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Architectures that the checked-in manifest has resources for: an A100, and an H100 or H200.
pub const DEFAULT_ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// The tools that look at a kernel.
#[derive(Clone, Debug)]
pub struct Bench {
    nvrtc: Nvrtc,
    /// Without it the instructions of main loops are not counted.
    disassembler: Option<PathBuf>,
}

impl Bench {
    /// Loads the compiler and looks for the disassembler.
    ///
    /// # Errors
    /// [`CompileError::Missing`] without NVRTC.
    pub fn new() -> Result<Bench, CompileError> {
        Ok(Bench { nvrtc: Nvrtc::load()?, disassembler: tools::nvdisasm() })
    }

    /// Whether main loops are counted.
    pub fn disassembles(&self) -> bool {
        self.disassembler.is_some()
    }

    /// Compiles a kernel and checks it: its cubin and its resources.
    ///
    /// # Errors
    /// [`CompileError::Rejected`] with the compiler's log; [`CompileError::Refused`] for a spill, a warning of the
    /// assembler, too many registers, too few warps, or a main loop of other instructions than it is meant to have.
    pub fn measure(&self, entry: &Entry, text: &str, on: Architecture) -> Result<(Vec<u8>, Resources), CompileError> {
        let (cubin, mut resources) = self.nvrtc.checked_cubin(entry, text, on)?;
        if let Some(program) = &self.disassembler {
            let listing = sass::count(&tools::disassemble(program, &cubin)?);
            sass::check(entry, &on.name(), &listing)?;
            resources.main_loop =
                entry.spec.kernel.has_operands(entry.spec.target).then(|| MainLoop::from(listing.main_loop));
        }
        Ok((cubin, resources))
    }

    /// Gives every entry its resources on some architectures. Those of a text that `known` has them for are taken from there.
    ///
    /// # Errors
    /// As [`Bench::measure`]; of several, that of the first kernel.
    pub fn complete(
        &self,
        manifest: &mut Manifest,
        kernels: &[Kernel],
        on: &[Architecture],
        known: &Manifest,
    ) -> Result<(), CompileError> {
        let names: Vec<String> = on.iter().map(|a| a.name()).collect();
        let mut work = vec![];
        for entry in &mut manifest.kernels {
            let Some(kernel) = kernels.iter().find(|k| k.name == entry.name) else { continue };
            entry.text = hash(kernel.text.as_bytes());
            let same =
                |old: &&Entry| old.text == entry.text && old.resources.iter().map(|r| &r.architecture).eq(&names);
            match known.find(&entry.name).filter(same) {
                Some(old) => entry.resources = old.resources.clone(),
                None => work.push((entry, kernel)),
            }
        }
        let jobs: Vec<_> = work.iter().flat_map(|(entry, kernel)| on.iter().map(|a| (&**entry, *kernel, *a))).collect();
        let found = in_parallel(jobs.len(), |job| {
            let (entry, kernel, architecture) = jobs[job];
            self.measure(entry, &kernel.text, architecture).map(|(_, resources)| resources)
        });
        drop(jobs);
        let mut found = found.into_iter();
        for (entry, _) in &mut work {
            entry.resources = found.by_ref().take(on.len()).collect::<Result<_, _>>()?;
        }
        Ok(())
    }
}

/// Results of jobs by number, on as many threads as there are processors.
pub fn in_parallel<T: Send>(jobs: usize, one: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(jobs)));
    let work = || {
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return;
            }
            let result = one(job);
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((job, result));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(job, _)| *job);
    done.into_iter().map(|(_, result)| result).collect()
}

impl From<sass::Counts> for MainLoop {
    fn from(counts: sass::Counts) -> MainLoop {
        MainLoop {
            instructions: counts.all as u32,
            products: counts.products as u32,
            matrix_loads: counts.matrix_loads as u32,
            copies: counts.copies as u32,
        }
    }
}
