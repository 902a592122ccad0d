//! Several releases of QEMU, each with disks as libvirt and Proxmox write them: several queues over several iothreads, throttling by
//! node and by drive, and io_uring in QEMU's own event loop. Every bio is followed, and counts equal QMP's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::GuestSpec;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::qemu_package;
use nestrace_rig::stack::{DiskStack, HostFsKind, ImageFormat};
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::measure::Watched;
use super::with_agents::chains::{self, Subject};
use super::with_agents::recording::{boot_with, device_in_guest, measure};
use super::{random_load, topology};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "qemu-versions",
    about: "QEMU 7.2, 10.0 and 11.1: queues over iothreads, throttling, io_uring in the event loop",
    run,
    alone: false,
};

/// A release of QEMU.
struct Release {
    /// How its version begins.
    version: &'static str,
    /// A program, or none for that of this machine.
    obtain: fn() -> anyhow::Result<Option<PathBuf>>,
    /// It spreads the queues of a disk over iothreads.
    maps_queues: bool,
}

const RELEASES: [Release; 3] = [
    Release {
        version: "7.2",
        obtain: || Ok(None),
        maps_queues: false,
    },
    Release {
        version: "10.0",
        obtain: || {
            Ok(Some(qemu_package::obtain(
                "bookworm",
                "bookworm-backports",
            )?))
        },
        maps_queues: true,
    },
    Release {
        version: "11.",
        obtain: || {
            Ok(Some(qemu_package::obtain_root(
                "trixie",
                "trixie-backports",
            )?))
        },
        maps_queues: true,
    },
];

/// A disk and how it is written.
struct Disk {
    id: &'static str,
    format: ImageFormat,
    host_fs: HostFsKind,
    /// Arguments of QEMU; the image's path is given.
    arguments: fn(image: &str, release: &Release) -> Vec<String>,
}

