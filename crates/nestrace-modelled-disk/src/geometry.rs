//! Where a sector lies on a hard disk: zone, track and angle, and how long its head reads from there.
//!
//! A disk that is smaller than its drive is a partition at the outer edge, as fast as the drive is there. But it has the
//! drive's whole stroke, because a small file system stands for one that fills a disk: a seek over a third of it takes as
//! long as over a third of the drive.
//! Each track is skewed against the one before by the time of a track switch, so that reading goes on without a lost turn.

use crate::parameters::{ParametersError, SpindleParameters};
use crate::request::SECTOR_BYTES;

/// Share of a turn within which the head counts as being there: 80 ns at 7200 rpm. Times are whole nanoseconds.
const TOLERANCE: f64 = 1e-5;

/// Zones, tracks and angles of a disk.
#[derive(Clone, Debug)]
pub struct Geometry {
    zones: Vec<Zone>,
    turn_ns: f64,
    switch_ns: f64,
    n_tracks: u64,
    n_sectors: u64,
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    first_sector: u64,
    first_track: u64,
    sectors_per_track: u64,
}

/// Where a sector lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// From the outermost, 0.
    pub track: u64,
    /// Share of a turn at which it begins.
    pub angle: f64,
    /// Sectors from it to the end of its track, itself included.
    left: u64,
    sectors_per_track: u64,
}

impl Geometry {
    /// A disk of `size_bytes`.
    ///
    /// # Errors
    /// It has less than a track in each zone.
    pub fn new(parameters: &SpindleParameters, size_bytes: u64) -> Result<Self, ParametersError> {
        let turn_ns = 60e9 / parameters.rpm;
        let switch_ns = parameters.track_switch_ms * 1e6;
        let n_sectors = size_bytes / SECTOR_BYTES;
        let per_track = |mb_per_s: &f64| {
            // A sustained rate includes the switch to the next track.
            let bytes = mb_per_s * 1e6 * (turn_ns + switch_ns) / 1e9;
            ((bytes / SECTOR_BYTES as f64).round() as u64).max(1)
        };
        let tracks: Vec<u64> = parameters.zones_mb_per_s.iter().map(per_track).collect();
        let of_all: u64 = tracks.iter().sum();
        if n_sectors < of_all {
            return Err(ParametersError::TooSmall {
                least_bytes: of_all * SECTOR_BYTES,
            });
        }
        let of_drive = parameters.drive_gb.map_or(0, |gb| (gb * 1e9) as u64) / SECTOR_BYTES;
        let tracks_of_a_zone = of_drive.max(n_sectors).div_ceil(of_all);
        let (mut first_sector, mut first_track) = (0, 0);
        let mut zones = Vec::new();
        for sectors_per_track in tracks {
            if first_sector >= n_sectors {
                break;
            }
            zones.push(Zone {
                first_sector,
                first_track,
                sectors_per_track,
            });
            let held = (tracks_of_a_zone * sectors_per_track).min(n_sectors - first_sector);
            first_sector += held;
            first_track += held.div_ceil(sectors_per_track);
        }
        Ok(Self {
            zones,
            turn_ns,
            switch_ns,
            n_tracks: first_track,
            n_sectors,
        })
    }

    /// Sectors of the disk.
    #[must_use]
    pub fn n_sectors(&self) -> u64 {
        self.n_sectors
    }

    /// Nanoseconds of a turn.
    #[must_use]
    pub fn turn_ns(&self) -> f64 {
        self.turn_ns
    }

    /// Nanoseconds to an adjacent track.
    #[must_use]
    pub fn switch_ns(&self) -> f64 {
        self.switch_ns
    }

    /// Where a sector lies.
    #[must_use]
    pub fn place(&self, sector: u64) -> Place {
        let after = self
            .zones
            .partition_point(|zone| zone.first_sector <= sector);
        let Some(zone) = self.zones.get(after.saturating_sub(1)) else {
            return Place {
                track: 0,
                angle: 0.0,
                left: 1,
                sectors_per_track: 1,
            };
        };
        let within = sector - zone.first_sector;
        let track = zone.first_track + within / zone.sectors_per_track;
        let number = within % zone.sectors_per_track;
        let skew = self.switch_ns / self.turn_ns;
        let angle = number as f64 / zone.sectors_per_track as f64 + track as f64 * skew;
        Place {
            track,
            angle: angle.fract(),
            left: zone.sectors_per_track - number,
            sectors_per_track: zone.sectors_per_track,
        }
    }

