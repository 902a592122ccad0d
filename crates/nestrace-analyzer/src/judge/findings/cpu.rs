//! Rules about processors: threads that carry the disk's I/O and have none, or one that has no more to give.

use super::subject::Subject;
use super::{Case, Judgement, Missing, threshold};
use crate::result::analysis::{Chains, Evidence, QemuThread, QemuThreads, RanInstead, SegmentCpu};
use crate::result::units::{percent, time};

/// Segments whose threads are QEMU's: the way in and out, QEMU itself, and its file I/O.
const OF_QEMU: [&str; 10] = [
    "virt_submit",
    "qemu_submit",
    "host_fs_submit",
    "host_queue",
    "host_fs_between",
    "host_fs_complete",
    "qemu_between",
    "qemu_complete",
    "virt_complete",
    "device",
];
/// Those in which a request waits for the thread that serves the disk.
const OF_SERVER: [&str; 4] = [
    "virt_submit",
    "qemu_submit",
    "qemu_between",
    "qemu_complete",
];

/// What the threads of QEMU did; `None` where it was not recorded.
fn threads<'a>(subject: &Subject<'a>) -> Result<Option<&'a QemuThreads>, Missing> {
    let mut all = subject.analysis.qemu_threads.iter();
    let threads = all.find(|threads| threads.guest == subject.guest.name);
    if threads.is_some() {
        subject.whole()?;
    }
    Ok(threads)
}

/// A part of the segments' time, as a share of the latency.
fn share_of(chains: &Chains, names: &[&str], part: impl Fn(&SegmentCpu) -> f64) -> f64 {
    let named = chains.segments.iter().filter(|it| names.contains(&it.name));
    let sum: f64 = named.map(|segment| part(&segment.cpu)).sum();
    if chains.q2c_mean_ns > 0.0 {
        sum / chains.q2c_mean_ns
    } else {
        0.0
    }
}

pub(super) fn cpu_starved(subject: &Subject<'_>) -> Judgement {
    let Some(threads) = threads(subject)? else {
        return Ok(None);
    };
    let chains = subject.followed_to_hand_back()?;
    // Where the processor was idle, the time is what waking a thread takes.
    let (idle, others): (Vec<_>, Vec<_>) = threads
        .ran_instead
        .iter()
        .partition(|it| it.name.starts_with("swapper/"));
    let sum = |all: &[&RanInstead]| all.iter().map(|it| it.runnable_ns).sum::<u64>() as f64;
    let (of_idle, of_others) = (sum(&idle), sum(&others));
    let part = if of_idle > 0.0 {
        of_others / (of_idle + of_others)
    } else {
        1.0
    };
    let share = part * share_of(chains, &OF_QEMU, |cpu| cpu.runnable);
    if share < threshold::NO_PROCESSOR {
        return Ok(None);
    }
    let names = others.iter().take(3);
    let names: Vec<&str> = names.map(|it| it.name.as_str()).collect();
    let who = match names.as_slice() {
        [] => String::from("Who had it is not known."),
        names => format!("Meanwhile it was used by {}.", names.join(", ")),
    };
    let mut evidence: std::collections::BTreeMap<&'static str, Evidence> = [
        ("runnable_share", share.into()),
        ("ran_instead", Evidence::Word(names.join(", "))),
    ]
    .into();
    if let Some(first) = others.first() {
        evidence.insert("ran_instead_ns", first.runnable_ns.into());
    }
    let parts = chains.segments.iter().filter_map(|segment| {
        let part = share_of(chains, &[segment.name], |cpu| cpu.runnable);
        (part > 0.001).then_some((segment.name, Evidence::Real(part)))
    });
    evidence.extend(parts);
    Case {
        title: format!(
            "QEMU's threads have no processor for {} of the latency",
            percent(share)
        ),
        explanation: format!(
            "For {} of each request's time a thread of QEMU could go on and waits for a processor. {who}",
            time((chains.q2c_mean_ns * share).round() as u64)
        ),
        advice: vec![String::from(
            "Give QEMU's threads processors of their own: `virsh vcpupin`, `virsh emulatorpin` and `virsh iothreadpin`, \
             or `taskset -p` on each thread. Or run fewer virtual processors on this host, or raise QEMU's share of the \
             processor (`virsh schedinfo`, `cpu.weight` of its cgroup). Look for a limit, too: `cpu.max` of its cgroup.",
        )],
        evidence,
        share,
        information: false,
    }
    .fires()
}

