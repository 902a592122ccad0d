//! Rules fire where the time went the way that they know, and stay silent else.

use crate::two_sides;

use nestrace_analyzer::analysis::{Evidence, Finding, Severity};
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{Device, Loss, Manifest, Mount};
use nestrace_trace::{Event, Kind};

use two_sides::{Streams, VM1, WAY, Way, manifest};

const START: u64 = 10_000_000_000;
/// Every layer but the device is as fast as it gets.
const DEVICE_ONLY: Way = Way {
    guest_queue: 2_000,
    virt_submit: 3_000,
    qemu_submit: 2_000,
    host_fs_submit: 1_000,
    host_queue: 1_000,
    device: 900_000,
    host_fs_complete: 1_000,
    qemu_complete: 2_000,
    virt_complete: 3_000,
};

fn analyze(manifest: &Manifest, way: Way) -> Analysis {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 300, way);
    streams.analyze(manifest, Options::default())
}

/// Ids of the findings for vm1's disk `vd`.
fn found(analysis: &Analysis) -> Vec<&'static str> {
    let of_disk = |finding: &&Finding| finding.guest == "vm1" && finding.disk == "vd";
    let found = analysis.findings.iter().filter(of_disk);
    found.map(|finding| finding.id).collect()
}

fn get<'a>(analysis: &'a Analysis, id: &str) -> &'a Finding {
    let found = analysis.findings.iter().find(|finding| finding.id == id);
    found.unwrap_or_else(|| panic!("{id} of {:?}", analysis.findings))
}

/// Ids of the rules that could not judge it.
fn unjudged(analysis: &Analysis) -> Vec<&'static str> {
    let unjudged = analysis.findings_unjudged.iter();
    let of_disk = unjudged.filter(|it| it.guest == "vm1" && it.disk == "vd");
    of_disk.map(|it| it.id).collect()
}

/// vm1's `vd` with other facts.
fn with(change: impl Fn(&mut nestrace_trace::manifest::Disk)) -> Manifest {
    let mut manifest = manifest();
    change(&mut manifest.topology.guests[0].disks[0]);
    manifest
}

#[test]
fn a_device_that_takes_all_the_time_leaves_nothing_to_gain() {
    let analysis = analyze(&manifest(), DEVICE_ONLY);
    assert_eq!(found(&analysis), ["nothing-to-gain"]);
    let finding = get(&analysis, "nothing-to-gain");
    assert_eq!(finding.severity, Severity::Info);
    assert!(!finding.is_worth_acting_on());
    assert!(finding.share < 0.02, "{finding:?}");
}

#[test]
fn the_way_into_the_guest_and_out() {
    let way = Way {
        virt_submit: 600_000,
        virt_complete: 700_000,
        ..DEVICE_ONLY
    };
    let analysis = analyze(&manifest(), way);
    assert_eq!(
        found(&analysis),
        ["latency-overhead", "virtualization-share"]
    );
    let finding = get(&analysis, "virtualization-share");
    let share = 1_300_000.0 / way.total() as f64;
    assert!((finding.share - share).abs() < 1e-6, "{finding:?}");
    assert_eq!(finding.severity, Severity::High);
    assert!(finding.explanation.contains("1.30 ms"), "{finding:?}");
}

#[test]
fn advice_on_the_way_in_rests_on_what_is_known_of_the_disk() {
    let way = Way {
        virt_submit: 1_300_000,
        ..DEVICE_ONLY
    };
    let analyze = |pushes: bool, change: fn(&mut nestrace_trace::manifest::Disk)| {
        let mut streams = Streams::new(2);
        streams.traffic(VM1, START, 300, way);
        let kept = |event: &Event| pushes || event.kind != Kind::VirtqueuePush as u8;
        streams.host.retain(kept);
        let analysis = streams.analyze(&with(change), Options::default());
        let finding = get(&analysis, "virtualization-share");
        (
            finding.evidence["iothread"].clone(),
            finding.advice.join(" "),
        )
    };
    let (iothread, advice) = analyze(true, |disk| disk.cache = Some("none".into()));
    assert_eq!(iothread, Evidence::from("none"));
    assert!(
        advice.starts_with("Give the disk its own iothread"),
        "{advice}"
    );
    // A disk that was found by its open file: it is not known how it is set up.
    let (iothread, advice) = analyze(true, |_| {});
    assert_eq!(iothread, Evidence::from("unknown"));
    assert!(advice.starts_with("Check that the disk has"), "{advice}");
    // Its requests are virtio-blk's, or they do not tell either.
    let (_, advice) = analyze(true, |disk| disk.bus.clear());
    assert!(advice.starts_with("Check that the disk has"), "{advice}");
    let (_, advice) = analyze(false, |disk| disk.bus.clear());
    assert_eq!(advice, "");
    let (_, advice) = analyze(true, |disk| disk.bus = "usb".into());
    assert!(advice.starts_with("Use virtio-blk"), "{advice}");
}

