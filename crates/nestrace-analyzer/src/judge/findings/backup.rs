//! The rule about QEMU's jobs: the guest's writes wait until a backup, a mirror or a stream has copied.

use super::subject::Subject;
use super::{Case, Judgement, threshold};
use crate::result::analysis::Job;
use crate::result::units::{of, percent, time};

/// The job of the disk whose copies were followed.
fn job<'a>(subject: &Subject<'a>) -> Option<&'a Job> {
    let is_its = |job: &&Job| {
        job.guest == subject.guest_name()
            && job.disk.as_deref() == Some(subject.disk_name())
            && job.guest_waits.is_some()
    };
    subject.analysis.jobs.iter().find(is_its)
}

pub(super) fn backup_holds_writes(subject: &Subject<'_>) -> Judgement {
    let Some(job) = job(subject) else {
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
    let held = format!(
        "{} waited for that, {} on average",
        of(waits.n, "request of the guest", "requests of the guest"),
        time(wait)
    );
    let copied = format!(
        "a copy takes {} to read and {} to write",
        time(read),
        time(write)
    );
    let (explanation, advice) = match job.kind.as_str() {
        "mirror" => (
            format!(
                "The job {} is a mirror with `write-blocking`: QEMU writes each write of the guest to {target} as well and \
                 ends it only then. {held}.",
                job.id
            ),
            of_mirror(),
        ),
        "stream" => (
            format!(
                "While the job {} runs, QEMU copies data from the backing file into the image and holds the guest's writes \
                 to the same place. {held}; {copied}.",
                job.id
            ),
            of_stream(),
        ),
        _ => {
            let speed = match job.speed {
                Some(0) | None => String::new(),
                Some(speed) => {
                    format!(" Its limit of {speed} bytes a second does not hold for these copies.")
                }
            };
            let explanation = format!(
                "While the job {} runs, QEMU copies the old data to {target} before it lets a write of the guest go on \
                 (copy-before-write). {held}; {copied}.{speed}",
                job.id
            );
            (explanation, of_backup())
        }
    };
    Case {
        title: format!(
            "the guest's writes wait for QEMU's {} for {} of their time",
            job.kind,
            percent(share)
        ),
        explanation,
        advice,
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

fn of_backup() -> Vec<String> {
    vec![
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
    ]
}

fn of_mirror() -> Vec<String> {
    vec![
        String::from(
            "Let the mirror follow in the background: `copy-mode: background` in QEMU, `virsh blockcopy` and `virsh migrate` \
             without `--synchronous-writes`. Risk: a guest that writes faster than the target takes never lets it become ready.",
        ),
        String::from(
            "Give the mirror's target a faster disk or a shorter way. Until then the guest's writes are as slow as the target.",
        ),
    ]
}

fn of_stream() -> Vec<String> {
    vec![String::from(
        "Copy at an hour with few writes, or slower: `block-job-set-speed`, `virsh blockjob --bandwidth`. Risk: the stream takes \
         longer, and the guest reads from the backing file until then.",
    )]
}
