//! Rules about the block layer of guest and host.

use super::subject::Subject;
use super::{Case, Judgement, Missing, bus, threshold};
use crate::result::analysis::{Device, User, UserKind};
use crate::result::side::Side;
use crate::result::units::{percent, share, size};

/// Part of a device's time from Q to C that one of its parts has.
fn share_of_q2c(device: &Device, part: impl Fn(&Device) -> Option<u64>) -> Option<f64> {
    let q2c = device.stats.as_ref()?.path_ns.q2c;
    Some(part(device)? as f64 / q2c.max(1) as f64)
}

/// How long bios waited for a request of a queue, and how many of these were in use.
pub(super) struct BeforeTag {
    /// Of the time from Q to C.
    pub share: f64,
    /// At once, those that the scheduler held included: what it holds has its tag already, and is not at the device.
    pub in_use: u64,
    /// Of these the scheduler held so many.
    pub sorted: u64,
}

pub(super) fn before_tag(device: &Device) -> Option<BeforeTag> {
    let stats = device.stats.as_ref()?;
    let sorted = stats.at_queue.max;
    Some(BeforeTag {
        share: share_of_q2c(device, |_| Some(stats.path_ns.q2g))?,
        in_use: device.queue_depth.max + sorted,
        sorted,
    })
}

/// What a device did for others than the guest.
struct Others {
    /// Part of its time, 0 to 1.
    share: f64,
    bytes: u64,
    /// The largest of them, in words.
    largest: Option<String>,
}

/// Who else used a device: other guests as much as processes of the host. The file system's own I/O is
/// everybody's.
fn others(subject: &Subject<'_>, device: &Device) -> Others {
    let users = device.users.iter().flatten();
    let others: Vec<&User> = users.filter(|user| is_another(subject, user)).collect();
    Others {
        // Not `sum`: that of nothing is −0.
        share: others.iter().fold(0.0, |sum, user| sum + user.share),
        bytes: others.iter().map(|user| user.bytes).sum(),
        // They are in the order of the device's time.
        largest: others.first().map(|user| who(user)),
    }
}

/// Whether a user is not the guest.
fn is_another(subject: &Subject<'_>, user: &User) -> bool {
    let own = subject.guest.disks.iter().flat_map(|disk| &disk.images);
    let own_devices = own.flat_map(|image| &image.devices);
    let of_stack = subject.stack.iter().map(|(about, _)| &about.name);
    let mut own_devices = own_devices.chain(of_stack);
    match user.kind {
        UserKind::Process => true,
        UserKind::Image | UserKind::Guest => user.guest.as_ref() != Some(&subject.guest.name),
        UserKind::Loop => !own_devices.any(|device| user.name.as_ref() == Some(device)),
        _ => false,
    }
}

/// Whether a user is not the disk: the guest may have others on the device.
fn is_beside(subject: &Subject<'_>, user: &User) -> bool {
    let other_disk = user.kind == UserKind::Image && user.disk.as_ref() != Some(&subject.disk.name);
    other_disk || is_another(subject, user)
}

/// Whether only the disk used a device to any extent.
pub(super) fn is_used_alone(subject: &Subject<'_>, device: &Device) -> bool {
    let users = device.users.iter().flatten();
    let beside = users.filter(|user| is_beside(subject, user));
    beside.map(|user| user.share).sum::<f64>() < threshold::NOTABLE
}

/// What the file system below wrote, it wrote for the disk: no other user wrote to a device of it.
pub(super) fn written_alone(subject: &Subject<'_>) -> Result<(), Missing> {
    let mut devices = subject.uppermost.iter().filter_map(|(_, device)| *device);
    let is_alone = |device: &Device| {
        let users = || device.users.iter().flatten();
        let beside = users().filter(|user| is_beside(subject, user));
        let beside: u64 = beside.map(|user| user.written_bytes).sum();
        let all: u64 = users().map(|user| user.written_bytes).sum();
        share(beside, all) < threshold::NOTABLE
    };
    if devices.all(is_alone) {
        return Ok(());
    }
    Err("others wrote to the device too, so the file system's own I/O may be theirs")
}

fn who(user: &User) -> String {
    let name = user.name.as_deref().unwrap_or("unknown");
    match (&user.guest, &user.disk) {
        (Some(guest), Some(disk)) => format!("disk {disk} of guest {guest}"),
        (Some(guest), None) => format!("guest {guest}"),
        _ => name.to_owned(),
    }
}

