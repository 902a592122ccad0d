//! The streams of the host and of all agents, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nestrace_condition::{Expression, Held, Layer, Meter, Side};
use nestrace_trace::{Event, StreamRing};

use super::Flight;

/// A stream that is kept.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its file's name in a bundle.
    pub file: String,
    /// The guest's number, in the order of the agents; `None` of the host.
    pub guest: Option<u32>,
    /// Its newest batches.
    pub ring: StreamRing,
}

/// All streams of a flight recorder, and its condition. Shared by the recorder and the threads of the agents.
pub struct Rings {
    streams: Mutex<Streams>,
    meter: Mutex<Option<Meter>>,
    /// Events that came before this are not needed any more, on the host's clock.
    oldest_ns: AtomicU64,
    flight: Flight,
    /// Of a bundle.
    shares: Shares,
}

#[derive(Debug, Default)]
struct Streams {
    all: Vec<Stream>,
    /// A bundle is being written: streams that begin now are in it too.
    copies: bool,
}

/// Bytes of the host's stream, and of those of each guest together.
#[derive(Clone, Copy, Debug)]
struct Shares {
    host: u64,
    guest: u64,
}

impl Shares {
    /// Half is the host's where there are guests, so that no guest drives out the host's side or another guest's.
    fn of(bytes: u64, n_guests: usize) -> Self {
        match (bytes / 2).checked_div(n_guests as u64) {
            None => Self {
                host: bytes,
                guest: 0,
            },
            Some(guest) => Self {
                host: bytes / 2,
                guest,
            },
        }
    }

