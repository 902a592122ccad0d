//! What the probes sum instead of sending events, in this process' memory: a histogram of each disk, operation and layer, and
//! what is in flight.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::{Ebpf, EbpfLoader};
use nestrace_abi::histogram::BUCKETS;
use nestrace_abi::layout::{SUMMING, SUMMING_FROM_ISSUE, SUMMING_FROM_START};
use nestrace_abi::maps::{
    Began, DISPLACED, IN_FLIGHT, IN_FLIGHT_PLACES, InFlight, InodeKey, IoKey, SUM_BACKENDS,
    SUM_BEGAN, SUM_IMAGES, SUM_PLACES, SUM_POOL, SUM_POOL_PLACES, SUMS, SUMS_SINCE, Sum,
};

use crate::{ProbeError, clock, inode_bytes::InodeBytes, map_error, mapped::Mapped};

/// Room in a map that the probes do not use.
const UNUSED: u32 = 1;

/// A [`IoKey`] as a map key.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct IoKeyBytes(IoKey);
// SAFETY: integers without implicit padding (asserted in nestrace-abi).
unsafe impl aya::Pod for IoKeyBytes {}

/// A [`Began`] as a map value.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct BeganBytes(Began);
// SAFETY: as above.
unsafe impl aya::Pod for BeganBytes {}

/// An [`InFlight`] as a map value.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct InFlightBytes(InFlight);
// SAFETY: as above.
unsafe impl aya::Pod for InFlightBytes {}

/// The sums of one operation of one layer since the probes were attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SumValues {
    /// Bytes of what has ended.
    pub bytes: u64,
    /// Latencies together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest since it was read before, in nanoseconds.
    pub max_ns: u64,
    /// What has ended in each bucket.
    pub buckets: Vec<u64>,
}

/// What is in flight at one place of the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlightNow {
    /// How many.
    pub n: u64,
    /// When the oldest began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub oldest_ns: u64,
}

impl InFlightNow {
    fn add(&mut self, began_ns: u64) {
        if self.n == 0 || began_ns < self.oldest_ns {
            self.oldest_ns = began_ns;
        }
        self.n += 1;
    }
}

/// A BlockBackend that the probes have met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetBackend {
    /// Address of its accounting in QEMU.
    pub stats: u64,
    /// The guest's index.
    pub guest: u32,
    /// Its slot.
    pub slot: u32,
}

/// The sums, and the maps beside them.
pub struct Sums {
    sums: Mapped<Sum>,
    in_flight: Mapped<InFlight>,
    displaced: HashMap<MapData, u64, InFlightBytes>,
    backends: HashMap<MapData, IoKeyBytes, u32>,
    images: HashMap<MapData, InodeBytes, u32>,
    began: HashMap<MapData, IoKeyBytes, BeganBytes>,
    pool: Mapped<u64>,
    since: Array<MapData, u64>,
    recording: u32,
    n_slots: u32,
}

/// How the probes sum into so many slots: the value of [`SUMMING`].
pub(super) fn summing(n_slots: u32, from_start: bool) -> u8 {
    match (n_slots, from_start) {
        (0, _) => 0,
        (_, false) => SUMMING_FROM_ISSUE,
        (_, true) => SUMMING_FROM_START,
    }
}

/// Gives the maps the room that they need, and sets how the probes sum.
pub(super) fn size_maps<'l>(loader: &mut EbpfLoader<'l>, summing: &'l u8, n_slots: u32) {
    loader.override_global(SUMMING, summing, true);
    let n_places = n_slots.saturating_mul(u32::try_from(SUM_PLACES).unwrap_or(1));
    loader.map_max_entries(SUMS, n_places.max(UNUSED));
    // In a guest no QEMU is looked at.
    if *summing != SUMMING_FROM_ISSUE {
        for name in [SUM_BACKENDS, SUM_IMAGES, SUM_BEGAN] {
            loader.map_max_entries(name, UNUSED);
        }
    }
}

impl Sums {
    /// A second descriptor of each map; the first stays with the programs that are still to be loaded.
    pub(super) fn of(ebpf: &Ebpf, n_slots: u32) -> Result<Self, ProbeError> {
        let open = |name: &'static str| open(ebpf, name).map_err(map_error(name));
        let n_places = n_slots as usize * SUM_PLACES;
        let mut since: Array<MapData, u64> =
            array(open(SUMS_SINCE)?).map_err(map_error(SUMS_SINCE))?;
        since.set(0, u64::MAX, 0).map_err(map_error(SUMS_SINCE))?;
        Ok(Self {
            sums: Mapped::of(Map::Array(open(SUMS)?), n_places).map_err(map_error(SUMS))?,
            in_flight: Mapped::of(Map::Array(open(IN_FLIGHT)?), IN_FLIGHT_PLACES)
                .map_err(map_error(IN_FLIGHT))?,
            displaced: Map::LruHashMap(open(DISPLACED)?)
                .try_into()
                .map_err(map_error(DISPLACED))?,
            backends: hash(open(SUM_BACKENDS)?).map_err(map_error(SUM_BACKENDS))?,
            images: hash(open(SUM_IMAGES)?).map_err(map_error(SUM_IMAGES))?,
            began: hash(open(SUM_BEGAN)?).map_err(map_error(SUM_BEGAN))?,
            pool: Mapped::of(Map::Array(open(SUM_POOL)?), SUM_POOL_PLACES + 1)
                .map_err(map_error(SUM_POOL))?,
            since,
            recording: 0,
            n_slots,
        })
    }

