//! Which emulated device a `-device` is: its bus, the drive it shows, the iothread that serves it.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::command_line::DiskSource;
use super::option_syntax;

/// A device that shows a disk to the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceModel {
    /// As in [`nestrace_trace::manifest::Disk::bus`].
    pub bus: String,
    /// The drive id or node name.
    pub drive: Option<String>,
    /// Its own iothread, or its controller's.
    pub iothread: Option<String>,
    /// A device whose data does not pass QEMU's block layer.
    pub outside: Option<DiskSource>,
    /// A medium that the guest cannot write (CD-ROM).
    pub read_only: bool,
}

type Device = Map<String, Value>;

/// The disk device that `device` is; `None` if it is something else (a network card, a controller).
#[must_use]
pub fn of(
    device: &Device,
    all: &[Device],
    chardevs: &BTreeMap<String, Device>,
) -> Option<DeviceModel> {
    let driver = option_syntax::text_at(device, &["driver"])?;
    if let Some(outside) = outside(&driver, device, chardevs) {
        return Some(outside);
    }
    let (bus, read_only) = bus_of(&driver, device, all)?;
    let drive = ["drive", "driveA"]
        .iter()
        .find_map(|key| option_syntax::text_at(device, &[key]));
    if drive.is_none() && !read_only {
        return None;
    }
    Some(DeviceModel {
        bus,
        drive,
        iothread: iothread(device).or_else(|| iothread(controller(&driver, device, all)?)),
        outside: None,
        read_only,
    })
}

/// The bus of a device model by its driver's name and its controller's, for a device that only QMP knows.
#[must_use]
pub fn bus_of_driver(driver: &str, controller: Option<&str>) -> Option<String> {
    let named = |driver: &str| Device::from_iter([("driver".to_owned(), driver.into())]);
    let controllers: Vec<Device> = controller.map(named).into_iter().collect();
    bus_of(driver, &Map::new(), &controllers).map(|(bus, _)| bus)
}

/// Without its variant: `virtio-blk` of `virtio-blk-pci-non-transitional`.
fn family(driver: &str) -> &str {
    let driver = driver
        .strip_suffix("-non-transitional")
        .or_else(|| driver.strip_suffix("-transitional"))
        .unwrap_or(driver);
    ["-pci", "-device", "-ccw"]
        .iter()
        .find_map(|s| driver.strip_suffix(s))
        .unwrap_or(driver)
}

fn bus_of(driver: &str, device: &Device, all: &[Device]) -> Option<(String, bool)> {
    let (bus, read_only) = match family(driver) {
        "virtio-blk" => ("virtio-blk", false),
        "scsi-hd" | "scsi-block" | "scsi-generic" | "scsi-disk" => {
            (scsi_bus(driver, device, all), false)
        }
        "scsi-cd" => (scsi_bus(driver, device, all), true),
        "ide-hd" | "ide-drive" | "ide-cf" => ("ide", false),
        "ide-cd" => ("ide", true),
        "nvme" | "nvme-ns" => ("nvme", false),
        "usb-storage" => ("usb", false),
        "floppy" | "isa-fdc" => ("floppy", false),
        "sd-card" | "emmc" => ("sd", false),
        "xen-disk" => ("xen", false),
        "xen-cdrom" => ("xen", true),
        _ => return None,
    };
    Some((bus.to_owned(), read_only))
}

/// SCSI disks are named after their controller: `virtio-scsi`, or `scsi` for emulated hardware.
fn scsi_bus(driver: &str, device: &Device, all: &[Device]) -> &'static str {
    let controller =
        controller(driver, device, all).and_then(|c| option_syntax::text_at(c, &["driver"]));
    match controller.as_deref().map(family) {
        Some("virtio-scsi") => "virtio-scsi",
        Some("usb-uas" | "usb-bot") => "usb",
        _ => "scsi",
    }
}

/// The SCSI controller that a device names with `bus=ID.0`, or the first there is.
fn controller<'a>(driver: &str, device: &Device, all: &'a [Device]) -> Option<&'a Device> {
    if !driver.starts_with("scsi-") {
        return None;
    }
    let bus = option_syntax::text_at(device, &["bus"]);
    match bus
        .as_deref()
        .map(|b| b.rsplit_once('.').map_or(b, |(id, _)| id))
    {
        Some(id) => all
            .iter()
            .find(|c| option_syntax::text_at(c, &["id"]).as_deref() == Some(id)),
        None => all.iter().find(|c| {
            option_syntax::text_at(c, &["driver"]).is_some_and(|d| {
                matches!(
                    family(&d),
                    "virtio-scsi"
                        | "lsi"
                        | "lsi53c895a"
                        | "lsi53c810"
                        | "megasas"
                        | "megasas-gen2"
                        | "mptsas1068"
                        | "pvscsi"
                        | "am53c974"
                        | "dc390"
                        | "usb-uas"
                        | "usb-bot"
                )
            })
        }),
    }
}

