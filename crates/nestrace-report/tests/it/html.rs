//! The report and its plots, made from synthetic recordings.

use crate::two_sides;

use std::collections::BTreeSet;

use nestrace_abi::flags;
use nestrace_analyzer::{Analysis, Analyzer, Options, StoryChoice};
use nestrace_report::html;
use nestrace_report::plots::{self, Chart, Frame, Plot, csv, png, svg};
use nestrace_trace::{Event, Kind, Manifest, is_printable};

use two_sides::{Streams, VM1, VM2, WAY};

/// The contract, whatever the recording's length.
const LARGEST: usize = 5 << 20;

/// Two guests that were followed to the device.
fn followed() -> Analysis {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, 10_000_000_000, 300, WAY);
    let at = streams.bio(VM1, at, flags::OP_WRITE, 1 << 20, 65_536, WAY);
    streams.traffic(VM2, 10_000_000_333, 200, WAY);
    let mut manifest = two_sides::manifest();
    manifest.end_mono_ns = at + 1_000_000;
    streams.analyze(&manifest, with_slowest())
}

/// As the command asks for a report.
fn with_slowest() -> Options {
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(5));
    options.call_story = Some(StoryChoice::Slowest(5));
    options
}

fn plot<'a>(plots: &'a [Plot], id: &str) -> &'a Plot {
    let found = plots.iter().find(|plot| plot.id.starts_with(id));
    found.unwrap_or_else(|| panic!("no plot {id}"))
}

#[test]
fn a_followed_guest_has_every_plot() {
    let plots = plots::all(&followed());
    for id in [
        "bio-1",
        "bio-5",
        "segments",
        "latency-reads",
        "latency-writes",
        "sizes",
        "iops",
        "throughput",
        "latency-over-time",
        "depth",
        "seeks",
        "queue-wait",
        "addresses",
        "merges",
        "amplification",
    ] {
        let plot = plot(&plots, id);
        assert!(plot.question.ends_with('?'), "{}", plot.question);
        assert!(plot.chart.n_values() > 0, "{id}");
    }
    let ids: BTreeSet<&str> = plots.iter().map(|plot| plot.id.as_str()).collect();
    assert_eq!(ids.len(), plots.len());
    let is_name = |id: &&str| id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    assert!(ids.iter().all(is_name));
}

#[test]
fn curves_end_at_one_and_bars_fill_the_row() {
    let plots = plots::all(&followed());
    let Chart::Lines(latency) = &plot(&plots, "latency-reads").chart else {
        panic!("a CDF is lines");
    };
    assert!(latency.lines.len() >= 3, "guest, QEMU, device");
    for line in &latency.lines {
        assert_eq!(
            line.points.last().map(|point| point.1),
            Some(1.0),
            "{}",
            line.label
        );
        let ascends = |a: &(f64, f64), b: &(f64, f64)| a.0 <= b.0 && a.1 <= b.1;
        assert!(line.points.is_sorted_by(ascends), "{}", line.label);
    }
    let Chart::Spans(segments) = &plot(&plots, "segments").chart else {
        panic!("segments are spans");
    };
    for row in &segments.rows {
        let end = row.spans.last().map_or(0.0, |span| span.to);
        assert!((end - 1.0).abs() < 1e-3, "{}: {end}", row.label);
    }
}

#[test]
fn pictures_and_tables_hold_the_data() {
    for plot in plots::all(&followed()) {
        let drawn = svg(&plot, &Frame::FILE).expect("an SVG");
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
        assert_eq!(
            drawn.matches("<text").count(),
            drawn.matches("</text>").count()
        );
        let pixels = png(&plot, &Frame::FILE).expect("a PNG");
        assert!(pixels.starts_with(b"\x89PNG\r\n\x1a\n"));
        let table = csv(&plot);
        assert_eq!(
            table.lines().count(),
            plot.chart.n_values() + 1,
            "{}",
            plot.id
        );
        let columns = |line: &str| line.split(',').count();
        assert!(columns(table.lines().next().unwrap_or_default()) >= 3);
    }
}

#[test]
fn the_answer_comes_first_and_what_is_missing_last() {
    let report = html::render(&followed()).expect("a report");
    let place = |what: &str| report.find(what).unwrap_or_else(|| panic!("no {what}"));
    let order = [
        "id=\"answer\"",
        "id=\"slowest\"",
        "id=\"breakdown\"",
        "id=\"findings\"",
        "id=\"plots-",
        "id=\"devices\"",
        "id=\"missing\"",
    ];
    assert!(order.map(place).is_sorted());
    assert_eq!(
        report.matches("<section").count(),
        report.matches("</section>").count()
    );
    assert_eq!(
        report.matches("<figure").count(),
        report.matches("</figure>").count()
    );
    let figures = report.matches("<figure").count();
    assert_eq!(report.matches("class=\"narrow\"").count(), figures);
    assert_eq!(report.matches("class=\"wide\"").count(), figures);
    // Every colour of a drawing is the page's to choose.
    let drawings = report
        .split("<svg ")
        .skip(1)
        .filter_map(|svg| svg.split("</svg>").next());
    for drawing in drawings {
        assert!(!drawing.contains("\"#"), "{}", &drawing[..200]);
    }
}

