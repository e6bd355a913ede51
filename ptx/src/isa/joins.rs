//! Where the ways from a branch meet again.

use super::Instruction;
use super::Op;
use super::branch::Branch;

/// For a branch whose ways meet nowhere but at the end of the kernel, and for what is no branch.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// For each conditional branch the first instruction that every way from it to the end of the kernel comes to: its
/// immediate post-dominator. A `ret` without a condition counts as the end.
///
/// The algorithm is that of Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm", on the reversed graph.
pub(crate) fn joins(code: &[Instruction]) -> Vec<u32> {
    let next: Vec<[Option<usize>; 2]> = code.iter().enumerate().map(|(at, i)| successors(at, i, code.len())).collect();
    let end = code.len();
    let order = order_from_end(&next, end);
    let mut position = vec![usize::MAX; end + 1];
    order.iter().enumerate().for_each(|(at, &node)| position[node] = at);
    // By position; what never ends has none.
    let mut above = vec![usize::MAX; order.len()];
    above[0] = 0;
    let meet = |above: &[usize], mut a: usize, mut b: usize| {
        while a != b {
            if a > b {
                a = above[a];
            } else {
                b = above[b];
            }
        }
        a
    };
    let mut changed = true;
    while changed {
        changed = false;
        for at in 1..order.len() {
            let known = next[order[at]].iter().flatten().map(|&n| position[n]);
            let known = known.filter(|&n| n != usize::MAX && above[n] != usize::MAX);
            let Some(found) = known.reduce(|a, b| meet(&above, a, b)) else { continue };
            if above[at] != found {
                above[at] = found;
                changed = true;
            }
        }
    }
    let of = |(at, instruction): (usize, &Instruction)| {
        let branches = instruction.guard.is_some() && matches!(instruction.op, Op::Branch(Branch::Jump { .. }));
        match position[at] {
            place if branches && place != usize::MAX => order[above[place]],
            _ => end,
        }
    };
    let ends = |at: usize| at == end || code[at].guard.is_none() && matches!(code[at].op, Op::Branch(Branch::Exit));
    code.iter().enumerate().map(of).map(|at| if ends(at) { NOWHERE } else { at as u32 }).collect()
}

/// What may run after an instruction; `end` for the end of the thread.
fn successors(at: usize, instruction: &Instruction, end: usize) -> [Option<usize>; 2] {
    let otherwise = instruction.guard.map(|_| at + 1);
    match instruction.op {
        Op::Branch(Branch::Jump { target, .. }) => [Some(target as usize), otherwise],
        Op::Branch(Branch::Exit | Branch::Trap) => [Some(end), otherwise],
        _ => [Some(at + 1), None],
    }
}

/// All instructions from which the end can be reached, each after one that runs behind it: reverse postorder from the end.
fn order_from_end(next: &[[Option<usize>; 2]], end: usize) -> Vec<usize> {
    let mut before = vec![vec![]; end + 1];
    for (at, next) in next.iter().enumerate() {
        next.iter().flatten().for_each(|&n| before[n].push(at));
    }
    let (mut order, mut seen, mut path) = (vec![], vec![false; end + 1], vec![(end, 0)]);
    seen[end] = true;
    while let Some((node, tried)) = path.last_mut() {
        match before[*node].get(*tried) {
            Some(&to) => {
                *tried += 1;
                if !std::mem::replace(&mut seen[to], true) {
                    path.push((to, 0));
                }
            }
            None => {
                order.push(*node);
                path.pop();
            }
        }
    }
    order.reverse();
    order
}
