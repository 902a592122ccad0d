//! The sentence of each guest.

use super::chain::Chain;
use super::holder::{Held, doing, place};
use super::waiting::Waiting;
use super::{Scene, Trouble, Verdict};
use crate::facts::{DiskCounts, DiskFacts, GuestFacts};
use crate::words::{count, duration, latency, rate, since};

/// What waits, since when and for what.
pub(super) fn held(
    guest: &str,
    disk: Option<&DiskFacts>,
    waiting: &Waiting<'_>,
    held: Held,
) -> Trouble {
    let subject = match disk {
        Some(disk) => format!("{guest}'s {}", disk.name),
        None => guest.to_owned(),
    };
    let asleep = waiting.oldest().and_then(|thread| thread.asleep_ns);
    let since_ns = asleep.unwrap_or(waiting.interval_ns);
    let words = held.words;
    let sentence = match held.verdict {
        Verdict::Limited => {
            let n = disk.and_then(|disk| disk.in_flight).unwrap_or(0);
            format!(
                "{subject} is held back by {words}; {} wait",
                count(n, "request")
            )
        }
        _ if held.is_unseen => format!(
            "{subject} lies on {words}; whether the guest waits for it cannot be seen without QMP"
        ),
        _ => {
            let since = match asleep {
                Some(ns) => since(Some(ns)),
                None => format!(" since at least {}", duration(since_ns)),
            };
            let last = waiting
                .idle_ns
                .filter(|idle| asleep.is_none() && *idle > since_ns)
                .map(|idle| format!(" (the last request completed {} ago)", duration(idle)))
                .unwrap_or_default();
            format!("{subject} waits{since}{last} for {words}")
        }
    };
    let is_stuck = held.verdict == Verdict::Stuck && !held.is_unseen;
    Trouble {
        verdict: held.verdict,
        sentence,
        disk: disk.map(|disk| disk.name.clone()),
        holder: Some(held.holder),
        since_ns: is_stuck.then_some(since_ns),
    }
}

/// A guest that waits for nothing.
pub(super) fn at_rest(scene: &Scene<'_>, guest: &GuestFacts) -> Trouble {
    let name = &guest.name;
    if guest.is_hidden {
        return Trouble {
            sentence: format!(
                "{name} belongs to another user: its threads and files cannot be seen; run as root"
            ),
            ..Trouble::default()
        };
    }
    let known: Vec<DiskCounts> = guest.disks.iter().filter_map(|d| d.completed).collect();
    let add = |sum: u64, n: u64| sum.saturating_add(n);
    let n = known.iter().map(DiskCounts::all).fold(0, add);
    let time_ns = known.iter().map(|counts| counts.time_ns).fold(0, add);
    if n > 0 {
        let mean = time_ns.checked_div(n).unwrap_or(0);
        return Trouble {
            verdict: Verdict::Working,
            sentence: format!(
                "nothing of {name} is stuck: {} a second complete, {} each on average{}",
                rate(n, scene.interval_ns),
                latency(mean),
                oldest(scene, guest)
            ),
            ..Trouble::default()
        };
    }
    let in_flight = guest.disks.iter().filter_map(|disk| disk.in_flight).max();
    if !known.is_empty() {
        let (verdict, rest) = match in_flight {
            Some(0) => (Verdict::Idle, "nothing is in flight"),
            None => (
                Verdict::Idle,
                "no request completed, and none is seen to wait",
            ),
            Some(_) => (Verdict::Working, "what is in flight has just begun"),
        };
        return Trouble {
            verdict,
            sentence: format!("nothing of {name} is stuck: {rest}"),
            ..Trouble::default()
        };
    }
    let why = match &guest.monitor_silence {
        Some(why) => format!("QMP gave no answer ({why})"),
        None if guest.disks.is_empty() => "it has no disks".to_owned(),
        None => "it has no monitor (QMP) to ask".to_owned(),
    };
    let images: Vec<_> = guest.disks.iter().flat_map(|d| d.images.clone()).collect();
    let chain = Chain::below(scene.devices, &images);
    let below = chain.0.first().and_then(|device| {
        let rate = rate(device.completed?, scene.interval_ns);
        Some(format!("; {rate} a second complete on {}", device.name))
    });
    Trouble {
        verdict: Verdict::Unknown,
        sentence: format!(
            "nothing of {name} is seen to be stuck, but {why}{}",
            below.unwrap_or_default()
        ),
        ..Trouble::default()
    }
}

/// The thread that waits longest, of a guest that works.
fn oldest(scene: &Scene<'_>, guest: &GuestFacts) -> String {
    let waiting = Waiting::of_rest(scene.interval_ns, guest, &[]);
    let Some(thread) = waiting.oldest() else {
        return String::new();
    };
    format!(
        "; the oldest waits{}{}, in {}",
        since(thread.asleep_ns),
        doing(thread),
        place(thread).unwrap_or("the kernel")
    )
}
