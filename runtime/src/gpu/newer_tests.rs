//! A GPU that is newer than this program.

use super::compile::tests::nvrtc;
use super::driver::{Argument, Driver, Graph, Handle, Operation, Shape};
use super::meter::Meter;
use super::{Gpu, Ptx};
use crate::{
    Batch, CrossEntropy, Gradients, Local, Matrix, Operands, OutputLayer, Policy, Result, Shard, ShardLayout, Upstream,
};
use half::bf16;
use std::sync::{Arc, Mutex};
use vocabfuse_codegen::compile::capability::Capability;

/// The interpreter in the place of a GPU of compute capability 15.0. It keeps the line of each kernel's PTX that says what it is
/// for.
#[derive(Debug)]
struct Newer {
    ptx: Ptx,
    targets: Mutex<Vec<String>>,
}

impl Driver for Newer {
    fn name(&self) -> String {
        "a newer GPU".to_owned()
    }

    fn capability(&self) -> Capability {
        Capability::of(15, 0)
    }

    fn load(&self, name: &str, code: &[u8]) -> Result<Handle> {
        let text = String::from_utf8_lossy(code);
        let target = text.lines().find(|line| line.starts_with(".target")).unwrap_or_default().to_owned();
        self.targets.lock().unwrap().push(target);
        self.ptx.load(name, code)
    }

    fn alloc(&self, bytes: usize) -> Result<u64> {
        self.ptx.alloc(bytes)
    }

    fn free(&self, address: u64) {
        self.ptx.free(address);
    }

    fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.ptx.upload(to, from)
    }

    fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.ptx.download(from, to)
    }

    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.ptx.copy(from, to, bytes)
    }

    fn launch(&self, kernel: Handle, shape: Shape, arguments: &[Argument]) -> Result<()> {
        self.ptx.launch(kernel, shape, arguments)
    }

    fn graph(&self, operations: Vec<Operation>) -> Result<Box<dyn Graph>> {
        self.ptx.graph(operations)
    }

    fn synchronize(&self) -> Result<()> {
        self.ptx.synchronize()
    }

    fn meter(&self) -> &Meter {
        self.ptx.meter()
    }
}

#[test]
fn a_gpu_newer_than_all_takes_ptx_of_the_newest_and_computes_the_same() {
    if !nvrtc() {
        return;
    }
    let newer = Arc::new(Newer { ptx: Ptx::new("sm_80").unwrap(), targets: Mutex::default() });
    let (folder, (tokens, hidden, vocab)) = (tempfile::tempdir().unwrap(), (5, 8, 70));
    let values = |count: usize| (0..count).map(|i| bf16::from_f32((i as f32 * 0.7).sin())).collect::<Vec<_>>();
    let (x, w, targets) = (values(tokens * hidden), values(vocab * hidden), [0, 69, 3, -100, 7]);
    let run = |gpu: &Gpu| -> Result<_> {
        let policy = Policy { chunk: Some(512), ..Policy::default() };
        let layer = OutputLayer::new(gpu, &ShardLayout::even(vocab, 1)?, 0, CrossEntropy::default(), policy)?;
        let weight = Matrix::new(&w, vocab, hidden)?;
        let batch = Batch::new(Matrix::new(&x, tokens, hidden)?, &targets);
        let comm = &Local::group(1)[0];
        let shard = Shard { weight, bias: None };
        let done = layer.s_pass(comm, batch, shard)?.start_combine().wait()?;
        let mut dw = vec![0.0; vocab * hidden];
        let out = Gradients { dw: (&mut dw).into(), dbias: None };
        layer.t_pass(done.weight_grad, Operands::new(batch.x, shard), out, Upstream::One)?;
        Ok((done.loss, done.dx.to_vec(), dw))
    };
    let on_newer = run(&Gpu::new(Arc::clone(&newer) as _).unwrap().with_cache(folder.path())).unwrap();
    let known = Gpu::ptx(&Ptx::new("sm_80").unwrap()).unwrap().with_cache(folder.path());
    assert_eq!(on_newer, run(&known).unwrap());
    let loaded = newer.targets.lock().unwrap();
    assert!(loaded.len() > 5 && loaded.iter().all(|target| target == ".target sm_121"), "{loaded:?}");
}
