//! Ranks that are threads of one process, merging in shared memory.
//!
//! The one collective is a reduction of rows by their own rule of merging, where every rank merges (and finishes) its
//! block of the tokens, so the work is split as well as the memory traffic. A group does not know the device of its
//! ranks: what they bring is of any type, which the ranks agree on together with the job.

use super::Counters;
use crate::buffer::SharedPointer;
use crate::passes::{Block, FinishJob};
use crate::{Device, Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One rank of a group of threads. Every rank starts the same collectives in the same order.
///
/// Dropping a rank before a collective is complete ends that collective with [`Error::RankGone`] on all others.
#[derive(Debug)]
pub struct Local {
    member: Arc<Member>,
}

impl Local {
    /// `size` connected ranks, in order.
    pub fn group(size: usize) -> Vec<Local> {
        let state = State { rounds: BTreeMap::new(), departed: vec![None; size] };
        let group = Arc::new(Group { size, state: Mutex::new(state), changed: Condvar::new() });
        let member = |rank| Member {
            group: Arc::clone(&group),
            rank,
            next: AtomicU64::new(0),
            barriers: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        (0..size).map(|rank| Local { member: Arc::new(member(rank)) }).collect()
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.member.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.member.group.size
    }

    /// What this rank has communicated so far.
    pub fn counters(&self) -> Counters {
        Counters {
            barriers: self.member.barriers.load(Ordering::Relaxed),
            launches: self.member.launches.load(Ordering::Relaxed),
            bytes: self.member.bytes.load(Ordering::Relaxed),
        }
    }

    /// Another handle of the same rank, for work that outlives the borrow.
    pub(crate) fn handle(&self) -> Local {
        Local { member: Arc::clone(&self.member) }
    }

    /// Hands over this rank's rows; does not wait. `agreement` is the job in words; it must be the same on all ranks,
    /// and tell the memory of the rows.
    pub(crate) fn start<D: Device>(&self, agreement: &str, rows: D::Rows) -> Pending {
        let member = &self.member;
        let sequence = member.next.fetch_add(1, Ordering::Relaxed);
        member.launches.fetch_add(1, Ordering::Relaxed);
        member.bytes.fetch_add(D::bytes(&rows) as u64, Ordering::Relaxed);
        let group = &member.group;
        let mut state = group.lock();
        let round = state.rounds.entry(sequence).or_insert_with(|| Round::new(group.size));
        round.contributions[member.rank] = Some(Contribution { agreement: agreement.to_owned(), rows: Arc::new(rows) });
        drop(state);
        group.changed.notify_all();
        Pending { member: Arc::clone(member), sequence, done: false }
    }
}

#[derive(Debug)]
struct Member {
    group: Arc<Group>,
    rank: usize,
    next: AtomicU64,
    barriers: AtomicU64,
    launches: AtomicU64,
    bytes: AtomicU64,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.lock().departed[self.rank] = Some(self.next.load(Ordering::Relaxed));
        self.group.changed.notify_all();
    }
}

#[derive(Debug)]
struct Group {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Group {
    // A rank that panicked is reported as departed; the state itself is never left half-written.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct State {
    rounds: BTreeMap<u64, Round>,
    /// For a rank that left: the first round it takes no part in.
    departed: Vec<Option<u64>>,
}

#[derive(Debug)]
struct Round {
    contributions: Vec<Option<Contribution>>,
    blocks: Vec<Option<Result<Anything>>>,
    dx: Option<Vec<f32>>,
    shared_dx: Option<Arc<Vec<f32>>>,
    left: usize,
}

impl Round {
    fn new(size: usize) -> Round {
        Round { contributions: vec![None; size], blocks: vec![None; size], dx: None, shared_dx: None, left: 0 }
    }
}

/// Rows or a block of some device.
type Anything = Arc<dyn Any + Send + Sync>;

/// What a rank brings to a collective.
#[derive(Clone, Debug)]
struct Contribution {
    agreement: String,
    rows: Anything,
}

/// The outcome of a collective, the same on all ranks.
pub(crate) struct Merged<D: Device> {
    /// In the order of tokens.
    pub(crate) blocks: Vec<Arc<Block<D>>>,
    /// dX `[N, H]`, if it was asked for.
    pub(crate) dx: Option<Arc<Vec<f32>>>,
}

/// What a rank does with its block once it is merged.
pub(crate) struct Finish<'a> {
    pub(crate) job: FinishJob<'a>,
    /// N, the rows of dX.
    pub(crate) rows: usize,
}

/// A collective under way.
pub(crate) struct Pending {
    member: Arc<Member>,
    sequence: u64,
    done: bool,
}

impl Pending {
    /// Waits for all ranks, merges this rank's block, finishes it if asked, and waits for the other blocks.
    pub(crate) fn wait<D: Device>(
        mut self,
        device: &D,
        kernels: &D::Kernels,
        finish: Option<&Finish<'_>>,
    ) -> Result<Merged<D>> {
        self.member.barriers.fetch_add(1, Ordering::Relaxed);
        let contributions = self.contributions()?;
        let expected = &contributions[0].agreement;
        if let Some((rank, other)) = contributions.iter().enumerate().find(|(_, c)| c.agreement != *expected) {
            return Err(Error::Disagreement { rank, found: other.agreement.clone(), expected: expected.clone() });
        }
        let rows = contributions.into_iter().map(|c| typed::<D::Rows>(c.rows)).collect::<Result<_>>()?;
        let dx = finish.map(|f| self.output(f.rows * f.job.hidden));
        let block = self.block(device, kernels, rows, finish, dx);
        self.deliver(block)
    }

    fn contributions(&self) -> Result<Vec<Contribution>> {
        let group = &self.member.group;
        let mut state = group.lock();
        loop {
            let round = &state.rounds[&self.sequence];
            let all: Option<Vec<Contribution>> = round.contributions.iter().cloned().collect();
            if let Some(all) = all {
                return Ok(all);
            }
            let gone = |rank: &usize| {
                round.contributions[*rank].is_none() && state.departed[*rank].is_some_and(|s| s <= self.sequence)
            };
            if let Some(rank) = (0..group.size).find(gone) {
                return Err(Error::RankGone { rank });
            }
            state = group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// dX of this round, allocated by the first rank that comes here.
    fn output(&self, len: usize) -> SharedPointer<f32> {
        let mut state = self.member.group.lock();
        let round = state.rounds.get_mut(&self.sequence);
        let dx = round.map(|round| round.dx.get_or_insert_with(|| vec![0.0; len]).as_mut_ptr());
        SharedPointer(dx.unwrap_or(std::ptr::null_mut()))
    }

    fn block<D: Device>(
        &self,
        device: &D,
        kernels: &D::Kernels,
        mut contributions: Vec<Arc<D::Rows>>,
        finish: Option<&Finish<'_>>,
        dx: Option<SharedPointer<f32>>,
    ) -> Result<Block<D>> {
        let (size, rank) = (self.member.group.size, self.member.rank);
        let tokens = block_range(D::tokens(&contributions[0]), D::panel(kernels), size, rank);
        let owners: Vec<D::Targets> = contributions.iter().map(|rows| D::targets(rows)).collect();
        let mut rows = if size == 1 {
            self.take_own(device, kernels, &mut contributions)?
        } else {
            let mut rows = device.block(kernels, &contributions[0], tokens.clone())?;
            for other in &contributions[1..] {
                device.merge(kernels, &mut rows, other, tokens.start)?;
            }
            rows
        };
        let finished = finish.map(|f| device.finish(kernels, &mut rows, tokens.clone(), &f.job, &owners, dx));
        Ok(Block { tokens, rows, results: finished.transpose()? })
    }

    /// The only contribution, without a copy.
    fn take_own<D: Device>(
        &self,
        device: &D,
        kernels: &D::Kernels,
        contributions: &mut Vec<Arc<D::Rows>>,
    ) -> Result<D::Rows> {
        if let Some(round) = self.member.group.lock().rounds.get_mut(&self.sequence) {
            round.contributions[0] = None;
        }
        let own = contributions.remove(0);
        Arc::try_unwrap(own).or_else(|own| device.block(kernels, &own, 0..D::tokens(&own)))
    }

    fn deliver<D: Device>(&mut self, block: Result<Block<D>>) -> Result<Merged<D>> {
        let group = Arc::clone(&self.member.group);
        let mut state = group.lock();
        self.done = true;
        let error = block.as_ref().err().cloned();
        if let Some(round) = state.rounds.get_mut(&self.sequence) {
            round.blocks[self.member.rank] = Some(block.map(|block| Arc::new(block) as Anything));
        }
        group.changed.notify_all();
        let merged = loop {
            let Some(round) = state.rounds.get_mut(&self.sequence) else {
                break Err(Error::RankGone { rank: self.member.rank });
            };
            if let Some(e) =
                error.clone().or_else(|| round.blocks.iter().flatten().find_map(|b| b.as_ref().err().cloned()))
            {
                break Err(e);
            }
            let blocks: Option<Vec<Anything>> =
                round.blocks.iter().map(|b| b.as_ref().and_then(|b| b.as_ref().ok()).cloned()).collect();
            if let Some(blocks) = blocks {
                if let Some(dx) = round.dx.take() {
                    round.shared_dx = Some(Arc::new(dx));
                }
                let dx = round.shared_dx.clone();
                let blocks: Result<_> = blocks.into_iter().map(typed::<Block<D>>).collect();
                break blocks.map(|blocks| Merged { blocks, dx });
            }
            state = group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        leave(&mut state, self.sequence, group.size);
        merged
    }
}

impl Drop for Pending {
    // A rank that contributed but never waited, or failed on the way, must not leave the others waiting for its block.
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let (rank, size) = (self.member.rank, self.member.group.size);
        let mut state = self.member.group.lock();
        if let Some(round) = state.rounds.get_mut(&self.sequence) {
            round.blocks[rank] = Some(Err(Error::RankGone { rank }));
        }
        leave(&mut state, self.sequence, size);
        drop(state);
        self.member.group.changed.notify_all();
    }
}

fn leave(state: &mut State, sequence: u64, size: usize) {
    if let Some(round) = state.rounds.get_mut(&sequence) {
        round.left += 1;
        if round.left == size {
            state.rounds.remove(&sequence);
        }
    }
}

// Ranks that agree on the memory of their rows have rows of one type.
fn typed<T: Send + Sync + 'static>(any: Anything) -> Result<Arc<T>> {
    any.downcast().map_err(|_| Error::Device("ranks of one group run on different kinds of devices".to_owned()))
}

/// Tokens that a rank merges: whole panels, split as evenly as they go.
fn block_range(tokens: usize, panel: usize, ranks: usize, rank: usize) -> Range<usize> {
    let panels = tokens.div_ceil(panel);
    let bound = |r: usize| (r * (panels / ranks) + r.min(panels % ranks)) * panel;
    bound(rank).min(tokens)..bound(rank + 1).min(tokens)
}
