//! The tables `disks`, `calls`, `findings` and `topology`: what `nestrace analyze` says of a recording, small enough to be kept for
//! years.

use nestrace_analyzer::{
    Analysis,
    dataframe::{
        self, CallMinutes, DataFrame, PolarsResult,
        polars::prelude::{Column, NamedFrom, Series},
    },
};
use nestrace_trace::{
    Manifest,
    manifest::{Disk, Guest, GuestSide, Image},
};

use crate::exit::Failure;

use super::{
    data_set::DataSet,
    events::named,
    file::write_small,
    partition::{Calendar, Partition, or_none},
};

/// A recording and its analysis.
pub struct Summary<'a> {
    pub recording: &'a str,
    pub redact: bool,
    pub manifest: &'a Manifest,
    pub analysis: &'a Analysis,
}

impl Summary<'_> {
    /// Writes the four tables, a file each: also those without rows, so that an engine finds each table and its columns.
    pub fn write(&self, set: &DataSet, calls: &CallMinutes) -> Result<(), Failure> {
        let date = Calendar::of_host(self.manifest).date(None);
        let folder = Partition::of_host(&self.manifest.host.hostname).folder(date);
        let stem = set.stem();
        let tables = [
            ("disks", self.disks()),
            ("calls", calls.table().and_then(|calls| self.placed(calls))),
            ("findings", self.findings()),
            ("topology", self.topology()),
        ];
        for (table, rows) in tables {
            write_small(set, (table, &folder, stem), rows)?;
        }
        Ok(())
    }

    fn disks(&self) -> PolarsResult<DataFrame> {
        let start_unix_ns = Some(self.manifest.start_unix_ns).filter(|ns| *ns > 0);
        let rows = dataframe::minutes(self.analysis, start_unix_ns)?;
        self.placed(rows)
    }

    fn findings(&self) -> PolarsResult<DataFrame> {
        let findings = &self.analysis.findings;
        let mut rows = dataframe::findings(self.analysis)?;
        // Both may name programs, as the title may.
        let evidence = findings
            .iter()
            .map(|finding| self.as_json(&finding.evidence));
        let evidence: Vec<Option<String>> = evidence.collect();
        rows.with_column(Column::new("evidence".into(), evidence))?;
        let advice = findings.iter().map(|finding| self.as_json(&finding.advice));
        let advice: Vec<Option<String>> = advice.collect();
        rows.with_column(Column::new("advice".into(), advice))?;
        if self.redact {
            let title: Vec<Option<&str>> = findings.iter().map(|_| None).collect();
            rows.with_column(Column::new("title".into(), title))?;
        }
        self.placed(rows)
    }

    /// As JSON, unless names are left out.
    fn as_json(&self, what: &impl serde::Serialize) -> Option<String> {
        let json = serde_json::to_string(what).ok();
        json.filter(|_| !self.redact)
    }

    /// A row for each disk of each guest.
    fn topology(&self) -> PolarsResult<DataFrame> {
        let manifest = self.manifest;
        let guests = manifest.topology.guests.iter();
        let rows: Vec<DiskRow<'_>> = guests
            .flat_map(|guest| guest.disks.iter().map(move |disk| (guest, disk)))
            .map(|(guest, disk)| DiskRow {
                guest,
                disk,
                image: disk.images.first(),
                inside: manifest
                    .guest_sides
                    .iter()
                    .find(|side| side.guest == guest.name),
            })
            .collect();
        let text = |of: &dyn Fn(&DiskRow<'_>) -> Option<String>| -> Vec<Option<String>> {
            rows.iter()
                .map(|row| of(row).filter(|text| !text.is_empty()))
                .collect()
        };
        let number = |of: &dyn Fn(&DiskRow<'_>) -> Option<u64>| -> Vec<Option<i64>> {
            let signed = |n| i64::try_from(n).ok();
            rows.iter().map(|row| of(row).and_then(signed)).collect()
        };
        let mount = |row: &DiskRow<'_>| Some(row.image?.mount.as_ref()?.clone());
        let below = |row: &DiskRow<'_>| {
            let name = row.image?.devices.first()?;
            let mut devices = manifest.topology.devices.iter();
            devices.find(|device| device.name == *name)
        };
        let column = |name: &str, values: Vec<Option<String>>| Column::new(name.into(), values);
        let number_column = |name: &str, values: Vec<Option<i64>>| Column::new(name.into(), values);
        let columns = vec![
            column("guest", text(&|row| Some(row.guest.name.clone()))),
            column("uuid", text(&|row| row.guest.uuid.clone())),
            column("disk", text(&|row| Some(row.disk.name.clone()))),
            column("guest_device", text(&|row| self.device_inside(row))),
            column("bus", text(&|row| Some(row.disk.bus.clone()))),
            column("format", text(&|row| Some(row.disk.format.clone()))),
            column("cache", text(&|row| row.disk.cache.clone())),
            column("aio", text(&|row| row.disk.aio.clone())),
            column("iothread", text(&|row| row.disk.iothread.clone())),
            column("image", text(&|row| Some(row.image?.path.clone()))),
            number_column("virtual_size", number(&|row| Some(row.disk.virtual_size))),
            number_column("image_allocated", number(&|row| Some(row.image?.allocated))),
            column("host_fs", text(&|row| Some(mount(row)?.fs_type))),
            column("host_fs_options", text(&|row| Some(mount(row)?.options))),
            column(
                "host_device",
                text(&|row| row.image?.devices.first().cloned()),
            ),
            column(
                "host_scheduler",
                text(&|row| Some(below(row)?.scheduler.clone())),
            ),
            column("host_kernel", text(&|_| Some(manifest.host.kernel.clone()))),
            column(
                "guest_kernel",
                text(&|row| Some(row.inside?.machine.kernel.clone())),
            ),
            column("guest_fs", text(&|row| self.file_systems_inside(row))),
            column(
                "qemu_version",
                text(&|row| Some(row.guest.qemu_version.clone())),
            ),
            column("accel", text(&|row| Some(row.guest.accel.clone()))),
        ];
        self.placed(DataFrame::new(rows.len(), columns)?)
    }

    /// What the guest calls the disk.
    fn device_inside(&self, row: &DiskRow<'_>) -> Option<String> {
        let mut chains = self.analysis.chains.iter();
        let is_it = |guest: &str, disk: &str| guest == row.guest.name && disk == row.disk.name;
        let chains = chains.find(|chains| is_it(&chains.guest, &chains.disk))?;
        Some(chains.guest_device.clone())
    }

    /// Types of the file systems that the guest has on the disk: `ext4`, or `ext4,xfs`.
    fn file_systems_inside(&self, row: &DiskRow<'_>) -> Option<String> {
        let device = self.device_inside(row)?;
        let mounts = row.inside?.mounts.iter();
        let mut types: Vec<&str> = mounts
            .filter(|mount| mount.disk == device)
            .map(|mount| mount.fs_type.as_str())
            .collect();
        types.sort_unstable();
        types.dedup();
        Some(types.join(","))
    }

    /// Adds to each row what the recording is, and when it was made. The host is in the folder's name.
    fn placed(&self, mut rows: DataFrame) -> PolarsResult<DataFrame> {
        let n = rows.height();
        let trace = &self.analysis.trace;
        let time = |name: &str, ns: u64| {
            let ns = i64::try_from(ns).ok().filter(|ns| *ns > 0);
            Column::from(Series::new(name.into(), vec![ns; n]))
        };
        let columns = [
            named("recording", self.recording, n),
            time("start_unix_ns", self.manifest.start_unix_ns),
            time("duration_ns", trace.duration_ns),
            Column::from(Series::new(
                "lost".into(),
                vec![i64::try_from(trace.lost).unwrap_or(i64::MAX); n],
            )),
        ];
        for column in columns {
            rows.with_column(column)?;
        }
        let guests = rows.column("guest")?.str()?;
        let guests: Vec<&str> = guests.iter().map(or_none).collect();
        let guests = Column::new("guest".into(), guests);
        rows.with_column(guests)?;
        Ok(rows)
    }
}

/// A disk, and what is known around it.
struct DiskRow<'a> {
    guest: &'a Guest,
    disk: &'a Disk,
    image: Option<&'a Image>,
    inside: Option<&'a GuestSide>,
}
