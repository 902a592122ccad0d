//! The rule about QEMU's backup: the guest's writes wait until the old data is with the target.

use super::subject::Subject;
use super::{Case, Judgement, threshold};
use crate::result::analysis::Job;
use crate::result::units::{of, percent, time};

/// The backup of the disk whose copies were followed.
fn backup<'a>(subject: &Subject<'a>) -> Option<&'a Job> {
    let is_its = |job: &&Job| {
        job.guest == subject.guest_name()
            && job.disk.as_deref() == Some(subject.disk_name())
            && job.guest_waits.is_some()
    };
    subject.analysis.jobs.iter().find(is_its)
}

pub(super) fn backup_holds_writes(subject: &Subject<'_>) -> Judgement {
    let Some(job) = backup(subject) else {
        // QEMU's monitor was another's, or the job came and went between two looks.
        return subject.no_block_job().map(|()| None);
    };
    let (Some(copies), Some(waits)) = (job.copies, job.guest_waits) else {
        return Ok(None);
    };
    let chains = subject.followed_to_the_image()?;
    let share = Subject::share_of(chains, &["qemu_job"]);
    if share < threshold::NOTABLE || waits.n < threshold::HELD_WRITES {
        return Ok(None);
    }
    let mean = |dist: crate::result::dist::Dist| dist.mean.unwrap_or(0);
    let (wait, read, write) = (
        mean(waits.latency_ns),
        mean(copies.read_ns),
        mean(copies.write_ns),
    );
    let target = job.target.as_deref().unwrap_or("its target");
    let speed = match job.speed {
        Some(0) | None => String::new(),
        Some(speed) => {
            format!(" Its limit of {speed} bytes a second does not hold for these copies.")
        }
    };
    Case {
        title: format!(
            "the guest's writes wait for QEMU's backup for {} of their time",
            percent(share)
        ),
        explanation: format!(
            "While the job {} runs, QEMU copies the old data to {target} before it lets a write of the guest go on \
             (copy-before-write). {} waited for that, {} on average; a copy takes {} to read and {} to write.{speed}",
            job.id,
            of(waits.n, "request of the guest", "requests of the guest"),
            time(wait),
            time(read),
            time(write)
        ),
        advice: vec![
            String::from(
                "Back up through a fleecing image: let copy-before-write go to a small image on a fast local disk, and \
                 copy from there to the target (`vzdump --fleecing 1`; in QEMU a `copy-before-write` node with a \
                 `snapshot-access` node above it). Risk: the image needs room for all that the guest overwrites.",
            ),
            String::from(
                "Give the backup's target a faster disk, or a cache that holds the copies: `cache=writeback` of the \
                 target's node, no `directsync`. Risk: what the cache holds is lost with the host, and the backup with it.",
            ),
            String::from(
                "Leave the target to these copies: a lower `speed` of the job (`block-job-set-speed`, `bwlimit`), fewer \
                 `x-perf.max-workers`, another hour. Risk: the backup takes longer, and more writes of the guest meet it.",
            ),
        ],
        evidence: [
            ("job", job.id.as_str().into()),
            ("target", job.target.as_deref().unwrap_or("unknown").into()),
            ("held_requests", waits.n.into()),
            ("held_mean_ns", wait.into()),
            ("held_max_ns", waits.latency_ns.max.unwrap_or(0).into()),
            ("copies", copies.n.into()),
            ("copied_bytes", copies.bytes.into()),
            ("copy_read_mean_ns", read.into()),
            ("copy_write_mean_ns", write.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}
