//! Records what a driver is asked to do, instead of doing it.

use super::driver::{Argument, Driver, Graph, Handle, Operation, Shape};
use super::meter::Meter;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vocabfuse_codegen::compile::capability::Capability;

/// A driver whose launches and copies within the device are recorded. Memory is that of the driver behind it; what is
/// freed is freed when the recorder goes, since a replay uses it. While it records, copies from and to the host, which would
/// happen once and not in every replay, are refused; afterwards it is the driver behind it.
#[derive(Debug)]
pub(super) struct Recorder {
    inner: Arc<dyn Driver>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was recorded, until it is finished.
    operations: Option<Vec<Operation>>,
    /// Bytes of what was allocated, by address.
    sizes: BTreeMap<u64, usize>,
    freed: Vec<u64>,
}

impl Recorder {
    /// Begins to record.
    pub(super) fn new(inner: &Arc<dyn Driver>) -> Recorder {
        let state = State { operations: Some(vec![]), ..State::default() };
        Recorder { inner: Arc::clone(inner), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was recorded, ready to be replayed.
    pub(super) fn finish(&self) -> Result<Box<dyn Graph>> {
        let operations = self.state().operations.take();
        self.inner.graph(operations.unwrap_or_default())
    }

    /// The driver behind it, unless this records.
    fn idle(&self, what: &str) -> Result<&dyn Driver> {
        if self.state().operations.is_some() {
            return Err(Error::Device(format!("{}: {what} while a step is recorded", self.inner.name())));
        }
        Ok(&*self.inner)
    }

    fn issue(&self, operation: Operation) -> Result<()> {
        if let Some(operations) = &mut self.state().operations {
            operations.push(operation);
            return Ok(());
        }
        operation.issue(&*self.inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let State { sizes, freed, .. } = std::mem::take(&mut *self.state());
        for address in freed {
            self.inner.meter().remove(sizes.get(&address).copied().unwrap_or(0));
            self.inner.free(address);
        }
    }
}

impl Driver for Recorder {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn load(&self, name: &str, code: &[u8]) -> Result<Handle> {
        self.inner.load(name, code)
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let address = self.inner.alloc(bytes)?;
        self.state().sizes.insert(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64) {
        let mut state = self.state();
        self.inner.meter().hold(state.sizes.get(&address).copied().unwrap_or(0));
        state.freed.push(address);
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.idle("a copy from the host")?.upload(to, from)
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.idle("a copy to the host")?.download(from, to)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.issue(Operation::Copy { from, to, bytes })
    }

    fn launch(&self, kernel: Handle, shape: Shape, arguments: &[Argument]) -> Result<()> {
        self.issue(Operation::Launch { kernel, shape, arguments: arguments.to_vec() })
    }

    fn graph(&self, operations: Vec<Operation>) -> Result<Box<dyn Graph>> {
        self.idle("another recording")?.graph(operations)
    }

    fn synchronize(&self) -> Result<()> {
        self.idle("a synchronisation")?.synchronize()
    }

    fn meter(&self) -> &Meter {
        self.inner.meter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Ptx;
    use crate::gpu::buffer::Buffer;

    #[test]
    fn what_is_recorded_happens_at_each_replay() {
        let ptx: Arc<dyn Driver> = Arc::new(Ptx::new("sm_80").unwrap());
        let outer = [Buffer::with(&ptx, &[1.0f32, 2.0]).unwrap(), Buffer::with(&ptx, &[0.0f32; 2]).unwrap()];
        let recorder = Arc::new(Recorder::new(&ptx));
        let driver: Arc<dyn Driver> = Arc::clone(&recorder) as _;
        let scratch = Buffer::new(&driver, 8).unwrap();
        scratch.copy(0, &outer[0], 0, 8).unwrap();
        driver.copy(scratch.at(4), outer[1].at(0), 4).unwrap();
        for refused in [Buffer::with(&driver, &[0.0f32]).map(|_| ()), scratch.floats(0, 1).map(|_| ())] {
            assert!(refused.unwrap_err().to_string().contains("while a step is recorded"));
        }
        assert!(driver.synchronize().is_err());
        drop(scratch);
        let graph = recorder.finish().unwrap();
        assert_eq!(outer[1].floats(0, 1), Ok(vec![0.0]), "recording runs nothing");
        for value in [2.0, 5.0] {
            outer[0].write(bytemuck::cast_slice(&[0.0f32, value])).unwrap();
            graph.run().unwrap();
            assert_eq!(outer[1].floats(0, 1), Ok(vec![value]));
        }
        drop((graph, driver, recorder));
        drop(outer);
        ptx.meter().take_peak();
        assert_eq!(ptx.meter().take_peak(), 0);
    }
}
