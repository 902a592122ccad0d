//! Comparisons of synthetic recordings whose difference is known, as text, as JSON and as a page.

use crate::two_sides;

use nestrace_analyzer::analysis::{Side, SourceLoss};
use nestrace_analyzer::compare::{
    Comparison, ExplainedBy, IoOperation, Matched, Metric, MetricLayer, UnmatchedKind, Verdict,
    Which, compare,
};
use nestrace_analyzer::{Analysis, Options};
use nestrace_report::{html, json, text};
use nestrace_trace::is_printable;
use nestrace_trace::manifest::{Loss, Manifest, State, Stream};

use two_sides::{Disk, Streams, VM1, VM2, WAY};

/// A guest at work for half a second; its device takes `device_ns` and up to as much again.
fn traffic(streams: &mut Streams, disk: Disk, device_ns: u64, mut random: u64) -> u64 {
    let mut at = 10_000_000_000;
    for _ in 0..150 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let way = two_sides::Way {
            device: device_ns + (random >> 33) % device_ns,
            ..WAY
        };
        at = streams.traffic(disk, at, 10, way) + (random >> 40) % 500_000;
    }
    at
}

fn recorded(manifest: &Manifest, path: &str, device_ns: u64, random: u64) -> Analysis {
    let mut streams = Streams::new(2);
    let at = traffic(&mut streams, VM1, device_ns, random);
    let mut manifest = manifest.clone();
    manifest.end_mono_ns = at + 1_000_000;
    manifest.state = State::Complete;
    let mut options = Options::default();
    options.path = path.to_owned();

    streams.analyze(&manifest, options)
}

fn fast() -> Analysis {
    recorded(&two_sides::manifest(), "fast.nest", 100_000, 1)
}

fn slow() -> Analysis {
    recorded(&two_sides::manifest(), "slow.nest", 250_000, 2)
}

fn metric<'a>(comparison: &'a Comparison, operation: IoOperation, name: &str) -> &'a Metric {
    let metrics = &comparison.disks[0].metrics;
    let is = |it: &&Metric| it.operation == Some(operation) && it.name == name;
    metrics
        .iter()
        .find(is)
        .unwrap_or_else(|| panic!("no {operation} {name}"))
}

fn metrics(comparison: &Comparison) -> impl Iterator<Item = &Metric> {
    let of_disks = comparison.disks.iter().flat_map(|pair| &pair.metrics);
    let of_devices = comparison.devices.iter().flat_map(|pair| &pair.metrics);
    of_disks.chain(of_devices)
}

