//! The clock over the whole recording: pieces, each with a band of its own.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::band_history::BandHistory;
use super::corridor::{Corridor, Window, exchange};
use super::ended_pieces::EndedPieces;
use super::request::{Band, GuestRequest, HostRequest, hull};
use crate::model::clocks::GuestNs;

/// Fastest change of the offset between two uncorrected clocks, parts per million: as much as NTP takes a
/// clock to be wrong by.
pub(crate) const UNCORRECTED_PPM: u32 = 500;
/// More than any two kernels make of their clocks, parts per million.
const MAX_RHO_PPM: u32 = 300_000;
/// Pieces whose bands are kept for requests that were in flight when they ended.
const KEPT: usize = 16;

/// A stretch in which the guest's clock runs on.
#[derive(Debug)]
pub(super) struct Piece {
    /// Guest's time from which on no piece before this one is possible.
    from_ns: GuestNs,
    /// Guest's time up to which this piece is not possible.
    after_ns: GuestNs,
    /// Where its first exchange is looked for.
    seed: Corridor,
    /// Where the next exchange is looked for, besides inside what is proven; gone with it.
    hint: Option<Corridor>,
    /// What the exchanges prove.
    proven: Corridor,
    /// The same without those after which nothing has shown yet that the clock went on: a request that was
    /// in flight when the guest was paused can fit both sides of the pause, and is true of one only.
    vetted: Corridor,
    /// Exchanges that are proven, but not vetted, by C.
    fresh: VecDeque<(GuestRequest, HostRequest)>,
    /// The clock went on up to here: D of its latest exchange.
    went_on_ns: GuestNs,
    /// C of the last that was vetted.
    vetted_ns: GuestNs,
    /// What those prove that have been reported: where a doubt goes back to.
    reported: Corridor,
    exchanges: u64,
    /// D of its last request that was reported.
    last_ns: GuestNs,
    pub history: BandHistory,
}

impl Piece {
    /// Takes an exchange. One that was issued after others had ended shows that they lie in this piece.
    fn accept(&mut self, guest: &GuestRequest, host: &HostRequest) {
        self.proven.accept(guest, host);
        let earlier = |(other, _): &(GuestRequest, _)| other.completed_ns <= guest.completed_ns;
        if self.fresh.back().is_none_or(earlier) {
            self.fresh.push_back((*guest, *host));
        } else {
            let place = self.fresh.partition_point(earlier);
            self.fresh.insert(place, (*guest, *host));
        }
        self.vet(guest.issued_ns);
        self.hint = None;
        self.exchanges += 1;
    }

    /// The clock has gone on up to `issued_ns`.
    fn vet(&mut self, issued_ns: GuestNs) {
        self.went_on_ns = self.went_on_ns.max(issued_ns);
        while let Some((guest, host)) = self.fresh.front()
            && guest.completed_ns < self.went_on_ns
        {
            self.vetted_ns = self.vetted_ns.max(guest.completed_ns);
            self.vetted.accept(guest, host);
            self.fresh.pop_front();
        }
    }

    /// The band as it is reported.
    fn vetted_band(&self, guest_ns: GuestNs) -> Option<Band> {
        self.vetted.at(guest_ns).or_else(|| self.seed.at(guest_ns))
    }

    pub(super) fn band(&self, guest_ns: GuestNs) -> Option<Band> {
        let proven = self
            .proven
            .at(guest_ns)
            .or_else(|| self.seed.at(guest_ns))?;
        let hint = self.hint.as_ref().and_then(|hint| hint.at(guest_ns));
        let both = hint.map(|hint| Band {
            lo_ns: proven.lo_ns.max(hint.lo_ns),
            hi_ns: proven.hi_ns.min(hint.hi_ns),
        });
        both.filter(|band| band.lo_ns <= band.hi_ns)
            .or(Some(proven))
    }

    /// The host requests that a guest request can be by this piece's clock.
    pub(super) fn window(&self, guest: &GuestRequest) -> Window {
        let known = if self.proven.is_empty() {
            &self.seed
        } else {
            &self.proven
        };
        let window = known.window(guest);
        let hint = self.hint.as_ref();
        hint.map_or(window, |hint| window.and(hint.window(guest)))
    }

    fn admits(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        self.window(guest).holds(host)
    }

    /// D of its last request that was reported.
    pub(super) const fn last_ns(&self) -> GuestNs {
        self.last_ns
    }
}

/// All pieces so far.
#[derive(Debug)]
pub(super) struct Timeline {
    rho_ppm: u64,
    pieces: VecDeque<Piece>,
    /// There were others before these.
    is_cut: bool,
    /// Those that are over and whose bands are not needed any more.
    over: EndedPieces,
    exchanges: u64,
}

