//! Rules about where requests lie, in what order, and how large they are.

use super::subject::Subject;
use super::{Case, Judgement, device, threshold};
use crate::result::analysis::Device;
use crate::result::units::{count, percent, size};

/// Part of a device's requests at D that begin where the one before ended.
fn sequential(device: &Device) -> Option<f64> {
    let seeks = device.seek_sectors.d2d.as_ref()?;
    let enough = seeks.n >= threshold::REQUESTS;
    seeks.sequential_share.filter(|_| enough)
}

pub(super) fn allocation_defeated(subject: &Subject<'_>) -> Judgement {
    let amplified = subject.amplified()?;
    let (Some(guest), [(_, Some(host))]) = (subject.in_guest, subject.beneath.as_slice()) else {
        return Ok(None);
    };
    // Where a server keeps it, the host does not see.
    if subject.server().is_some() {
        return Ok(None);
    }
    // Journal and metadata lie elsewhere by right, and so do other disks' images.
    let class = amplified.by_class;
    let own = [class.host_journal, class.host_metadata]
        .into_iter()
        .flatten()
        .sum::<u64>();
    let bytes = amplified.host_bytes.unwrap_or(0);
    let mostly_data = own as f64 <= threshold::ALLOCATION * bytes as f64;
    let alone = device::is_used_alone(subject, host);
    let (Some(above), Some(below)) = (sequential(guest), sequential(host)) else {
        return Ok(None);
    };
    let scattered = below <= above * threshold::SCATTERED;
    if above < threshold::SEQUENTIAL
        || !scattered
        || !mostly_data
        || !alone
        || amplified.shared_with > 0
    {
        return Ok(None);
    }
    let share = above - below;
    Case {
        title: format!(
            "the guest's I/O is {} sequential, but only {} at the device",
            percent(above),
            percent(below)
        ),
        explanation: String::from(
            "The guest's file system lays its data out in sequence, but the image is scattered on the host's device. \
             The image grew in small steps, or its clusters were allocated in the order of the first writes.",
        ),
        advice: vec![
            format!(
                "Copy the image into a preallocated one. With the guest shut down: `qemu-img convert -O {} -o \
                 preallocation=falloc`.",
                subject.disk.format
            ),
            String::from("Or defragment the image (`xfs_fsr`, `e4defrag`), or use a raw logical volume."),
        ],
        evidence: [
            ("guest_sequential_share", above.into()),
            ("device_sequential_share", below.into()),
            ("format", subject.disk.format.as_str().into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

/// What is upgraded no longer mounts as ext3, and a root file system that does not mount does not boot: the order of
/// the steps is the advice.
const EXT3_TO_EXT4: [&str; 2] = [
    "Or upgrade ext3 to ext4 in place: ext3 writes block by block, ext4 writes extents. Risk: this cannot be undone, and \
     the file system then mounts only as ext4. First make a backup and change ext3 to ext4 in /etc/fstab. For a root file \
     system, also change `rootfstype=` on the kernel's command line and rebuild the initramfs with ext4 in it.",
    "Then unmount the file system (a root file system: from a rescue system) and run `tune2fs -O \
     extents,uninit_bg,dir_index DEV` and `e2fsck -fD DEV`. Existing files keep their blocks; new data uses extents.",
];

pub(super) fn unmerged_small_requests(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    let device = subject.inside()?;
    let Some(stats) = device.stats.as_ref() else {
        return Err("the guest's bios were not recorded");
    };
    let counts = device.counts;
    let queued = counts.queued.unwrap_or(0);
    let merges = [
        counts.back_merges,
        counts.front_merges,
        counts.request_merges,
    ];
    let merged: u64 = merges.into_iter().flatten().sum::<u64>()
        + subject.qemu.and_then(|disk| disk.merged).unwrap_or(0);
    let neighbours = device
        .seek_sectors
        .q2q
        .as_ref()
        .and_then(|seeks| seeks.sequential_share)
        .unwrap_or(0.0);
    let small = stats
        .request_sectors
        .issued
        .p50
        .is_some_and(|sectors| sectors <= threshold::SMALL_SECTORS);
    let unmerged = merged as f64 <= threshold::FEW_MERGES * queued as f64;
    if queued < threshold::REQUESTS || neighbours < threshold::SEQUENTIAL || !small || !unmerged {
        return Ok(None);
    }
    let more_at_once = if device.bytes.write >= device.bytes.read {
        "Write more at a time (larger blocks, buffered writes, or several requests in flight)."
    } else {
        "Read more at a time (larger blocks, a larger `queue/read_ahead_kb` in the guest, or several requests in flight)."
    };
    let mut advice = vec![String::from(more_at_once)];
    if subject.mounts.iter().any(|mount| mount.fs_type == "ext3") {
        advice.extend(EXT3_TO_EXT4.map(String::from));
    }
    let few = match merged {
        0 => String::from("none was merged"),
        1 => String::from("only 1 was merged"),
        n => format!("only {} were merged", count(n)),
    };
    Case {
        title: format!(
            "{} of the guest's requests continue the one before but are not merged",
            percent(neighbours)
        ),
        explanation: format!(
            "The guest sent {} small requests. {} of them start where the one before ended, but {few} in the guest or in \
             QEMU. Each request crosses all layers by itself.",
            count(queued),
            percent(neighbours)
        ),
        advice,
        evidence: [
            ("requests", queued.into()),
            ("merged", merged.into()),
            ("adjacent_share", neighbours.into()),
        ]
        .into(),
        share: neighbours,
        information: false,
    }
    .fires()
}

pub(super) fn misaligned(subject: &Subject<'_>) -> Judgement {
    if subject.disk.images.len() > 1 || subject.disk.format != "raw" {
        return Ok(None);
    }
    let amplified = subject.amplified()?;
    let known = amplified
        .classes
        .zip(amplified.read.qemu)
        .zip(amplified.write.qemu);
    let Some(((classes, asked), written)) = known else {
        return Err("the host's block layer was not recorded");
    };
    // Of the image: what is read of the host's file system is no part of a block that is written, and mostly others'.
    let extra = classes.data.read.saturating_sub(asked);
    let share = extra as f64 / written.max(1) as f64;
    if written < threshold::BYTES || share < threshold::READ_FOR_WRITE {
        return Ok(None);
    }
    subject.no_block_job()?;
    Case {
        title: format!("unaligned writes make the host read {} for {} written", size(extra), size(written)),
        explanation: format!(
            "The host read {} more than the guest asked for, while the guest wrote {}. Requests do not start or end at \
             the host's block boundaries, so the host first reads the rest of a block.",
            size(extra),
            size(written)
        ),
        advice: vec![String::from(
            "Start partitions at a multiple of 1 MiB (sector 2048, not 63). In the guest, use file systems with blocks \
             of 4 KiB or more.",
        )],
        evidence: [
            ("read_for_writes_bytes", extra.into()),
            ("written_bytes", written.into()),
        ]
        .into(),
        share: share.min(1.0),
        information: false,
    }
    .fires()
}
