//! The tables `streams` and `devices`: what was recorded and what was lost, and what device numbers mean.
//! And `kinds`: what an event is.

use std::path::Path;

use nestrace_analyzer::dataframe::{
    DataFrame, PolarsResult,
    polars::prelude::{Column, NamedFrom, Series},
};
use nestrace_trace::{
    Damage, Kind, Manifest,
    manifest::{GuestSide, State},
};

use crate::{damage_notes::tells_of_damage_inside, exit::Failure};

use super::{data_set::DataSet, file::write_small, partition::or_none};

/// A stream of the recording.
pub struct StreamRow {
    recording: String,
    host: String,
    /// `None`: the host itself.
    pub guest: Option<String>,
    backend: String,
    kernel: String,
    start_unix_ns: u64,
    start_mono_ns: u64,
    end_mono_ns: u64,
    /// It was closed, and all of it could be read.
    complete: bool,
    lost: u64,
    /// Events that were written.
    pub events: u64,
}

impl StreamRow {
    /// The host's.
    pub fn of_host(recording: &str, manifest: &Manifest) -> Self {
        let backend = manifest
            .streams
            .first()
            .map(|stream| stream.backend.clone());
        Self {
            recording: recording.to_owned(),
            host: manifest.host.hostname.clone(),
            guest: None,
            backend: backend.unwrap_or_default(),
            kernel: manifest.host.kernel.clone(),
            start_unix_ns: manifest.start_unix_ns,
            start_mono_ns: manifest.start_mono_ns,
            end_mono_ns: manifest.end_mono_ns,
            // A repaired one was closed too, and lacks what it lacked.
            complete: manifest.state == State::Complete && !manifest.disk_was_full(None),
            lost: lost(manifest, None),
            events: 0,
        }
    }

    /// One of a guest's. It was closed or not whatever the host's was; what was found when it was repaired is a notice.
    pub fn of_guest(recording: &str, manifest: &Manifest, side: &GuestSide) -> Self {
        Self {
            guest: Some(side.guest.clone()),
            backend: side.backend.clone(),
            kernel: side.machine.kernel.clone(),
            start_unix_ns: side.start_unix_ns,
            start_mono_ns: side.start_mono_ns,
            end_mono_ns: side.end_mono_ns,
            complete: !tells_of_damage_inside(manifest, &side.guest)
                && !manifest.disk_was_full(Some(&side.guest)),
            lost: lost(manifest, Some(&side.guest)),
            ..Self::of_host(recording, manifest)
        }
    }

    /// Adds what could not be read.
    pub fn damaged(&mut self, damage: Damage) {
        self.lost = self.lost.saturating_add(damage.rows_lost);
        self.complete &= !damage.cut;
    }
}

/// Events that were dropped on one side, as the recorder counted them.
fn lost(manifest: &Manifest, guest: Option<&str>) -> u64 {
    let losses = manifest.losses.iter();
    losses
        .filter(|loss| loss.guest.as_deref() == guest && loss.source != "walk")
        .map(|loss| loss.events)
        .fold(0, u64::saturating_add)
}

/// A device number's meaning.
pub struct DeviceRow {
    recording: String,
    guest: Option<String>,
    dev: u32,
    name: Option<String>,
}

impl DeviceRow {
    /// The host's devices.
    pub fn of_host<'a>(
        recording: &'a str,
        manifest: &'a Manifest,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let devices = manifest.topology.devices.iter();
        devices.map(move |device| Self {
            recording: recording.to_owned(),
            guest: None,
            dev: device.dev,
            name: Some(device.name.clone()),
        })
    }

    /// A guest's disks, each number once: by the first that had it.
    pub fn of_guest<'a>(
        recording: &'a str,
        side: &'a GuestSide,
    ) -> impl Iterator<Item = Self> + use<'a> {
        let disks = side.disks.iter().filter(|disk| disk.since_mono_ns == 0);
        disks.map(move |disk| Self {
            recording: recording.to_owned(),
            guest: Some(side.guest.clone()),
            dev: disk.dev,
            name: Some(disk.name.clone()),
        })
    }

    /// Devices with a known number only.
    pub fn unnamed<'a>(
        recording: &'a str,
        devices: impl IntoIterator<Item = &'a u32> + 'a,
    ) -> impl Iterator<Item = Self> + 'a {
        devices.into_iter().map(move |dev| Self {
            recording: recording.to_owned(),
            guest: None,
            dev: *dev,
            name: None,
        })
    }
}

