//! Tracks and their rows.
//!
//! Slices of one track of a trace must not overlap, and I/O does. So each track has as many rows as it
//! needs: tracks of the same name under the same parent, which Perfetto draws as one.

use std::collections::HashMap;

use super::packets::{Packets, Slice, Track};
use crate::exit::Failure;

/// Limit on the rows of one track: more than the requests that any queue holds at once.
const MAX_ROWS: usize = 4096;

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

/// One row of a track, a track of its own to Perfetto.
#[derive(Debug)]
struct Row {
    uuid: u64,
    /// End of the last slice; nothing may begin at or before it.
    busy_until_ns: u64,
}

/// All tracks of a trace.
#[derive(Debug, Default)]
pub struct Tracks {
    last_uuid: u64,
    groups: HashMap<String, u64>,
    rows: HashMap<Place, Vec<Row>>,
    counters: HashMap<Place, u64>,
    /// Slices that found no free row.
    pub left_out: u64,
}

impl Tracks {
    /// Draws a slice on a free row. Slices come in the order of their starts; one that comes late gets a row on
    /// which no slice is later.
    pub fn draw(
        &mut self,
        packets: &mut Packets,
        place: &Place,
        slice: &Slice,
    ) -> Result<(), Failure> {
        // An end and a begin at the same instant would have to be in that order in the file.
        let is_free = |row: &Row| row.busy_until_ns < slice.start_ns;
        let rows = self.rows.get(place).map_or(&[][..], Vec::as_slice);
        let free = rows.iter().position(is_free);
        if free.is_none() && rows.len() >= MAX_ROWS {
            self.left_out += 1;
            return Ok(());
        }
        let free = match free {
            Some(free) => free,
            None => self.new_row(packets, place)?,
        };
        let row = self.rows.get_mut(place).and_then(|rows| rows.get_mut(free));
        match row {
            Some(row) => {
                row.busy_until_ns = slice.end_ns.max(slice.start_ns);
                packets.slice(row.uuid, slice)
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

    fn new_row(&mut self, packets: &mut Packets, place: &Place) -> Result<usize, Failure> {
        let uuid = self.describe(packets, place, false)?;
        let rows = self.rows.entry(place.clone()).or_default();
        rows.push(Row {
            uuid,
            busy_until_ns: 0,
        });
        Ok(rows.len() - 1)
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
