//! Kernels of the device, where they are kept, what they need, and what is refused.

use super::{CHUNK, clean, policy, same_outputs};
use crate::common::{Case, Tensors, interpreter, nvrtc, run};
use vocabfuse_runtime::{Algorithm, CrossEntropy, Dtype, Error, Gpu, Policy, Precision, Ptx, Save};

#[test]
fn what_no_kernel_covers_is_refused_with_what_is() {
    let Some((_, gpu)) = interpreter() else { return };
    let case = Case { policy: policy(Algorithm::Two, Save::No), ..Case::new(4, 8, 40) };
    let error = |gpu: &Gpu, case: &Case| run(gpu, case, &Tensors::random(case)).unwrap_err();
    let exact = error(&gpu, &case).to_string();
    assert!(exact.contains("dtype f32 with precision tf32 or tf32x3"), "{exact}");
    let bf16 = Case { dtype: Dtype::Bf16, ..case };
    let tf32 = error(&gpu.clone().with_precision(Some(Precision::Tf32)), &bf16).to_string();
    assert!(tf32.contains("precision tf32 for dtype bf16") && tf32.contains("dtype bf16, dtype f16"), "{tf32}");
    assert!(matches!(Ptx::new("sm_90a"), Err(Error::Option { option: "device", .. })));
}

#[test]
fn damaged_kernels_of_the_cache_are_rebuilt() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let case = Case { dtype: Dtype::Bf16, policy: policy(Algorithm::Two, Save::No), ..Case::new(9, 8, 40) };
    let tensors = Tensors::random(&case);
    let entries = || -> Vec<_> { std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect() };
    let fresh = || {
        let ptx = Ptx::new("sm_80").unwrap();
        let gpu = Gpu::ptx(&ptx).unwrap().with_cache(folder.path());
        clean(&ptx, &gpu, &case, &tensors)
    };
    let first = fresh();
    let whole: Vec<_> = entries().iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(whole.len() > 5);
    for (path, code) in entries().iter().zip(&whole) {
        let mut damaged = code.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        std::fs::write(path, damaged).unwrap();
    }
    assert!(same_outputs(&first, &fresh()));
    let rebuilt: Vec<_> = entries().iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(rebuilt == whole, "the entries are as they were");
}

#[test]
fn kernels_compile_ahead_for_a_gpu_that_is_not_there() {
    if !nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let operators = vocabfuse::codegen::operator::all().unwrap();
    let builder = vocabfuse::Builder::cuda().dtypes(&[Dtype::F16]).chunks(&[CHUNK]).operators(&operators);
    let architectures = vocabfuse::codegen::Architecture::list("sm_90").unwrap();
    let names = Gpu::compile_ahead(&builder, &architectures, folder.path()).unwrap();
    assert!(names.iter().any(|n| n.starts_with("weight_grad__f16_c512")), "{names:?}");
    assert!(names.iter().any(|n| n.starts_with("row_statistics__kl_divergence")), "{names:?}");
    // Machine code, and PTX for newer GPUs.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2 * names.len());
    let nothing = builder.kernels(&[]);
    assert!(Gpu::compile_ahead(&nothing, &architectures, folder.path()).is_err());
}

#[test]
fn ranks_of_a_group_share_a_device() {
    if !nvrtc() {
        return;
    }
    use vocabfuse_runtime::{Batch, Local, Matrix, OutputLayer, Shard, ShardLayout};
    let layout = ShardLayout::even(4, 2).unwrap();
    let (x, w) = ([half::bf16::ONE; 8], [half::bf16::ONE; 16]);
    let results = vocabfuse::ranks::each(Local::group(2), |rank, comm| {
        let (_, gpu) = interpreter().expect("there is a compiler");
        let policy = policy(Algorithm::Two, Save::No);
        let layer = OutputLayer::new(&gpu, &layout, rank, CrossEntropy::default(), policy)?;
        let weight = Matrix::new(&w, 2, 8)?;
        let batch = Batch::new(Matrix::new(&x, 1, 8)?, &[1]);
        layer.s_pass(&comm, batch, Shard { weight, bias: None })?.start_combine().wait().map(|_| ())
    });
    let error = results.unwrap_err();
    assert!(matches!(error, Error::Disagreement { .. }), "{error}");
}

#[test]
fn a_loss_without_argmax_refuses_to_give_one() {
    let Some((_, gpu)) = interpreter() else { return };
    use vocabfuse_runtime::{Batch, Local, Matrix, OutputLayer, RowLoss, Shard, ShardLayout};
    let (x, w) = ([half::bf16::ONE; 8], [half::bf16::ONE; 32]);
    let options = CrossEntropy { argmax: true, ..CrossEntropy::default() };
    let loss = RowLoss { name: "cross_entropy".to_owned(), uniforms: [("z_loss".to_owned(), 0.0)].into(), options };
    let layout = ShardLayout::even(4, 1).unwrap();
    let layer = OutputLayer::with_loss(&gpu, &layout, 0, loss, policy(Algorithm::Two, Save::No)).unwrap();
    let batch = Batch::new(Matrix::new(&x, 1, 8).unwrap(), &[1]);
    let shard = Shard { weight: Matrix::new(&w, 4, 8).unwrap(), bias: None };
    let error = layer.s_pass(&Local::group(1)[0], batch, shard).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "option argmax: expected false: loss cross_entropy gives none");
}

/// What the layer asks for is what buffers on the device hold, over copies of inputs and outputs.
#[test]
fn the_budget_of_a_device_is_kept() {
    let smoothed = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
    let capped = CrossEntropy { softcap: Some(20.0), ..smoothed };
    for loss in [CrossEntropy::default(), smoothed, capped] {
        for save in if loss == capped { vec![Save::No] } else { vec![Save::No, Save::Yes] } {
            let Some((_, gpu)) = interpreter() else { return };
            let with = |budget| {
                let policy = Policy { memory_budget: Some(budget), ..policy(Algorithm::Two, save) };
                Case { dtype: Dtype::Bf16, loss, policy, ..Case::new(130, 48, 700) }
            };
            let tensors = Tensors::random(&with(1));
            let needed = match run(&gpu, &with(1), &tensors) {
                Err(Error::Budget { needed, .. }) => needed,
                other => panic!("{other:?}"),
            };
            gpu.take_peak_bytes();
            run(&gpu, &with(needed), &tensors).unwrap();
            // Copies of X and W, and in pass T dW.
            let [inputs, dw] = [(130 + 700) * 48 * 2, 700 * 48 * 4];
            let used = gpu.take_peak_bytes().saturating_sub(inputs);
            assert!(
                used <= needed + dw && used * 10 >= needed * 7,
                "{needed} bytes needed, {used} used: {loss:?}, {save}"
            );
        }
    }
}
