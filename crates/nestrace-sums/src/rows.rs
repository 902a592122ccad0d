//! A disk or a device as one row: its operations together, as a person looks at them.

use std::collections::BTreeMap;

use crate::interval::{Latency, latency};
use crate::snapshot::{DeviceSums, DiskSums, LayerSums, Layers, Op, Snapshot};

/// What a row is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The guest's name; empty for a device of the host.
    pub guest: String,
    /// Its UUID, where QEMU has one.
    pub uuid: Option<String>,
    /// The disk's or device's name.
    pub name: String,
}

/// The layers, the outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The guest's block layer.
    Guest,
    /// QEMU's requests.
    Qemu,
    /// QEMU's I/O on the image.
    FileIo,
    /// The queue of the device below.
    HostQueue,
    /// The device.
    Device,
}

impl Layer {
    /// All.
    pub const ALL: [Self; 5] = [
        Self::Guest,
        Self::Qemu,
        Self::FileIo,
        Self::HostQueue,
        Self::Device,
    ];

    /// The word of JSON and of columns.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Qemu => "qemu",
            Self::FileIo => "file_io",
            Self::HostQueue => "host_queue",
            Self::Device => "device",
        }
    }
}

/// A disk or device between two snapshots. Rates are those of a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// What it is about.
    pub subject: Subject,
    /// The device that carries a disk.
    pub device: Option<String>,
    /// Reads a second.
    pub reads: f64,
    /// Writes a second.
    pub writes: f64,
    /// Flushes a second.
    pub flushes: f64,
    /// Bytes a second of all operations.
    pub bytes: f64,
    /// Of each layer of [`Layer::ALL`], the sums of reads and writes; `None`: not recorded.
    pub layers: [Option<LayerSums>; 5],
    /// Requests in flight.
    pub in_flight: Option<u64>,
    /// The age of the oldest, in nanoseconds.
    pub oldest_ns: Option<u64>,
}

impl Row {
    /// The latencies of a layer.
    #[must_use]
    pub fn latency(&self, layer: Layer) -> Option<Latency> {
        let sums = self.layers.get(layer as usize)?.as_ref()?;
        Some(latency(sums))
    }
}

/// The rows of disks and those of devices, of what was done in so many nanoseconds ([`Snapshot::since`]).
#[must_use]
pub fn rows(since: &Snapshot, interval_ns: u64) -> (Vec<Row>, Vec<Row>) {
    let ns = interval_ns.max(1);
    (of_disks(&since.disks, ns), of_devices(&since.devices, ns))
}

fn of_disks(disks: &[DiskSums], ns: u64) -> Vec<Row> {
    let mut rows: BTreeMap<Subject, Row> = BTreeMap::new();
    for disk in disks {
        let subject = Subject {
            guest: disk.guest.clone(),
            uuid: disk.uuid.clone(),
            name: disk.disk.clone(),
        };
        let row = rows.entry(subject.clone()).or_insert_with(|| Row {
            subject,
            device: disk.device.clone(),
            ..Row::default()
        });
        row.count(disk.op, disk.n, ns);
        row.bytes += per_second(disk.bytes, ns);
        let Layers {
            guest,
            qemu,
            file_io,
            host_queue,
            device,
        } = &disk.layers;
        row.add_layers(disk.op, [guest, qemu, file_io, host_queue, device]);
        row.wait(disk.in_flight, disk.oldest_ns);
    }
    rows.into_values().collect()
}

fn of_devices(devices: &[DeviceSums], ns: u64) -> Vec<Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for device in devices {
        let row = rows.entry(&device.device).or_insert_with(|| Row {
            subject: Subject {
                name: device.device.clone(),
                ..Subject::default()
            },
            ..Row::default()
        });
        row.count(device.op, device.n, ns);
        row.bytes += per_second(device.bytes, ns);
        let layers = [&None, &None, &None, &device.host_queue, &device.latency];
        row.add_layers(device.op, layers);
        row.wait(device.in_flight, device.oldest_ns);
    }
    rows.into_values().collect()
}