fn schema_errors(comparison: &Comparison) -> Vec<String> {
    let schema = include_str!("../../../../docs/comparison.schema.json");
    let schema = serde_json::from_str(schema).expect("the schema is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let object = serde_json::from_str(&json::render_comparison(comparison)).expect("JSON");
    let errors = validator.iter_errors(&object);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn a_recording_is_like_itself() {
    let comparison = compare(&slow(), &slow());
    assert_eq!(comparison.disks.len(), 1);
    assert!(comparison.caveats.is_empty(), "{:?}", comparison.caveats);
    assert!(comparison.unmatched.is_empty());
    assert!(metrics(&comparison).count() > 30);
    for metric in metrics(&comparison) {
        assert_eq!(metric.a, metric.b, "{metric:?}");
        assert!(metric.difference.is_none_or(|it| it == 0.0), "{metric:?}");
        assert!(!metric.verdict.differs(), "{metric:?}");
    }
    assert_eq!(
        metric(&comparison, IoOperation::Read, "q2c_mean").verdict,
        Verdict::NoDifference
    );
    assert!(
        comparison.disks[0]
            .explanations
            .iter()
            .all(|it| it.largest.is_none())
    );
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn a_slower_device_is_found_and_named() {
    let comparison = compare(&fast(), &slow());
    for operation in [IoOperation::Read, IoOperation::Write] {
        for name in ["q2c_mean", "q2c_p50", "latency_mean"] {
            let metric = metric(&comparison, operation, name);
            assert_eq!(metric.verdict, Verdict::Higher, "{metric:?}");
            let interval = metric.interval.expect("an interval");
            let (low, high) = (interval.difference[0], interval.difference[1]);
            // The device's mean grows from 150 µs to 375 µs.
            assert!(low < 225_000.0 && 225_000.0 < high, "{metric:?}");
            let ratio = interval.ratio.expect("a ratio");
            let is = metric.ratio.expect("a ratio");
            assert!(ratio[0] < is && is < ratio[1], "{metric:?}");
        }
        let pair = &comparison.disks[0];
        let explanation = pair
            .explanations
            .iter()
            .find(|it| it.operation == operation);
        let explanation = explanation.expect("an explanation");
        assert_eq!(
            (explanation.method, explanation.largest),
            (ExplainedBy::Segments, Some("device"))
        );
        let parts = explanation.parts.iter();
        let sum: f64 = parts.filter_map(|part| part.share_of_difference).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        let steady = explanation
            .parts
            .iter()
            .find(|it| it.mean.name == "qemu_submit");
        assert_eq!(steady.expect("QEMU").mean.verdict, Verdict::NoDifference);
    }
    assert_eq!(schema_errors(&comparison), [""; 0]);
    let swapped = compare(&slow(), &fast());
    assert_eq!(
        metric(&swapped, IoOperation::Read, "q2c_mean").verdict,
        Verdict::Lower
    );
}

#[test]
fn a_page_and_a_text_say_the_same() {
    let (a, b) = (fast(), slow());
    let comparison = compare(&a, &b);
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for said in [
        "reads take",
        "of the difference at the host's device",
        "higher",
        "vm1/vd",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    let page = html::compare::render(&comparison, &a, &b).expect("a page");
    assert_eq!(
        page.matches("<section").count(),
        page.matches("</section>").count()
    );
    assert_eq!(
        page.matches("<details").count(),
        page.matches("</details>").count()
    );
    for question in [
        "Where does the time of an I/O go in A and in B?",
        "How long do reads take in A and in B?",
        "How long do writes take in A and in B?",
        "How far does each request jump in A and in B?",
    ] {
        assert!(page.contains(question), "{question}");
    }
    assert!(!page.contains("<script") && !page.contains("src="));
    let ids: Vec<&str> = page
        .split(" id=")
        .skip(1)
        .filter_map(|it| it.split(['>', ' ']).next())
        .collect();
    let different: std::collections::BTreeSet<&&str> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "{ids:?}");
}

#[test]
fn every_value_with_a_verdict_counts_as_judged() {
    let comparison = compare(&fast(), &slow());
    let explanations = comparison.disks.iter().flat_map(|it| &it.explanations);
    let segments = explanations.filter(|it| it.method == ExplainedBy::Segments);
    let segments = segments.flat_map(|it| it.parts.iter().map(|part| &part.mean));
    let judged = |it: &&Metric| it.verdict.is_judged();
    let (n_metrics, n_segments) = (
        metrics(&comparison).filter(judged).count(),
        segments.filter(judged).count(),
    );
    assert!(n_segments > 10, "{n_segments}");
    // What the queue and the device have of a latency is among the metrics.
    assert_eq!(comparison.method.judged, n_metrics + n_segments);
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    let said = format!("{} values were judged", n_metrics + n_segments);
    assert!(text.contains(&said), "{text}");
}

#[test]
fn other_names_are_paired_by_place_and_what_is_left_is_named() {
    let mut renamed = two_sides::manifest();
    renamed.topology.guests[0].name = "web".into();
    renamed.guest_sides[0].guest = "web".into();
    let b = recorded(&renamed, "b.nest", 100_000, 3);
    let comparison = compare(&fast(), &b);
    let pair = &comparison.disks[0];
    assert_eq!(
        (pair.names.a.guest.as_str(), pair.names.b.guest.as_str()),
        ("vm1", "web")
    );
    assert_eq!(pair.matched, Matched::OnlyOne);
    assert!(pair.guest_places.is_some() && pair.host_places.is_some());
    let mut streams = Streams::new(2);
    traffic(&mut streams, VM1, 100_000, 4);
    traffic(&mut streams, VM2, 100_000, 5);
    let two = streams.analyze(&two_sides::manifest(), Options::default());
    let comparison = compare(&fast(), &two);
    assert_eq!(comparison.disks.len(), 1);
    assert!(
        comparison.unmatched.iter().any(|it| it.only_in == Which::B
            && it.kind == UnmatchedKind::Guest
            && it.name == "vm2")
    );
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn nothing_is_said_of_recordings_with_many_losses() {
    let mut lossy = two_sides::manifest();
    lossy.losses = vec![Loss {
        source: "block".into(),
        events: 5_000,
        ..Loss::default()
    }];
    let comparison = compare(&fast(), &recorded(&lossy, "lossy.nest", 250_000, 2));
    assert!(comparison.b.distrusted.is_some() && comparison.a.distrusted.is_none());
    assert!(
        metrics(&comparison).all(|it| it.verdict == Verdict::NotJudged && it.interval.is_none())
    );
    assert!(comparison.caveats.iter().any(|it| it.starts_with("B: ")));
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    assert!(text.contains("no statement about reads"), "{text}");
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn losses_of_a_guest_count_against_its_own_stream() {
    let mut lossy = two_sides::manifest();
    let stream = |guest: Option<&str>, file: &str| Stream {
        file: file.into(),
        side: guest.map_or("host", |_| "guest").into(),
        guest: guest.map(str::to_owned),
        ..Stream::default()
    };
    lossy.streams = vec![
        stream(None, "host.arrows"),
        stream(Some("vm1"), "guest-vm1.arrows"),
    ];
    // Of the 6,000 events from inside a fiftieth, of all 21,000 less than a hundredth.
    lossy.losses = vec![Loss {
        source: "block".into(),
        guest: Some("vm1".into()),
        events: 120,
    }];
    let lossy = recorded(&lossy, "lossy.nest", 250_000, 2);
    let comparison = compare(&fast(), &lossy);
    assert_eq!(comparison.b.distrusted, None);
    assert_eq!(comparison.b.distrusted_guests[0].guest, "vm1");
    assert!(comparison.b.lost * 100 < comparison.b.events);
    let inside = metric(&comparison, IoOperation::Read, "q2c_mean");
    assert_eq!(inside.verdict, Verdict::NotJudged, "{inside:?}");
    let qemu = metric(&comparison, IoOperation::Read, "latency_mean");
    assert_eq!(qemu.verdict, Verdict::Higher, "{qemu:?}");
    let explanations = &comparison.disks[0].explanations;
    assert!(!explanations.is_empty());
    assert!(explanations.iter().all(|it| {
        it.largest.is_none()
            && it.latency.verdict == Verdict::NotJudged
            && it
                .parts
                .iter()
                .all(|part| part.mean.verdict == Verdict::NotJudged)
    }));
    let host = comparison
        .devices
        .iter()
        .find(|it| it.names.a.side == Side::Host);
    let host = host.expect("the host's device");
    assert!(host.metrics.iter().any(|it| it.verdict.differs()));
    let said = |it: &String| it.starts_with("B: ") && it.contains("from inside vm1");
    assert!(
        comparison.caveats.iter().any(said),
        "{:?}",
        comparison.caveats
    );
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn other_bios_explain_nothing() {
    let mut comparison = compare(&fast(), &slow());
    let in_short = |comparison: &Comparison| {
        let text = text::compare::render(comparison, &text::TextOptions::default());
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    };
    let why = "of the difference at the host's device";
    assert!(in_short(&comparison).contains(why));
    // Where too few were followed, the headline is of all of the guest's bios.
    for explanation in &mut comparison.disks[0].explanations {
        explanation.latency.verdict = Verdict::NotJudged;
    }
    assert!(!in_short(&comparison).contains(why));
}

/// The way there and the way back are one layer: what is said of it is their sum, although each alone is less
/// than another layer's one segment.
#[test]
fn a_layer_is_all_of_its_segments() {
    let with = |way: two_sides::Way, random: u64| {
        let mut streams = Streams::new(2);
        let (mut at, mut random) = (10_000_000_000, random);
        for _ in 0..150 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let way = two_sides::Way {
                host_queue: way.host_queue + (random >> 33) % 1_000,
                ..way
            };
            at = streams.traffic(VM1, at, 10, way) + (random >> 40) % 500_000;
        }
        let mut manifest = two_sides::manifest();
        manifest.end_mono_ns = at + 1_000_000;
        manifest.state = State::Complete;
        streams.analyze(&manifest, Options::default())
    };
    let slower = two_sides::Way {
        virt_submit: WAY.virt_submit + 60_000,
        virt_complete: WAY.virt_complete + 60_000,
        device: WAY.device + 80_000,
        ..WAY
    };
    let comparison = compare(&with(WAY, 1), &with(slower, 2));
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    let words: Vec<&str> = text.split_whitespace().collect();
    let said = "60 % of the difference between guest and QEMU";
    assert!(words.join(" ").contains(said), "{text}");
}

/// What the headline says of a rate stands in a row of the table, of the layer whose latency it tells.
#[test]
fn a_rate_in_the_headline_is_a_row_of_the_table() {
    let mut comparison = compare(&fast(), &slow());
    let words = |comparison: &Comparison| {
        let text = text::compare::render(comparison, &text::TextOptions::default());
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    };
    for metric in &mut comparison.disks[0].metrics {
        if (metric.operation, metric.name) == (Some(IoOperation::Write), "per_second") {
            (metric.a, metric.b) = match metric.layer {
                MetricLayer::Qemu => (Some(777.0), Some(333.0)),
                _ => (Some(666.0), Some(222.0)),
            };
            metric.verdict = match metric.layer {
                MetricLayer::Qemu => Verdict::Lower,
                _ => Verdict::NotEnough,
            };
        }
    }
    assert!(!words(&comparison).contains("writes per second instead"));
    for metric in &mut comparison.disks[0].metrics {
        if metric.name == "per_second" {
            metric.verdict = Verdict::Lower;
        }
    }
    let said = words(&comparison);
    assert!(
        said.contains("B does 222 writes per second instead of 666"),
        "{said}"
    );
    assert!(!said.contains("777"), "{said}");
    comparison.disks[0]
        .metrics
        .retain(|it| it.layer == MetricLayer::Qemu);
    comparison.disks[0].explanations.clear();
    let said = words(&comparison);
    assert!(
        said.contains("B does 333 QEMU writes per second instead of 777"),
        "{said}"
    );
    assert!(said.contains("QEMU writes/s 777 333"), "{said}");
}

#[test]
fn sessions_and_other_names_are_told() {
    let mut restarted = slow();
    let inside = restarted.devices.iter().find(|it| it.side == Side::Guest);
    let inside = inside.cloned().expect("the guest's device");
    restarted.devices.push(inside);
    let comparison = compare(&fast(), &restarted);
    let said = |it: &String| it.starts_with("B: vm1/vd was recorded in 2 sessions");
    assert!(
        comparison.caveats.iter().any(said),
        "{:?}",
        comparison.caveats
    );
    let mut renamed = two_sides::manifest();
    renamed.topology.guests[0].name = "web".into();
    renamed.guest_sides[0].guest = "web".into();
    let comparison = compare(&fast(), &recorded(&renamed, "b.nest", 250_000, 3));
    let said = |it: &String| it.contains("not by name: vm1/vd and web/vd");
    assert!(
        comparison.caveats.iter().any(said),
        "{:?}",
        comparison.caveats
    );
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    assert!(text.contains("vm1/vd → web/vd: reads take"), "{text}");
}

#[test]
fn short_recordings_are_shown_without_a_verdict() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 200, WAY);
    let short = streams.analyze(&two_sides::manifest(), Options::default());
    let comparison = compare(&short, &slow());
    let mean = metric(&comparison, IoOperation::Write, "q2c_mean");
    assert_eq!(mean.verdict, Verdict::NotEnough, "{mean:?}");
    assert!(mean.difference.is_some() && mean.interval.is_none() && mean.why.is_some());
    assert!(
        comparison.disks[0]
            .explanations
            .iter()
            .all(|it| it.largest.is_none())
    );
}

#[test]
fn names_are_only_names() {
    let evil = "<img src=x>\"'";
    let a = recorded(&two_sides::manifest(), evil, 100_000, 6);
    let comparison = compare(&a, &a);
    let page = html::compare::render(&comparison, &a, &a).expect("a page");
    assert!(!page.contains("<img") && page.contains("&lt;img"));
    let evil = "\u{1b}]0;x\u{7}\u{9b}2J\n\u{202e}";
    let mut manifest = two_sides::manifest();
    for guest in &mut manifest.topology.guests {
        guest.name += evil;
        guest.disks.iter_mut().for_each(|disk| disk.name += evil);
    }
    for side in &mut manifest.guest_sides {
        side.guest += evil;
    }
    for device in &mut manifest.topology.devices {
        device.name += evil;
    }
    let a = recorded(&manifest, evil, 100_000, 6);
    let b = recorded(&manifest, evil, 250_000, 7);
    let comparison = compare(&a, &b);
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    let strange = |c: char| c != '\n' && !is_printable(c);
    assert!(!text.contains(strange), "{text:?}");
    assert!(text.contains("vm1\u{fffd}]0;x\u{fffd}"), "{text:?}");
    let page = html::compare::render(&comparison, &a, &b).expect("a page");
    assert!(!page.contains(strange));
}

/// The same with each bio under an fsync of a file.
fn with_calls(path: &str, device_ns: u64, random: u64) -> Analysis {
    let mut streams = Streams::new(2);
    let at = traffic(&mut streams, VM1, device_ns, random);
    streams.under_fsyncs(VM1, 7);
    let mut manifest = two_sides::manifest();
    manifest.end_mono_ns = at + 1_000_000;
    manifest.state = State::Complete;
    let mut options = Options::default();
    options.path = path.to_owned();

    streams.analyze(&manifest, options)
}

#[test]
fn calls_are_compared_by_program_and_file() {
    let (a, b) = (
        with_calls("fast.nest", 100_000, 1),
        with_calls("slow.nest", 250_000, 2),
    );
    let comparison = compare(&a, &b);
    assert_eq!((comparison.calls_left.a, comparison.calls_left.b), (0, 0));
    let [pair] = comparison.calls.as_deref().expect("both have calls") else {
        panic!("{:?}", comparison.calls);
    };
    assert_eq!((pair.process.as_str(), pair.op.name()), ("db", "fsync"));
    assert_eq!((pair.files.a.inode, pair.files.b.inode), (Some(7), Some(7)));
    assert_eq!((pair.n.a, pair.n.b), (1_500, 1_500));
    let [mean, p99] = pair.metrics.as_slice() else {
        panic!("{:?}", pair.metrics);
    };
    assert_eq!(mean.layer, MetricLayer::Call);
    for metric in [mean, p99] {
        assert_eq!(metric.verdict, Verdict::Higher, "{metric:?}");
        assert_eq!((metric.n.a, metric.n.b), (1_500, 1_500));
    }
    let rows = [&a, &b].map(|analysis| analysis.calls.as_ref().expect("rows")[0].latency_ns);
    assert_eq!(mean.a, Some(rows[0].sum as f64 / 1_500.0));
    assert_eq!(p99.b, rows[1].p99.map(|ns| ns as f64));
    let explanation = pair.explanation.as_ref().expect("linked calls");
    assert_eq!(explanation.largest, Some("device"));
    let close = |a: f64, b: f64| (a - b).abs() < 1e-3;
    let sum = |of: fn(&Metric) -> Option<f64>| -> f64 {
        let parts = explanation.parts.iter();
        parts.filter_map(|part| of(&part.mean)).sum()
    };
    assert!(close(sum(|it| it.a), mean.a.expect("a mean")));
    assert!(close(
        sum(|it| it.difference),
        mean.difference.expect("both")
    ));

    let text = text::compare::render(&comparison, &text::TextOptions::default());
    for words in [
        "Calls of the guests' programs",
        "db: fsync of inode 7 on 254:0 (1,500 calls in A, 1,500 in B)",
        "Programs: calls of db",
        "of the difference at the host's device",
        "Where the difference lies (+",
    ] {
        let words_of_text: Vec<&str> = text.split_whitespace().collect();
        assert!(words_of_text.join(" ").contains(words), "{words}: {text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let page = html::compare::render(&comparison, &a, &b).expect("a page");
    assert!(page.contains("db: fsync of inode 7"));
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn equal_calls_do_not_differ() {
    let comparison = compare(
        &with_calls("one.nest", 100_000, 1),
        &with_calls("other.nest", 100_000, 3),
    );
    let pair = &comparison.calls.as_ref().expect("calls")[0];
    assert!(pair.metrics.iter().all(|it| !it.verdict.differs()));
    let explanation = pair.explanation.as_ref().expect("linked calls");
    assert_eq!(explanation.largest, None);
}

#[test]
fn calls_of_one_recording_are_not_compared() {
    let comparison = compare(&with_calls("calls.nest", 100_000, 1), &slow());
    assert!(comparison.calls.is_none());
    let why = comparison.calls_why_none.as_deref().expect("a reason");
    assert!(why.starts_with("B: ") && !why.contains("A: "), "{why}");
    let json = json::render_comparison(&comparison);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["calls"].is_null() && json["calls_why_none"].is_string());
    assert_eq!(json["calls_left"]["a"], 1);
    let text = text::compare::render(&comparison, &text::TextOptions::default());
    assert!(!text.contains("Programs: "), "{text}");
    let said = "Calls of the guests' programs are not compared: B: ";
    assert!(text.contains(said), "{text}");
    assert_eq!(schema_errors(&comparison), [""; 0]);
}

#[test]
fn calls_of_a_guest_with_many_losses_are_not_judged() {
    let mut b = with_calls("lossy.nest", 250_000, 2);
    let mut loss = SourceLoss::default();
    loss.source = String::from("block");
    loss.guest = Some(String::from("vm1"));
    loss.events = 10_000;
    b.trace.losses = vec![loss];
    let comparison = compare(&with_calls("fast.nest", 100_000, 1), &b);
    let pair = &comparison.calls.as_ref().expect("calls")[0];
    assert!(
        pair.metrics
            .iter()
            .all(|it| it.verdict == Verdict::NotJudged)
    );
    let explanation = pair.explanation.as_ref().expect("linked calls");
    assert_eq!(explanation.latency.verdict, Verdict::NotJudged);
}
