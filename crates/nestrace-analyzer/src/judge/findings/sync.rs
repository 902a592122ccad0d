//! Rules about flushes and journals.

use super::subject::{Subject, journals};
use super::{Case, Judgement, device, threshold};
use crate::result::units::{count, of, percent, share, size, time};

pub(super) fn flush_amplification(subject: &Subject<'_>) -> Judgement {
    let chains = subject.followed()?;
    subject.files_alone()?;
    // A journal's commit is data between flushes: those are in the latency of data.
    let flush = chains.under_flush;
    let all = chains.latency_ns.data.sum + chains.latency_ns.flush.sum;
    let flushes = subject
        .amplification
        .map(|it| it.flushes)
        .unwrap_or_default();
    let (Some(qemu), Some(host), Some(device)) = (flushes.qemu, flushes.host, flushes.device)
    else {
        return Err("a layer that flushes pass through was not recorded");
    };
    if flush.n == 0 || all == 0 || qemu == 0 {
        return Ok(None);
    }
    let share = (flush.sum as f64 / all as f64).min(1.0);
    if share < threshold::FLUSHING {
        return Ok(None);
    }
    let mean = time(flush.sum / flush.n);
    Case {
        title: format!(
            "{} of the latency is spent in {}",
            percent(share),
            of(flush.n, "flush", "flushes")
        ),
        explanation: format!(
            "A flush of the guest takes {mean}. For {}, QEMU synced the image {}, and {} reached the device. Each sync \
             can make the host's file system commit its journal.",
            of(qemu, "flush", "flushes"),
            of(host, "time", "times"),
            of(device, "flush", "flushes")
        ),
        advice: vec![
            String::from("Sync less often in the guest, several changes at a time."),
            String::from(
                "For a guest that you can rebuild: cache=unsafe, or barriers off in the guest, avoid all flushes. Risk: \
                 data is lost if the host goes down.",
            ),
        ],
        evidence: [
            ("guest_flushes", flush.n.into()),
            ("qemu_flushes", qemu.into()),
            ("host_syncs", host.into()),
            ("device_flushes", device.into()),
            ("flush_mean_ns", (flush.sum / flush.n).into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn journal_on_journal(subject: &Subject<'_>) -> Judgement {
    let amplified = subject.amplified()?;
    let (Some(host_fs), Some(mount)) = (subject.host_fs(), subject.journalled_in_guest()) else {
        return Ok(None);
    };
    if !journals(host_fs) {
        return Ok(None);
    }
    let guest_fs = mount.fs_type.as_str();
    let (Some(classes), Some(written)) = (amplified.classes, amplified.write.host) else {
        return Err("the host's block layer was not recorded");
    };
    let journal = classes.host_journal.write;
    let flushes = amplified.flushes.guest.unwrap_or(0);
    let share = journal as f64 / written.max(1) as f64;
    if flushes == 0 || written < threshold::BYTES || share < threshold::JOURNAL {
        return Ok(None);
    }
    device::written_alone(subject)?;
    let per_flush = journal / flushes;
    Case {
        title: format!(
            "the host's {host_fs} journals for the guest's {guest_fs}: {} of the bytes that the host writes",
            percent(share)
        ),
        explanation: format!(
            "The guest's file system wrote its journal and flushed {}. For each flush the host's file system committed \
             its own journal for the image file, {} on average.",
            of(flushes, "time", "times"),
            size(per_flush)
        ),
        advice: vec![
            String::from(
                "Use a raw device or a logical volume, which has no second journal. An image on ext2 has none either. Risk \
                 of ext2: after a crash or a power failure `e2fsck` must check the whole file system before the mount, and \
                 metadata that was not written yet is lost, the image's own included.",
            ),
            String::from(
                "Or preallocate the image, so that the host journals less. A longer commit interval (`commit=`) in the \
                 guest gives fewer flushes. Risk: a crash loses more seconds of data.",
            ),
        ],
        evidence: [
            ("guest_flushes", flushes.into()),
            ("host_journal_bytes", journal.into()),
            ("host_written_bytes", written.into()),
            ("guest_fs", guest_fs.into()),
            ("host_fs", host_fs.into()),
        ]
        .into(),
        share: share.min(1.0),
        information: false,
    }
    .fires()
}

pub(super) fn repeated_log_writes(subject: &Subject<'_>) -> Judgement {
    let clues = subject.gathered()?;
    // Without a log, blocks of metadata are written at their place each time: that is no log's doing.
    let Some(mount) = subject.journalled_in_guest() else {
        return Ok(None);
    };
    let seen = clues.from_guest.rewrites;
    let part = share(seen.rewrites, seen.writes);
    if seen.rewrites < threshold::REQUESTS || part < threshold::REWRITTEN {
        return Ok(None);
    }
    if !subject.guest_tells_owners {
        return Err(
            "blktrace does not distinguish a log from file data: record with the agent's eBPF backend",
        );
    }
    let fs = mount.fs_type.as_str();
    Case {
        title: format!("{} of the guest's writes rewrite the same few blocks", percent(part)),
        explanation: format!(
            "At each sync, the guest's {fs} rewrites the same block of its log (or its superblock): {} of {} writes, {}. \
             {} of them needed a seek. Each goes through all layers.",
            count(seen.rewrites),
            count(seen.writes),
            size(seen.rewritten_bytes),
            count(seen.jumps)
        ),
        advice: vec![
            String::from("Sync less often in the guest, several changes at a time."),
            String::from(
                "Or use ext4 or xfs; their logs move on instead of rewriting one block. Or keep the log on a separate disk \
                 (jfs, xfs and ext4 can). Risk: that disk must be present at every mount.",
            ),
        ],
        evidence: [
            ("rewrites", seen.rewrites.into()),
            ("writes", seen.writes.into()),
            ("rewritten_bytes", seen.rewritten_bytes.into()),
            ("seeks", seen.jumps.into()),
            ("places_given_up", seen.given_up.into()),
            ("guest_fs", fs.into()),
        ]
        .into(),
        share: part,
        information: false,
    }
    .fires()
}