impl Row {
    fn count(&mut self, op: Op, n: u64, ns: u64) {
        let rate = per_second(n, ns);
        match op {
            Op::Read => self.reads += rate,
            Op::Write => self.writes += rate,
            Op::Flush => self.flushes += rate,
            Op::Discard => {}
        }
    }

    fn add_layers(&mut self, op: Op, layers: [&Option<LayerSums>; 5]) {
        if !matches!(op, Op::Read | Op::Write) {
            return;
        }
        for (sums, new) in self.layers.iter_mut().zip(layers) {
            let Some(new) = new else { continue };
            let sums = sums.get_or_insert_with(LayerSums::default);
            sums.add(new);
        }
    }

    fn wait(&mut self, in_flight: Option<u64>, oldest_ns: Option<u64>) {
        if let Some(n) = in_flight {
            *self.in_flight.get_or_insert(0) += n;
        }
        self.oldest_ns = self.oldest_ns.max(oldest_ns);
    }
}

// A rate needs no more than 53 bits.
#[expect(clippy::cast_precision_loss)]
fn per_second(n: u64, ns: u64) -> f64 {
    n as f64 * 1e9 / ns as f64
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::{BUCKETS, bucket_of};

    use super::*;

    #[test]
    fn a_row_has_all_operations_of_a_disk() {
        let disk = |op, n: u64, ns: u64, in_flight, oldest_ns| {
            let mut buckets = vec![0; BUCKETS];
            buckets[bucket_of(ns)] = n;
            let sums = LayerSums {
                n,
                sum_ns: n * ns,
                max_ns: Some(ns),
                buckets,
            };
            DiskSums {
                guest: "vm1".to_owned(),
                uuid: None,
                disk: "vda".to_owned(),
                device: Some("sda".to_owned()),
                op,
                n,
                bytes: n * 4096,
                merged: None,
                no_guest: None,
                layers: Layers {
                    qemu: Some(sums),
                    ..Layers::default()
                },
                in_flight: Some(in_flight),
                oldest_ns,
            }
        };
        let at = |at_unix_ns, disks| Snapshot {
            at_unix_ns,
            disks,
            ..Snapshot::default()
        };
        let earlier = at(0, vec![disk(Op::Read, 10, 2000, 0, None)]);
        let now = at(
            2_000_000_000,
            vec![
                disk(Op::Read, 30, 2000, 1, Some(5)),
                disk(Op::Write, 10, 8000, 2, Some(7)),
                disk(Op::Flush, 4, 1_000_000, 0, None),
            ],
        );
        let (disks, devices) = rows(&now.since(&earlier), 2_000_000_000);
        assert!(devices.is_empty());
        let [row] = disks.as_slice() else {
            panic!("{disks:?}")
        };
        let rates = (row.reads, row.writes, row.flushes, row.bytes);
        assert_eq!(rates, (10.0, 5.0, 2.0, 34.0 * 4096.0 / 2.0));
        assert_eq!((row.in_flight, row.oldest_ns), (Some(3), Some(7)));
        let qemu = row.latency(Layer::Qemu).unwrap();
        assert_eq!((qemu.n, qemu.mean), (30, Some(4000.0)));
        assert_eq!(row.latency(Layer::Device), None);
    }

    /// A guest that was started again under its name counts from 0.
    #[test]
    fn counters_that_begin_anew_have_all_been_done_since() {
        let at = |n| {
            let disk = DiskSums {
                guest: "vm1".to_owned(),
                uuid: None,
                disk: "vda".to_owned(),
                device: None,
                op: Op::Read,
                n,
                bytes: n * 4096,
                merged: None,
                no_guest: None,
                layers: Layers::default(),
                in_flight: None,
                oldest_ns: None,
            };
            Snapshot {
                disks: vec![disk],
                ..Snapshot::default()
            }
        };
        let (disks, _) = rows(&at(3).since(&at(100)), 1_000_000_000);
        assert_eq!((disks[0].reads, disks[0].bytes), (3.0, 3.0 * 4096.0));
    }
}