    /// The gate is open: what starts from now on is issued while it is.
    pub(super) fn begin(&mut self, recording: u32) -> Result<(), ProbeError> {
        self.recording = recording;
        self.count_unknown_from_now_on()
    }

    /// A device was added: what it had in flight is not remembered, and not lost either.
    pub(super) fn device_added(&mut self) -> Result<(), ProbeError> {
        match self.recording {
            0 => Ok(()),
            _ => self.count_unknown_from_now_on(),
        }
    }

    fn count_unknown_from_now_on(&mut self) -> Result<(), ProbeError> {
        let now = clock::monotonic_ns();
        self.since.set(0, now, 0).map_err(map_error(SUMS_SINCE))
    }

    /// How many slots there are.
    #[must_use]
    pub fn n_slots(&self) -> u32 {
        self.n_slots
    }

    /// What was summed at a place; the longest latency is that since the last call.
    #[must_use]
    pub fn read(&self, place: u32) -> SumValues {
        let Some(sum) = self.sums.get(place as usize, 1) else {
            return SumValues::default();
        };
        let load = |field: *mut u64| word(field).load(Ordering::Relaxed);
        let sum = sum.as_ptr();
        // SAFETY: fields of a value within the mapping, each a word that is aligned.
        let (bytes, sum_ns, max_ns, buckets) = unsafe {
            (
                &raw mut (*sum).bytes,
                &raw mut (*sum).sum_ns,
                &raw mut (*sum).max_ns,
                (&raw mut (*sum).buckets).cast::<u64>(),
            )
        };
        // SAFETY: as above.
        let bucket = |at: usize| load(unsafe { buckets.add(at) });
        SumValues {
            bytes: load(bytes),
            sum_ns: load(sum_ns),
            max_ns: word(max_ns).swap(0, Ordering::Relaxed),
            buckets: (0..BUCKETS).map(bucket).collect(),
        }
    }

    /// Sets a slot that is used no more to 0.
    pub fn clear(&mut self, slot: u32) {
        let first = slot as usize * SUM_PLACES;
        let Some(sums) = self.sums.get(first, SUM_PLACES) else {
            return;
        };
        for at in 0..SUM_PLACES * size_of::<Sum>() / size_of::<u64>() {
            // SAFETY: a word of the slot's values, which follow one another.
            word(unsafe { sums.as_ptr().cast::<u64>().add(at) }).store(0, Ordering::Relaxed);
        }
    }

    /// Sums I/O of a guest's QEMU on this file in a slot from now on.
    ///
    /// # Errors
    /// The map's.
    pub fn sum_image(
        &mut self,
        (inode, dev): (u64, u32),
        guest: u32,
        slot: u32,
    ) -> Result<(), ProbeError> {
        let key = image_key((inode, dev), guest);
        self.images
            .insert(key, slot, 0)
            .map_err(map_error(SUM_IMAGES))
    }

    /// Sums no further I/O of a guest's QEMU on this file.
    pub fn forget_image(&mut self, file: (u64, u32), guest: u32) {
        // One that is not there is forgotten.
        let _ = self.images.remove(&image_key(file, guest));
    }

    /// The BlockBackends that the probes have met.
    #[must_use]
    pub fn backends(&self) -> Vec<MetBackend> {
        let entries = self.backends.iter().filter_map(Result::ok);
        let met = entries.map(|(IoKeyBytes(key), slot)| MetBackend {
            stats: key.address,
            guest: key.guest,
            slot,
        });
        met.collect()
    }

    /// Forgets a BlockBackend; the probes would meet it anew.
    pub fn forget_backend(&mut self, met: &MetBackend) {
        let key = IoKey {
            address: met.stats,
            guest: met.guest,
            kind: nestrace_abi::maps::io_kind::BACKEND,
        };
        let _ = self.backends.remove(&IoKeyBytes(key));
    }

    /// A place of the pool.
    fn pool_place(&self, at: usize) -> Option<&AtomicU64> {
        Some(word(self.pool.get(at, 1)?.as_ptr()))
    }