impl Timeline {
    /// `rho_ppm`: fastest change of the offset against the host's clock; 0 for [`UNCORRECTED_PPM`].
    pub(super) fn new(rho_ppm: u32) -> Self {
        let rho_ppm = match rho_ppm {
            0 => UNCORRECTED_PPM,
            ppm => ppm.min(MAX_RHO_PPM),
        };
        let rho_ppm = u64::from(rho_ppm);
        Self {
            // The band lies over the guest's time, which runs up to ρ slower than the host's.
            rho_ppm: (rho_ppm * 1_000_000).div_ceil(1_000_000 - rho_ppm),
            pieces: VecDeque::new(),
            is_cut: false,
            over: EndedPieces::default(),
            exchanges: 0,
        }
    }

    pub(super) const fn rho_ppm(&self) -> u64 {
        self.rho_ppm
    }

    pub(super) const fn exchanges(&self) -> u64 {
        self.exchanges
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Begins a piece; `seed` holds until its exchanges say better. The step was after `after_ns` and
    /// at `from_ns` at the latest (guest's clock).
    pub(super) fn begin(&mut self, after_ns: GuestNs, from_ns: GuestNs, seed: Corridor) {
        // A piece without any exchange was a mistake.
        if self.pieces.back().is_some_and(|piece| piece.exchanges == 0) {
            self.pieces.pop_back();
        }
        let first = self.pieces.is_empty();
        self.pieces.push_back(Piece {
            from_ns: if first { GuestNs::default() } else { from_ns },
            after_ns: if first {
                GuestNs::default()
            } else {
                after_ns.min(from_ns)
            },
            seed,
            hint: None,
            proven: Corridor::new(self.rho_ppm),
            vetted: Corridor::new(self.rho_ppm),
            fresh: VecDeque::new(),
            went_on_ns: GuestNs::default(),
            vetted_ns: GuestNs::default(),
            reported: Corridor::new(self.rho_ppm),
            exchanges: 0,
            last_ns: GuestNs::default(),
            history: BandHistory::default(),
        });
        if self.pieces.len() > KEPT
            && let Some(piece) = self.pieces.pop_front()
        {
            self.over.add(piece.history);
            self.is_cut = true;
        }
    }

    /// The pieces that a time of the guest's clock can lie in: one, or two around a step; none where it can lie before
    /// those that are kept.
    fn at(&self, guest_ns: GuestNs) -> RangeInclusive<usize> {
        if self.pieces.len() == 1 {
            return 0..=0;
        }
        let possible = |piece: &Piece| piece.after_ns <= guest_ns;
        let last = self.pieces.iter().rposition(possible).unwrap_or(0);
        let sure = self
            .pieces
            .get(last)
            .is_none_or(|piece| piece.from_ns <= guest_ns);
        match last {
            _ if sure => last..=last,
            0 if self.is_cut => RangeInclusive::new(1, 0),
            _ => last.saturating_sub(1)..=last,
        }
    }

    /// What holds at a time of the guest's clock. Around a step: before it or after it.
    pub(super) fn band(&self, guest_ns: GuestNs) -> Option<Band> {
        if let (Some(piece), 1) = (self.pieces.front(), self.pieces.len()) {
            return piece.band(guest_ns);
        }
        let bands = self
            .at(guest_ns)
            .filter_map(|i| self.pieces.get(i)?.band(guest_ns));
        bands.reduce(hull)
    }

    /// The piece that the whole request lies in, if that is certain.
    fn only_piece(&self, guest: &GuestRequest) -> Option<usize> {
        if self.pieces.len() == 1 {
            return Some(0);
        }
        let (issued, completed) = (self.at(guest.issued_ns), self.at(guest.completed_ns));
        let same = issued == completed && issued.start() == issued.end();
        same.then_some(*issued.start())
    }

    /// Which host requests can be inside a guest request, where one window says so; `None` around a step.
    pub(super) fn window(&self, guest: &GuestRequest) -> Option<Window> {
        let piece = self.pieces.get(self.only_piece(guest)?)?;
        Some(piece.window(guest))
    }

    /// Whether it cannot, by what `window` says of `of`, if there is one; `false` says nothing.
    pub(super) fn rules_out(
        &self,
        (of, window): (&GuestRequest, Option<Window>),
        guest: &GuestRequest,
        host: &HostRequest,
    ) -> bool {
        // Of another piece nothing is known.
        let window = window.filter(|_| self.pieces.len() == 1);
        window.is_some_and(|window| window.rules_out(self.rho_ppm, of, guest, host))
    }

    /// Whether the host request can be inside the guest request.
    pub(super) fn admits(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        if let Some(piece) = self.only_piece(guest) {
            return self
                .pieces
                .get(piece)
                .is_some_and(|piece| piece.admits(guest, host));
        }
        // A step was near, or between D and C: each end by the clock of its time.
        let (lo_ns, hi_ns) = exchange(guest, host);
        let starts = |i: usize| {
            let band = self
                .pieces
                .get(i)
                .and_then(|piece| piece.band(guest.issued_ns));
            band.is_some_and(|band| lo_ns <= band.hi_ns)
        };
        let ends = |i: usize| {
            let band = self
                .pieces
                .get(i)
                .and_then(|piece| piece.band(guest.completed_ns));
            band.is_some_and(|band| hi_ns >= band.lo_ns)
        };
        let completed = self.at(guest.completed_ns);
        self.at(guest.issued_ns).filter(|i| starts(*i)).any(|i| {
            completed
                .clone()
                .filter(|j| *j >= i)
                .any(|j| ends(j) && (i != j || self.pieces[i].proven.possible(guest, host)))
        })
    }

    /// The bands at D and at C, if they let the pair be.
    pub(super) fn confirms(
        &self,
        guest: &GuestRequest,
        host: &HostRequest,
    ) -> Option<(Band, Band)> {
        let vetted = |at_ns| {
            if let (Some(piece), 1) = (self.pieces.front(), self.pieces.len()) {
                return piece.vetted_band(at_ns);
            }
            let pieces = self.at(at_ns);
            let bands = pieces.filter_map(|i| self.pieces.get(i)?.vetted_band(at_ns));
            bands.reduce(hull)
        };
        let bands: (Band, Band) = (vetted(guest.issued_ns)?, vetted(guest.completed_ns)?);
        let piece = self.only_piece(guest);
        let Some(piece) = piece.and_then(|piece| self.pieces.get(piece)) else {
            return self.admits(guest, host).then_some(bands);
        };
        let (lo_ns, hi_ns) = exchange(guest, host);
        let inside = lo_ns <= bands.0.hi_ns && hi_ns >= bands.1.lo_ns;
        (inside && piece.proven.possible(guest, host)).then_some(bands)
    }

    /// Lets a pair that is certain narrow the band.
    pub(super) fn accept(&mut self, guest: &GuestRequest, host: &HostRequest) {
        let piece = self.only_piece(guest);
        let Some(piece) = piece.and_then(|piece| self.pieces.get_mut(piece)) else {
            return;
        };
        piece.accept(guest, host);
    }

    /// Nothing comes any more.
    pub(super) fn vet_all(&mut self) {
        self.pieces
            .iter_mut()
            .for_each(|piece| piece.vet(GuestNs::MAX));
    }

    /// Whether exchanges up to this time of the guest's clock have been vetted.
    pub(super) fn is_vetted(&self, guest_ns: GuestNs) -> bool {
        self.pieces
            .back()
            .is_none_or(|piece| guest_ns <= piece.vetted_ns)
    }

    /// Takes back the exchanges that have not been reported.
    pub(super) fn take_back(&mut self) {
        for piece in &mut self.pieces {
            piece.proven = piece.reported.clone();
            piece.vetted = piece.reported.clone();
            piece.fresh.clear();
            piece.went_on_ns = GuestNs::default();
        }
    }

    /// The running piece's own band, whatever comes after it.
    pub(super) fn running(&self) -> Option<&Piece> {
        self.pieces.back()
    }

    /// Says where the next exchange of the running piece lies, as many of them agree.
    pub(super) fn hint(&mut self, hint: Corridor) {
        if let Some(piece) = self.pieces.back_mut() {
            piece.hint = Some(hint);
        }
    }

    /// Notes a pair that nothing can take back, for the result too.
    pub(super) fn reported(
        &mut self,
        guest: &GuestRequest,
        host: &HostRequest,
        band: Band,
        exchange: bool,
    ) {
        let piece = self.only_piece(guest);
        if let Some(piece) = piece.and_then(|piece| self.pieces.get_mut(piece)) {
            piece.last_ns = piece.last_ns.max(guest.issued_ns);
            piece.history.note(guest.completed_ns, band);
            if exchange {
                piece.reported.accept(guest, host);
                self.exchanges += 1;
            }
        }
    }

    /// Drops what only times before `guest_ns` need.
    pub(super) fn forget_before(&mut self, guest_ns: GuestNs) {
        for piece in &mut self.pieces {
            piece.proven.forget_before(guest_ns);
            piece.vetted.forget_before(guest_ns);
            piece.reported.forget_before(guest_ns);
        }
    }

    /// What each piece with links looked like, those that are not kept apart.
    pub(super) fn histories(&self) -> impl Iterator<Item = &BandHistory> {
        let running = self.pieces.iter().map(|piece| &piece.history);
        let running = running.filter(|history| !history.is_empty());
        self.over.kept().chain(running)
    }

    /// How many pieces had links.
    pub(super) fn n_pieces(&self) -> u64 {
        self.over.n_more() + self.histories().count() as u64
    }
}
