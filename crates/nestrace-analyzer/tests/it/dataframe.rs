//! The tables say what the values say.
#![cfg(feature = "dataframe")]

use crate::two_sides;

use nestrace_analyzer::dataframe::{self, DataFrame};
use nestrace_analyzer::{Analysis, Analyzer, CALL_SEGMENT_NAMES, Options, StoryChoice};
use nestrace_trace::Manifest;

use two_sides::{Streams, VM1, VM2, WAY, manifest};

fn analysis() -> Analysis {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, 10_000_000_000, 200, WAY);
    streams.traffic(VM2, at, 100, WAY);
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(1_000));

    streams.analyze(&manifest(), options)
}

fn sum(table: &DataFrame, column: &str) -> u64 {
    let column = table.column(column).expect("a column of that name");
    column
        .u64()
        .expect("a column of numbers")
        .iter()
        .flatten()
        .sum()
}

/// The rows in which a column of words has this one.
fn only(table: &DataFrame, column: &str, word: &str) -> DataFrame {
    let words = table.column(column).expect("a column of that name");
    let words = words.str().expect("a column of words");
    let wanted = words.iter().map(|found| found == Some(word)).collect();
    table.filter(&wanted).expect("rows")
}

#[test]
fn devices_and_latencies() {
    let analysis = analysis();
    let devices = dataframe::devices(&analysis).expect("a table");
    assert_eq!(devices.height(), analysis.devices.len());
    let of_devices = |value: fn(&nestrace_analyzer::analysis::Device) -> u64| -> u64 {
        analysis.devices.iter().map(value).sum()
    };
    assert_eq!(
        sum(&devices, "completed"),
        of_devices(|device| device.counts.completed)
    );
    assert_eq!(
        sum(&devices, "write_bytes"),
        of_devices(|device| device.bytes.write)
    );

    let latencies = dataframe::latencies(&analysis).expect("a table");
    for layer in ["guest_block", "host_block", "qemu", "chain"] {
        assert!(only(&latencies, "layer", layer).height() > 0, "{layer}");
    }
    let q2c = only(
        &only(&only(&latencies, "layer", "chain"), "part", "q2c"),
        "op",
        "all",
    );
    let expected: u64 = analysis
        .chains
        .iter()
        .map(|chains| chains.latency_ns.data.sum)
        .sum();
    assert_eq!(sum(&q2c, "sum_ns"), expected);
    assert_eq!(sum(&q2c, "n"), 300);
}

#[test]
fn histograms_count_every_bio() {
    let analysis = analysis();
    let histograms = dataframe::histograms(&analysis).expect("a table");
    let whole = histograms.column("from_ns").expect("a column").is_null();
    let whole = histograms.filter(&whole).expect("rows");
    let lengths = only(&only(&whole, "histogram", "length_bytes"), "side", "guest");
    assert_eq!(sum(&lengths, "n"), 300);
    assert_eq!(lengths.height() % 18, 0, "17 edges and the rest");
}

#[test]
fn chains_segments_and_stories() {
    let analysis = analysis();
    let chains = dataframe::chains(&analysis).expect("a table");
    assert_eq!(
        (sum(&chains, "linked"), sum(&chains, "guest_bios")),
        (300, 300)
    );
    let segments = dataframe::segments(&analysis).expect("a table");
    let data = only(&segments, "op", "data");
    assert_eq!(data.height(), 14 * analysis.chains.len());

    let stories = dataframe::stories(&analysis.stories).expect("a table");
    assert_eq!(stories.height(), 300);
    let columns = stories.columns().iter();
    let names = columns.map(|column| column.name().as_str());
    let of_segments = names.filter(|name| {
        let segment = name.strip_suffix("_ns").unwrap_or_default();
        analysis.chains[0]
            .segments
            .iter()
            .any(|known| known.name == segment)
    });
    let of_segments: Vec<&str> = of_segments.collect();
    assert_eq!(of_segments.len(), 14, "a column for each segment");
    let parts: u64 = of_segments.iter().map(|name| sum(&stories, name)).sum();
    assert_eq!(parts, sum(&stories, "q2c_ns"));

    let spans = dataframe::spans(&analysis.stories).expect("a table");
    let roots = spans.column("parent").expect("a column").is_null();
    assert_eq!(spans.filter(&roots).expect("rows").height(), 300);
    assert_eq!(only(&spans, "layer", "host_request").height(), 300);
}

#[test]
fn calls_by_file_and_one_by_one() {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, 200, WAY);
    streams.under_fsyncs(VM1, 7);
    let mut options = Options::default();
    options.call_story = Some(StoryChoice::Slowest(1_000));
    let analysis = streams.analyze(&manifest(), options);

    let calls = dataframe::calls(&analysis).expect("a table");
    assert_eq!((calls.height(), sum(&calls, "n")), (1, 200));
    let segments = dataframe::call_segments(&analysis).expect("a table");
    let of_stacks = CALL_SEGMENT_NAMES
        .iter()
        .filter(|name| name.starts_with("stack_"));
    let n_segments = CALL_SEGMENT_NAMES.len() - of_stacks.count();
    assert_eq!(segments.height(), n_segments, "no stacked device");
    let stories = dataframe::call_stories(&analysis.call_stories).expect("a table");
    assert_eq!(stories.height(), 200);
    assert_eq!(sum(&stories, "bios"), 200);
    let columns = CALL_SEGMENT_NAMES.map(|name| format!("{name}_ns"));
    let parts: u64 = columns.iter().map(|name| sum(&stories, name)).sum();
    assert_eq!(parts, sum(&stories, "latency_ns"));
    assert_eq!(parts, sum(&calls, "sum_ns"));
}

#[test]
fn nothing_recorded_makes_tables_with_columns() {
    let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), []);
    for table in [
        dataframe::devices(&analysis),
        dataframe::latencies(&analysis),
        dataframe::histograms(&analysis),
        dataframe::chains(&analysis),
        dataframe::segments(&analysis),
        dataframe::findings(&analysis),
        dataframe::calls(&analysis),
        dataframe::call_segments(&analysis),
        dataframe::call_stories(&analysis.call_stories),
        dataframe::stories(&analysis.stories),
        dataframe::spans(&analysis.stories),
        dataframe::events(&[]),
    ] {
        let table = table.expect("a table");
        assert_eq!(table.height(), 0);
        assert!(table.width() > 5, "{:?}", table.schema());
    }
}
