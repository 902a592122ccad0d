//! Limits of the topology as facts of a look.

use nestrace_stuck::facts::{CgroupFacts, CgroupLimit, DiskLimits};
use nestrace_trace::manifest::{Device, Limit, Limited};

use crate::cgroup::Hierarchies;

/// What the cgroups of a process do to it.
pub(super) fn of_cgroups(hierarchies: &Hierarchies, pid: u32, devices: &[Device]) -> CgroupFacts {
    let mut limits: Vec<CgroupLimit> = Vec::new();
    let rates = |limit: &Limit| part(&mut CgroupLimit::default(), limit.bounds).is_some();
    for limit in hierarchies.limits(pid, devices).into_iter().filter(rates) {
        let device = limit.device.clone().unwrap_or_default();
        let same = |it: &CgroupLimit| it.cgroup == limit.name && it.device == device;
        let place = limits.iter().position(same).unwrap_or_else(|| {
            limits.push(CgroupLimit {
                cgroup: limit.name.clone(),
                device: device.clone(),
                ..CgroupLimit::default()
            });
            limits.len() - 1
        });
        if let Some(known) = limits.get_mut(place)
            && let Some(part) = part(known, limit.bounds)
        {
            *part = Some(limit.value);
        }
    }
    CgroupFacts {
        frozen: hierarchies.frozen(pid),
        limits,
    }
}

fn part(limit: &mut CgroupLimit, bounds: Limited) -> Option<&mut Option<u64>> {
    Some(match bounds {
        Limited::Reads => &mut limit.iops_rd,
        Limited::Writes => &mut limit.iops_wr,
        Limited::BytesRead => &mut limit.bps_rd,
        Limited::BytesWritten => &mut limit.bps_wr,
        _ => return None,
    })
}

/// QEMU's own limits of a disk.
pub(super) fn of_disk(limits: &[Limit]) -> DiskLimits {
    let mut facts = DiskLimits::default();
    for limit in limits {
        let part = match limit.bounds {
            Limited::Requests => &mut facts.iops,
            Limited::Reads => &mut facts.iops_rd,
            Limited::Writes => &mut facts.iops_wr,
            Limited::Bytes => &mut facts.bps,
            Limited::BytesRead => &mut facts.bps_rd,
            Limited::BytesWritten => &mut facts.bps_wr,
            _ => continue,
        };
        // Where several bound the same, the lowest holds.
        *part = match *part {
            0 => limit.value,
            known => known.min(limit.value),
        };
    }
    facts
}
