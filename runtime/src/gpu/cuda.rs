//! A CUDA device: the driver's library, loaded when a device is asked for.

use super::clock::Clock;
use super::driver::{Argument, Driver, Graph, Handle, Operation, Shape};
use super::meter::Meter;
use crate::{Error, Result};
use cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use std::borrow::Cow;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vocabfuse_codegen::compile::capability::Capability;
use vocabfuse_codegen::compile::occupancy::Architecture;

/// One stream of a device. Memory comes from the device's pool in the order of the stream.
#[derive(Debug)]
pub(super) struct Cuda {
    name: String,
    capability: Capability,
    stream: Arc<CudaStream>,
    functions: Mutex<Vec<Function>>,
    clock: Arc<Mutex<Clock>>,
    meter: Meter,
}

#[derive(Clone, Copy, Debug)]
struct Function(sys::CUfunction);

// SAFETY: a handle of the driver, which any thread may use while the module is loaded; modules stay loaded.
unsafe impl Send for Function {}

/// Whether the driver's library can be loaded.
pub(super) fn has_driver() -> bool {
    // SAFETY: loading the library runs its initialisers, which is what a program that asks for it wants.
    unsafe { sys::is_culib_present() }
}

impl Cuda {
    /// The device of an ordinal.
    ///
    /// # Errors
    /// [`Error::Missing`] without a driver; [`Error::Device`] if there is no such device, or it is too old.
    pub(super) fn new(ordinal: usize) -> Result<Cuda> {
        if !has_driver() {
            return Err(Error::Missing(format!(
                "device cuda:{ordinal}: the NVIDIA driver is not installed (no libcuda.so.1); \
                 install the driver, or use device cpu"
            )));
        }
        let failed = |e: DriverError| Error::Device(format!("cuda:{ordinal}: {e}"));
        let context = CudaContext::new(ordinal).map_err(failed)?;
        let (major, minor) = context.compute_capability().map_err(failed)?;
        let capability = Capability::of(major as u32, minor as u32);
        if capability.codes().is_empty() {
            return Err(Error::Device(format!(
                "cuda:{ordinal} has compute capability {major}.{minor}; expected at least {}",
                oldest()
            )));
        }
        if !context.has_async_alloc() {
            return Err(Error::Device(format!("cuda:{ordinal} has no stream-ordered memory pool; expected one")));
        }
        let name = format!("cuda:{ordinal} ({})", context.name().map_err(failed)?);
        keep_memory(&context).map_err(failed)?;
        let stream = context.new_stream().map_err(failed)?;
        Ok(Cuda {
            name,
            capability,
            stream,
            functions: Mutex::default(),
            clock: Arc::default(),
            meter: Meter::default(),
        })
    }

    fn failed(&self, what: &str) -> impl Fn(DriverError) -> Error {
        let what = format!("{}, {what}", self.name);
        move |error| Error::Device(format!("{what}: {error}"))
    }

    // Ranks are threads, and each call may come from another.
    fn bind(&self) -> Result<sys::CUstream> {
        self.stream.context().bind_to_thread().map_err(self.failed("context"))?;
        Ok(self.stream.cu_stream())
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, before work of the device.
    fn for_work(&self) -> Result<sys::CUstream> {
        let stream = self.bind()?;
        self.clock().begin(stream).map_err(self.failed("clock"))?;
        Ok(stream)
    }

    /// The stream, before a copy from or to the host.
    fn for_host(&self) -> Result<sys::CUstream> {
        let stream = self.bind()?;
        self.clock().end(stream).map_err(self.failed("clock"))?;
        Ok(stream)
    }
}

/// How machine code begins.
const ELF: &[u8] = b"\x7fELF";

/// The least compute capability that there are kernels for: `8.0`.
fn oldest() -> String {
    let least = Architecture::general().map(|a| a.number).min().unwrap_or_default();
    format!("{}.{}", least / 10, least % 10)
}

// Memory that is freed stays in the pool for the next microbatch, instead of going back at the next synchronisation.
fn keep_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
    let mut threshold = u64::MAX;
    // SAFETY: the device is the context's, and the attribute is a number of 64 bits.
    unsafe {
        let pool = result::device::get_mem_pool(context.cu_device())?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut threshold).cast())
    }
}

