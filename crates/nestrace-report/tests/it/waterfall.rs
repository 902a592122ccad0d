//! Single calls and bios to scale.

use nestrace_analyzer::{Analysis, Options, StoryChoice};
use nestrace_report::plots::{self, Bar, Chart, Frame, Hue, Lane, Plot, Waterfall, csv, svg};

use crate::two_sides::{self, Streams, VM1, WAY};

/// Rows of a layer at most.
const MAX_ROWS: usize = 4;

fn slowest(n: usize) -> Analysis {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 300, WAY);
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(n));
    streams.analyze(&two_sides::manifest(), options)
}

fn waterfalls(analysis: &Analysis) -> Vec<(Plot, Waterfall)> {
    let plots = plots::all(analysis).into_iter();
    let waterfalls = plots.filter_map(|plot| match &plot.chart {
        Chart::Waterfall(chart) => Some((plot.clone(), chart.clone())),
        _ => None,
    });
    waterfalls.collect()
}

#[test]
fn only_what_was_asked_for_is_drawn_and_no_more_than_five() {
    for (asked, expected) in [(0, 0), (3, 3), (8, 5)] {
        let ids: Vec<String> = waterfalls(&slowest(asked))
            .into_iter()
            .map(|(plot, _)| plot.id)
            .collect();
        let names: Vec<String> = (1..=expected).map(|n| format!("bio-{n}")).collect();
        assert_eq!(ids, names);
    }
}

#[test]
fn lanes_go_from_the_guest_to_the_device_and_bars_stay_in_them() {
    for (plot, chart) in waterfalls(&slowest(5)) {
        let lanes: Vec<&str> = chart.lanes.iter().map(|lane| lane.label.as_str()).collect();
        assert_eq!(
            lanes,
            [
                "guest's queue",
                "guest–QEMU, and back",
                "QEMU",
                "host's file system",
                "host's queue",
                "host's device"
            ]
        );
        assert_eq!(chart.from, 0.0);
        for lane in &chart.lanes {
            assert!((1..=MAX_ROWS).contains(&lane.n_rows));
            for bar in &lane.bars {
                assert!(bar.row < lane.n_rows && bar.from <= bar.to && bar.to <= chart.to);
                let within = |(a, b): &(f64, f64)| bar.from <= *a && a <= b && *b <= bar.to;
                assert!(bar.own.iter().all(within), "{bar:?}");
            }
            for row in 0..lane.n_rows {
                let bars: Vec<&Bar> = lane.bars.iter().filter(|bar| bar.row == row).collect();
                assert!(bars.windows(2).all(|pair| pair[0].to <= pair[1].from));
            }
        }
        assert_eq!(csv(&plot).lines().count(), plot.chart.n_values() + 1);
        assert!(plot.question.ends_with('?') && plot.note.contains("--io"));
    }
}

fn bar(from: f64, to: f64, hue: Hue) -> Bar {
    Bar {
        what: String::from("write"),
        detail: String::new(),
        from,
        to,
        own: vec![(from, to)],
        row: 0,
        hue,
        is_shared: false,
        n_merged: 1,
    }
}

fn drawn(to: f64, bars: Vec<Bar>) -> String {
    let lane = Lane {
        label: String::from("device <script>"),
        detail: String::new(),
        hue: Hue::Device,
        n_rows: 1,
        bars,
    };
    let (mut plot, _) = waterfalls(&slowest(1)).remove(0);
    plot.chart = Chart::Waterfall(Waterfall {
        title: String::new(),
        from: 0.0,
        to,
        end: 1e9,
        end_label: String::from("ends"),
        lanes: vec![lane],
    });
    svg(&plot, &Frame::FILE).expect("drawn")
}

/// Left edges and widths of the boxes in a colour.
fn boxes(svg: &str, colour: &str) -> Vec<(f64, f64)> {
    let number = |text: &str, name: &str| -> Option<f64> {
        let (_, rest) = text.split_once(&format!(" {name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let rects = svg.split("<rect").skip(1);
    let of_colour = rects.filter(|rect| {
        rect.split("/>")
            .next()
            .is_some_and(|it| it.contains(colour))
    });
    let boxes = of_colour.filter_map(|rect| Some((number(rect, "x")?, number(rect, "width")?)));
    // Swatches of the layer and of the legend.
    boxes.filter(|(x, _)| *x > 150.0).collect()
}

#[test]
fn bars_are_to_scale_and_the_shortest_is_seen() {
    let svg = drawn(
        1e9,
        vec![
            bar(0.0, 1.0, Hue::Virt),
            bar(0.2e9, 0.4e9, Hue::Qemu),
            bar(0.4e9, 0.8e9, Hue::HostFs),
        ],
    );
    let of = |colour: &str| boxes(&svg, colour)[0];
    let (first, short, long) = (of("#8A56C9"), of("#E07B16"), of("#2C965A"));
    assert_eq!(first.1, 1.0);
    // A pixel is left between neighbours.
    assert!((long.1 - 2.0 * short.1).abs() <= 2.0, "{short:?} {long:?}");
    assert!((short.0 - first.0 - short.1).abs() <= 2.0);
    assert!((long.0 - short.0 - short.1).abs() <= 2.0);
    assert!(!svg.contains("<script"));
}

/// What was not waited for lies beyond the line at the end.
#[test]
fn work_after_the_end_is_beyond_the_line() {
    let svg = drawn(
        1.3e9,
        vec![bar(0.0, 1e9, Hue::Qemu), bar(1.1e9, 2e9, Hue::HostFs)],
    );
    let (waited, deferred) = (boxes(&svg, "#E07B16")[0], boxes(&svg, "#2C965A")[0]);
    let end = waited.0 + waited.1;
    assert!(deferred.0 > end + 10.0);
    assert!(deferred.0 + deferred.1 < f64::from(Frame::FILE.width));
}

/// Thousands of bars are as many boxes as the picture has room for.
#[test]
fn a_picture_stays_small() {
    let bars = (0..50_000).map(|n| f64::from(n) * 20_000.0);
    let bars = bars.map(|at| bar(at, at + 10_000.0, Hue::Device)).collect();
    assert!(drawn(1e9, bars).len() < 200_000);
}
