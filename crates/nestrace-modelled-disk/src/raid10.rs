//! Linux' software RAID 10 with two near copies: chunks lie on pairs of disks in turn, and both disks of a pair have
//! the same.
//!
//! A read goes to the disk of the pair with its head nearer (drivers/md/raid10.c, `read_balance`: the least distance to
//! the end of the last request that it was sent). A write is done when both have it. md's own time is left out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::parameters::{ParametersError, Raid10Parameters};
use crate::request::{Completion, DiskNs, Operation, Request};
use crate::spindle::Spindle;

/// Disks as one.
#[derive(Clone, Debug)]
pub struct Raid10 {
    members: Vec<Spindle>,
    /// Where the last request ended that each was sent, bytes.
    head_positions: Vec<u64>,
    chunk_bytes: u64,
    size_bytes: u64,
    /// Parts that are not done, and when the last of the others was.
    parts: BTreeMap<u64, (usize, DiskNs)>,
    done: BinaryHeap<Reverse<Completion>>,
}

impl Raid10 {
    /// One of `size_bytes`.
    ///
    /// # Errors
    /// A member cannot be made.
    pub fn new(
        parameters: &Raid10Parameters,
        size_bytes: u64,
        seed: u64,
    ) -> Result<Self, ParametersError> {
        let spindle = parameters.spindle()?;
        let chunk_bytes = parameters.chunk_kib << 10;
        let pairs = parameters.members as u64 / 2;
        let stripes = size_bytes.div_ceil(chunk_bytes * pairs);
        let member = |number: usize| {
            Spindle::new(
                &spindle,
                stripes * chunk_bytes,
                seed.wrapping_add(number as u64),
            )
        };
        Ok(Self {
            members: (0..parameters.members)
                .map(member)
                .collect::<Result<_, _>>()?,
            head_positions: vec![0; parameters.members],
            chunk_bytes,
            size_bytes,
            parts: BTreeMap::new(),
            done: BinaryHeap::new(),
        })
    }

    /// Takes a request in. Times do not go back.
    pub fn submit(&mut self, at: DiskNs, request: Request) {
        let mut n_parts = 0;
        match request.operation {
            Operation::Flush => {
                for member in &mut self.members {
                    member.submit(at, request);
                }
                n_parts = self.members.len();
            }
            Operation::Read | Operation::Write | Operation::Discard => {
                let end = request.offset_bytes.saturating_add(request.length_bytes);
                let end = end.min(self.size_bytes);
                // Something of it lies on the disk, as for a single one.
                let mut from = request.offset_bytes.min(self.size_bytes.saturating_sub(1));
                loop {
                    let length = (self.chunk_bytes - from % self.chunk_bytes)
                        .min(end.saturating_sub(from).max(1));
                    n_parts += self.submit_part(at, &request, from, length);
                    from += length;
                    if from >= end {
                        break;
                    }
                }
            }
        }
        self.parts.insert(request.id, (n_parts, DiskNs(0)));
    }

    /// Sends what lies in one chunk to its disks; how many they are.
    fn submit_part(&mut self, at: DiskNs, request: &Request, from: u64, length: u64) -> usize {
        let pairs = self.members.len() as u64 / 2;
        let chunk = from / self.chunk_bytes;
        let first = (chunk % pairs) as usize * 2;
        let offset = chunk / pairs * self.chunk_bytes + from % self.chunk_bytes;
        let distance = |member: usize| self.head_positions[member].abs_diff(offset);
        let to = match request.operation {
            Operation::Read if distance(first + 1) < distance(first) => first + 1..first + 2,
            Operation::Read => first..first + 1,
            _ => first..first + 2,
        };
        let part = Request {
            offset_bytes: offset,
            length_bytes: length,
            ..*request
        };
        for member in to.clone() {
            self.members[member].submit(at, part);
            self.head_positions[member] = offset + length;
        }
        to.len()
    }

    /// When something has to be decided, if nothing else comes.
    #[must_use]
    pub fn next_decision(&self) -> Option<DiskNs> {
        let members = self.members.iter();
        members.filter_map(Spindle::next_decision).min()
    }

    /// Decides what is due at `at`.
    pub fn decide(&mut self, at: DiskNs) {
        let mut ended = Vec::new();
        for member in &mut self.members {
            if member.next_decision().is_some_and(|due| due <= at) {
                member.decide(at);
                member.take_completions(DiskNs::MAX, &mut ended);
            }
        }
        for part in ended {
            if let Some((left, last)) = self.parts.get_mut(&part.id) {
                *left = left.saturating_sub(1);
                *last = (*last).max(part.at);
                if *left == 0 {
                    let at = *last;
                    self.parts.remove(&part.id);
                    self.done.push(Reverse(Completion { at, id: part.id }));
                }
            }
        }
    }

    /// When the next completion that is known comes.
    #[must_use]
    pub fn next_completion(&self) -> Option<DiskNs> {
        self.done.peek().map(|first| first.0.at)
    }

    /// Takes completions up to `until`, in order of time.
    pub fn take_completions(&mut self, until: DiskNs, into: &mut Vec<Completion>) {
        while self.next_completion().is_some_and(|at| at <= until) {
            into.extend(self.done.pop().map(|first| first.0));
        }
    }
}
