//! Learns the constants of the guest's memory from the requests and file I/Os of a session themselves.

use super::{DirectLinks, File, Identity, Read, Request, fits, index_of, near_band, offer_file};
use crate::link::clock::Pairing;
use crate::link::guest_memory::{self, GuestMemory, LEARNED};
use crate::model::pointer::PointerMap;

/// With so many requests it is given up.
const LAST_LOOK: usize = 1 << 14;
/// A request whose pages have no constant is offered all the same this long after its C.
const RECOGNIZE_NS: u64 = 300_000_000;
/// Requests that are asked for a constant at a time.
const MAX_VOTERS: usize = 1 << 10;
/// File I/Os with the place of a request that are looked through while its memory is not known.
const MAX_ALIKE: usize = 512;

impl DirectLinks {
    /// Learns where the guest's memory is, and decides what the clock pairs by.
    pub(super) fn look(&mut self, read: Read, pairing: &mut Pairing, memory: &mut GuestMemory) {
        let enough = self.requests.len().min(self.files.len()) >= self.look_at;
        if !(enough || read.end || self.requests.len().max(self.files.len()) >= LAST_LOOK) {
            return;
        }
        self.look_at = self.look_at.saturating_mul(2);
        if !memory.is_learned() {
            self.learn(pairing, memory);
        }
        if memory.is_learned() {
            self.identity = Identity::Memory;
        } else if read.end || self.requests.len().max(self.files.len()) >= LAST_LOOK {
            self.identity = Identity::Place;
        } else {
            return;
        }
        let identity = self.identity;
        for file in &self.files {
            offer_file(identity, file, pairing);
        }
    }

    /// Learns from requests and file I/Os that have the same place and no other partner within the clock's bound.
    fn learn(&self, pairing: &Pairing, memory: &mut GuestMemory) {
        let mut by_place: PointerMap<(u64, u64), Vec<&File>> = PointerMap::default();
        for file in &self.files {
            if let (Some(class), Some(place), true) =
                (file.class, file.place, file.served.buffer != 0)
            {
                by_place
                    .entry((class as u64, place.0))
                    .or_default()
                    .push(file);
            }
        }
        let mut alike: PointerMap<(u64, u64), u32> = PointerMap::default();
        for (request, _) in &self.requests {
            *alike
                .entry((request.class as u64, request.offset))
                .or_default() += 1;
        }
        for (request, _) in self
            .requests
            .iter()
            .filter(|(request, _)| request.page != 0)
        {
            let key = (request.class as u64, request.offset);
            let band = near_band(pairing, request.completed_ns);
            let files = by_place.get(&key).into_iter().flatten().take(MAX_ALIKE);
            let mut files = files.filter(|file| band.is_none_or(|band| fits(request, file, band)));
            let alone = band.is_some() || alike.get(&key) == Some(&1);
            if let (Some(file), None, true) = (files.next(), files.next(), alone) {
                memory.learn(request.page, file.served.buffer);
            }
        }
        if !memory.is_learned() {
            let asked = self.requests.iter().map(|(request, _)| request);
            let asked = asked.filter(|request| request.page != 0).take(MAX_VOTERS);
            self.vote(asked, pairing, memory);
        }
    }

    /// Learns the constant that most of these requests have with a file I/O within their time.
    fn vote<'a>(
        &self,
        asked: impl Iterator<Item = &'a Request>,
        pairing: &Pairing,
        memory: &mut GuestMemory,
    ) {
        let mut votes: PointerMap<u64, Vec<(u64, u64)>> = PointerMap::default();
        for request in asked {
            let mut seen: Vec<u64> = Vec::new();
            for file in self.candidates(request, pairing).take(MAX_ALIKE) {
                let buffer = file.served.buffer;
                let constant = guest_memory::constant(request.page, buffer);
                let alike = file
                    .place
                    .map_or(file.served.span.bytes == request.bytes, |place| {
                        place.0 == request.offset
                    });
                if alike && !memory.holds(buffer) && !seen.contains(&constant) {
                    seen.push(constant);
                    votes
                        .entry(constant)
                        .or_default()
                        .push((request.page, buffer));
                }
            }
        }
        let mut by_votes: Vec<&Vec<(u64, u64)>> = votes.values().collect();
        by_votes.sort_by_key(|pairs| std::cmp::Reverse(pairs.len()));
        let second = by_votes.get(1).map_or(0, |pairs| pairs.len());
        if let Some(best) = by_votes.first()
            && best.len() * 10 > second * 11
            && best.len() as u64 >= LEARNED
        {
            best.iter()
                .for_each(|(page, buffer)| memory.learn(*page, *buffer));
        }
    }

    /// File I/Os that may be a request's, as far as the clock and the operation tell.
    fn candidates<'a>(
        &'a self,
        request: &'a Request,
        pairing: &Pairing,
    ) -> impl Iterator<Item = &'a File> {
        let band = near_band(pairing, request.completed_ns);
        let (from, to) = band.map_or((0, 0), |band| self.ended_within(request, band));
        self.files.range(from..to).filter(move |file| {
            file.class == Some(request.class)
                && !file.of_table
                && file.served.buffer != 0
                && band.is_some_and(|band| fits(request, file, band))
        })
    }

    /// Requests whose pages have no constant yet: a constant that is known may hold for more pages, and several of them
    /// teach another one.
    pub(super) fn recognize(
        &mut self,
        read: Read,
        pairing: &mut Pairing,
        memory: &mut GuestMemory,
    ) {
        let waiting = std::mem::take(&mut self.strangers);
        let asked: Vec<(u64, Request)> = waiting
            .into_iter()
            .filter_map(|number| {
                let index = index_of(number, self.first)?;
                let (request, _) = self.requests.get(index)?;
                Some((number, *request))
            })
            .collect();
        if asked.len() as u64 >= LEARNED {
            let unknown = asked.iter().map(|(_, request)| request);
            self.vote(unknown.take(MAX_VOTERS), pairing, memory);
        }
        for (number, request) in asked {
            let near: Vec<u64> = memory.buffers_of(request.page).collect();
            let found = self
                .candidates(&request, pairing)
                .map(|file| file.served.buffer)
                .find(|buffer| near.contains(buffer));
            if let Some(buffer) = found {
                memory.learn(request.page, buffer);
            }
            let waited = request.completed_ns.saturating_add(RECOGNIZE_NS) <= read.guest_ns;
            if memory.knows(request.page) || waited || read.end {
                self.offer_one(number, pairing, memory);
            } else {
                self.strangers.push(number);
            }
        }
    }
}