const DISKS: [Disk; 5] = [
    Disk {
        id: "queues",
        format: ImageFormat::Qcow2,
        host_fs: HostFsKind::Xfs,
        arguments: queues,
    },
    Disk {
        id: "scsi",
        format: ImageFormat::Raw,
        host_fs: HostFsKind::Ext4,
        arguments: scsi,
    },
    Disk {
        id: "scsi-io",
        format: ImageFormat::Raw,
        host_fs: HostFsKind::Xfs,
        arguments: scsi_in_iothreads,
    },
    Disk {
        id: "libvirt",
        format: ImageFormat::Qcow2,
        host_fs: HostFsKind::Ext4,
        arguments: libvirt,
    },
    Disk {
        id: "proxmox",
        format: ImageFormat::Raw,
        host_fs: HostFsKind::Xfs,
        arguments: proxmox,
    },
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// virtio-blk with two queues over two iothreads.
fn queues(image: &str, release: &Release) -> Vec<String> {
    let node = format!(
        r#"{{"driver":"qcow2","node-name":"queues-format","file":{{"driver":"file","filename":"{image}","aio":"native","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#
    );
    let device = match release.maps_queues {
        true => {
            r#"{"driver":"virtio-blk-pci","id":"queues","serial":"queues","drive":"queues-format","num-queues":2,"iothread-vq-mapping":[{"iothread":"io0"},{"iothread":"io1"}]}"#
        }
        false => {
            r#"{"driver":"virtio-blk-pci","id":"queues","serial":"queues","drive":"queues-format","num-queues":2,"iothread":"io0"}"#
        }
    };
    words(&[
        "-object",
        "iothread,id=io0",
        "-object",
        "iothread,id=io1",
        "-blockdev",
        &node,
        "-device",
        device,
    ])
}

/// virtio-scsi with two queues, whose file I/O is that of QEMU's main loop.
fn scsi(image: &str, _release: &Release) -> Vec<String> {
    let node = format!(
        r#"{{"driver":"raw","node-name":"scsi-format","file":{{"driver":"file","filename":"{image}","aio":"io_uring","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#
    );
    words(&[
        "-blockdev",
        &node,
        "-device",
        "virtio-scsi-pci,id=scsi-queues,num_queues=2",
        "-device",
        "scsi-hd,bus=scsi-queues.0,drive=scsi-format,id=scsi,serial=scsi",
    ])
}

/// virtio-scsi with two queues: over two iothreads, or both in one where QEMU cannot spread them.
fn scsi_in_iothreads(image: &str, release: &Release) -> Vec<String> {
    let node = format!(
        r#"{{"driver":"raw","node-name":"scsi-io-format","file":{{"driver":"file","filename":"{image}","aio":"native","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}"#
    );
    let controller = match release.maps_queues {
        true => {
            r#"{"driver":"virtio-scsi-pci","id":"scsi-io-queues","num_queues":2,"iothread-vq-mapping":[{"iothread":"io2"},{"iothread":"io3"}]}"#
        }
        false => {
            r#"{"driver":"virtio-scsi-pci","id":"scsi-io-queues","num_queues":2,"iothread":"io2"}"#
        }
    };
    words(&[
        "-object",
        "iothread,id=io2",
        "-object",
        "iothread,id=io3",
        "-blockdev",
        &node,
        "-device",
        controller,
        "-device",
        // As JSON too: QEMU makes what is written otherwise first.
        r#"{"driver":"scsi-hd","bus":"scsi-io-queues.0","drive":"scsi-io-format","id":"scsi-io","serial":"scsi-io"}"#,
    ])
}

/// A limit as libvirt writes it: a throttle node above the format.
fn libvirt(image: &str, _release: &Release) -> Vec<String> {
    let node = format!(
        r#"{{"driver":"throttle","node-name":"libvirt-limit","throttle-group":"limit","file":{{"driver":"qcow2","node-name":"libvirt-format","file":{{"driver":"file","filename":"{image}","aio":"threads","cache":{{"direct":true}}}},"cache":{{"direct":true}}}}}}"#
    );
    words(&[
        "-object",
        "throttle-group,id=limit,x-iops-total=1500",
        "-blockdev",
        &node,
        "-device",
        "virtio-blk-pci,id=libvirt,serial=libvirt,drive=libvirt-limit,write-cache=on",
    ])
}

/// A limit as Proxmox writes it: the drive's own, on a disk with an iothread and a controller of its own.
fn proxmox(image: &str, _release: &Release) -> Vec<String> {
    let drive = format!(
        "file={image},if=none,id=proxmox,format=raw,cache=none,aio=io_uring,detect-zeroes=on,throttling.iops-total=1500"
    );
    words(&[
        "-object",
        "iothread,id=io-proxmox",
        "-drive",
        &drive,
        "-device",
        "virtio-scsi-pci,id=virtioscsi0,iothread=io-proxmox",
        "-device",
        "scsi-hd,bus=virtioscsi0.0,channel=0,scsi-id=0,lun=0,drive=proxmox,id=proxmox,serial=proxmox",
    ])
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for release in &RELEASES {
        let case = format!("qemu-versions/{}", release.version.trim_end_matches('.'));
        if ctx.wants(&case) {
            report.case(&case, |case| of_release(ctx, case, release))?;
        }
    }
    Ok(())
}

fn of_release(ctx: &LiveContext, case: &mut Case, release: &Release) -> anyhow::Result<()> {
    let qemu = (release.obtain)()?;
    let mut hosts: Vec<HostFs> = Vec::new();
    let mut extra_arguments = Vec::new();
    for disk in &DISKS {
        let host = ctx.host_fs(disk.host_fs, true, "")?;
        let stack = DiskStack {
            format: disk.format,
            ..DiskStack::RAW
        };
        let image = ctx.disk(&host, disk.id, stack, 64 << 20, "off")?.image;
        extra_arguments.extend((disk.arguments)(&image.display().to_string(), release));
        hosts.push(host);
    }
    let guest = boot_with(ctx, "qemu-versions", |spec| GuestSpec {
        qemu: qemu.unwrap_or(spec.qemu),
        modules: words(&["virtio_blk", "virtio_scsi", "sd_mod"]),
        extra_arguments,
        ..spec
    })?;
    let ids: Vec<String> = DISKS.iter().map(|disk| disk.id.to_owned()).collect();
    let devices = ids
        .iter()
        .map(|id| device_in_guest(&guest, id))
        .collect::<anyhow::Result<Vec<_>>>()?;
    guest.start_agent("--backend ebpf")?;
    let watched = Watched::of_guest(&guest, &ids, &hosts);
    let work = random_load::script(devices.iter().map(|device| (device.as_str(), 0)), 16);
    let measured = measure(ctx, &watched, || {
        guest.run_ok(&work, Duration::from_secs(120))?;
        Ok(())
    })?;
    measured.is_whole(case)?;
    let found = topology::recorded(&measured.bundle)?;
    let version = &topology::guest(&found, guest.name())?["qemu_version"];
    // A suite's QEMU becomes newer, never older.
    let major = |version: &str| version.split('.').next()?.parse::<u32>().ok();
    let is_right = version.as_str().and_then(major) >= major(release.version);
    case.holds("QEMU's version", is_right, &version.to_string());
    chains::clock(case, &measured.analysis, guest.name())?;
    for ((disk, device), counts) in DISKS.iter().zip(&devices).zip(&measured.truth) {
        let subject = Subject {
            guest: &guest,
            disk: disk.id,
            device,
            linked: chains::LINKED,
        };
        chains::disk(case, &measured.analysis, &subject, counts)
            .with_context(|| format!("look at disk {}", disk.id))?;
    }
    ctx.discard(&measured.bundle);
    Ok(())
}
