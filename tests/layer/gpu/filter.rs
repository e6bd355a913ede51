//! The gradient filter of the CUDA kernels.

use super::{SAVES, clean, policy, same_outputs};
use crate::common::filter::{bounds, check_within, every_option};
use crate::common::{Case, Tensors, interpreter};
use vocabfuse_runtime::{Algorithm, Dtype, Policy, Save};

#[test]
fn unlikely_tiles_take_no_part_in_dw() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for dtype in [Dtype::Bf16, Dtype::F16] {
        for save in SAVES {
            // Two tiles of tokens; the second rank's tiles of columns begin at 300, 556 and 812.
            let bounds = vec![0, 300, 1000];
            let policy = policy(Algorithm::Two, save);
            let case = Case { dtype, policy, bounds, bias: true, ..Case::new(200, 40, 1000) };
            let mut tensors = Tensors::random(&case);
            let unlikely = 556..812;
            tensors.bias.iter_mut().for_each(|bias| bias[unlikely.clone()].iter_mut().for_each(|b| *b -= 12.0));
            tensors.targets.iter_mut().filter(|t| unlikely.contains(&(**t as usize))).for_each(|t| *t = 7);
            let all = clean(&ptx, &gpu, &case, &tensors);
            let filtered = Case { policy: Policy { filter: Some(1e-4), ..policy }, ..case.clone() };
            let kept = clean(&ptx, &gpu, &filtered, &tensors);
            // 160 tokens count: two tiles of them, by two and three tiles of columns.
            assert_eq!((kept.filtered[1].tiles, kept.filtered[1].skipped), (10, 2), "{case:?}");
            assert_eq!(all.filtered[1].tiles, 0);
            let rows = unlikely.start * case.hidden..unlikely.end * case.hidden;
            assert!(kept.out.dw[rows.clone()].iter().all(|v| *v == 0.0) && !all.out.dw[rows.clone()].contains(&0.0));
            let mut expected = all.clone();
            expected.out.dw[rows].fill(0.0);
            assert!(same_outputs(&kept, &expected), "nothing else changes in {case:?}");
        }
    }
}

#[test]
fn the_filter_keeps_to_its_bound_with_every_option() {
    let Some((ptx, gpu)) = interpreter() else { return };
    for (save, label_smoothing) in [(Save::Yes, 0.0), (Save::No, 0.0), (Save::No, 0.1)] {
        let policy = policy(Algorithm::Two, save);
        let base = Case { dtype: Dtype::Bf16, policy, bounds: vec![0, 300, 1000], ..Case::new(200, 40, 1000) };
        let (case, mut tensors) = every_option(&base, label_smoothing);
        tensors.bias.as_mut().unwrap()[556..812].iter_mut().for_each(|b| *b -= 12.0);
        tensors.targets.iter_mut().filter(|t| (556..812).contains(&**t)).for_each(|t| *t = 7);
        let all = clean(&ptx, &gpu, &case, &tensors);
        let filtered = Case { policy: Policy { filter: Some(1e-3), ..policy }, ..case.clone() };
        let kept = clean(&ptx, &gpu, &filtered, &tensors);
        // Smoothed targets leave no derivative small.
        assert_eq!(kept.filtered[1].skipped > 0, label_smoothing == 0.0, "{:?}", kept.filtered);
        let (dx, dw) = bounds(&case, &tensors, 1e-3);
        check_within("dx", &all.out.dx, &kept.out.dx, &dx);
        check_within("dw", &all.out.dw, &kept.out.dw, &dw);
    }
}