pub(super) fn noisy_neighbour(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    subject.seen_device()?;
    // Others may use an upper device as well as a lower one.
    let devices = subject.stack.iter().filter_map(|(_, device)| *device);
    let loudest = devices
        .filter(|device| device.queue_depth.busy_share >= threshold::BUSY)
        .filter(|device| device.counts.completed >= threshold::REQUESTS)
        .map(|device| (device, others(subject, device)))
        .max_by(|a, b| a.1.share.total_cmp(&b.1.share));
    let Some((device, others)) = loudest.filter(|(_, others)| others.share >= threshold::OTHERS)
    else {
        return Ok(None);
    };
    let who = others.largest.as_deref().unwrap_or("unknown");
    let busy = device.queue_depth.busy_share;
    Case {
        title: format!("others take {} of the time of {}", percent(others.share), device.name),
        explanation: format!(
            "{} was busy for {} of the recording, much of it not for this guest. The largest other user is {who}. All \
             others together moved {}.",
            device.name,
            percent(busy),
            size(others.bytes)
        ),
        advice: vec![String::from(
            "Move the image or the other load to another device, or limit the others with `io.max` or `io.weight` of their cgroup.",
        )],
        evidence: [
            ("device", device.name.as_str().into()),
            ("busy_share", busy.into()),
            ("others_share", others.share.into()),
            ("others_bytes", others.bytes.into()),
            ("largest_other", who.into()),
        ]
        .into(),
        share: others.share,
        information: false,
    }
    .fires()
}

pub(super) fn tag_starvation(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    // That an emulated controller has one tag is its own rule, and no setting.
    let settable = !bus::is_emulated(&subject.disk.bus);
    let in_guest = subject
        .in_guest
        .filter(|_| settable)
        .zip(subject.guest_disk.map(|disk| disk.nr_requests));
    let stack = subject.stack.iter();
    let on_host = stack.filter_map(|(about, device)| Some(((*device)?, about.nr_requests)));
    for (device, nr_requests) in in_guest.into_iter().chain(on_host) {
        let Some(BeforeTag {
            share,
            in_use,
            sorted,
        }) = before_tag(device)
        else {
            continue;
        };
        if share < threshold::NO_TAG || nr_requests == 0 || in_use < u64::from(nr_requests) {
            continue;
        }
        let (place, more_queues) = match device.side {
            Side::Guest => (
                "in the guest",
                "give the disk more queues (`num-queues`, `queue-size`), ",
            ),
            Side::Host => ("on the host", ""),
        };
        return Case {
            title: format!(
                "requests wait for a free tag for {} of their time ({} {place}, {nr_requests} tags)",
                percent(share),
                device.name
            ),
            explanation: format!(
                "Up to {} requests were in flight at once and {sorted} waited in the scheduler. The queue has \
                 {nr_requests} tags (`nr_requests`). When all are in use, the next bio waits.",
                device.queue_depth.max
            ),
            advice: vec![format!(
                "Raise `/sys/block/{}/queue/nr_requests` {place}, {more_queues}or keep fewer requests in flight.",
                device.name
            )],
            evidence: [
                ("device", device.name.as_str().into()),
                ("nr_requests", u64::from(nr_requests).into()),
                ("depth_max", device.queue_depth.max.into()),
                ("q2g_share", share.into()),
            ]
            .into(),
            share,
            information: false,
        }
        .fires();
    }
    Ok(None)
}

/// The name of having none, where this one is offered. The single-queue block layer, gone since Linux 5.0, has schedulers
/// of its own; the multi-queue one's deadline is `mq-deadline`.
fn no_scheduler_beside(scheduler: &str) -> &'static str {
    match scheduler {
        "noop" | "anticipatory" | "deadline" | "cfq" => "noop",
        _ => "none",
    }
}

pub(super) fn scheduler_ineffective(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    let device = subject.inside()?;
    let Some(about) = subject.guest_disk else {
        return Err("the guest's scheduler was not recorded");
    };
    let scheduler = about.scheduler.as_str();
    let on_host = subject
        .beneath
        .first()
        .map_or("", |(about, _)| about.scheduler.as_str());
    // An emulated controller takes a request at a time: what waits for it, waits with any scheduler.
    let waits_anyway = bus::is_emulated(subject.bus());
    let no_scheduler = no_scheduler_beside(scheduler);
    if scheduler.is_empty() || scheduler == no_scheduler || waits_anyway {
        return Ok(None);
    }
    let Some(share) = share_of_q2c(device, |device| Some(device.stats.as_ref()?.path_ns.i2d))
    else {
        return Err("the guest's scheduler was not recorded");
    };
    if share < threshold::SCHEDULED {
        return Ok(None);
    }
    Case {
        title: format!("the guest's {scheduler} holds requests for {} of their time", percent(share)),
        explanation: format!(
            "The guest's scheduler sorts requests for a virtual disk. It does not know where the image lies on the \
             device, and the host has its own scheduler ({}). The guest's scheduler only adds waiting.",
            if on_host.is_empty() { "unknown" } else { on_host }
        ),
        advice: vec![format!(
            "In the guest, run `echo {no_scheduler} > /sys/block/{}/queue/scheduler`. A udev rule makes it permanent.",
            device.name
        )],
        evidence: [
            ("guest_scheduler", scheduler.into()),
            ("host_scheduler", on_host.into()),
            ("i2d_share", share.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}
