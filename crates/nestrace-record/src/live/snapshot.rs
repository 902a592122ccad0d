//! Reads the sums and gives them names.

use std::collections::BTreeMap;

use nestrace_probes::clock;
use nestrace_probes::sums::{InFlightNow, SumValues, Sums};
use nestrace_sums::snapshot::{DeviceSums, DiskSums, LayerSums, Layers, Op, Snapshot};

use super::Live;
use super::agent::GuestOp;
use super::guest::{LiveDisk, LiveGuest};
use super::slots::place;

/// The source of what agents could not sum.
const LOST_IN_GUESTS: &str = "guest";

/// What is in flight, and when that was.
struct Now {
    ns: u64,
    in_flight: BTreeMap<u32, InFlightNow>,
}

impl Now {
    /// How many are in flight at these places, and the age of the oldest.
    fn at(&self, places: impl Iterator<Item = u32>) -> (u64, Option<u64>) {
        let found: Vec<&InFlightNow> = places
            .filter_map(|place| self.in_flight.get(&place))
            .collect();
        let oldest = found.iter().map(|found| found.oldest_ns).min();
        (
            found.iter().map(|found| found.n).sum(),
            oldest.map(|oldest| self.ns.saturating_sub(oldest)),
        )
    }
}

impl Live {
    /// What the sums are now. The longest latencies are those since the last call.
    pub fn snapshot(&mut self) -> Snapshot {
        let mut snapshot = Snapshot {
            at_unix_ns: clock::realtime_ns(),
            lost: self.lost(),
            ..Snapshot::default()
        };
        let Some(sums) = self.probes.sums() else {
            return snapshot;
        };
        let in_flight = sums.in_flight();
        let now = Now {
            ns: clock::monotonic_ns(),
            in_flight,
        };
        for (name, device) in &self.devices {
            let rows =
                operations(|op, number| device_sums(sums, &now, (name, device.slot), op, number));
            snapshot.devices.extend(rows);
        }
        let mut lost_in_guests = self.lost_of_gone;
        for guest in &self.guests {
            let in_guest = guest.guest_layer();
            lost_in_guests = lost_in_guests.saturating_add(in_guest.lost);
            let is_seen = |disk: &&LiveDisk| {
                disk.disk.not_followed.is_none() || in_guest.of(&disk.name, 0).is_ok()
            };
            for disk in guest.disks.iter().filter(is_seen) {
                let of_device = |op: Op| {
                    let of = |row: &&DeviceSums| {
                        row.op == op && Some(&row.device) == disk.device.as_ref()
                    };
                    snapshot.devices.iter().find(of)
                };
                let rows = operations(|op, number| {
                    let in_guest = in_guest.of(&disk.name, number);
                    disk_sums(
                        sums,
                        &now,
                        (guest, disk),
                        (of_device(op), in_guest),
                        op,
                        number,
                    )
                });
                snapshot.disks.extend(rows);
            }
        }
        snapshot
            .lost
            .insert(LOST_IN_GUESTS.to_owned(), lost_in_guests);
        snapshot
    }
}

/// A row for each operation; for discards once there was one.
fn operations<R: Row>(row: impl Fn(Op, usize) -> R) -> Vec<R> {
    let rows = Op::ALL
        .iter()
        .enumerate()
        .map(|(number, op)| (*op, row(*op, number)));
    rows.filter(|(op, row)| *op != Op::Discard || !row.is_empty())
        .map(|(_, row)| row)
        .collect()
}

trait Row {
    fn is_empty(&self) -> bool;
}

impl Row for DeviceSums {
    fn is_empty(&self) -> bool {
        self.n == 0 && self.in_flight == Some(0)
    }
}

impl Row for DiskSums {
    fn is_empty(&self) -> bool {
        self.n == 0 && self.in_flight.unwrap_or(0) == 0
    }
}

fn device_sums(
    sums: &Sums,
    now: &Now,
    (name, slot): (&str, u32),
    op: Op,
    number: usize,
) -> DeviceSums {
    let values = sums.read(place(slot, 0, number));
    let queue = sums.read(place(slot, 1, number));
    let bytes = values.bytes;
    let latency = layer([values]);
    let (in_flight, oldest_ns) = now.at(std::iter::once(place(slot, 0, number)));
    DeviceSums {
        device: name.to_owned(),
        op,
        n: latency.n,
        bytes,
        host_queue: Some(layer([queue])),
        latency: Some(latency),
        in_flight: Some(in_flight),
        oldest_ns,
    }
}

fn disk_sums(
    sums: &Sums,
    now: &Now,
    (guest, disk): (&LiveGuest, &LiveDisk),
    (device, in_guest): (Option<&DeviceSums>, Result<&GuestOp, &str>),
    op: Op,
    number: usize,
) -> DiskSums {
    let backends: Vec<u32> = guest
        .backend_slots(&disk.name)
        .map(|slot| place(slot, 0, number))
        .collect();
    let image: Option<u32> = disk.image_slot.map(|slot| place(slot, 0, number));
    let of_backends: Vec<SumValues> = backends.iter().map(|place| sums.read(*place)).collect();
    let of_image = image.map(|place| sums.read(place));
    // Where QEMU's requests are not seen, its file I/O stands for them; where neither is, the guest's requests do.
    let has_qemu = guest.stats_offset.is_some() && disk.disk.not_followed.is_none();
    let bytes = match (has_qemu, &of_image, in_guest) {
        (true, _, _) => of_backends.iter().map(|values| values.bytes).sum(),
        (false, Some(values), _) => values.bytes,
        (false, None, in_guest) => in_guest.map_or(0, |op| op.bytes),
    };
    let qemu = has_qemu.then(|| layer(of_backends));
    let file_io = of_image.map(|values| layer([values]));
    let of_guest = in_guest.ok().map(|op| op.layer.clone());
    let counted = qemu.as_ref().or(file_io.as_ref()).or(of_guest.as_ref());
    let n = counted.map_or(0, |layer| layer.n);
    let (in_flight, oldest_ns) = match (has_qemu, image, in_guest) {
        (true, _, _) => known(now.at(backends.iter().copied())),
        (false, Some(image), _) => known(now.at(std::iter::once(image))),
        (false, None, Ok(op)) => (Some(op.in_flight), op.oldest_ns),
        (false, None, Err(_)) => (None, None),
    };
    DiskSums {
        guest: guest.name.clone(),
        uuid: guest.guest.uuid.clone(),
        disk: disk.name.clone(),
        device: disk.device.clone(),
        op,
        n,
        bytes,
        merged: None,
        in_flight,
        oldest_ns,
        layers: Layers {
            guest: of_guest,
            qemu,
            file_io,
            host_queue: device.and_then(|device| device.host_queue.clone()),
            device: device.and_then(|device| device.latency.clone()),
        },
        no_guest: in_guest.err().map(str::to_owned),
    }
}

fn known((n, oldest_ns): (u64, Option<u64>)) -> (Option<u64>, Option<u64>) {
    (Some(n), oldest_ns)
}

/// All of these together.
fn layer(all: impl IntoIterator<Item = SumValues>) -> LayerSums {
    let mut layer = LayerSums {
        buckets: vec![0; nestrace_abi::histogram::BUCKETS],
        max_ns: Some(0),
        ..LayerSums::default()
    };
    for values in all {
        layer.sum_ns += values.sum_ns;
        layer.max_ns = layer.max_ns.max(Some(values.max_ns));
        for (sum, n) in layer.buckets.iter_mut().zip(&values.buckets) {
            *sum += n;
            layer.n += n;
        }
    }
    layer
}