#[test]
fn nothing_is_fetched_and_names_are_only_names() {
    let evil = "</title><script>alert('x')</script>\"";
    let manifest = {
        let mut manifest = two_sides::manifest();
        for guest in &mut manifest.topology.guests {
            guest
                .disks
                .iter_mut()
                .for_each(|disk| disk.name = format!("{}{evil}", disk.name));
        }
        manifest
    };
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 100, WAY);
    let mut options = with_slowest();
    options.path = evil.to_owned();
    let report = html::render(&streams.analyze(&manifest, options)).expect("a report");
    assert!(!report.contains("<script"));
    assert!(report.contains("&lt;script&gt;"));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        let without = report.replace("http://www.w3.org/2000/svg", "");
        assert!(!without.contains(outside), "{outside}");
    }
}

#[test]
fn names_in_legends_can_be_drawn() {
    let evil = "\x1b]0;x\x07";
    let mut manifest = two_sides::manifest();
    manifest.topology.devices[0].name += evil;
    for side in &mut manifest.guest_sides {
        side.disks.iter_mut().for_each(|disk| disk.name += evil);
    }
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 300, WAY);
    let analysis = streams.analyze(&manifest, with_slowest());
    let report = html::render(&analysis).expect("a report");
    assert!(report.chars().all(|c| c == '\n' || is_printable(c)));
    for name in ["host loop0", "guest vda"] {
        assert!(report.contains(&format!("{name}\u{fffd}]0;x\u{fffd}")));
    }
    // So can those on the bars of single bios.
    let slowest = report.split("id=\"slowest\"").nth(1).expect("a section");
    assert!(
        slowest.contains("write 4 KiB vda\u{fffd}]0;x\u{fffd},")
            || slowest.contains("vda\u{fffd}]0;x\u{fffd} go?")
    );
}

/// Many devices, each at work all over the place for a long time.
#[test]
fn a_long_recording_has_a_small_report() {
    let mut analyzer = Analyzer::new(&Manifest::default(), Options::default());
    let mut random = 1u64;
    for n in 0..200_000u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let dev = 7 << 20 | (n % 40) as u32;
        let at_ns = 1_000_000 + n * 10_000_000;
        let (bio, request) = (0x1000 + n * 16, 0x8000_0000 + n * 16);
        let took_ns = 1_000 + (random >> 40);
        for (kind, ts_ns, object, related) in [
            (Kind::Queue, at_ns, bio, 0),
            (Kind::GetRequest, at_ns + 100, bio, 0),
            (Kind::Issue, at_ns + 500, request, bio),
            (Kind::Complete, at_ns + 500 + took_ns, request, 0),
        ] {
            analyzer.push(&Event {
                ts_ns,
                kind: kind as u8,
                object,
                related,
                dev,
                offset: (random >> 20) & !0xfff,
                bytes: 4096 << (random % 8),
                ..Event::default()
            });
        }
    }
    let analysis = analyzer.finish();
    let plots = plots::all(&analysis);
    assert!(plots.iter().any(|plot| plot.id.starts_with("addresses")));
    let report = html::render(&analysis).expect("a report");
    assert!(report.len() < LARGEST, "{} bytes", report.len());
}

#[test]
fn an_empty_recording_has_a_report_without_plots() {
    let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), []);
    let report = html::render(&analysis).expect("a report");
    assert!(report.contains("No I/O was recorded") && !report.contains("<figure"));
}

/// What the text tells, the page has too, folded.
#[test]
fn the_page_says_no_less_than_the_text() {
    let page = html::render(&followed()).expect("drawn");
    for title in [
        "Who used them",
        "Who queued it in the guest",
        "as QEMU accounts them",
        "Image files: QEMU",
        "Bytes and flushes in each layer",
    ] {
        let summary = page.split("<summary>").any(|rest| {
            rest.split("</summary>")
                .next()
                .is_some_and(|it| it.contains(title))
        });
        assert!(summary, "{title}");
    }
    assert!(page.contains("<td>&lt; 0.1</td>"), "a depth that is not 0");
}

/// Pale marks that lie on each other would look like strong ones.
#[test]
fn points_that_lie_together_are_drawn_once() {
    let plots = plots::all(&followed());
    let drawn = |places: &[(f64, bool)]| {
        let mut plot = plot(&plots, "addresses").clone();
        let Chart::Points(points) = &mut plot.chart else {
            panic!("addresses are points");
        };
        for panel in &mut points.panels {
            let middle = (panel.range.0 + panel.range.1) / 2.0;
            panel.points = places
                .iter()
                .map(|(at_s, is_write)| (*at_s, middle, *is_write))
                .collect();
        }
        svg(&plot, &Frame::FILE).expect("drawn")
    };
    let (write, read, far) = ((1.0, true), (1.0, false), (2.0, true));
    let once = drawn(&[write, far]);
    assert_eq!(drawn(&[write, write, far, write]), once);
    let of_read = drawn(&[read, far]);
    assert_eq!(drawn(&[write, read, far]), of_read);
    assert_ne!(once, of_read);
}