/// `iothread=ID`, or the threads of `iothread-vq-mapping`, joined by commas.
fn iothread(device: &Device) -> Option<String> {
    if let Some(id) = option_syntax::text_at(device, &["iothread"]) {
        return Some(id);
    }
    let entries: Vec<&Value> = match device.get("iothread-vq-mapping")? {
        Value::Array(entries) => entries.iter().collect(),
        Value::Object(entries) => entries.values().collect(),
        _ => return None,
    };
    let names: Vec<String> = entries
        .iter()
        .filter_map(|e| option_syntax::text_at(e.as_object()?, &["iothread"]))
        .collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Devices whose I/O does not pass QEMU's block layer.
fn outside(
    driver: &str,
    device: &Device,
    chardevs: &BTreeMap<String, Device>,
) -> Option<DeviceModel> {
    let socket = || {
        let chardev = chardevs.get(&option_syntax::text_at(device, &["chardev"])?)?;
        option_syntax::text_at(chardev, &["path"])
    };
    let (bus, source) = match family(driver) {
        kind @ ("vhost-user-blk" | "vhost-user-scsi") => {
            let bus = if kind == "vhost-user-blk" { "virtio-blk" } else { "virtio-scsi" };
            (bus, vhost_user(kind, socket().as_deref()))
        }
        "vhost-scsi" => ("virtio-scsi", DiskSource::Outside(
            "vhost-scsi: the kernel's SCSI target serves the guest's queue; QEMU does not see the requests".to_owned(),
        )),
        "vhost-vdpa" | "vhost-vdpa-blk" => ("virtio-blk", vhost_vdpa()),
        "vfio" => {
            let place = option_syntax::text_at(device, &["host"]).or_else(|| option_syntax::text_at(device, &["sysfsdev"]))?;
            ("vfio", DiskSource::HostPci(place))
        }
        "nvdimm" | "virtio-pmem" => ("pmem", DiskSource::Outside(format!(
            "{driver}: the guest reads and writes the mapped file as memory; there are no requests"
        ))),
        _ => return None,
    };
    Some(DeviceModel {
        bus: bus.to_owned(),
        outside: Some(source),
        ..DeviceModel::default()
    })
}

/// A disk that a vDPA device serves.
#[must_use]
pub fn vhost_vdpa() -> DiskSource {
    DiskSource::Outside(
        "vhost-vdpa: the guest's queue is in a vDPA device; QEMU does not see the requests"
            .to_owned(),
    )
}

/// A disk that another process serves, and the socket between them.
#[must_use]
pub fn vhost_user(kind: &str, socket: Option<&str>) -> DiskSource {
    let place = socket.map_or(String::new(), |path| format!(" ({path})"));
    DiskSource::Outside(format!(
        "{kind}: another process serves the guest's queue{place}; QEMU does not see the requests"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(devices: &[&str], index: usize, expected: &str) {
        let devices: Vec<Device> = devices
            .iter()
            .map(|d| option_syntax::object(d, Some("driver")).expect("options parse"))
            .collect();
        let got =
            of(&devices[index], &devices, &BTreeMap::new()).map_or("not a disk".to_owned(), |m| {
                let outside = match m.outside {
                    Some(DiskSource::HostPci(place)) => format!(" pci {place}"),
                    Some(_) => " outside".to_owned(),
                    None => String::new(),
                };
                format!(
                    "{} {}{}{outside}",
                    m.bus,
                    m.drive.unwrap_or_default(),
                    m.iothread.map(|i| format!(" on {i}")).unwrap_or_default()
                )
            });
        assert_eq!(got, expected, "{index} of {devices:?}");
    }

    #[test]
    fn devices_that_are_disks() {
        check(&["virtio-blk-pci,drive=d"], 0, "virtio-blk d");
        check(
            &["virtio-blk-pci-non-transitional,drive=d,iothread=io1"],
            0,
            "virtio-blk d on io1",
        );
        check(&["virtio-blk-device,drive=d"], 0, "virtio-blk d");
        check(&["virtio-blk-ccw,drive=d"], 0, "virtio-blk d");
        check(&["virtio-blk,drive=d"], 0, "virtio-blk d");
        check(
            &[
                r#"{"driver":"virtio-blk-pci","drive":"d","iothread-vq-mapping":[{"iothread":"a"},{"iothread":"b"}]}"#,
            ],
            0,
            "virtio-blk d on a,b",
        );
        check(
            &[
                "virtio-scsi-pci,id=s,iothread=io1",
                "scsi-hd,bus=s.0,drive=d",
            ],
            1,
            "virtio-scsi d on io1",
        );
        check(&["scsi-hd,drive=d", "virtio-scsi-pci"], 0, "virtio-scsi d");
        check(
            &[
                "lsi53c895a,id=l",
                "virtio-scsi-pci,id=s",
                "scsi-block,bus=l.0,drive=d",
            ],
            2,
            "scsi d",
        );
        check(&["usb-uas,id=u", "scsi-hd,bus=u.0,drive=d"], 1, "usb d");
        check(&["ide-hd,drive=d,bus=ide.0"], 0, "ide d");
        check(&["ide-cd,bus=ide.0"], 0, "ide ");
        check(&["nvme,serial=x,drive=d"], 0, "nvme d");
        check(
            &["nvme,serial=x,id=n", "nvme-ns,drive=d,bus=n"],
            0,
            "not a disk",
        );
        check(
            &["nvme,serial=x,id=n", "nvme-ns,drive=d,bus=n"],
            1,
            "nvme d",
        );
        check(&["usb-storage,drive=d"], 0, "usb d");
        check(&["floppy,drive=d"], 0, "floppy d");
        check(&["vhost-user-blk-pci,chardev=c"], 0, "virtio-blk  outside");
        check(&["vfio-pci,host=0000:01:00.0"], 0, "vfio  pci 0000:01:00.0");
        check(&["virtio-net-pci,netdev=n"], 0, "not a disk");
        check(&["virtio-scsi-pci,id=s"], 0, "not a disk");
    }
}
