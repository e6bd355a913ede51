//! Ranks that are threads of one process, merging in shared memory.
//!
//! Every rank sees what all have brought, and makes its own block of the result, so the work is split as well as the
//! memory traffic. A group does not know what is combined: parts are of any type, which the ranks agree on together with
//! the job.

use super::{Combine, Counters, Outcome, Seat};
use crate::buffer::SharedPointer;
use crate::{Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
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

    /// Hands over this rank's part, of so many bytes; does not wait. `agreement` is the job in words; it must be the same
    /// on all ranks, and tell the memory of the part.
    pub(crate) fn start<T: Send + Sync + 'static>(&self, agreement: &str, part: T, bytes: usize) -> Pending {
        let member = &self.member;
        let sequence = member.next.fetch_add(1, Ordering::Relaxed);
        member.launches.fetch_add(1, Ordering::Relaxed);
        member.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let group = &member.group;
        let mut state = group.lock();
        let round = state.rounds.entry(sequence).or_insert_with(|| Round::new(group.size));
        round.contributions[member.rank] = Some(Contribution { agreement: agreement.to_owned(), part: Arc::new(part) });
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

impl State {
    /// A round that this rank has not left yet, so that it is there.
    fn round(&mut self, sequence: u64) -> Result<&mut Round> {
        self.rounds.get_mut(&sequence).ok_or_else(|| Error::Device("a collective that has ended".to_owned()))
    }
}

#[derive(Debug)]
struct Round {
    contributions: Vec<Option<Contribution>>,
    blocks: Vec<Option<Result<Anything>>>,
    /// While ranks write their blocks.
    output: Option<Box<dyn Any + Send + Sync>>,
    /// Once all have.
    shared: Option<Anything>,
    left: usize,
}

impl Round {
    fn new(size: usize) -> Round {
        Round { contributions: vec![None; size], blocks: vec![None; size], output: None, shared: None, left: 0 }
    }
}

/// A part, a block or an output of some collective.
type Anything = Arc<dyn Any + Send + Sync>;

/// What a rank brings to a collective.
#[derive(Clone, Debug)]
struct Contribution {
    agreement: String,
    part: Anything,
}

/// A collective under way.
pub(crate) struct Pending {
    member: Arc<Member>,
    sequence: u64,
    done: bool,
}

impl Pending {
    /// Waits for all ranks, makes this rank's block, and waits for the other blocks.
    pub(crate) fn wait<C: Combine>(mut self, combine: &C) -> Result<Outcome<C::Block, C::Output>> {
        self.member.barriers.fetch_add(1, Ordering::Relaxed);
        let contributions = self.contributions()?;
        let expected = &contributions[0].agreement;
        if let Some((rank, other)) = contributions.iter().enumerate().find(|(_, c)| c.agreement != *expected) {
            return Err(Error::Disagreement { rank, found: other.agreement.clone(), expected: expected.clone() });
        }
        let parts = contributions.into_iter().map(|c| typed::<C::Part>(c.part)).collect::<Result<_>>()?;
        let seat = Seat { rank: self.member.rank, size: self.member.group.size };
        let block = self.output(combine).and_then(|output| combine.block(seat, parts, output));
        self.deliver::<C>(block)
    }

    fn contributions(&self) -> Result<Vec<Contribution>> {
        let group = &self.member.group;
        let mut state = group.lock();
        loop {
            let round = state.round(self.sequence)?;
            if round.contributions.iter().all(Option::is_some) {
                // Nobody else needs the part of an only rank, which then is free to change it in place.
                let take = |c: &mut Option<Contribution>| if group.size == 1 { c.take() } else { c.clone() };
                return Ok(round.contributions.iter_mut().filter_map(take).collect());
            }
            let missing: Vec<usize> = (0..group.size).filter(|rank| round.contributions[*rank].is_none()).collect();
            let gone = |rank: &usize| state.departed[*rank].is_some_and(|first| first <= self.sequence);
            if let Some(rank) = missing.into_iter().find(gone) {
                return Err(Error::RankGone { rank });
            }
            state = group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The output of this round, made by the first rank that comes here.
    fn output<C: Combine>(&self, combine: &C) -> Result<Option<SharedPointer<u8>>> {
        let mut state = self.member.group.lock();
        let round = state.round(self.sequence)?;
        if round.output.is_none() {
            round.output = combine.output().map(|output| Box::new(output) as Box<_>);
        }
        let output = round.output.as_mut().and_then(|output| output.downcast_mut::<C::Output>());
        Ok(output.map(|output| SharedPointer(C::address(output))))
    }

    fn deliver<C: Combine>(&mut self, block: Result<C::Block>) -> Result<Outcome<C::Block, C::Output>> {
        let group = Arc::clone(&self.member.group);
        let mut state = group.lock();
        self.done = true;
        let error = block.as_ref().err().cloned();
        if let Ok(round) = state.round(self.sequence) {
            round.blocks[self.member.rank] = Some(block.map(|block| Arc::new(block) as Anything));
        }
        group.changed.notify_all();
        let outcome = loop {
            let round = match state.round(self.sequence) {
                Ok(round) => round,
                Err(gone) => break Err(gone),
            };
            if let Some(e) =
                error.clone().or_else(|| round.blocks.iter().flatten().find_map(|b| b.as_ref().err().cloned()))
            {
                break Err(e);
            }
            let blocks: Option<Vec<Anything>> =
                round.blocks.iter().map(|b| b.as_ref().and_then(|b| b.as_ref().ok()).cloned()).collect();
            if let Some(blocks) = blocks {
                if let Some(output) = round.output.take() {
                    round.shared = Some(Arc::from(output));
                }
                let output = round.shared.clone().map(typed::<C::Output>);
                let blocks: Result<_> = blocks.into_iter().map(typed::<C::Block>).collect();
                break blocks.and_then(|blocks| Ok(Outcome { blocks, output: output.transpose()? }));
            }
            state = group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        leave(&mut state, self.sequence, group.size);
        outcome
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
        if let Ok(round) = state.round(self.sequence) {
            round.blocks[rank] = Some(Err(Error::RankGone { rank }));
        }
        leave(&mut state, self.sequence, size);
        drop(state);
        self.member.group.changed.notify_all();
    }
}

fn leave(state: &mut State, sequence: u64, size: usize) {
    if let Ok(round) = state.round(sequence) {
        round.left += 1;
        if round.left == size {
            state.rounds.remove(&sequence);
        }
    }
}

// Ranks that agree on their job and on the memory of their parts have parts of one type.
fn typed<T: Send + Sync + 'static>(any: Anything) -> Result<Arc<T>> {
    any.downcast().map_err(|_| Error::Device("ranks of one group run on different kinds of devices".to_owned()))
}
