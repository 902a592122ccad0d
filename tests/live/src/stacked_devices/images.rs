//! A QEMU in the guest that plays the host, with its images on dm, md and a partition: which devices lie below,
//! and what of QEMU's I/O reaches the first of them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::Value;
use xtask::case::Case;

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::kernels::machine::Machine;
use crate::{ground_truth, topology};

const GUEST: &str = "inner";
/// What `images.sh` does on each disk.
const WRITES: u64 = 64;
const WRITE_BYTES: u64 = WRITES * (16 << 10);
const READS: u64 = 16;
const READ_BYTES: u64 = READS * (32 << 10);
/// QEMU and its libraries are read over 9p by a translated guest.
const PATIENCE: Duration = Duration::from_secs(200);

/// A disk by its name in `images.sh`: whether it goes around the page cache, and what lies below
/// its image, downwards, by the names of `setup.sh`.
const DISKS: [(&str, bool, &[&str]); 5] = [
    ("linear", true, &["linear", "parted/1", "parted"]),
    ("mirror", true, &["mirror", "mirror_a", "mirror_b"]),
    ("pieces", true, &["pieces", "loop", "files"]),
    (
        "stripe",
        false,
        &["stripe", "half_a/1", "half_a", "half_b/1", "half_b"],
    ),
    ("ours", true, &["halves/1", "halves"]),
];

/// Runs it and looks at what `guests`, the recording and its analysis say.
pub fn check(case: &mut Case, ctx: &LiveContext, machine: &Machine) -> anyhow::Result<()> {
    machine.run_script("images.sh", PATIENCE)?;
    let folder = machine.fetch(ctx, "/tmp/recorded.tar")?;
    let listed = read_json(&folder.join("guests.json"))?;
    let bundle = folder.join("images.nest");
    let recorded = topology::recorded(&bundle)?;
    let analysis = recorder::analyze(&ctx.nestrace, &bundle)?;
    ground_truth::nothing_lost(case, &analysis)?;
    for (disk, direct, beneath) in DISKS {
        let names = beneath
            .iter()
            .map(|name| super::in_kernels_words(machine, name))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for topology in [&listed, &recorded] {
            lies_on(case, topology, disk, &names)?;
        }
        requests(case, &analysis, disk, direct)?;
    }
    let counted = read_json(&folder.join("counted.json"))?;
    partitions(case, machine, &recorded, &counted)?;
    case.figure(format!("{} disks followed", DISKS.len()));
    ctx.discard(&folder);
    Ok(())
}

fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("understand {}", path.display()))
}

/// The image's first device is the stacked one, and everything below is known.
fn lies_on(case: &mut Case, found: &Value, disk: &str, expected: &[String]) -> anyhow::Result<()> {
    let image = &topology::disk(found, GUEST, disk)?["images"][0];
    let first = &image["devices"][0];
    case.holds(
        &format!("{disk}: the device under the image"),
        first.as_str() == expected.first().map(String::as_str),
        &format!("{first}, expected {expected:?}"),
    );
    let devices = found["devices"].as_array().into_iter().flatten();
    let stacked = devices.filter(|it| it["kind"] == "dm" || it["kind"] == "md");
    for device in stacked {
        let driver = device["driver"].as_str().unwrap_or_default();
        case.holds(
            "what dm or md make of it",
            !driver.is_empty(),
            &device.to_string(),
        );
    }
    let mut beneath = Vec::new();
    follow(found, first.as_str().unwrap_or_default(), &mut beneath);
    case.holds(
        &format!("{disk}: the devices below"),
        beneath == expected,
        &format!("{beneath:?}, expected {expected:?}"),
    );
    Ok(())
}

/// A device and what lies below it, each before what is below it.
fn follow(found: &Value, name: &str, names: &mut Vec<String>) {
    names.push(name.to_owned());
    let devices = found["devices"].as_array().into_iter().flatten();
    for device in devices.filter(|device| device["name"] == name) {
        for beneath in device["beneath"].as_array().into_iter().flatten() {
            follow(found, beneath.as_str().unwrap_or_default(), names);
        }
    }
}

/// Every request, and every byte at Q of the stacked device.
fn requests(case: &mut Case, analysis: &Value, disk: &str, direct: bool) -> anyhow::Result<()> {
    let keys = [("guest", GUEST), ("disk", disk)];
    let qemu = entry(analysis, "qemu", &keys)?;
    let image = entry(analysis, "images", &keys)?;
    // What went through the page cache before need not be read again.
    let read_at_q = if direct { READ_BYTES } else { 0 };
    let pairs = [
        (qemu, "/reads", READS),
        (qemu, "/writes", WRITES),
        (qemu, "/bytes/read", READ_BYTES),
        (qemu, "/bytes/write", WRITE_BYTES),
        (image, "/file_io/bytes/read", READ_BYTES),
        (image, "/file_io/bytes/write", WRITE_BYTES),
        (image, "/host_bytes/read", read_at_q),
        (image, "/host_bytes/write", WRITE_BYTES),
        (image, "/file_io/buffered_fallback", 0),
    ];
    for (found, pointer, expected) in pairs {
        case.equal(
            &format!("{disk}: {pointer}"),
            number(found, pointer)?,
            expected,
        );
    }
    Ok(())
}

/// Two file systems on one disk: the recording says where the image's begins, by which its bios are distinguished from the
/// other's, and the host worked on that meanwhile.
fn partitions(
    case: &mut Case,
    machine: &Machine,
    recorded: &Value,
    counted: &Value,
) -> anyhow::Result<()> {
    let name = super::in_kernels_words(machine, "halves/1")?;
    let partition = entry(recorded, "devices", &[("name", &name)])?;
    case.equal(
        "ours: where its partition begins",
        number(partition, "/start")?,
        number(counted, "/start")? * 512,
    );
    let theirs = number(counted, "/theirs")? * 512;
    case.holds(
        "the host worked on the other partition",
        theirs >= 64 * 4096,
        &format!("{theirs} bytes"),
    );
    Ok(())
}
