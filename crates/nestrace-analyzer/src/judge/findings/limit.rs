//! The rule about limits: QEMU's throttling, a cgroup's `io.max`, and policies of the host's queue (iocost, `io.latency`).

use std::collections::BTreeMap;

use nestrace_trace::manifest::{self, LimitPlace, Limited};

use super::subject::Subject;
use super::{Case, Judgement, device, threshold};
use crate::measure::clues::{DiskClues, HeldBackTimes, Pace, Rate};
use crate::result::analysis::{Device, Evidence};
use crate::result::dist::Dist;
use crate::result::units::{of, percent, share, size, time};
use crate::result::verdict::{LimitBottleneck, LimitHolder};

/// Limits that are named where none of them is reached.
const MAX_NAMED: usize = 3;

/// Where requests are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before their file I/O.
    Qemu,
    /// Between the file I/O and its bios.
    Kernel,
}

/// A limit, as it shows.
struct Limit {
    place: Place,
    waits: Dist,
    /// Of the latency of QEMU's requests.
    share: f64,
    /// Of the time with requests.
    nothing_under_way: f64,
    pace: Pace,
    is_even: bool,
}

/// Requests wait long, nothing is under way meanwhile, and the pace is even, or that of a limit that is set there: all three,
/// or it is no limit.
fn limit(subject: &Subject<'_>, clues: &DiskClues) -> Option<Limit> {
    let held = clues.from_host.held_back;
    let even = even_pace(&held);
    let limits = [
        (Place::Qemu, held.in_qemu, clues.qemu_ns, clues.file_ns),
        (Place::Kernel, held.in_host, clues.file_ns, clues.bio_ns),
    ];
    let mut limits = limits
        .into_iter()
        .filter_map(|(place, waits, with_ns, without_ns)| {
            let pace = even.or_else(|| pace_at_a_limit(subject, place, &held))?;
            let nothing_under_way = share(with_ns.saturating_sub(without_ns), clues.qemu_ns);
            Some(Limit {
                place,
                waits,
                share: share(waits.sum, held.latency_ns).min(1.0),
                nothing_under_way: nothing_under_way.min(1.0),
                pace,
                is_even: even.is_some(),
            })
        });
    let holds = |limit: &Limit| {
        let long = limit
            .waits
            .p50
            .is_some_and(|p50| p50 >= threshold::HELD_BACK_NS);
        limit.waits.n >= threshold::BIOS
            && long
            && limit.share >= threshold::HELD_BACK
            && limit.nothing_under_way >= threshold::NOTHING_UNDER_WAY
    };
    limits.find(holds)
}

/// The pace, if requests or bytes came through at the same all the time.
fn even_pace(held: &HeldBackTimes) -> Option<Pace> {
    let even = |rate: Rate| rate.deviation <= threshold::PACE;
    let is_even = |pace: &Pace| is_long(pace) && (even(pace.requests) || even(pace.bytes));
    held.paces.into_iter().find(is_even)
}

fn is_long(pace: &Pace) -> bool {
    pace.slots >= threshold::PACED_SLOTS && pace.requests_in_slot >= threshold::PACED_REQUESTS
}

/// The pace, whether even or not, if it is that of a limit that is set: the kernel lets requests through in portions, which
/// a slot has more or less of.
fn pace_at_a_limit(subject: &Subject<'_>, place: Place, held: &HeldBackTimes) -> Option<Pace> {
    let set = set_there(subject, place);
    let is_at_it = |pace: &Pace| is_long(pace) && reached(subject, pace, &set).is_some();
    held.paces.into_iter().find(is_at_it)
}

/// Bios that a policy of a queue holds back: they were queued and get no tag, although tags are free. `blk_mq_submit_bio()`
/// asks the policy (`rq_qos_throttle()`) between the two. Where iocost is on, the kernel's throttle of write-back, which waits
/// there too, is off (`ioc_qos_write()`).
struct HeldInQueue<'a> {
    device: &'a Device,
    /// Of the time from Q to C.
    share: f64,
    limit: &'a manifest::Limit,
}

fn held_in_queue<'a>(subject: &Subject<'a>) -> Option<HeldInQueue<'a>> {
    subject.whole().ok()?;
    let set = set_there(subject, Place::Kernel);
    subject.stack.iter().find_map(|(about, device)| {
        let device = (*device)?;
        let is_policy = |limit: &&&manifest::Limit| {
            matches!(limit.set_with, LimitPlace::IoCost | LimitPlace::IoLatency)
                && limit.device.as_deref() == Some(device.name.as_str())
        };
        let limit = set.iter().find(is_policy)?;
        let waits = device::before_tag(device)?;
        let has_free_tags = waits.in_use < u64::from(about.nr_requests);
        (has_free_tags && waits.share >= threshold::NO_TAG).then_some(HeldInQueue {
            device,
            share: waits.share,
            limit,
        })
    })
}

