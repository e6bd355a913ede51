//! A child of `fork` goes on with the processors that its parent has used.
//!
//! A fork while another test runs would leave the child with what that one had locked.

use super::alone;
use crate::common::{Case, Tensors, amx, devices, run, same};
use std::time::{Duration, Instant};
use vocabfuse::problem::Outputs;
use vocabfuse_runtime::{
    Cpu, Distribution, DistributionGradients, Error, InputLayer, Local, Matrix, Operators, Policy, Save, ShardLayout,
    Target, ValueGradients,
};

const TOKENS: usize = 40;
const HIDDEN: usize = 24;
const VOCAB: usize = 3000;

/// Whether `work` is true in a child.
fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: no other thread is in a call of a library here, so the child finds nothing locked.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child: {}", std::io::Error::last_os_error());
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the child without the destructors and the test harness of the parent.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let (begin, mut status) = (Instant::now(), 0);
    // SAFETY: `child` is a child that nobody else waits for, and `status` a place for its status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > Duration::from_secs(60) {
            // SAFETY: as above; the child still runs.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// Entropies, dX, rows of an embedding and the gradient of its table.
fn operators(cpu: &Cpu, tensors: &Tensors) -> Result<[Vec<f32>; 4], Error> {
    let (layout, comm) = (ShardLayout::even(VOCAB, 1)?, Local::group(1).remove(0));
    let (x, w) = (Matrix::new(&tensors.x, TOKENS, HIDDEN)?, Matrix::new(&tensors.w, VOCAB, HIDDEN)?);
    let layer = Operators::new(cpu, &layout, 0)?;
    let of = Distribution::linear(x, w);
    let done = layer.entropy(&comm, of)?.start_combine().wait()?;
    let wanted = DistributionGradients { dx: true, ..Default::default() };
    let upstream = ValueGradients { entropy: Some(&[1.0; TOKENS]), ..Default::default() };
    let gradients = layer.backward(&comm, &done.ticket, &[of], upstream, vec![wanted])?.start_combine().wait()?;
    let input = InputLayer::new(cpu, &layout, 0, None)?;
    let ids: Vec<i64> = (0..TOKENS as i64).map(|i| i * 71).collect();
    let embedded = input.lookup(&comm, &ids, w)?.start_select().wait()?;
    let mut dw = vec![0.0; VOCAB * HIDDEN];
    input.backward(&embedded.table_grad, x, &mut dw)?;
    Ok([done.values.entropy, gradients.into_iter().flatten().next().unwrap_or_default(), embedded.x.to_f32(), dw])
}

#[test]
fn a_child_runs_every_pass_with_the_same_bits_and_so_does_its_parent_afterwards() {
    alone(children);
}

fn children() {
    let policy = Policy { save: Save::Yes, ..Policy::default() };
    let case = Case { policy, bounds: vec![0, 1000, VOCAB], ..Case::new(TOKENS, HIDDEN, VOCAB) };
    let tensors = Tensors::random(&case);
    let step = |cpu: &Cpu| run(cpu, &case, &tensors).unwrap().out;
    let equal = |a: &Outputs<f32>, b: &Outputs<f32>| {
        [(&a.loss, &b.loss), (&a.lse, &b.lse), (&a.dx, &b.dx), (&a.dw, &b.dw)].iter().all(|(a, b)| same(a, b))
    };
    for cpu in devices(3).into_iter().chain(amx(3)) {
        // Nothing of this one has run yet.
        let fresh = cpu.clone();
        let alone = Cpu::with_target(Target::Scalar, Some(2)).unwrap();
        assert!(in_child(|| fresh.threads() == 3 && !step(&fresh).loss.is_empty() && !step(&alone).loss.is_empty()));

        let (expected, others) = (step(&cpu), operators(&cpu, &tensors).unwrap());
        let again = |cpu: &Cpu| {
            let found = operators(cpu, &tensors).unwrap();
            equal(&step(cpu), &expected) && found.iter().zip(&others).all(|(a, b)| same(a, b))
        };
        for _ in 0..2 {
            assert!(in_child(|| again(&cpu) && again(&cpu)), "{}", cpu.name());
        }
        assert!(in_child(|| again(&cpu) && in_child(|| again(&cpu)) && again(&cpu)), "{}", cpu.name());
        // A child may drop what its parent has made, whether it has used it or not.
        let copy = cpu.clone();
        assert!(in_child(|| {
            drop((cpu, alone, fresh));
            again(&copy)
        }));
        assert!(again(&copy), "{}", copy.name());
        assert!(in_child(move || {
            drop(copy);
            true
        }));
    }
}
