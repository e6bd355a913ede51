//! Ranks that are threads of one process, merging in shared memory.
//!
//! Every rank sees what all have brought, and makes its own block of the result, so the work is split as well as the
//! memory traffic. A group does not know what is combined: parts are of any type, which the ranks agree on together with
//! the job.

use super::round::{Contribution, Group, Place, typed};
use super::{Combine, Counters, Outcome, Seat};
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One rank of a group of threads.
///
/// Every rank takes part in the same collectives in the same order. The place in that order is taken by the phase before a
/// collective (pass S, a lookup, the statistics and the backward pass of an operator), so that a rank on which the phase
/// fails or panics, or whose result is dropped, ends that collective with an error on all ranks instead of leaving them
/// waiting. The next collective is not affected.
///
/// Each rank needs a thread of its own, since it waits for the others. The thread must not be one of a rayon pool, unless the
/// group has one rank only: such a thread takes up other tasks of its pool while it waits for work of another pool, and if
/// one of them is a rank, both wait for each other. Every phase and every wait there is [`Error::RankInPool`] on all ranks.
///
/// A rank that is dropped ends all collectives that it has not taken a place in with [`Error::RankGone`].
#[derive(Debug)]
pub struct Local {
    member: Arc<Member>,
}

impl Local {
    /// `size` connected ranks, in order.
    pub fn group(size: usize) -> Vec<Local> {
        let group = Arc::new(Group::new(size));
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

    /// Ends the next collective with [`Error::RankGone`] on all ranks: for a rank that cannot begin the phase before it, say
    /// because it has no data, but will take part in later ones.
    pub fn withdraw(&self) {
        drop(self.turn());
    }

    /// Another handle of the same rank, for work that outlives the borrow.
    pub(crate) fn handle(&self) -> Local {
        Local { member: Arc::clone(&self.member) }
    }

    /// Takes this rank's place in the next collective, before work that may fail.
    pub(crate) fn turn(&self) -> Turn {
        let step = self.member.next.fetch_add(1, Ordering::Relaxed);
        Turn { member: Arc::clone(&self.member), place: Place { step, barrier: 0 }, open: true }
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

impl Member {
    /// Whether the rank may wait for others on this thread.
    fn check_thread(&self) -> Result<()> {
        let alone = self.group.size == 1;
        if alone || rayon::current_thread_index().is_none() { Ok(()) } else { Err(Error::RankInPool) }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.depart(self.rank, self.next.load(Ordering::Relaxed));
    }
}

/// A rank's place in a collective. All ranks wait for it, so one that is dropped, also by a panic, ends the collective.
#[must_use]
pub(crate) struct Turn {
    member: Arc<Member>,
    place: Place,
    /// Whether the rank is still part of it.
    open: bool,
}

impl Turn {
    /// Does what has to be done before the collective. Its error is that of the collective on all ranks.
    pub(crate) fn after<T>(self, work: impl FnOnce() -> Result<T>) -> Result<(Turn, T)> {
        match self.member.check_thread().and_then(|()| work()) {
            Ok(result) => Ok((self, result)),
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Hands over this rank's part, of so many bytes; does not wait. `agreement` is the job in words; it must be the same
    /// on all ranks, and tell the memory and the form of the part.
    pub(crate) fn start<T: Send + Sync + 'static>(self, agreement: &str, part: T, bytes: usize) -> Pending {
        let Member { group, rank, launches, bytes: sent, .. } = &*self.member;
        launches.fetch_add(1, Ordering::Relaxed);
        sent.fetch_add(bytes as u64, Ordering::Relaxed);
        let contribution = Contribution { agreement: agreement.to_owned(), part: Arc::new(part) };
        group.change(self.place, |round| round.contribute(*rank, contribution));
        Pending { turn: self }
    }

    /// Ends the collective. Says what ended it first.
    fn fail(mut self, error: Error) -> Error {
        let first = self.member.group.change(self.place, |round| round.fail(error));
        self.leave();
        first
    }

    fn leave(&mut self) {
        self.open = false;
        self.member.group.leave(self.place, self.member.rank);
    }

    fn complete<C: Combine>(&self, combine: &C) -> Result<Outcome<C::Block, C::Output>> {
        let Member { group, rank, .. } = &*self.member;
        let contributions = group.wait(self.place, |round| round.contributions())?;
        let expected = &contributions[0].agreement;
        if let Some((rank, other)) = contributions.iter().enumerate().find(|(_, c)| c.agreement != *expected) {
            return Err(Error::Disagreement { rank, found: other.agreement.clone(), expected: expected.clone() });
        }
        let parts = contributions.into_iter().map(|c| typed::<C::Part>(c.part)).collect::<Result<_>>()?;
        let seat = Seat { rank: *rank, size: group.size };
        let output = group.change(self.place, |round| round.output(combine));
        let block = combine.block(seat, parts, output)?;
        group.change(self.place, |round| round.deliver(*rank, Arc::new(block)));
        group.wait(self.place, |round| round.outcome::<C>())?
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.open {
            let rank = self.member.rank;
            self.member.group.change(self.place, |round| round.fail(Error::RankGone { rank }));
            self.leave();
        }
    }
}

/// A collective under way.
#[must_use]
pub(crate) struct Pending {
    turn: Turn,
}

/// The barrier behind another one of the same step, in which no place is taken yet.
pub(crate) struct Next {
    member: Arc<Member>,
    place: Place,
}

impl Next {
    /// Takes this rank's place in it.
    pub(crate) fn turn(self) -> Turn {
        Turn { member: self.member, place: self.place, open: true }
    }
}

impl Pending {
    /// The barrier behind this one. It belongs to the same step, whatever steps were begun meanwhile.
    pub(crate) fn next(&self) -> Next {
        let Place { step, barrier } = self.turn.place;
        Next { member: Arc::clone(&self.turn.member), place: Place { step, barrier: barrier + 1 } }
    }

    /// Waits for all ranks, makes this rank's block, and waits for the other blocks.
    pub(crate) fn wait<C: Combine>(self, combine: &C) -> Result<Outcome<C::Block, C::Output>> {
        let Pending { mut turn } = self;
        turn.member.barriers.fetch_add(1, Ordering::Relaxed);
        match turn.member.check_thread().and_then(|()| turn.complete(combine)) {
            Ok(outcome) => {
                turn.leave();
                Ok(outcome)
            }
            Err(error) => Err(turn.fail(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::SharedPointer;

    /// Every rank brings a number and gets the sum; a negative one cannot be summed by the rank that brought it.
    struct Sum;

    impl Combine for Sum {
        type Part = i32;
        type Block = i32;
        type Output = ();

        fn output(&self) -> Option<()> {
            None
        }

        fn address((): &mut ()) -> *mut u8 {
            std::ptr::null_mut()
        }

        fn block(&self, seat: Seat, parts: Vec<Arc<i32>>, _: Option<SharedPointer<u8>>) -> Result<i32> {
            if *parts[seat.rank] < 0 {
                return Err(broken());
            }
            Ok(parts.iter().map(|part| **part).sum())
        }
    }

    fn broken() -> Error {
        Error::Device("broken".to_owned())
    }

    /// What happens to a rank in a step.
    #[derive(Clone, Copy)]
    enum Step {
        Brings(i32),
        Fails,
        Panics,
        DropsItsPart,
        Withdraws,
    }

    fn step(comm: &Local, step: Step) -> Result<i32> {
        let work = || match step {
            Step::Brings(number) => Ok(number),
            Step::Panics => std::panic::panic_any("on purpose"),
            _ => Err(broken()),
        };
        match step {
            Step::DropsItsPart => drop(comm.turn().start("sum", 1, 4)),
            Step::Withdraws => comm.withdraw(),
            _ => {
                let (turn, number) = comm.turn().after(work)?;
                return turn.start("sum", number, 4).wait(&Sum).map(|outcome| *outcome.blocks[0]);
            }
        }
        Err(Error::RankGone { rank: comm.rank() })
    }

    /// Steps of a group whose ranks outlive them, and the rounds that are open afterwards.
    fn run(steps: [[Step; 3]; 2]) -> ([Vec<Result<i32>>; 2], usize) {
        let group = Local::group(3);
        let results = steps.map(|steps| {
            std::thread::scope(|scope| {
                let one = |(comm, wanted)| scope.spawn(move || step(comm, wanted));
                let threads: Vec<_> = group.iter().zip(steps).map(one).collect();
                let gone = |rank| Err(Error::RankGone { rank });
                threads.into_iter().enumerate().map(|(rank, t)| t.join().unwrap_or_else(|_| gone(rank))).collect()
            })
        });
        (results, group[0].member.group.open_rounds())
    }

    #[test]
    fn a_rank_that_fails_ends_the_step_for_all_and_the_next_one_works() {
        use Step::{Brings, DropsItsPart, Fails, Panics, Withdraws};
        let good = [Brings(1), Brings(2), Brings(3)];
        assert_eq!(run([good, good]), ([vec![Ok(6); 3], vec![Ok(6); 3]], 0));
        let gone = Error::RankGone { rank: 1 };
        for (odd, error) in [
            (Fails, broken()),
            (Brings(-1), broken()),
            (Panics, gone.clone()),
            (DropsItsPart, gone.clone()),
            (Withdraws, gone),
        ] {
            let (results, open) = run([[Brings(1), odd, Brings(3)], good]);
            assert_eq!(results, [vec![Err(error); 3], vec![Ok(6); 3]]);
            assert_eq!(open, 0);
        }
    }

    #[test]
    fn rounds_end_when_a_rank_has_left() {
        let mut group = Local::group(3);
        let last = group.pop();
        let shared = Arc::clone(&group[0].member.group);
        let start = || group.iter().map(|comm| comm.turn().start("sum", 1, 4)).collect::<Vec<_>>();
        let before = start();
        drop(last);
        for pending in before.into_iter().chain(start()) {
            assert_eq!(pending.wait(&Sum).err(), Some(Error::RankGone { rank: 2 }));
        }
        assert_eq!(shared.open_rounds(), 0);
    }
}
