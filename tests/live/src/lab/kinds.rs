//! The kinds of cells that the plan of the other cases has none of: a folder over 9p, a check of a file system, an ext3
//! that is upgraded in place, a scattered image, and what is set inside the guest and on the host.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder::{analyze, nestrace};
use serde_json::Value;
use xtask::case::Case;

use super::{name, read, rows};
use crate::analysis::number;

const PLAN: &str = "name = 'kinds'
repetitions = 1
seconds = 2
warm_up_seconds = 0
record_seconds = 1
agent = false
image_size = '128M'
data_size = '4M'

[axes]
guest_fs = ['ext3', '9p']
host_fs = 'ext4'

[[workload]]
name = 'randwrite'

[[workload]]
name = 'fsck-files'

[[workload]]
name = 'upgraded'
use = 'iozone-read'
upgrade = 'old'

[[workload]]
name = 'sequential'
use = 'iozone-read'

[[workload]]
name = 'settings'
command = '''[ $fs != ext4 ] || {
    queue=/sys/block/$name/queue
    grep -q -F '[mq-deadline]' $queue/scheduler &&
    [ $(cat $queue/read_ahead_kb) = 512 ] &&
    grep -q ' /mnt/nestrace-lab ext4 [^ ]*noatime' /proc/mounts &&
    [ -d /sys/block/$name/device/scsi_disk ]
}'''

[[include]]
workload = 'settings'
guest_fs = 'ext4'
host_fs = 'xfs'
format = 'qcow2'
aio = 'io_uring'
bus = 'virtio-scsi'
guest_scheduler = 'mq-deadline'
guest_read_ahead_kib = '512'
guest_mount_options = 'noatime'
host_scheduler = 'mq-deadline'
host_read_ahead_kib = '256'
host_mount_options = 'noatime'

[[include]]
workload = 'sequential'
guest_fs = 'ext4'
placement = ['sparse', 'fragmented']

[[exclude]]
guest_fs = 'ext3'
workload = ['randwrite', 'sequential', 'settings']

[[exclude]]
guest_fs = '9p'
workload = ['sequential', 'settings']
";
/// Cells whose recordings are looked into.
const SET: &str = "ext4-on-xfs-qcow2-io_uring-virtio-scsi-sparse-guest-mq-deadline-host-mq-deadline-guest-noatime-host-noatime-guest-512-host-256-settings";
const SPARSE: &str = "ext4-on-ext4-raw-native-virtio-sparse-sequential";
const SCATTERED: &str = "ext4-on-ext4-raw-native-virtio-fragmented-sequential";
const CELLS: [&str; 11] = [
    "9p-on-ext4-raw-native-virtio-sparse-randwrite",
    "ext3-on-bd-native-virtio-fsck-files",
    "ext3-on-bd-native-virtio-upgraded",
    "ext3-on-ext4-raw-native-virtio-sparse-fsck-files",
    "ext3-on-ext4-raw-native-virtio-sparse-upgraded",
    "ext4-on-bd-io_uring-virtio-scsi-guest-mq-deadline-host-mq-deadline-guest-noatime-guest-512-host-256-settings",
    "ext4-on-bd-native-virtio-randwrite",
    "ext4-on-bd-native-virtio-sequential",
    SCATTERED,
    SPARSE,
    SET,
];

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let plan = folder.join("kinds.toml");
    std::fs::write(&plan, PLAN).context("write a plan")?;
    let results = folder.join("kinds");
    let end = nestrace(
        program,
        &["lab", "run", name(&plan)?, "-o", name(&results)?],
    )?;
    case.holds("exit", end.code == Some(0), &end.stderr);
    let rows = rows(&results)?;
    let ids: BTreeSet<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    case.equal("cells", ids.join(" "), CELLS.join(" "));
    for row in &rows {
        let id = row["id"].as_str().unwrap_or_default();
        case.equal(id, row["failures"].to_string().as_str(), "[]");
        let relative = row["relative"]["median"].as_f64().unwrap_or(0.0);
        case.holds(id, relative > 0.0, "no relative value");
        case.figure(format!("{id} {:.0} %", relative * 100.0));
    }
    set_on_the_host(case, &results)?;
    scattered(case, program, &results)
}

/// The image of a cell's disk, and the device right below it, by the recording's manifest.
fn image_of(results: &Path, id: &str) -> anyhow::Result<(Value, Value)> {
    let disk = read(&results.join(format!("{id}.json")))?["disk"].take();
    let manifest = read(&results.join(format!("{id}.nest/manifest.json")))?;
    let topology = &manifest["topology"];
    let disks = topology["guests"][0]["disks"].as_array();
    let found = disks
        .into_iter()
        .flatten()
        .find(|found| found["name"] == disk);
    let image = &found.with_context(|| format!("{id}: find {disk}"))?["images"][0];
    let devices = topology["devices"].as_array().into_iter().flatten();
    let device = devices
        .into_iter()
        .find(|device| device["name"] == image["devices"][0]);
    Ok((image.clone(), device.context("find the device")?.clone()))
}

/// While a cell ran, its host was as the plan has it.
fn set_on_the_host(case: &mut Case, results: &Path) -> anyhow::Result<()> {
    let (image, device) = image_of(results, SET)?;
    let scheduler = device["scheduler"].as_str().unwrap_or_default();
    case.equal("host_scheduler", scheduler, "mq-deadline");
    case.equal(
        "host_read_ahead_kib",
        number(&device, "/read_ahead_kb")?,
        256,
    );
    let options = image["mount"]["options"].as_str().unwrap_or_default();
    case.holds(
        "host_mount_options",
        options.split(',').any(|option| option == "noatime"),
        options,
    );
    Ok(())
}

/// What is read in order in the guest is not in order on the device below a scattered image.
fn scattered(case: &mut Case, program: &Path, results: &Path) -> anyhow::Result<()> {
    let sequential = |id: &str| {
        let (_, beneath) = image_of(results, id)?;
        let analysis = analyze(program, &results.join(format!("{id}.nest")))?;
        let devices = analysis["devices"].as_array().into_iter().flatten();
        let mut found =
            devices.filter(|device| device["side"] == "host" && device["name"] == beneath["name"]);
        let share = found
            .next()
            .and_then(|device| device["seek_sectors"]["d2d"]["sequential_share"].as_f64());
        share.with_context(|| format!("{id}: find the seeks of {}", beneath["name"]))
    };
    let (sparse, scattered) = (sequential(SPARSE)?, sequential(SCATTERED)?);
    let figures = format!(
        "in order: {:.0} % sparse, {:.0} % fragmented",
        100.0 * sparse,
        100.0 * scattered
    );
    case.holds("placement", scattered < sparse - 0.2, &figures);
    case.figure(figures);
    Ok(())
}
