//! Captures of blktrace in `fixtures/blktrace`, read as the command reads them.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;

use nestrace_analyzer::analysis::BlockAnalysis;
use nestrace_analyzer::{BlockAnalyzer, BlockOptions, Identified};
use nestrace_blktrace::Reader;
use nestrace_trace::Event;

/// A file of a capture.
pub fn file(capture: &str, name: &str) -> PathBuf {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace");
    PathBuf::from(fixtures).join(capture).join(name)
}

/// The events of all processors in the order of time.
pub fn events(capture: &str) -> Vec<Event> {
    let mut events = Vec::new();
    for cpu in 0.. {
        let path = file(capture, &format!("gt.blktrace.{cpu}"));
        if !path.exists() {
            break;
        }
        let reader = Reader::new(BufReader::new(File::open(path).unwrap())).unwrap();
        events.extend(reader.filter_map(|t| {
            nestrace_blktrace::event(&t).or_else(|| nestrace_blktrace::thread(&t))
        }));
    }
    assert!(!events.is_empty(), "{capture}");
    events.sort_by_key(|event| event.ts_ns);
    events
}

/// The block analysis of a capture.
pub fn analyze(capture: &str) -> BlockAnalysis {
    analyze_with(capture, BlockOptions::default())
}

/// The same with other options.
pub fn analyze_with(capture: &str, options: BlockOptions) -> BlockAnalysis {
    let mut analyzer = BlockAnalyzer::new(options);
    Identified::new(events(capture).into_iter()).for_each(|event| analyzer.push(&event));
    analyzer.finish()
}

/// What btt said.
pub fn btt(capture: &str) -> String {
    fs::read_to_string(file(capture, "btt.txt")).unwrap()
}
