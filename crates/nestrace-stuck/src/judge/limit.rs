//! Limits that were set: QEMU's throttle, and those of cgroups.

use super::chain::{Chain, holder};
use super::{Holder, HolderKind, Scene};
use crate::facts::{DiskCounts, DiskFacts, GuestFacts};

/// A limit and the rate that it lets through.
struct Limit {
    words: String,
    limit: u64,
    /// Requests or bytes between the samples.
    done: u64,
}

impl Limit {
    /// Whether the rate is at the limit. One request more or less between the samples is chance.
    fn is_reached(&self, interval_ns: u64, unit: u64) -> bool {
        if self.limit == 0 {
            return false;
        }
        let seconds = interval_ns as f64 / 1e9;
        let allowed = self.limit as f64 * seconds;
        self.done as f64 + unit as f64 >= 0.7 * allowed
    }
}

/// QEMU's own throttle, where the disk is at it.
pub(super) fn of_qemu(scene: &Scene<'_>, disk: &DiskFacts) -> Option<(Holder, String)> {
    let done = disk.completed.unwrap_or_default();
    let limits = disk.limits;
    let requests = [
        (
            "requests",
            limits.iops,
            done.reads.saturating_add(done.writes),
        ),
        ("reads", limits.iops_rd, done.reads),
        ("writes", limits.iops_wr, done.writes),
    ];
    let bytes = [
        (
            "bytes",
            limits.bps,
            done.bytes_rd.saturating_add(done.bytes_wr),
        ),
        ("bytes read", limits.bps_rd, done.bytes_rd),
        ("bytes written", limits.bps_wr, done.bytes_wr),
    ];
    let words = reached(scene, &requests, &bytes)?;
    Some((
        holder(HolderKind::QemuLimit, &words),
        format!("QEMU's own limit of {words} (throttling.*, virsh blkdeviotune)"),
    ))
}

/// A limit of a cgroup on one of the disk's devices, where the disk is at it.
pub(super) fn of_cgroup(
    scene: &Scene<'_>,
    guest: &GuestFacts,
    disk: &DiskFacts,
    chain: &Chain<'_>,
) -> Option<(Holder, String)> {
    let done: DiskCounts = disk.completed?;
    let own = |name: &str| chain.0.iter().any(|device| device.name == name);
    let limits = guest.cgroup.limits.iter().filter(|l| own(&l.device));
    limits.into_iter().find_map(|limit| {
        let requests = [
            ("reads", limit.iops_rd.unwrap_or(0), done.reads),
            ("writes", limit.iops_wr.unwrap_or(0), done.writes),
        ];
        let bytes = [
            ("bytes read", limit.bps_rd.unwrap_or(0), done.bytes_rd),
            ("bytes written", limit.bps_wr.unwrap_or(0), done.bytes_wr),
        ];
        let words = reached(scene, &requests, &bytes)?;
        Some((
            holder(HolderKind::CgroupLimit, &limit.cgroup),
            format!(
                "the limit of {words} on {} of the cgroup {} (io.max, blkio.throttle)",
                limit.device, limit.cgroup
            ),
        ))
    })
}

/// The first limit that is reached, in words.
fn reached(
    scene: &Scene<'_>,
    requests: &[(&str, u64, u64)],
    bytes: &[(&str, u64, u64)],
) -> Option<String> {
    // A request is large against a small limit of bytes.
    let all = requests.iter().map(|limit| (limit, 1));
    let all = all.chain(bytes.iter().map(|limit| (limit, 1 << 20)));
    for (&(what, limit, done), unit) in all {
        let limit = Limit {
            words: format!("{limit} {what} a second"),
            limit,
            done,
        };
        if limit.is_reached(scene.interval_ns, unit) {
            return Some(limit.words);
        }
    }
    None
}
