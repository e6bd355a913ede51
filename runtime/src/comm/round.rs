//! The collectives of a group that are under way: who has brought what, and who is done with each.

use super::{Combine, Outcome};
use crate::buffer::SharedPointer;
use crate::{Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A part, a block or an output of some collective.
pub(super) type Anything = Arc<dyn Any + Send + Sync>;

/// Which collective of a group: ranks take steps in the same order, and a step has one barrier or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) step: u64,
    pub(super) barrier: u8,
}

/// What the ranks of a group share.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    rounds: BTreeMap<Place, Round>,
    /// For a rank that left: the first step it takes no part in.
    departed: Vec<Option<u64>>,
}

/// One collective.
#[derive(Debug)]
pub(super) struct Round {
    contributions: Vec<Option<Contribution>>,
    blocks: Vec<Option<Anything>>,
    /// While ranks write their blocks.
    output: Option<Output>,
    /// Once all have.
    shared: Option<Anything>,
    /// The first failure of a rank, which ends the collective for all.
    failure: Option<Error>,
    /// Ranks that are done with it.
    left: Vec<bool>,
}

/// Memory that ranks fill together. Its address is taken once: whoever asked for it again would borrow what others write.
#[derive(Debug)]
struct Output {
    memory: Box<dyn Any + Send + Sync>,
    address: SharedPointer<u8>,
}

/// What a rank brings to a collective.
#[derive(Clone, Debug)]
pub(super) struct Contribution {
    pub(super) agreement: String,
    pub(super) part: Anything,
}

impl Group {
    pub(super) fn new(size: usize) -> Group {
        let state = State { rounds: BTreeMap::new(), departed: vec![None; size] };
        Group { size, state: Mutex::new(state), changed: Condvar::new() }
    }

    // A rank that panicked is reported as gone; the state itself is never left half-written.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a round that the calling rank has not left.
    pub(super) fn change<T>(&self, place: Place, change: impl FnOnce(&mut Round) -> T) -> T {
        let result = change(self.lock().round(place, self.size));
        self.changed.notify_all();
        result
    }

    /// Waits until a round that the calling rank has not left is `ready`.
    ///
    /// # Errors
    /// The failure of the round.
    pub(super) fn wait<T>(&self, place: Place, ready: impl Fn(&mut Round) -> Option<T>) -> Result<T> {
        let mut state = self.lock();
        loop {
            if let Some(rank) = state.departed.iter().position(|first| is_gone(*first, place)) {
                state.round(place, self.size).fail(Error::RankGone { rank });
            }
            let round = state.round(place, self.size);
            if let Some(failure) = &round.failure {
                return Err(failure.clone());
            }
            if let Some(result) = ready(round) {
                return Ok(result);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a round for a rank.
    pub(super) fn leave(&self, place: Place, rank: usize) {
        let mut state = self.lock();
        state.round(place, self.size).left[rank] = true;
        let ended = state.sweep(place);
        drop(state);
        self.changed.notify_all();
        // What it held is freed when the others can go on.
        drop(ended);
    }

    /// Ends all rounds from step `first` on for a rank, which has taken no place in them.
    pub(super) fn depart(&self, rank: usize, first: u64) {
        let mut state = self.lock();
        state.departed[rank] = Some(first);
        let open: Vec<Place> =
            state.rounds.range(Place { step: first, barrier: 0 }..).map(|(place, _)| *place).collect();
        let ended: Vec<_> = open.into_iter().map(|place| state.sweep(place)).collect();
        drop(state);
        self.changed.notify_all();
        drop(ended);
    }

    #[cfg(test)]
    pub(super) fn open_rounds(&self) -> usize {
        self.lock().rounds.len()
    }
}

fn is_gone(departed: Option<u64>, place: Place) -> bool {
    departed.is_some_and(|first| first <= place.step)
}

impl State {
    fn round(&mut self, place: Place, size: usize) -> &mut Round {
        self.rounds.entry(place).or_insert_with(|| Round::new(size))
    }

    /// Takes out a round that nobody will come back to.
    fn sweep(&mut self, place: Place) -> Option<Round> {
        let left = &self.rounds.get(&place)?.left;
        let done = left.iter().zip(&self.departed).all(|(left, departed)| *left || is_gone(*departed, place));
        if done { self.rounds.remove(&place) } else { None }
    }
}

impl Round {
    fn new(size: usize) -> Round {
        Round {
            contributions: vec![None; size],
            blocks: vec![None; size],
            output: None,
            shared: None,
            failure: None,
            left: vec![false; size],
        }
    }

    /// Ends the round for all ranks, if nothing has before. Says what has.
    pub(super) fn fail(&mut self, error: Error) -> Error {
        // The output stays: others may be writing their blocks.
        self.contributions.fill(None);
        self.failure.get_or_insert(error).clone()
    }

    pub(super) fn contribute(&mut self, rank: usize, contribution: Contribution) {
        if self.failure.is_none() {
            self.contributions[rank] = Some(contribution);
        }
    }

    /// The contributions of all ranks, once they are there.
    pub(super) fn contributions(&mut self) -> Option<Vec<Contribution>> {
        if self.contributions.iter().any(Option::is_none) {
            return None;
        }
        // Nobody else needs the part of an only rank, which then is free to change it in place.
        let only = self.contributions.len() == 1;
        let take = |c: &mut Option<Contribution>| if only { c.take() } else { c.clone() };
        Some(self.contributions.iter_mut().filter_map(take).collect())
    }

    /// Where to write blocks, if anywhere; the memory is made by the first rank that comes here.
    pub(super) fn output<C: Combine>(&mut self, combine: &C) -> Option<SharedPointer<u8>> {
        if self.output.is_none() {
            self.output = combine.output().map(|mut memory| {
                let address = SharedPointer(C::address(&mut memory));
                Output { memory: Box::new(memory), address }
            });
        }
        self.output.as_ref().map(|output| output.address)
    }

    pub(super) fn deliver(&mut self, rank: usize, block: Anything) {
        self.blocks[rank] = Some(block);
        if self.blocks.iter().all(Option::is_some) {
            // Nobody reads them any more, whenever the last rank leaves.
            self.contributions.fill(None);
        }
    }

    /// The outcome, once all blocks are there.
    pub(super) fn outcome<C: Combine>(&mut self) -> Option<Result<Outcome<C::Block, C::Output>>> {
        let blocks: Vec<Anything> = self.blocks.iter().cloned().collect::<Option<_>>()?;
        if let Some(output) = self.output.take() {
            self.shared = Some(Arc::from(output.memory));
        }
        let blocks = blocks.into_iter().map(typed::<C::Block>).collect::<Result<_>>();
        let output = self.shared.clone().map(typed::<C::Output>).transpose();
        Some(blocks.and_then(|blocks| Ok(Outcome { blocks, output: output? })))
    }
}

// Ranks that agree on their job and on the memory of their parts have parts of one type.
pub(super) fn typed<T: Send + Sync + 'static>(any: Anything) -> Result<Arc<T>> {
    any.downcast().map_err(|_| Error::Device("ranks of one group run on different kinds of devices".to_owned()))
}
