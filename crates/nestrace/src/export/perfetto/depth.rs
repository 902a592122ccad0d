//! Counters: how many requests are at a device.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use super::{
    packets::Packets,
    tracks::{Place, Tracks},
};
use crate::exit::Failure;

/// Changes that wait for earlier ones.
const MOST: usize = 1 << 17;

/// Requests arrive at their ends; a counter's changes are put into the order of time.
#[derive(Debug, Default)]
pub struct Depths {
    /// Time, +1 or −1, number of the counter.
    changes: BinaryHeap<Reverse<(u64, i64, usize)>>,
    places: Vec<(Place, i64)>,
    numbers: HashMap<Place, usize>,
}

impl Depths {
    /// A request was there from one time to another.
    pub fn add(&mut self, place: Place, from_ns: u64, to_ns: u64) {
        let number = *self.numbers.entry(place).or_insert_with_key(|place| {
            self.places.push((place.clone(), 0));
            self.places.len() - 1
        });
        // At one instant what leaves comes first, as the analysis counts it.
        self.changes.push(Reverse((from_ns, 1, number)));
        self.changes.push(Reverse((to_ns.max(from_ns), -1, number)));
    }

    /// Writes what there is no more room for, or everything.
    pub fn write(
        &mut self,
        packets: &mut Packets,
        tracks: &mut Tracks,
        all: bool,
    ) -> Result<(), Failure> {
        while all || self.changes.len() > MOST {
            let Some(Reverse((ts_ns, change, number))) = self.changes.pop() else {
                return Ok(());
            };
            if let Some((place, depth)) = self.places.get_mut(number) {
                *depth += change;
                tracks.count(packets, place, ts_ns, *depth)?;
            }
        }
        Ok(())
    }
}
