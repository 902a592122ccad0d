//! The kinds of cells that the plan of the other cases has none of: a folder over 9p, a check of a file system, an ext3
//! that is upgraded in place, and what is set inside the guest.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;

use super::{name, rows};
use crate::live::case::Case;
use crate::recorder::nestrace;

const PLAN: &str = "name = 'kinds'
repetitions = 1
seconds = 2
warm_up_seconds = 0
record = false
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

[[exclude]]
guest_fs = 'ext3'
workload = ['randwrite', 'settings']

[[exclude]]
guest_fs = '9p'
workload = 'settings'
";
const CELLS: [&str; 8] = [
    "9p-on-ext4-raw-native-virtio-randwrite",
    "ext3-on-bd-native-virtio-fsck-files",
    "ext3-on-bd-native-virtio-upgraded",
    "ext3-on-ext4-raw-native-virtio-fsck-files",
    "ext3-on-ext4-raw-native-virtio-upgraded",
    "ext4-on-bd-io_uring-virtio-scsi-guest-mq-deadline-host-mq-deadline-guest-noatime-guest-512-host-256-settings",
    "ext4-on-bd-native-virtio-randwrite",
    "ext4-on-xfs-qcow2-io_uring-virtio-scsi-guest-mq-deadline-host-mq-deadline-guest-noatime-host-noatime-guest-512-host-256-settings",
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
    Ok(())
}
