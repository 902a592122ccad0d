//! Rules about the file systems' metadata.

use nestrace_trace::manifest::GuestMount;

use super::subject::Subject;
use super::{Case, Judgement, Missing, threshold};
use crate::measure::clues::AccessTimeCounts;
use crate::result::units::{count, percent, share, size, time};

pub(super) fn metadata_blind(subject: &Subject<'_>) -> Judgement {
    subject.followed()?;
    let seen = subject.gathered_to_the_device()?.from_guest.behind_data;
    let cost = share(seen.behind_ns, seen.metadata_latency_ns).min(1.0);
    let much = seen.behind >= threshold::STOOD_BEHIND && cost >= threshold::BEHIND_DATA;
    if seen.metadata < threshold::METADATA || !much {
        return Ok(None);
    }
    let took = seen.metadata_host_ns / seen.metadata;
    let data_took = seen.data_host_ns / seen.data.max(1);
    Case {
        title: format!("the guest's metadata waits behind its data for {} of its latency", percent(cost)),
        explanation: format!(
            "The guest marks requests for metadata and journal, because others wait for them. The virtual disk does not \
             pass the marks on to the host. While {} of {} such requests waited, the host completed requests with data. \
             On the host, a metadata request took {}, a data request {}, and a request that had the host to itself {}.",
            count(seen.behind),
            count(seen.metadata),
            time(took),
            time(data_took),
            time(seen.undisturbed_ns)
        ),
        advice: vec![String::from(
            "Give programs that write in bulk a disk of their own, or keep fewer requests in flight. No virtual disk \
             passes the marks on; with virtiofs or 9p the host's file system handles the metadata.",
        )],
        evidence: [
            ("metadata_requests", seen.metadata.into()),
            ("behind_data", seen.behind.into()),
            ("behind_ns", seen.behind_ns.into()),
            ("metadata_mean_ns", took.into()),
            ("data_requests", seen.data.into()),
            ("data_mean_ns", data_took.into()),
            ("undisturbed_ns", seen.undisturbed_ns.into()),
            ("given_up", seen.given_up.into()),
        ]
        .into(),
        share: cost,
        information: true,
    }
    .fires()
}

/// Whether mount options let every read of a file change its inode. `strictatime` has no name there: it is
/// the absence of the others. With `relatime` that happens once a day, with `lazytime` in memory.
fn each_read_updates(options: &str) -> bool {
    let mut options = options.split(',');
    !options.any(|option| matches!(option, "ro" | "noatime" | "relatime" | "lazytime"))
}

/// What writes of metadata make of the I/O while files are only read; `None` if that is too little.
fn of_reading(seen: AccessTimeCounts) -> Option<f64> {
    let writes = seen.metadata_writes;
    let part = share(writes, writes + seen.reads);
    let enough = writes >= threshold::ACCESS_TIME_WRITES && seen.calls >= threshold::READ_CALLS;
    // Each update has a read; more writes than that are somebody else's.
    (enough && seen.calls >= writes && part >= threshold::ACCESS_TIMES).then_some(part)
}

pub(super) fn atime_updates(subject: &Subject<'_>) -> Judgement {
    match guest_atime(subject)? {
        Some(case) => case.fires(),
        None => host_atime(subject),
    }
}

fn guest_atime(subject: &Subject<'_>) -> Result<Option<Case>, Missing> {
    let seen = subject.gathered()?.from_guest;
    let updates = |mount: &&&GuestMount| each_read_updates(&mount.options);
    let Some(mount) = subject.mounts.iter().find(updates) else {
        return Ok(None);
    };
    if !seen.files_seen && !subject.guest_calls_probed {
        return Err(
            "the guest's read and write calls were not recorded: that needs the agent's eBPF backend",
        );
    }
    let seen = seen.access_times;
    let Some(part) = of_reading(seen) else {
        return Ok(None);
    };
    Ok(Some(Case {
        title: format!(
            "reading files writes metadata: {} of the guest's I/O while it only reads",
            percent(part)
        ),
        explanation: format!(
            "The mount options of {} make each read of a file update the access time in its inode. During seconds \
             without any other write, {} read calls caused {} writes of metadata and journal ({}). Each goes through \
             all layers.",
            mount.mount_point,
            count(seen.calls),
            count(seen.metadata_writes),
            size(seen.metadata_bytes)
        ),
        advice: vec![format!(
            "Mount {} with `noatime`. Run `mount -o remount,noatime {}` and change `/etc/fstab`. `relatime`, the \
             default, updates once a day. Risk: programs that use access times to find unread mail or unused files stop \
             working.",
            mount.mount_point, mount.mount_point
        )],
        evidence: evidence("guest", &mount.options, seen),
        share: part,
        information: false,
    }))
}

fn host_atime(subject: &Subject<'_>) -> Judgement {
    let seen = subject.gathered_to_the_device()?.from_host.access_times;
    let image = subject.disk.images.get(subject.data_image());
    let mount = image.and_then(|image| image.mount.as_ref());
    let Some(mount) = mount.filter(|mount| each_read_updates(&mount.options)) else {
        return Ok(None);
    };
    let Some(part) = of_reading(seen) else {
        return Ok(None);
    };
    Case {
        title: format!(
            "reading the image writes metadata on the host: {} of its I/O while it is only read",
            percent(part)
        ),
        explanation: format!(
            "The mount options of {} make each read of the image update the access time in its inode. During seconds \
             without any other write, {} reads by QEMU caused {} writes of metadata and journal ({}).",
            mount.mount_point,
            count(seen.calls),
            count(seen.metadata_writes),
            size(seen.metadata_bytes)
        ),
        advice: vec![format!(
            "Mount {} on the host with `noatime`. Run `mount -o remount,noatime {}` and change `/etc/fstab`. The access \
             times of images are of no use.",
            mount.mount_point, mount.mount_point
        )],
        evidence: evidence("host", &mount.options, seen),
        share: part,
        information: false,
    }
    .fires()
}

fn evidence(
    side: &str,
    options: &str,
    seen: AccessTimeCounts,
) -> std::collections::BTreeMap<&'static str, crate::result::analysis::Evidence> {
    [
        ("side", side.into()),
        ("mount_options", options.into()),
        ("read_calls", seen.calls.into()),
        ("read_requests", seen.reads.into()),
        ("metadata_writes", seen.metadata_writes.into()),
        ("metadata_bytes", seen.metadata_bytes.into()),
    ]
    .into()
}