    const fn of_stream(self, guest: Option<u32>) -> u64 {
        match guest {
            None => self.host,
            Some(_) => self.guest,
        }
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings")
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

impl Rings {
    /// Empty ones, of the host and of so many guests.
    #[must_use]
    pub fn new(flight: &Flight, n_guests: usize) -> Self {
        Self {
            streams: Mutex::default(),
            meter: Mutex::new(None),
            oldest_ns: AtomicU64::new(0),
            flight: flight.clone(),
            shares: Shares::of(flight.max_bytes, n_guests),
        }
    }

    /// Begins a stream; `None` where there is one of that name.
    ///
    /// # Errors
    /// Where a bundle that is being written cannot take it, in words.
    pub fn open(&self, file: &str, guest: Option<u32>) -> Result<Option<StreamRing>, String> {
        let mut streams = self.lock();
        if streams.all.iter().any(|stream| stream.file == file) {
            return Ok(None);
        }
        let stream = Stream {
            file: file.to_owned(),
            guest,
            ring: StreamRing::new(self.kept_bytes(guest, Duration::ZERO)),
        };
        if streams.copies {
            let room = self.room(&streams, guest);
            let begun = stream.ring.begin_copy(room);
            begun.map_err(|error| error.to_string())?;
        }
        let ring = stream.ring.clone();
        streams.all.push(stream);
        drop(streams);
        // A guest that was started again has nothing in flight.
        if let (Some(guest), Some(meter)) = (guest, self.meter().as_mut()) {
            meter.forget(Side::Guest(guest));
        }
        Ok(Some(ring))
    }

    /// All streams.
    #[must_use]
    pub fn all(&self) -> Vec<Stream> {
        self.lock().all.clone()
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let streams = self.lock();
        let bytes = streams.all.iter().map(|stream| stream.ring.bytes());
        bytes.fold(0, u64::saturating_add)
    }

    /// It is `now_ns`; what came before `oldest_ns` is dropped. The host's stream and those of each guest are brought
    /// within what is kept of their share.
    pub fn advance(&self, now_ns: u64, oldest_ns: u64) {
        self.oldest_ns.store(oldest_ns, Ordering::Relaxed);
        let mut streams = self.lock();
        // Since when each has events.
        let mut since: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for stream in &streams.all {
            stream.ring.advance(now_ns, oldest_ns);
            if let Some((came_ns, _)) = stream.ring.oldest() {
                let first = since.entry(stream.guest).or_insert(came_ns);
                *first = came_ns.min(*first);
            }
        }
        let mut left: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        // The newest first: it keeps what it has, and those before get the rest.
        for stream in streams.all.iter().rev() {
            let left = left.entry(stream.guest).or_insert_with(|| {
                let since_ns = since.get(&stream.guest).map_or(now_ns, |ns| *ns);
                let covered = Duration::from_nanos(now_ns.saturating_sub(since_ns));
                self.kept_bytes(stream.guest, covered)
            });
            stream.ring.set_max_bytes(*left);
            *left = left.saturating_sub(stream.ring.bytes());
        }
        if !streams.copies {
            let newest: BTreeSet<String> = newest_of_each(&streams.all);
            // Sides of a guest that ended long ago.
            streams
                .all
                .retain(|stream| newest.contains(&stream.file) || stream.ring.oldest().is_some());
        }
    }

    /// Before that time of the host, nothing is needed.
    #[must_use]
    pub fn oldest_ns(&self) -> u64 {
        self.oldest_ns.load(Ordering::Relaxed)
    }

    /// From now on the condition is evaluated.
    pub fn watch(&self, until: &Expression, outermost: Layer, lowest: BTreeSet<u32>, now_ns: u64) {
        *self.meter() = Some(Meter::new(until, outermost, lowest, now_ns));
    }

    /// Takes an event for the condition.
    pub fn take(&self, side: Side, event: &Event, now_ns: u64) {
        if let Some(meter) = self.meter().as_mut() {
            meter.take(side, event, now_ns);
        }
    }

    /// Whether the condition holds.
    #[must_use]
    pub fn evaluate(&self, now_ns: u64) -> Option<Held> {
        self.meter().as_mut()?.evaluate(now_ns)
    }

    /// The values of the condition's comparisons as they were last.
    #[must_use]
    pub fn readings(&self) -> Vec<nestrace_condition::Reading> {
        self.meter()
            .as_ref()
            .map(Meter::readings)
            .unwrap_or_default()
    }

    /// Begins a copy of all streams, and of those that begin until [`Self::end_copies`].
    ///
    /// # Errors
    /// Where a stream cannot be copied, in words.
    pub fn begin_copies(&self) -> Result<(), String> {
        let mut streams = self.lock();
        streams
            .all
            .iter()
            .for_each(|stream| stream.ring.forget_copy());
        for stream in &streams.all {
            let room = self.room(&streams, stream.guest);
            let begun = stream.ring.begin_copy(room);
            begun.map_err(|error| error.to_string())?;
        }
        streams.copies = true;
        Ok(())
    }

    /// The copies get nothing more.
    pub fn end_copies(&self) {
        let mut streams = self.lock();
        streams.copies = false;
        streams.all.iter().for_each(|stream| stream.ring.end_copy());
    }

    /// The copies are over.
    pub fn forget_copies(&self) {
        let mut streams = self.lock();
        streams.copies = false;
        streams
            .all
            .iter()
            .for_each(|stream| stream.ring.forget_copy());
    }

    /// Bytes that the streams of a guest, or the host's, may still have in the bundle that is being written.
    fn room(&self, streams: &Streams, guest: Option<u32>) -> u64 {
        let of_same = streams.all.iter().filter(|stream| stream.guest == guest);
        let taken = of_same.map(|stream| stream.ring.copied_bytes());
        let taken = taken.fold(0, u64::saturating_add);
        self.shares.of_stream(guest).saturating_sub(taken)
    }

    /// Bytes that are kept of the host or of a guest where they hold the events of so long.
    fn kept_bytes(&self, guest: Option<u32>, covered: Duration) -> u64 {
        let share = self.shares.of_stream(guest);
        self.flight.kept_bytes(share, covered)
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(&self) -> MutexGuard<'_, Option<Meter>> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The newest stream of the host and of each guest.
fn newest_of_each(streams: &[Stream]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let newest = streams
        .iter()
        .rev()
        .filter(|stream| seen.insert(stream.guest));
    newest.map(|stream| stream.file.clone()).collect()
}

#[cfg(test)]
mod tests {
    use nestrace_trace::Kind;

    use super::*;

    fn rings(before_s: u64, after_s: u64, max_bytes: u64, n_guests: usize) -> Rings {
        let flight = Flight {
            before: Duration::from_secs(before_s),
            after: Duration::from_secs(after_s),
            until: None,
            until_file: None,
            outputs: Vec::new(),
            pause: Duration::ZERO,
            max_bytes,
        };
        Rings::new(&flight, n_guests)
    }

    fn fill(ring: &StreamRing, batches: u64) {
        let mut writer = ring.stream_writer().unwrap();
        for n in 0..batches {
            for row in 0..200 {
                let event = Event {
                    ts_ns: n,
                    kind: Kind::Queue as u8,
                    object: (n * 1000 + row).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                    ..Event::default()
                };
                writer.push(&event).unwrap();
            }
            writer.flush_batch().unwrap();
        }
    }

    #[test]
    fn a_guest_does_not_drive_out_the_host_or_another_guest() {
        let rings = rings(60, 60, 400_000, 2);
        let host = rings.open("host.arrows", None).unwrap().unwrap();
        let quiet = rings.open("guest-a.arrows", Some(0)).unwrap().unwrap();
        let mut loud = Vec::new();
        fill(&host, 20);
        fill(&quiet, 5);
        let before = (host.bytes(), quiet.bytes());
        for boot in 0..10 {
            let ring = rings.open(&format!("guest-b.{boot}.arrows"), Some(1));
            let ring = ring.unwrap().unwrap();
            fill(&ring, 100);
            loud.push(ring);
            rings.advance(0, 0);
            let of_loud: u64 = loud.iter().map(StreamRing::bytes).sum();
            assert!(of_loud <= 50_000, "{of_loud}");
        }
        assert_eq!((host.bytes(), quiet.bytes()), before);
        assert!(rings.bytes() <= 200_000);
        // A boot without anything left is not listed any more.
        assert_eq!(rings.all().len(), 3);
        assert!(rings.open("guest-a.arrows", Some(0)).unwrap().is_none());
    }

    #[test]
    fn what_comes_after_the_moment_has_room_at_the_same_pace() {
        const SECOND: u64 = 1_000_000_000;
        let rings = rings(60, 2, 1_000_000, 0);
        let host = rings.open("host.arrows", None).unwrap().unwrap();
        let mut writer = host.stream_writer().unwrap();
        let mut goes_on = |from: u64, to: u64| {
            for tick in from..to {
                let now_ns = tick * SECOND / 10;
                rings.advance(now_ns, now_ns.saturating_sub(60 * SECOND));
                for row in 0..200u64 {
                    let event = Event {
                        ts_ns: now_ns + row,
                        kind: Kind::Queue as u8,
                        object: (tick * 1000 + row).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                        ..Event::default()
                    };
                    writer.push(&event).unwrap();
                }
                writer.flush_batch().unwrap();
            }
        };
        // Far more than there is room for.
        goes_on(0, 600);
        let kept_ns = 60 * SECOND - host.oldest().unwrap().0;
        assert!((10 * SECOND..59 * SECOND).contains(&kept_ns), "{kept_ns}");
        rings.begin_copies().unwrap();
        goes_on(600, 624);
        assert_eq!(host.rows_refused(), 0);
    }

    #[test]
    fn what_begins_while_a_bundle_is_written_is_in_it() {
        let rings = rings(60, 60, 400_000, 1);
        let host = rings.open("host.arrows", None).unwrap().unwrap();
        fill(&host, 2);
        rings.begin_copies().unwrap();
        let late = rings.open("guest-a.arrows", Some(0)).unwrap().unwrap();
        fill(&late, 3);
        let mut rows = 0;
        while let Some(message) = late.take_copied() {
            rows += message.rows();
        }
        assert_eq!(rows, 600);
        rings.end_copies();
        fill(&host, 1);
        assert_eq!(host.rows_refused(), 0, "it ended before");
        rings.forget_copies();
        assert!(host.take_copied().is_none());
    }
}
