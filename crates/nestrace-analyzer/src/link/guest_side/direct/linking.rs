//! The file I/Os of a request, once the clock is known at its time, and its part of the tree.

use std::rc::Rc;

use super::{Decided, DirectLinks, File, Identity, Request, State, host_times, index_of};
use crate::link::chains::Link;
use crate::link::clock::{Band, OpClass, Paired, Pairing};
use crate::link::guest_memory::{Agreement, GuestMemory};
use crate::model::actor::Actors;
use crate::model::clocks::HostBound;
use crate::model::ids::GuestDiskId;
use crate::model::span::{Below, FileIoFacts, Layer, Served, Span, What};
use crate::result::unlinked::UnlinkedReason;

/// File I/Os within a request's time that are looked through.
const MAX_SCANNED: usize = 1 << 14;
/// Syncs that are listed as what one request waited for.
const MAX_SYNCS: usize = 64;
/// QEMU pads what is smaller than a block.
const BLOCK: u64 = 4096;

/// Where and when a request's file I/O is looked for.
#[derive(Clone, Copy, Debug)]
struct Window {
    disk: GuestDiskId,
    band: Band,
    /// The earliest D and the latest C on the host's clock.
    times: (HostBound, HostBound),
    /// Places of the file I/Os that ended then.
    files: (usize, usize),
}

impl DirectLinks {
    pub(super) fn link(
        &mut self,
        request: &Request,
        state: State,
        pairing: &Pairing,
        memory: &GuestMemory,
    ) -> Decided {
        let (link, agreement) = self.link_or_reason(request, state, pairing, memory);
        Decided {
            serial: request.serial,
            device: request.device,
            link,
            agreement,
        }
    }

    fn link_or_reason(
        &mut self,
        request: &Request,
        state: State,
        pairing: &Pairing,
        memory: &GuestMemory,
    ) -> (Result<Link, UnlinkedReason>, Option<Agreement>) {
        let disk = match pairing.disk_of(request.device) {
            Ok(Some(disk)) => GuestDiskId(disk),
            Ok(None) => return (Err(UnlinkedReason::Ambiguous), None),
            Err(reason) => return (Err(reason.into()), None),
        };
        let paired = match state {
            State::Paired(paired) => Some(paired),
            _ => None,
        };
        let band = paired.map(|paired| paired.band);
        let Some(band) = band.or_else(|| pairing.band(request.completed_ns)) else {
            return (Err(UnlinkedReason::OutsideClockBound), None);
        };
        let window = Window {
            disk,
            band,
            times: host_times(request, band),
            files: self.ended_within(request, band),
        };
        if window.files.1 - window.files.0 > MAX_SCANNED {
            return (Err(UnlinkedReason::Ambiguous), None);
        }
        let found = match request.class {
            OpClass::Flush => Ok((self.syncs(&window), None)),
            _ => self.data(request, paired, &window, memory),
        };
        match found {
            Ok((mut files, agreement)) => {
                if request.class == OpClass::Write
                    && self
                        .disks
                        .get(disk.0 as usize)
                        .is_some_and(|it| it.writes_through)
                {
                    let synced = self.syncs_after(&files, &window);
                    files.extend(synced);
                }
                (Ok(self.tree(request, &files, &window)), agreement)
            }
            Err(reason) => (Err(reason), None),
        }
    }

    /// The file I/Os that move a request's data.
    fn data(
        &mut self,
        request: &Request,
        paired: Option<Paired>,
        window: &Window,
        memory: &GuestMemory,
    ) -> Result<(Vec<usize>, Option<Agreement>), UnlinkedReason> {
        let head = paired.and_then(|paired| {
            let number = *self.file_numbers.get(&paired.host)?;
            index_of(number, self.first_file).filter(|index| *index < self.files.len())
        });
        let mut agreement = None;
        let mut pieces: Vec<usize> = Vec::new();
        let mut covered: Vec<(u64, u64)> = Vec::new();
        if let Some(index) = head {
            let file = &self.files[index];
            let place = file.place.unwrap_or((request.offset, request.end()));
            let contradicts = self.identity == Identity::Memory && !holds(place, request.offset);
            if contradicts && self.is_raw(window.disk) {
                return Err(UnlinkedReason::NoMatch);
            }
            agreement = self.agreement(request, file, contradicts, memory);
            pieces.push(index);
            covered.push(cut(place, request));
        }
        let mut unplaced = false;
        for index in window.files.0..window.files.1 {
            let file = &self.files[index];
            let within = file.disk == window.disk
                && file.start_ns().bound() >= window.times.0
                && file.class == Some(request.class)
                && !file.of_table;
            if !within || pieces.contains(&index) {
                continue;
            }
            let Some(place) = file.place else {
                unplaced |= file.n_links == 0;
                continue;
            };
            let (from, to) = cut(place, request);
            if from >= to || covered.iter().any(|it| it.0 <= from && to <= it.1) {
                // Another one's, at the same place.
                if from < to && head.is_none() && file.is_free(from, to) {
                    return Err(UnlinkedReason::Ambiguous);
                }
                continue;
            }
            if !file.is_free(from, to) || self.is_of_other_memory(request, file, place, memory) {
                continue;
            }
            pieces.push(index);
            covered.push((from, to));
        }
        if pieces.is_empty() {
            let is_discard = request.class == OpClass::Discard;
            if !is_discard && (unplaced || self.is_raw(window.disk)) {
                return Err(UnlinkedReason::NoMatch);
            }
        }
        for (index, range) in pieces.iter().zip(&covered) {
            if let Some(file) = self.files.get_mut(*index) {
                file.taken.push(*range);
            }
        }
        Ok((pieces, agreement))
    }