#[test]
fn waiting_for_a_worker_thread() {
    let way = Way {
        qemu_submit: 500_000,
        ..DEVICE_ONLY
    };
    let threads = with(|disk| disk.aio = Some("threads".into()));
    assert_eq!(found(&analyze(&threads, way)), ["thread-pool-wait"]);
    let native = with(|disk| disk.aio = Some("native".into()));
    assert_eq!(found(&analyze(&native, way)), [""; 0]);
    assert_eq!(found(&analyze(&threads, DEVICE_ONLY)), ["nothing-to-gain"]);
    let unknown = analyze(&with(|disk| disk.aio = None), way);
    assert!(unjudged(&unknown).contains(&"thread-pool-wait"));
}

#[test]
fn an_emulated_controller() {
    let way = Way {
        guest_queue: 400_000,
        ..DEVICE_ONLY
    };
    let ide = with(|disk| disk.bus = "ide".into());
    let analysis = analyze(&ide, way);
    assert_eq!(found(&analysis), ["emulated-bus"]);
    let finding = get(&analysis, "emulated-bus");
    assert_eq!(finding.evidence["bus"], Evidence::Word("ide".into()));
    assert_eq!(finding.severity, Severity::Medium);
    assert_eq!(found(&analyze(&manifest(), way)), [""; 0]);
    let mut unknown = Streams::new(2);
    unknown.traffic(VM1, START, 300, way);
    let push = Kind::VirtqueuePush as u8;
    unknown.host.retain(|event| event.kind != push);
    let analysis = unknown.analyze(&with(|disk| disk.bus.clear()), Options::default());
    assert!(unjudged(&analysis).contains(&"emulated-bus"));
}

#[test]
fn holes_in_the_image_that_nothing_was_paid_for() {
    // Sparse, but the host's file system wrote nothing of its own.
    let sparse = with(|disk| {
        disk.images[0].size = 1 << 30;
        disk.images[0].allocated = 1 << 20;
    });
    assert_eq!(found(&analyze(&sparse, DEVICE_ONLY)), ["nothing-to-gain"]);
}

#[test]
fn what_was_lost_lets_no_rule_judge() {
    let way = Way {
        virt_submit: 900_000,
        ..DEVICE_ONLY
    };
    let mut lossy = manifest();
    lossy.losses.push(Loss {
        source: "block".into(),
        events: 7,
        ..Loss::default()
    });
    let analysis = analyze(&lossy, way);
    assert_eq!(found(&analysis), [""; 0]);
    let unjudged = &analysis.findings_unjudged;
    let virt = unjudged.iter().find(|it| it.id == "virtualization-share");
    assert_eq!(virt.map(|it| it.missing), Some("events were lost"));
}

#[test]
fn without_the_guest_rules_on_latency_say_what_they_need() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, START, 300, WAY);
    let mut alone = manifest();
    alone.guest_sides.clone_from(&Vec::new());
    let analysis = nestrace_analyzer::Analyzer::analyze(&alone, Options::default(), streams.host);
    assert_eq!(found(&analysis), [""; 0]);
    let missing: Vec<_> = analysis
        .findings_unjudged
        .iter()
        .map(|it| it.missing)
        .collect();
    for id in ["scheduler-ineffective", "unmerged-small-requests"] {
        assert!(unjudged(&analysis).contains(&id), "{id}");
    }
    assert!(
        missing.iter().all(|missing| missing.contains("agent")),
        "{missing:?}"
    );
}

#[test]
fn a_full_queue_needs_both_the_wait_and_the_depth() {
    let mut small = manifest();
    small
        .topology
        .devices
        .iter_mut()
        .for_each(|device: &mut Device| device.nr_requests = 2);
    small.topology.guests[0].disks[0].images[0].mount = Some(Mount {
        fs_type: "xfs".into(),
        ..Mount::default()
    });
    // One request at a time: nothing waits for a tag.
    assert_eq!(found(&analyze(&small, DEVICE_ONLY)), ["nothing-to-gain"]);
}