/// A column with a value of each row.
fn column<'a, R, T, P: ?Sized>(name: &str, rows: &'a [R], value: impl Fn(&'a R) -> T) -> Column
where
    Series: NamedFrom<Vec<T>, P>,
{
    let values: Vec<T> = rows.iter().map(value).collect();
    Column::new(name.into(), values)
}

fn streams_table(rows: &[StreamRow]) -> PolarsResult<DataFrame> {
    DataFrame::new(
        rows.len(),
        vec![
            column("recording", rows, |row| row.recording.as_str()),
            column("host", rows, |row| or_none(Some(&row.host))),
            column("guest", rows, |row| or_none(row.guest.as_deref())),
            column("backend", rows, |row| row.backend.as_str()),
            column("kernel", rows, |row| some(&row.kernel)),
            column("start_unix_ns", rows, |row| row.start_unix_ns),
            column("start_mono_ns", rows, |row| row.start_mono_ns),
            column("end_mono_ns", rows, |row| row.end_mono_ns),
            column("events", rows, |row| row.events),
            column("lost", rows, |row| row.lost),
            column("complete", rows, |row| row.complete),
        ],
    )
}

fn devices_table(rows: &[DeviceRow]) -> PolarsResult<DataFrame> {
    DataFrame::new(
        rows.len(),
        vec![
            column("recording", rows, |row| row.recording.as_str()),
            column("guest", rows, |row| or_none(row.guest.as_deref())),
            column("dev", rows, |row| row.dev),
            column("major", rows, |row| row.dev >> 20),
            column("minor", rows, |row| row.dev & 0xf_ffff),
            column("name", rows, |row| row.name.as_deref()),
        ],
    )
}

fn kinds_table() -> PolarsResult<DataFrame> {
    let rows = Kind::ALL;
    DataFrame::new(
        rows.len(),
        vec![
            column("kind", rows, |kind| *kind as u8),
            column("name", rows, |kind| kind.name()),
            column("source", rows, |kind| kind.source().name()),
        ],
    )
}

/// What is not known is null.
fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Writes the three.
pub fn write(set: &DataSet, streams: &[StreamRow], devices: &[DeviceRow]) -> Result<(), Failure> {
    let nowhere = Path::new("");
    let stem = set.stem();
    write_small(set, ("streams", nowhere, stem), streams_table(streams))?;
    write_small(set, ("devices", nowhere, stem), devices_table(devices))?;
    write_small(set, ("kinds", nowhere, "kinds"), kinds_table())
}

#[cfg(test)]
mod tests {
    use nestrace_trace::{manifest::Loss, redact};

    use crate::damage_notes::guest_stream_damaged;

    use super::*;

    #[test]
    fn only_what_was_closed_and_can_be_read_is_complete() {
        let row = |state| {
            let mut manifest = Manifest::default();
            manifest.state = state;

            StreamRow::of_host("a", &manifest)
        };
        assert!(row(State::Complete).complete);
        assert!(!row(State::Recording).complete);
        assert!(!row(State::Repaired).complete);
        let mut cut = row(State::Complete);
        cut.damaged(Damage {
            rows_lost: 0,
            cut: true,
        });
        assert!(!cut.complete);
    }

    /// Whether the streams of the host, of vm1 and of vm2 are complete.
    fn complete(manifest: &Manifest) -> [bool; 3] {
        let of = |guest: &str| {
            let side = GuestSide {
                guest: guest.to_owned(),
                ..GuestSide::default()
            };
            StreamRow::of_guest("a", manifest, &side).complete
        };
        let host = StreamRow::of_host("a", manifest).complete;
        [host, of("vm1"), of("vm2")]
    }

    #[test]
    fn what_was_cut_and_repaired_is_not_complete() {
        let mut cut = Manifest::default();
        cut.state = State::Complete;
        cut.notices = vec![guest_stream_damaged("vm1")];

        assert_eq!(complete(&cut), [true, false, true]);
        // Then it is not known which.
        assert_eq!(complete(&redact::manifest(&cut)), [true, false, false]);
        // The host's was cut, and what was recorded inside the guests was not.
        let mut host = Manifest::default();
        host.state = State::Repaired;

        assert_eq!(complete(&host), [false, true, true]);
    }

    #[test]
    fn what_a_full_disk_cut_is_not_complete() {
        let full = |guest: Option<&str>| {
            let mut manifest = Manifest::default();
            manifest.state = State::Complete;
            manifest.losses = vec![Loss {
                source: "disk_full".to_owned(),
                guest: guest.map(str::to_owned),
                events: 5,
            }];
            manifest
        };
        assert_eq!(complete(&full(Some("vm1"))), [true, false, true]);
        assert_eq!(complete(&full(None)), [false, false, false]);
    }
}