impl Driver for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn capability(&self) -> Capability {
        self.capability
    }

    fn load(&self, name: &str, code: &[u8]) -> Result<Handle> {
        self.bind()?;
        let failed = self.failed(name);
        let of_text = |e: &dyn std::fmt::Display| Error::Compile(format!("kernel {name}: {e}"));
        let symbol = CString::new(name).map_err(|e| of_text(&e))?;
        // PTX ends with a zero byte.
        let code = if code.starts_with(ELF) {
            Cow::Borrowed(code)
        } else {
            Cow::Owned(CString::new(code).map_err(|e| of_text(&e))?.into_bytes_with_nul())
        };
        // SAFETY: the code is a whole cubin of NVRTC, or PTX with its end, and was checked against damage. The module is never
        // unloaded, so the function stays valid.
        let function = unsafe {
            let module = result::module::load_data(code.as_ptr().cast()).map_err(&failed)?;
            result::module::get_function(module, symbol).map_err(&failed)?
        };
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.push(Function(function));
        Ok(Handle(functions.len() - 1))
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        let stream = self.bind()?;
        // SAFETY: the stream is alive; nobody reads the memory before it is written.
        unsafe { result::malloc_async(stream, bytes) }.map_err(self.failed(&format!("{bytes} bytes of memory")))
    }

    fn free(&self, address: u64) {
        let Ok(stream) = self.bind() else { return };
        // SAFETY: the address came from `alloc` and is freed once, behind everything that uses it in the stream. A
        // failure means that the context is gone, and the memory with it.
        let _ = unsafe { result::free_async(address, stream) };
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        let stream = self.for_host()?;
        self.meter.upload();
        // SAFETY: the target has room for the values; from pageable memory the driver has copied them when it returns.
        unsafe { result::memcpy_htod_async(to, from, stream) }.map_err(self.failed("copy to the device"))
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        let stream = self.for_host()?;
        self.meter.download();
        // SAFETY: the source has as many bytes, and the target lives until the stream is through.
        unsafe { result::memcpy_dtoh_async(to, from, stream) }.map_err(self.failed("copy from the device"))?;
        self.synchronize()
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        let stream = self.for_work()?;
        // SAFETY: both ranges lie in memory of this device.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream) }.map_err(self.failed("copy"))
    }

    fn launch(&self, kernel: Handle, shape: Shape, arguments: &[Argument]) -> Result<()> {
        let stream = self.for_work()?;
        let Function(function) = self.functions.lock().unwrap_or_else(PoisonError::into_inner)[kernel.0];
        let failed = self.failed("launch");
        let mut parameters: Vec<*mut c_void> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::Pointer(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::I32(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::I64(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            })
            .collect();
        // SAFETY: the function is loaded; every parameter points to a value of the type that the manifest entry of the
        // kernel states, which the caller has checked; the driver copies the values before it returns.
        unsafe {
            if shape.shared > 48 << 10 {
                let attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, attribute, shape.shared as i32).map_err(&failed)?;
            }
            let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
            result::launch_kernel(function, grid, block, shape.shared as u32, stream, &mut parameters)
        }
        .map_err(&failed)
    }

    fn graph(&self, operations: Vec<Operation>) -> Result<Box<dyn Graph>> {
        let stream = self.bind()?;
        let failed = self.failed("graph");
        // Events of the clock are no part of it.
        self.clock().end(stream).map_err(&failed)?;
        let paused = std::mem::take(&mut *self.clock());
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive; between begin and end this thread launches kernels and copies on it, nothing else.
        let captured = unsafe {
            result::stream::begin_capture(stream, mode).map_err(&failed)?;
            let issued = operations.iter().try_for_each(|operation| operation.issue(self));
            let captured = result::stream::end_capture(stream).map_err(&failed);
            issued.and(captured)
        };
        *self.clock() = paused;
        let captured = captured?;
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph was captured above; the executable graph does not need it any more.
        let graph = unsafe {
            let graph = result::graph::instantiate(captured, flags).map_err(&failed);
            let _ = result::graph::destroy(captured);
            graph?
        };
        let (stream, clock) = (Arc::clone(&self.stream), Arc::clone(&self.clock));
        Ok(Box::new(Executable { graph, stream, clock, name: self.name.clone() }))
    }

    fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(self.failed("synchronisation"))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn start_clock(&self) -> Result<()> {
        self.synchronize()?;
        self.clock().start();
        Ok(())
    }

    fn stop_clock(&self) -> Result<Option<f64>> {
        self.for_host()?;
        self.synchronize()?;
        self.clock().take().map(Some).map_err(self.failed("clock"))
    }
}

/// A graph that was captured and instantiated.
#[derive(Debug)]
struct Executable {
    graph: sys::CUgraphExec,
    stream: Arc<CudaStream>,
    clock: Arc<Mutex<Clock>>,
    name: String,
}

// SAFETY: a handle of the driver; launches of one graph on one stream are ordered by the stream.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Graph for Executable {
    fn run(&self) -> Result<()> {
        let failed = |error: DriverError| Error::Device(format!("{}, graph: {error}", self.name));
        self.stream.context().bind_to_thread().map_err(failed)?;
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.begin(self.stream.cu_stream()).map_err(failed)?;
        // SAFETY: the graph and the stream are alive, and so is the memory that the graph names.
        unsafe { result::graph::launch(self.graph, self.stream.cu_stream()) }.map_err(failed)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // Its memory must not go while it runs. A failure means that the context is gone, and the graph with it.
        let _ = self.stream.synchronize();
        // SAFETY: instantiated once and destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.graph) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_or_a_device_the_error_says_what_is_missing() {
        // No machine has that many.
        let error = Cuda::new(9999).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cuda:9999") && !text.contains('\n'), "{text}");
        if has_driver() {
            assert!(matches!(error, Error::Device(_)), "{error:?}");
        } else {
            assert!(matches!(error, Error::Missing(_)) && text.contains("libcuda.so.1"), "{error:?}");
        }
    }
}