impl HeldInQueue<'_> {
    fn case(&self) -> Case {
        let (device, limit) = (self.device.name.as_str(), self.limit);
        let (words, place) = (limit.words(), limit.place());
        let (policy, advice) = match limit.set_with {
            LimitPlace::IoLatency => (
                "io.latency",
                String::from(
                    "Find the cgroup beside QEMU's whose `io.latency` the device misses: the kernel slows the others down \
                     for it. Raise that target, or lower QEMU's. Risk: the cgroup that it protects gets slower.",
                ),
            ),
            _ => (
                "iocost",
                format!(
                    "Raise {words} in {place} (`IOWeight=` in systemd, `virsh blkiotune --device-weights`). If the device \
                     is idle meanwhile, its model is too small: `io.cost.model` and `io.cost.qos` of the root cgroup. \
                     Risk: the guest can then slow down others that the weight protects."
                ),
            ),
        };
        Case {
            title: format!(
                "{policy} holds bios back for {} of their time ({words} for {device})",
                percent(self.share)
            ),
            explanation: format!(
                "Bios wait in the queue of {device} before they get a tag, although tags are free: the kernel's {policy} \
                 lets them wait there. QEMU has {words}, set in {place}."
            ),
            advice: vec![advice],
            evidence: [
                ("held_by", "the kernel".into()),
                ("device", device.into()),
                ("q2g_share", self.share.into()),
                ("limit", words.as_str().into()),
                ("limit_value", limit.value.into()),
                ("limit_set_in", place.as_str().into()),
            ]
            .into(),
            share: self.share,
            information: false,
        }
    }
}

/// Requests wait for a limit, QEMU's or a cgroup's, not for the device.
pub(super) fn is_limited(subject: &Subject<'_>) -> bool {
    let limit = subject.clues.and_then(|clues| limit(subject, clues));
    limit.is_some() || held_in_queue(subject).is_some()
}

/// A limit of QEMU's own lets requests wait where they would wait for a worker thread too.
pub(super) fn is_limited_by_qemu(subject: &Subject<'_>) -> bool {
    let limit = subject.clues.and_then(|clues| limit(subject, clues));
    limit.is_some_and(|limit| limit.place == Place::Qemu)
}

/// The limits that are set where requests are held back, those of the recording's begin and of its end.
fn set_there<'a>(subject: &Subject<'a>, place: Place) -> Vec<&'a manifest::Limit> {
    let (at_begin, at_end) = match place {
        Place::Qemu => (&subject.disk.limits, &subject.disk.limits_at_end),
        Place::Kernel => (&subject.guest.limits, &subject.guest.limits_at_end),
    };
    let devices = subject.devices_below();
    let mut all: Vec<&manifest::Limit> = Vec::new();
    for limit in at_begin.iter().chain(at_end.iter().flatten()) {
        let device = limit.device.as_deref();
        let is_below = device.is_none_or(|device| devices.contains(&device));
        if is_below && !all.contains(&limit) {
            all.push(limit);
        }
    }
    all
}

/// The limit that the disk is at: of those that are set the one that it comes closest to.
fn reached<'a>(
    subject: &Subject<'_>,
    pace: &Pace,
    set: &[&'a manifest::Limit],
) -> Option<&'a manifest::Limit> {
    let qemu = subject.qemu?;
    let (requests, bytes) = (pace.requests.per_second, pace.bytes.per_second);
    let reads = share(qemu.reads, qemu.reads + qemu.writes);
    let read = share(qemu.bytes.read, qemu.bytes.read + qemu.bytes.write);
    let used = |limit: &&'a manifest::Limit| {
        let rate = match limit.bounds {
            Limited::Requests => requests,
            Limited::Reads => requests * reads,
            Limited::Writes => requests * (1.0 - reads),
            Limited::Bytes => bytes,
            Limited::BytesRead => bytes * read,
            Limited::BytesWritten => bytes * (1.0 - read),
            _ => return None,
        };
        let used = rate / limit.value.max(1) as f64;
        threshold::AT_LIMIT
            .contains(&used)
            .then_some((used, *limit))
    };
    let all = set.iter().filter_map(used);
    all.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, it)| it)
}

/// What the verdict says of a disk that a limit holds back.
pub(super) fn bottleneck(subject: &Subject<'_>) -> Option<LimitBottleneck> {
    let (place, reached) = if let Some(held) = held_in_queue(subject) {
        (Place::Kernel, Some(held.limit))
    } else {
        let limit = limit(subject, subject.gathered_to_the_device().ok()?)?;
        let set = set_there(subject, limit.place);
        (limit.place, reached(subject, &limit.pace, &set))
    };
    Some(LimitBottleneck {
        held_by: match place {
            Place::Qemu => LimitHolder::Qemu,
            Place::Kernel => LimitHolder::Kernel,
        },
        limit: reached.map(manifest::Limit::words),
        value: reached.map(|limit| limit.value),
        set_in: reached.map(manifest::Limit::place),
    })
}