pub(super) fn vcpu_not_running(subject: &Subject<'_>) -> Judgement {
    if threads(subject)?.is_none() {
        return Ok(None);
    }
    let chains = subject.followed_to_hand_back()?;
    let [runnable, asleep] = [
        share_of(chains, &["virt_complete"], |cpu| cpu.runnable),
        share_of(chains, &["virt_complete"], |cpu| cpu.asleep),
    ];
    let share = runnable + asleep;
    if share < threshold::NO_PROCESSOR {
        return Ok(None);
    }
    let advice = if runnable >= asleep {
        "Give the virtual processors processors of their own (`virsh vcpupin`), or run fewer of them on this host."
    } else {
        "Let an idle virtual processor poll before it halts: `kvm.halt_poll_ns` on the host, or the cpuidle driver \
         `haltpoll` in the guest. Risk: polling uses processor time of the host. More requests in flight keep the \
         virtual processor awake, too."
    };
    Case {
        title: format!(
            "completions wait for a virtual processor for {} of the latency",
            percent(share)
        ),
        explanation: format!(
            "QEMU has notified the guest, but the virtual processor that takes the interrupt does not run: it waits for a \
             processor of the host ({} of the latency), or has halted and is woken ({}).",
            percent(runnable),
            percent(asleep)
        ),
        advice: vec![advice.to_owned()],
        evidence: [
            ("vcpu_runnable_share", runnable.into()),
            ("vcpu_asleep_share", asleep.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}

pub(super) fn iothread_saturated(subject: &Subject<'_>) -> Judgement {
    let Some(threads) = threads(subject)? else {
        return Ok(None);
    };
    let chains = subject.followed_to_hand_back()?;
    let Some(server) = only_server(subject, threads) else {
        return Ok(None);
    };
    let Some(busy_ns) = subject.in_guest.map(|device| device.queue_depth.busy_ns) else {
        return Ok(None);
    };
    let running = (server.cpu.running as f64 / busy_ns.max(1) as f64).min(1.0);
    let waiting = Subject::share_of(chains, &OF_SERVER);
    if running < threshold::SATURATED || waiting < threshold::NO_PROCESSOR {
        return Ok(None);
    }
    let is_main = server.role == "main";
    let name = if is_main {
        String::from("QEMU's main loop")
    } else {
        format!("the iothread {}", server.name)
    };
    let queues = subject.disk.queues;
    let of_queues = match queues {
        Some(1) => String::from("The disk has one queue."),
        Some(queues) => {
            format!("The disk has {queues} queues, and all of them are served by this thread.")
        }
        None => String::from("All queues of the disk are served by this thread."),
    };
    Case {
        title: format!("one thread serves the disk and is busy for {} of the time", percent(running)),
        explanation: format!(
            "While the guest has requests in flight, {name} runs for {} of the time. Requests wait for it for {} of the \
             latency. {of_queues}",
            percent(running),
            percent(waiting)
        ),
        advice: advice_on_threads(subject, is_main),
        evidence: [
            ("thread", server.name.as_str().into()),
            ("running_share", running.into()),
            ("waiting_share", waiting.into()),
            ("iothreads", u64::from(!is_main).into()),
            ("queues", queues.map_or(Evidence::from("unknown"), |queues| u64::from(queues).into())),
        ]
        .into(),
        share: waiting,
        information: false,
    }
    .fires()
}

/// The thread that serves the disk, if there is one alone.
fn only_server<'a>(subject: &Subject<'_>, threads: &'a QemuThreads) -> Option<&'a QemuThread> {
    let mut threads = threads.threads.iter();
    match subject.iothread() {
        "unknown" => None,
        "none" => threads.find(|thread| thread.role == "main"),
        several if several.contains(',') => None,
        one => threads.find(|thread| thread.role == "iothread" && thread.name == one),
    }
}

fn advice_on_threads(subject: &Subject<'_>, is_main: bool) -> Vec<String> {
    let bus = subject.bus();
    if !bus.starts_with("virtio") {
        return vec![String::from(
            "Use virtio-blk or virtio-scsi with an iothread. Other controllers are served by QEMU's main loop.",
        )];
    }
    let mut advice = Vec::new();
    if is_main {
        advice.push(String::from(
            "Give the disk an iothread of its own. libvirt: `<iothreads>1</iothreads>` in the domain and `iothread='1'` in \
             the disk's `<driver>` (of virtio-scsi in the controller's). QEMU: `-object iothread,id=io1` and \
             `iothread=io1` of the device.",
        ));
    }
    let device = if bus == "virtio-scsi" {
        "virtio-scsi-pci"
    } else {
        "virtio-blk-pci"
    };
    let since = if bus == "virtio-scsi" { "10.0" } else { "9.0" };
    advice.push(format!(
        "Spread the disk's queues over several iothreads (QEMU {since}). libvirt 10.0: `<iothreads>2</iothreads>` in the \
         domain and `<driver queues='2'><iothreads><iothread id='1'/><iothread id='2'/></iothreads></driver>` in the \
         disk. QEMU: `-object iothread,id=io1 -object iothread,id=io2` and \
         `-device '{{\"driver\":\"{device}\",…,\"num-queues\":2,\"iothread-vq-mapping\":[{{\"iothread\":\"io1\"}},\
         {{\"iothread\":\"io2\"}}]}}'`. Each iothread uses processor time of the host.",
    ));
    advice
}