    /// The places of the pool in the order in which the probes will take them.
    fn pool_places(&self) -> impl DoubleEndedIterator<Item = &AtomicU64> {
        let next = self.pool_place(SUM_POOL_PLACES);
        let next = next.map_or(0, |next| next.load(Ordering::Relaxed));
        // As the probes calculate it.
        let first = next as u32 as usize % SUM_POOL_PLACES;
        let order = (first..SUM_POOL_PLACES).chain(0..first);
        order.filter_map(|at| self.pool_place(at))
    }

    /// How many slots are offered to the probes for BlockBackends that they meet.
    #[must_use]
    pub fn n_offered(&self) -> usize {
        let places = self.pool_places();
        places
            .filter(|place| place.load(Ordering::Relaxed) != 0)
            .count()
    }

    /// How many of the places are empty that the probes take next, of so many.
    #[must_use]
    pub fn n_wanted(&self, n: usize) -> usize {
        let places = self.pool_places().take(n);
        places
            .filter(|place| place.load(Ordering::Relaxed) == 0)
            .count()
    }

    /// Offers free slots to the probes, in the places that they take next, and takes those off the list.
    pub fn offer(&mut self, free: &mut Vec<u32>) {
        for place in self.pool_places() {
            // The probes fill none.
            if place.load(Ordering::Relaxed) == 0 {
                let Some(slot) = free.pop() else { return };
                place.store(u64::from(slot) + 1, Ordering::Relaxed);
            }
        }
    }

    /// Takes back the offered slot that the probes would take last.
    pub fn take_back(&mut self) -> Option<u32> {
        let mut places = self.pool_places().rev();
        // A probe may take it meanwhile.
        let taken = places.find_map(|place| place.swap(0, Ordering::Relaxed).checked_sub(1))?;
        u32::try_from(taken).ok()
    }

    /// What is in flight, by its place in the sums.
    #[must_use]
    pub fn in_flight(&self) -> BTreeMap<u32, InFlightNow> {
        let mut found: BTreeMap<u32, InFlightNow> = BTreeMap::new();
        for at in 0..self.in_flight.n {
            let Some(entry) = self.in_flight.get(at, 1) else {
                break;
            };
            let issued_ns = |entry: NonNull<InFlight>| {
                // SAFETY: a word of a value within the mapping.
                word(unsafe { &raw mut (*entry.as_ptr()).issued_ns }).load(Ordering::Relaxed)
            };
            if issued_ns(entry) == 0 {
                continue;
            }
            // SAFETY: within the mapping. The probes change it at once; what is torn has another check.
            let entry = unsafe { entry.as_ptr().read_volatile() };
            if entry.is_in_flight(self.recording) {
                found.entry(entry.dev).or_default().add(entry.issued_ns);
            }
        }
        for (_, InFlightBytes(entry)) in self.displaced.iter().filter_map(Result::ok) {
            if entry.is_in_flight(self.recording) {
                found.entry(entry.dev).or_default().add(entry.issued_ns);
            }
        }
        for (_, BeganBytes(began)) in self.began.iter().filter_map(Result::ok) {
            found.entry(began.place).or_default().add(began.ts_ns);
        }
        found
    }

    /// Forgets what a guest that is gone had begun.
    pub fn forget_guest(&mut self, guest: u32) {
        let entries = self.began.iter().filter_map(Result::ok);
        let of_guest = entries.filter(|(_, BeganBytes(began))| began.guest == guest);
        let keys: Vec<IoKeyBytes> = of_guest.map(|(key, _)| key).collect();
        for key in keys {
            let _ = self.began.remove(&key);
        }
    }
}

fn image_key((inode, dev): (u64, u32), guest: u32) -> InodeBytes {
    InodeBytes(InodeKey {
        inode,
        dev,
        pad: guest,
    })
}

/// A word that the probes change at once.
fn word<'w>(at: *mut u64) -> &'w AtomicU64 {
    // SAFETY: the callers' words are aligned and mapped for as long as they look at them.
    unsafe { AtomicU64::from_ptr(at) }
}

fn open(ebpf: &Ebpf, name: &str) -> Result<MapData, MapError> {
    let unknown = || MapError::InvalidName {
        name: name.to_owned(),
    };
    let map = ebpf.map(name).ok_or_else(unknown)?;
    let (Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data)) = map else {
        return Err(unknown());
    };
    MapData::from_id(data.info()?.id())
}

fn hash<K: aya::Pod, V: aya::Pod>(data: MapData) -> Result<HashMap<MapData, K, V>, MapError> {
    Map::HashMap(data).try_into()
}

fn array<V: aya::Pod>(data: MapData) -> Result<Array<MapData, V>, MapError> {
    Map::Array(data).try_into()
}
