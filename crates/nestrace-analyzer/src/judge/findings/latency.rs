//! Rules about where the time goes.

use super::subject::Subject;
use super::{Case, Judgement, limit, threshold};
use crate::result::analysis::{Chains, Evidence, Segment};
use crate::result::units::{percent, time};

/// What is below the image: the host's devices, with those that hand I/O on to others, or a server.
pub(super) const DEVICE: [&str; 6] = [
    "device",
    "device_flush",
    "remote",
    "stack_submit",
    "stack_between",
    "stack_complete",
];
const VIRT: [&str; 2] = ["virt_submit", "virt_complete"];

/// Shares of all segments, as evidence.
fn segments(chains: &Chains) -> impl Iterator<Item = (&'static str, Evidence)> {
    let worth = chains
        .segments
        .iter()
        .filter(|segment| segment.share > 0.001);
    worth.map(|segment| (segment.name, Evidence::Real(segment.share)))
}

/// A share of the mean latency, as a time.
pub(super) fn part(chains: &Chains, share: f64) -> String {
    time((chains.q2c_mean_ns * share).round() as u64)
}

/// The segments that are not the device's, the largest first.
fn above_the_device(chains: &Chains) -> Vec<&Segment> {
    let mut others: Vec<_> = chains
        .segments
        .iter()
        .filter(|segment| !DEVICE.contains(&segment.name) && segment.share > 0.01)
        .collect();
    others.sort_by(|a, b| b.share.total_cmp(&a.share));
    others
}

/// The name of the largest segment that is not the device's.
fn slowest(chains: &Chains) -> &'static str {
    let largest = above_the_device(chains).first().map(|segment| segment.name);
    largest.unwrap_or("the largest segment")
}

/// The largest segments that are not the device's, in words.
fn largest(chains: &Chains) -> String {
    let others = above_the_device(chains);
    let named = others
        .iter()
        .take(3)
        .map(|segment| format!("{} {}", segment.name, percent(segment.share)));
    named.collect::<Vec<_>>().join(", ")
}

