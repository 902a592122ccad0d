//! Tracks and their lanes.
//!
//! Slices of one track of a trace must not overlap, and I/O does. So each track has as many lanes as it
//! needs: tracks of the same name under the same parent, which Perfetto draws as one.

use std::collections::HashMap;

use super::packets::{Packets, Slice, Track};
use crate::exit::Failure;

/// Lanes of one track: more requests at once than any queue holds.
const MOST_LANES: usize = 4096;

/// A track in words: where it stands and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// `vm1 vda`, or a device of the host.
    pub group: String,
    /// What is drawn.
    pub name: String,
    /// Where it stands in its group.
    pub rank: i64,
}

/// A row of a track.
#[derive(Debug)]
struct Lane {
    uuid: u64,
    /// End of the last slice; nothing may begin at or before it.
    busy_until_ns: u64,
}

/// All tracks of a trace.
#[derive(Debug, Default)]
pub struct Tracks {
    last_uuid: u64,
    groups: HashMap<String, u64>,
    lanes: HashMap<Place, Vec<Lane>>,
    counters: HashMap<Place, u64>,
    /// Slices for which there was no lane.
    pub left_out: u64,
}

impl Tracks {
    /// Draws a slice on a lane that is free. Slices come by their start; one that comes late gets a lane on
    /// which nothing is later.
    pub fn draw(
        &mut self,
        packets: &mut Packets,
        place: &Place,
        slice: &Slice,
    ) -> Result<(), Failure> {
        // An end and a begin at the same instant would have to be in that order in the file.
        let is_free = |lane: &Lane| lane.busy_until_ns < slice.start_ns;
        let lanes = self.lanes.get(place).map_or(&[][..], Vec::as_slice);
        let free = lanes.iter().position(is_free);
        if free.is_none() && lanes.len() >= MOST_LANES {
            self.left_out += 1;
            return Ok(());
        }
        let free = match free {
            Some(free) => free,
            None => self.new_lane(packets, place)?,
        };
        let lane = self
            .lanes
            .get_mut(place)
            .and_then(|lanes| lanes.get_mut(free));
        match lane {
            Some(lane) => {
                lane.busy_until_ns = slice.end_ns.max(slice.start_ns);
                packets.slice(lane.uuid, slice)
            }
            None => Ok(()),
        }
    }

    /// Sets a counter.
    pub fn count(
        &mut self,
        packets: &mut Packets,
        place: &Place,
        ts_ns: u64,
        value: i64,
    ) -> Result<(), Failure> {
        let uuid = match self.counters.get(place) {
            Some(uuid) => *uuid,
            None => {
                let uuid = self.describe(packets, place, true)?;
                self.counters.insert(place.clone(), uuid);
                uuid
            }
        };
        packets.count(uuid, ts_ns, value)
    }

    fn new_lane(&mut self, packets: &mut Packets, place: &Place) -> Result<usize, Failure> {
        let uuid = self.describe(packets, place, false)?;
        let lanes = self.lanes.entry(place.clone()).or_default();
        lanes.push(Lane {
            uuid,
            busy_until_ns: 0,
        });
        Ok(lanes.len() - 1)
    }

    fn describe(
        &mut self,
        packets: &mut Packets,
        place: &Place,
        counter: bool,
    ) -> Result<u64, Failure> {
        let parent = match self.groups.get(&place.group) {
            Some(uuid) => *uuid,
            None => {
                self.last_uuid += 1;
                packets.track(&Track {
                    uuid: self.last_uuid,
                    parent: 0,
                    name: &place.group,
                    rank: self.groups.len() as i64,
                    counter: false,
                })?;
                self.groups.insert(place.group.clone(), self.last_uuid);
                self.last_uuid
            }
        };
        self.last_uuid += 1;
        packets.track(&Track {
            uuid: self.last_uuid,
            parent,
            name: &place.name,
            rank: place.rank,
            counter,
        })?;
        Ok(self.last_uuid)
    }
}
