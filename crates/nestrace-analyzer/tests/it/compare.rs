//! Comparisons of block devices: what is held against what.

use crate::one_device;

use std::fmt::Write;

use nestrace_analyzer::compare::{Comparison, IoOperation, Metric, compare};
use one_device::analyze;

/// 600 requests of two merged writes each, a millisecond apart, as a full recording has them.
fn full(device: &str, bytes: u64) -> String {
    let mut text = String::new();
    for i in 0..600u64 {
        let (at, from) = (1_000_000 + i * 1_000_000, i * 10_000_000);
        let (next, both) = (from + bytes, 2 * bytes);
        let end = at + 100_000 + i % 7 * 1_000;
        write!(
            text,
            "{at} Q b1 W {from}+{bytes} dev={device}
             {} G b1 dev={device}
             {} Q b2 W {next}+{bytes} dev={device}
             {} M b2 dev={device}
             {} D r1 W {from}+{both} rel=b1 links=b2 dev={device}
             {end} C r1 W {from}+{both} dev={device}\n",
            at + 10,
            at + 20,
            at + 30,
            at + 40
        )
        .expect("text");
    }
    text
}

/// The same as a light one has them.
fn light(device: &str, bytes: u64) -> String {
    let line = |i: u64| {
        let (at, from, both) = (1_000_000 + i * 1_000_000, i * 10_000_000, 2 * bytes);
        let end = at + 100_000 + i % 7 * 1_000;
        format!(
            "{end} RD r1 W {from}+{both} issued={} dev={device}\n",
            at + 40
        )
    };
    (0..600).map(line).collect()
}

fn metric<'a>(
    comparison: &'a Comparison,
    name: &str,
    operation: Option<IoOperation>,
) -> Option<&'a Metric> {
    let pairs = comparison.devices.iter().flat_map(|pair| &pair.metrics);
    let mut own = pairs.filter(|it| it.name == name && it.operation == operation);
    own.next()
}

#[test]
fn bios_are_in_full_recordings_only() {
    let (full, light) = (analyze(&full("7:0", 4096)), analyze(&light("7:0", 4096)));
    let comparison = compare(&full, &light);
    for (name, operation) in [
        ("per_second", Some(IoOperation::Write)),
        ("bios_per_request", None),
    ] {
        let metric = metric(&comparison, name, operation).expect("of the full one");
        assert!(metric.a.is_some() && metric.b.is_none(), "{metric:?}");
    }
    for (name, operation) in [
        ("d2c_mean", Some(IoOperation::Write)),
        ("sequential_share", None),
    ] {
        let metric = metric(&comparison, name, operation).expect("of both");
        assert!(
            metric.b.is_some() && !metric.verdict.is_judged(),
            "{metric:?}"
        );
    }
    for name in ["requests_per_second", "request_bytes"] {
        let metric = metric(&comparison, name, None).expect("of both");
        assert!(
            metric.verdict.is_judged() && !metric.verdict.differs(),
            "{metric:?}"
        );
    }
    let loads = comparison
        .caveats
        .iter()
        .filter(|it| it.contains("not the same load"));
    assert_eq!(loads.count(), 0, "{:?}", comparison.caveats);
    let both = compare(&light, &light);
    assert!(metric(&both, "per_second", Some(IoOperation::Write)).is_none());
    assert!(
        metric(&both, "d2c_mean", Some(IoOperation::Write))
            .is_some_and(|it| it.verdict.is_judged())
    );
}

#[test]
fn what_an_md_hands_on_are_bios_of_its_member() {
    let line = |i: u64| {
        let at = 1_000_000 + i * 1_000_000;
        format!(
            "{at} Q b1 R 0+4096 dev=9:0
             {} A b1 R 8192+4096 of=9:0
             {} G b1
             {} D r1 R 8192+4096 rel=b1
             {} C r1 R 8192+4096\n",
            at + 10,
            at + 20,
            at + 30,
            at + 100_000
        )
    };
    let analysis = analyze(&(0..100).map(line).collect::<String>());
    let comparison = compare(&analysis, &analysis);
    let metric = metric(&comparison, "bios_per_request", None).expect("of the member");
    assert_eq!(metric.a, Some(1.0), "{metric:?}");
}

#[test]
fn flushes_without_requests_are_judged() {
    let line = |i: u64| {
        let at = 1_000_000 + i * 1_000_000;
        let end = at + 100_000 + i * 7_919 % 50_000;
        format!("{at} Q b1 Wf 0+0 dev=253:0\n{end} BC b1 Wf 0+0 dev=253:0\n")
    };
    let analysis = analyze(&(0..1_000).map(line).collect::<String>());
    let comparison = compare(&analysis, &analysis);
    let metric = metric(&comparison, "q2c_mean", Some(IoOperation::Flush)).expect("flushes");
    assert!(metric.verdict.is_judged(), "{metric:?}");
}

#[test]
fn other_loads_and_other_names_are_told() {
    let a = analyze(&full("7:0", 4096));
    let said =
        |comparison: &Comparison, what: &str| comparison.caveats.iter().any(|it| it.contains(what));
    let same = compare(&a, &a);
    assert!(
        !said(&same, "same load") && !said(&same, "not by name"),
        "{:?}",
        same.caveats
    );
    let larger = compare(&a, &analyze(&full("7:0", 65_536)));
    assert!(
        said(&larger, "7:0: not the same load: writes of 4.00 KiB"),
        "{:?}",
        larger.caveats
    );
    let other = compare(&a, &analyze(&full("8:0", 4096)));
    assert!(
        said(&other, "not by name: 7:0 and 8:0"),
        "{:?}",
        other.caveats
    );
    let two = |first: &str, second: &str| analyze(&(full(first, 4096) + &full(second, 4096)));
    let order = compare(&two("7:0", "7:1"), &two("8:0", "8:1"));
    assert!(said(&order, "only by their order"), "{:?}", order.caveats);
}