    /// Distance of two tracks as a share of the stroke.
    #[must_use]
    pub fn distance(&self, from: u64, to: u64) -> f64 {
        from.abs_diff(to) as f64 / self.n_tracks.saturating_sub(1).max(1) as f64
    }

    /// Nanoseconds from the beginning of `first` to the end of the last of `n` sectors.
    #[must_use]
    pub fn transfer_ns(&self, first: u64, n: u64) -> f64 {
        let (mut sector, mut left, mut ns) = (first, n, 0.0);
        while left > 0 {
            let place = self.place(sector);
            let here = left.min(place.left);
            ns += here as f64 / place.sectors_per_track as f64 * self.turn_ns;
            left -= here;
            sector += here;
            if left > 0 {
                ns += self.switch_ns;
            }
        }
        ns
    }

    /// Sectors from `first` that the head has passed after `ns`, at most `most`.
    #[must_use]
    pub fn passed(&self, first: u64, ns: f64, most: u64) -> u64 {
        // Times are whole nanoseconds, rounded up.
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.transfer_ns(first, middle) <= ns {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Nanoseconds that a head above `angle` (in turns, of any size) waits for a place.
    #[must_use]
    pub fn rotation_ns(&self, angle: f64, place: &Place) -> f64 {
        let turns = (place.angle - angle.fract()).rem_euclid(1.0);
        if turns > 1.0 - TOLERANCE {
            0.0
        } else {
            turns * self.turn_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    /// Of the model.
    const DRIVE_BYTES: u64 = 500_000_000_000;

    fn geometry(size_bytes: u64) -> (SpindleParameters, Geometry) {
        let Ok(Parameters::Spindle(parameters)) = Parameters::built_in("hdd-7200") else {
            panic!("a hard disk");
        };
        let geometry = Geometry::new(&parameters, size_bytes).unwrap();
        (parameters, geometry)
    }

    #[test]
    fn each_zone_has_the_rate_of_its_parameter() {
        let (parameters, geometry) = geometry(DRIVE_BYTES);
        let n = 60_000;
        for (zone, mb_per_s) in geometry.zones.iter().zip(&parameters.zones_mb_per_s) {
            let rate = (n * SECTOR_BYTES) as f64 / geometry.transfer_ns(zone.first_sector, n) * 1e3;
            assert!((rate / mb_per_s - 1.0).abs() < 0.01, "{rate} {mb_per_s}");
        }
        assert_eq!(geometry.zones.len(), parameters.zones_mb_per_s.len());
    }

    #[test]
    fn a_small_disk_is_the_drive_s_outer_edge_with_the_whole_stroke() {
        let (mut parameters, small) = geometry(1 << 30);
        assert_eq!(small.zones.len(), 1);
        let last = small.place(small.n_sectors() - 1);
        assert_eq!(small.distance(0, last.track), 1.0);
        parameters.drive_gb = None;
        let whole = Geometry::new(&parameters, 1 << 30).unwrap();
        assert_eq!(whole.zones.len(), parameters.zones_mb_per_s.len());
    }

    #[test]
    fn reading_goes_on_without_a_lost_turn_at_each_track_and_zone() {
        let (mut parameters, _) = geometry(1 << 30);
        parameters.drive_gb = None;
        let geometry = Geometry::new(&parameters, 1 << 30).unwrap();
        let mut sector = 0;
        while sector < geometry.n_sectors() {
            let place = geometry.place(sector);
            let next = sector + place.left;
            if next < geometry.n_sectors() {
                let end = place.angle + place.left as f64 / place.sectors_per_track as f64;
                let there = end + geometry.switch_ns / geometry.turn_ns;
                let wait = geometry.rotation_ns(there, &geometry.place(next));
                assert!(wait < 1.0, "sector {next}: {wait} ns");
                assert_eq!(geometry.place(next).track, place.track + 1);
            }
            sector = next;
        }
        assert_eq!(
            geometry.place(geometry.n_sectors() - 1).track,
            geometry.n_tracks - 1
        );
    }

    #[test]
    fn what_was_passed_is_the_inverse_of_the_time() {
        let (_, geometry) = geometry(1 << 30);
        for n in [0, 1, 100, 5_000, 20_000] {
            let ns = geometry.transfer_ns(77, n).ceil();
            assert_eq!(geometry.passed(77, ns, 40_000), n);
        }
    }

    #[test]
    fn a_disk_without_a_track_in_each_zone_is_refused() {
        let (parameters, _) = geometry(1 << 30);
        assert!(Geometry::new(&parameters, 1 << 20).is_err());
    }
}