/// How a limit is raised.
fn advice(limit: &manifest::Limit) -> String {
    let how = match limit.set_with {
        LimitPlace::Iotune => String::from(
            "`virsh blkdeviotune DOMAIN DISK`, QMP's `block_set_io_throttle`, or `throttling.*` of `-drive`",
        ),
        LimitPlace::ThrottleGroup => format!(
            "`virsh blkdeviotune DOMAIN DISK --group-name {0}`, `qom-set /objects/{0} limits`, or `throttling.group={0}` \
             of `-drive`; it holds for all disks of the group together",
            limit.name
        ),
        LimitPlace::Blkio => String::from("`virsh blkiotune` or `blkio.throttle.*` of that cgroup"),
        _ => String::from(
            "`virsh blkiotune`, `IOReadBandwidthMax=` or similar in systemd, or `io.max` of that cgroup",
        ),
    };
    format!(
        "Raise the limit of {} in {}: {how}. Risk: the guest can then slow down others that the limit protects.",
        limit.words(),
        limit.place()
    )
}

pub(super) fn host_throttled(subject: &Subject<'_>) -> Judgement {
    if let Some(held) = held_in_queue(subject) {
        return held.case().fires();
    }
    let clues = subject.gathered_to_the_device()?;
    let Some(limit) = limit(subject, clues) else {
        return Ok(None);
    };
    let pace = limit.pace;
    let (who, what, unknown) = match limit.place {
        Place::Qemu => (
            "QEMU",
            "in QEMU before file I/O starts",
            "Raise the disk's limit in QEMU. Find it with `virsh blkdeviotune DOMAIN DISK`, or as `throttling.*` or \
             `throttle-group` on QEMU's command line. Risk: the guest can then slow down others that the limit protects.",
        ),
        Place::Kernel => (
            "the kernel",
            "between QEMU's file I/O and the host's block layer",
            "Raise `io.max` of QEMU's cgroup or of one above it. Find it in `/proc/PID/cgroup`, with `virsh blkiotune`, \
             as `IOReadBandwidthMax=` or similar in systemd, or as `blkio.throttle.*` of cgroup v1. Risk: the guest can \
             then slow down others that the limit protects.",
        ),
    };
    let set = set_there(subject, limit.place);
    let reached = reached(subject, &pace, &set);
    let pace_is = match limit.is_even {
        true => "an even pace",
        false => "the pace of a limit",
    };
    let named = match reached {
        Some(limit) => format!(" of {}", limit.words()),
        None => String::new(),
    };
    let where_set = match (reached, set.as_slice()) {
        (Some(limit), _) => format!(" It is set in {}.", limit.place()),
        (None, []) => String::new(),
        (None, set) => {
            let each = set
                .iter()
                .map(|it| format!("{} in {}", it.words(), it.place()));
            let each: Vec<String> = each.take(MAX_NAMED).collect();
            format!(
                " None of the limits that are set is reached: {}.",
                each.join("; ")
            )
        }
    };
    let mut evidence: BTreeMap<&'static str, Evidence> = [
        ("held_by", who.into()),
        ("held_p50_ns", limit.waits.p50.unwrap_or(0).into()),
        ("held_share", limit.share.into()),
        ("nothing_under_way_share", limit.nothing_under_way.into()),
        ("requests_per_second", pace.requests.per_second.into()),
        ("requests_deviation", pace.requests.deviation.into()),
        ("bytes_per_second", pace.bytes.per_second.into()),
        ("bytes_deviation", pace.bytes.deviation.into()),
    ]
    .into();
    if let Some(limit) = reached {
        evidence.insert("limit", limit.words().as_str().into());
        evidence.insert("limit_value", limit.value.into());
        evidence.insert("limit_set_in", limit.place().as_str().into());
    }
    Case {
        title: format!(
            "a limit{named} in {who} holds requests back for {} of their time",
            percent(limit.share)
        ),
        explanation: format!(
            "Half of the requests wait {} or longer {what}. For {} of the time no request makes progress. Requests come \
             through at {pace_is}, {} or {} per second. That is what a limit looks like.{where_set}",
            time(limit.waits.p50.unwrap_or(0)),
            percent(limit.nothing_under_way),
            of(pace.requests.per_second.round() as u64, "request", "requests"),
            size(pace.bytes.per_second.round() as u64)
        ),
        advice: vec![match reached {
            Some(reached) => advice(reached),
            None => String::from(unknown),
        }],
        evidence,
        share: limit.share,
        information: false,
    }
    .fires()
}
