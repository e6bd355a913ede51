//! The threads of a CPU, also in a process that was forked.

use crate::{Error, Result};
use std::sync::{Arc, OnceLock};

/// A pool of threads.
///
/// After `fork` the child has the memory of the parent, but of its threads only the one that called it. A child therefore
/// starts a pool of its own, of the same size, when it first needs one.
pub(super) struct Threads {
    count: usize,
    /// The process that the threads of `pool` belong to.
    process: u32,
    pool: Arc<rayon::ThreadPool>,
    /// That of a child, which may have children again.
    child: OnceLock<Box<Threads>>,
}

impl Threads {
    /// So many threads, or one a processor.
    pub(super) fn start(count: Option<usize>) -> Result<Threads> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count.unwrap_or(0))
            .thread_name(|i| format!("vocabfuse-{i}"))
            .build()
            .map_err(|e| Error::Device(format!("cannot start threads: {e}")))?;
        let count = pool.current_num_threads();
        Ok(Threads { count, process: std::process::id(), pool: Arc::new(pool), child: OnceLock::new() })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The pool of this process. No lock is taken, as a thread that is gone might hold it.
    pub(super) fn pool(&self) -> Result<&rayon::ThreadPool> {
        if self.process == std::process::id() {
            return Ok(&self.pool);
        }
        let child = match self.child.get() {
            Some(child) => child,
            None => {
                let own = Box::new(Threads::start(Some(self.count))?);
                self.child.get_or_init(|| own)
            }
        };
        child.pool()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // The end of a pool wakes its threads, and waits for locks that they may have held.
        if self.process != std::process::id() {
            std::mem::forget(Arc::clone(&self.pool));
        }
    }
}