    /// What memory and place say of each other.
    fn agreement(
        &self,
        request: &Request,
        file: &File,
        contradicts: bool,
        memory: &GuestMemory,
    ) -> Option<Agreement> {
        let mapped = file
            .served
            .file_io
            .is_some_and(|facts| facts.place.is_some());
        Some(match self.identity {
            Identity::Memory if contradicts => Agreement::Contradicted,
            Identity::Memory if mapped => Agreement::Agreed,
            Identity::Place if memory.is_learned() && memory.knows(request.page) => {
                match memory.buffer_of(request.page) == Some(file.served.buffer) {
                    true => Agreement::Agreed,
                    false => Agreement::Contradicted,
                }
            }
            _ => Agreement::Unknown,
        })
    }

    /// A file I/O that begins with the request moves the buffer of another.
    fn is_of_other_memory(
        &self,
        request: &Request,
        file: &File,
        place: (u64, u64),
        memory: &GuestMemory,
    ) -> bool {
        let buffer = file.served.buffer;
        place.0 == request.offset
            && request.page != 0
            && memory.knows(request.page)
            && memory.holds(buffer)
            && memory.buffer_of(request.page) != Some(buffer)
    }

    fn is_raw(&self, disk: GuestDiskId) -> bool {
        self.disks.get(disk.0 as usize).is_some_and(|disk| disk.raw)
    }

    /// The syncs that a flush waited for: those that ended in its time. QEMU runs one flush of a node at a time, and the others
    /// wait for it; where nothing was written since the last one, there is none.
    fn syncs(&self, window: &Window) -> Vec<usize> {
        let syncs = (window.files.0..window.files.1).filter(|index| {
            let file = &self.files[*index];
            file.disk == window.disk && file.class == Some(OpClass::Flush)
        });
        let mut last: Vec<usize> = syncs.rev().take(MAX_SYNCS).collect();
        last.reverse();
        last
    }

    /// The syncs after the data of a write that must be on the device.
    fn syncs_after(&self, data: &[usize], window: &Window) -> Vec<usize> {
        let ends = data.iter().map(|index| self.files[*index].end_ns());
        let Some(data_ns) = ends.max() else {
            return Vec::new();
        };
        let syncs = (window.files.0..window.files.1).filter(|index| {
            let file = &self.files[*index];
            file.disk == window.disk
                && file.class == Some(OpClass::Flush)
                && file.end_ns() > data_ns
        });
        syncs.take(MAX_SYNCS).collect()
    }

    /// The request's part of the tree below it.
    fn tree(&mut self, request: &Request, files: &[usize], window: &Window) -> Link {
        let mut children: Vec<Span> = Vec::new();
        let (mut lo_ns, mut hi_ns) = (window.band.lo_ns, window.band.hi_ns);
        let mut ambiguous = false;
        for index in files {
            let Some(file) = self.files.get_mut(*index) else {
                continue;
            };
            file.n_links += 1;
            let mut span = file.served.span.clone();
            let beyond = |place: (u64, u64)| {
                place.0.saturating_add(BLOCK) <= request.offset
                    || place.1 >= request.end().saturating_add(BLOCK)
            };
            let is_sync = file.class == Some(OpClass::Flush);
            span.shared = is_sync || file.place.is_some_and(beyond);
            ambiguous |= file.served.ambiguous;
            if !span.shared {
                let (start_ns, end_ns) = (file.start_ns().bound(), file.end_ns().bound());
                hi_ns = hi_ns.min(request.completed_ns.minus_bound(end_ns));
                lo_ns = lo_ns.max(request.issued_ns.minus_bound(start_ns));
            }
            children.push(span);
        }
        let offset_ns = if lo_ns <= hi_ns {
            Band { lo_ns, hi_ns }.middle_ns()
        } else {
            window.band.middle_ns()
        };
        let number = self
            .disks
            .get(window.disk.0 as usize)
            .map_or(u32::MAX, |disk| disk.number);
        let starts = children.iter().map(|child| child.start_ns);
        let ends = children.iter().map(|child| child.end_ns);
        let (start_ns, end_ns) = (starts.min().unwrap_or(0), ends.max().unwrap_or(0));
        let served = Served {
            serial: request.serial,
            disk: number,
            span: Span {
                layer: Layer::Qemu,
                start_ns,
                end_ns,
                offset: request.offset,
                bytes: request.bytes,
                what: What::Other,
                shared: false,
                place: number,
                below: Below::Nothing,
                actors: Actors::default(),
                children,
            },
            done_ns: end_ns,
            failed: false,
            handed_back: false,
            queue: 0,
            offset_known: true,
            merged: false,
            continues: None,
            ambiguous,
            buffer: 0,
            file_io: Some(FileIoFacts {
                place: None,
                of_table: false,
            }),
        };
        Link {
            served: Rc::new(served),
            offset_ns,
            bound_ns: window.band.bound_ns(),
            stretched: false,
        }
    }
}

/// The part of a range that a request asked for.
fn cut(place: (u64, u64), request: &Request) -> (u64, u64) {
    (place.0.max(request.offset), place.1.min(request.end()))
}

const fn holds(place: (u64, u64), offset: u64) -> bool {
    place.0 <= offset && offset < place.1
}
