//! Rules about the block layer of guest and host.

use super::subject::Subject;
use super::{Case, Judgement, bus, threshold};
use crate::analysis::Device;
use crate::units::{percent, size};

/// Part of a device's time from Q to C that one of its parts has.
fn share_of_q2c(device: &Device, part: impl Fn(&Device) -> Option<u64>) -> Option<f64> {
    let q2c = device.stats.as_ref()?.path_ns.q2c;
    Some(part(device)? as f64 / q2c.max(1) as f64)
}

/// Whether a device did enough for its shares to mean something.
fn worked(subject: &Subject<'_>, name: &str) -> bool {
    let of = subject.beneath.iter().find(|(about, _)| about.name == name);
    of.and_then(|(_, device)| *device)
        .is_some_and(|device| device.counts.completed >= threshold::REQUESTS)
}

pub(super) fn noisy_neighbour(subject: &Subject<'_>) -> Judgement {
    subject.whole()?;
    subject.seen_device()?;
    let loudest = subject
        .users()
        .filter(|device| device.busy_share >= threshold::BUSY && worked(subject, &device.device))
        .max_by(|a, b| a.others_share.total_cmp(&b.others_share));
    let Some(device) = loudest.filter(|device| device.others_share >= threshold::OTHERS) else {
        return Ok(None);
    };
    let who = device.largest_other.as_deref().unwrap_or("unknown");
    Case {
        title: format!("others use {} of {}'s time", percent(device.others_share), device.device),
        explanation: format!(
            "{} was busy {} of the recording, and much of that was not for the recorded guests: {who} before \
             all others, {} together.",
            device.device,
            percent(device.busy_share),
            size(device.others_bytes)
        ),
        advice: vec![String::from(
            "Move one of them to another device, or limit the other with `io.max` or `io.weight` of its cgroup.",
        )],
        evidence: [
            ("device", device.device.as_str().into()),
            ("busy_share", device.busy_share.into()),
            ("others_share", device.others_share.into()),
            ("others_bytes", device.others_bytes.into()),
            ("largest_other", who.into()),
        ]
        .into(),
        share: device.others_share,
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
    let beneath = subject.beneath.iter();
    let on_host = beneath.filter_map(|(about, device)| Some(((*device)?, about.nr_requests)));
    for (device, nr_requests) in in_guest.into_iter().chain(on_host) {
        let Some(share) = share_of_q2c(device, |device| Some(device.stats.as_ref()?.path_ns.q2g))
        else {
            continue;
        };
        let full = nr_requests > 0 && device.queue_depth.max >= u64::from(nr_requests);
        if share < threshold::NO_TAG || !full {
            continue;
        }
        return Case {
            title: format!(
                "requests wait for one of {nr_requests} tags on {} for {} of their time",
                device.name,
                percent(share)
            ),
            explanation: format!(
                "{} requests were at the device at once, as many as it has (`nr_requests`). Whoever comes then waits \
                 before the block layer even has a request for it.",
                device.queue_depth.max
            ),
            advice: vec![format!(
                "Raise `/sys/block/{}/queue/nr_requests`, give the disk more queues (`num-queues`, `queue-size`), or \
                 have fewer requests in flight.",
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
    if scheduler.is_empty() || scheduler == "none" {
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
            "The guest's scheduler sorts requests for a disk that it cannot see: the image lies elsewhere, and the \
             host has its own order ({}). Its waiting only adds.",
            if on_host.is_empty() { "unknown" } else { on_host }
        ),
        advice: vec![format!(
            "In the guest: `echo none > /sys/block/{}/queue/scheduler`; a udev rule keeps it.",
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