/// What the lowest layer is.
fn kind(subject: &Subject<'_>) -> &'static str {
    subject.server().map_or("device", |_| "server")
}

pub(super) fn latency_overhead(subject: &Subject<'_>) -> Judgement {
    let chains = subject.followed()?;
    let device = Subject::share_of(chains, &DEVICE);
    let overhead = 1.0 - device;
    if chains.segments.is_empty() || overhead < threshold::OVERHEAD {
        return Ok(None);
    }
    let mut evidence: std::collections::BTreeMap<_, _> = segments(chains).collect();
    evidence.insert("q2c_mean_ns", Evidence::Real(chains.q2c_mean_ns));
    Case {
        title: format!("{} of the latency is spent above the {}", percent(overhead), kind(subject)),
        explanation: format!(
            "A request takes {} on average, {} of it at {}. The rest is spent in the layers above: {}.",
            part(chains, 1.0),
            part(chains, device),
            subject.lowest(),
            largest(chains)
        ),
        advice: vec![format!(
            "Look at {} first. `nestrace analyze --slowest 5` shows single requests.",
            slowest(chains)
        )],
        evidence,
        share: overhead,
        information: false,
    }
    .fires()
}

pub(super) fn queue_idle(subject: &Subject<'_>) -> Judgement {
    let chains = subject.followed()?;
    // What stacked devices keep from the lowest ones has rules of its own.
    let busy_ns = subject
        .uppermost
        .iter()
        .map(|(_, device)| Some((*device)?.queue_depth.busy_ns));
    let (Some(guest), Some(busy_ns)) = (subject.in_guest, busy_ns.sum::<Option<u64>>()) else {
        return Ok(None);
    };
    if subject.uppermost.is_empty() {
        return Ok(None);
    }
    let waiting = guest.queue_depth.busy_share;
    // The host may have been recorded for longer than the guest, so times are compared, as shares of the
    // guest's. Busy for whomever, and whenever, and of several devices one after the other: they were idle for at least the rest of the time in which
    // the guest waited.
    let of_guests_time = waiting / guest.queue_depth.busy_ns.max(1) as f64;
    let busy = (busy_ns as f64 * of_guests_time).min(1.0);
    let idle = waiting - busy;
    if idle < threshold::IDLE {
        return Ok(None);
    }
    if !subject.seen_throughout() {
        return Err("the guest was recorded for only part of the time");
    }
    Case {
        title: format!(
            "the {} is idle for {} of the time while the guest waits",
            kind(subject),
            percent(idle)
        ),
        explanation: format!(
            "The guest had a request in flight for {} of the time, {} for {}. The rest of the time the requests were in {}.",
            percent(waiting),
            subject.lowest(),
            percent(busy),
            largest(chains)
        ),
        advice: vec![fuller_device(subject, guest.queue_depth.mean / waiting, chains)],
        evidence: [
            ("guest_busy_share", waiting.into()),
            ("device_busy_share", busy.into()),
            ("guest_depth_mean", guest.queue_depth.mean.into()),
        ]
        .into(),
        share: idle,
        information: false,
    }
    .fires()
}

/// What gives an idle device more to do. More requests in flight do not, where there are many already or where a
/// limit holds them back: more of them would wait there.
fn fuller_device(subject: &Subject<'_>, depth: f64, chains: &Chains) -> String {
    if limit::is_limited(subject) {
        return String::from(
            "Raise the limit that holds the requests back (see host-throttled). More requests in flight would wait \
             there too.",
        );
    }
    if depth >= threshold::DEEP {
        return format!(
            "Look at {} first. The guest already has {depth:.0} requests in flight, so more would only wait. An \
             iothread shortens the way between guest and host.",
            slowest(chains)
        );
    }
    String::from(
        "Keep more requests in flight (deeper queues, asynchronous I/O, fewer flushes). An iothread shortens the way \
         between guest and host.",
    )
}

pub(super) fn virtualization_share(subject: &Subject<'_>) -> Judgement {
    let chains = subject.followed_to_hand_back()?;
    let share = Subject::share_of(chains, &VIRT);
    if share < threshold::VIRTUALIZATION {
        return Ok(None);
    }
    let tcg = subject.guest.accel == "tcg";
    // An emulated controller takes neither; of that another rule speaks.
    let bus = subject.bus();
    let iothread = match subject.iothread() {
        _ if bus.is_empty() => "",
        _ if !bus.starts_with("virtio") => {
            "Use virtio-blk or virtio-scsi. They need fewer exits per request."
        }
        "unknown" => {
            "Check that the disk has its own iothread (`-object iothread`, `iothread=` of the device), and keep \
             several requests in flight. The iothread uses processor time of the host."
        }
        "none" => {
            "Give the disk its own iothread, and keep several requests in flight. The options are `-object iothread` \
             and `iothread=` of the device; a virtio-scsi controller has one iothread for all of its disks. The iothread \
             uses processor time of the host."
        }
        _ => {
            "Keep several requests in flight, so that one notification serves several. Check that nothing else keeps \
             the iothread's processor busy."
        }
    };
    let of_tcg = "Run the guest with KVM, if the host has it. Without it (tcg) QEMU emulates the processor, and most of \
                  this time is spent on that.";
    let advice = [if tcg { of_tcg } else { "" }, iothread];
    let advice = advice.into_iter().filter(|it| !it.is_empty());
    let advice: Vec<String> = advice.map(str::to_owned).collect();
    Case {
        title: format!("{} of the latency is the way into and out of the VM", percent(share)),
        explanation: format!(
            "Each request spends {} on the way between the guest's driver and QEMU and back: the guest notifies QEMU, \
             QEMU's thread wakes up, and QEMU interrupts the guest. A faster device would not change that.",
            part(chains, share)
        ),
        advice,
        evidence: [
            ("virt_submit", Subject::share_of(chains, &VIRT[..1]).into()),
            ("virt_complete", Subject::share_of(chains, &VIRT[1..]).into()),
            ("iothread", subject.iothread().into()),
            ("accel", subject.guest.accel.as_str().into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn thread_pool_wait(subject: &Subject<'_>) -> Judgement {
    let aio = subject.disk.aio.as_deref();
    if aio.is_some_and(|aio| aio != "threads") {
        return Ok(None);
    }
    let chains = subject.followed_to_the_image()?;
    let share = Subject::share_of(chains, &["qemu_submit"]);
    if share < threshold::THREAD_POOL || limit::is_limited_by_qemu(subject) {
        return Ok(None);
    }
    if aio.is_none() {
        return Err("the disk's `aio` setting is unknown");
    }
    let direct = matches!(subject.disk.cache.as_deref(), Some("none" | "directsync"));
    let change = if direct {
        "Use aio=native or aio=io_uring."
    } else {
        "Use aio=io_uring, or cache=none with aio=native."
    };
    Case {
        title: format!("{} of the latency is waiting for QEMU's worker threads", percent(share)),
        explanation: String::from(
            "With aio=threads, a pool of at most 64 threads does the file I/O. Under load, each request waits for a \
             free thread, and for that thread to be scheduled.",
        ),
        advice: vec![change.to_owned()],
        evidence: [
            ("qemu_submit", share.into()),
            ("aio", "threads".into()),
            ("cache", subject.disk.cache.as_deref().unwrap_or("unknown").into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn nothing_to_gain(subject: &Subject<'_>) -> Judgement {
    let chains = subject.followed()?;
    let overhead = 1.0 - Subject::share_of(chains, &DEVICE);
    if chains.segments.is_empty() || overhead > threshold::NOTHING {
        return Ok(None);
    }
    Case {
        title: format!("the nesting costs {} of the latency", percent(overhead)),
        explanation: format!(
            "A request takes {} on average, {} of it at {}. The layers above it add little, and no other rule found \
             anything to change.",
            part(chains, 1.0),
            part(chains, 1.0 - overhead),
            subject.lowest()
        ),
        advice: vec![String::from(match subject.server() {
            Some(_) => {
                "Change nothing in the virtualization. For a faster disk, use a faster server or network, or a device of the host."
            }
            None => "Change nothing in the virtualization. For a faster disk, use a faster device.",
        })],
        evidence: segments(chains).collect(),
        share: overhead,
        information: true,
    }
    .fires()
}
