//! Damaged captures of blktrace, all the way to the text: never a panic, never more than was there.

use crate::captures;

use nestrace_analyzer::analysis::BlockAnalysis;
use nestrace_analyzer::{Analyzer, BlockAnalyzer, BlockOptions, Identified, Options};
use nestrace_blktrace::{Capture, OpenError, Reader};
use nestrace_report::{btt, json, text};
use nestrace_trace::{Event, Kind, Manifest, TimeOrdered};
use proptest::prelude::*;

const CPUS: [&[u8]; 2] = [
    include_bytes!("../../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"),
    include_bytes!("../../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.1"),
];

/// Events, lost records and notes of these files.
fn read(files: &[Vec<u8>]) -> Result<(Vec<Event>, u64, usize), OpenError> {
    let readers = files.iter().map(|bytes| Reader::new(&bytes[..]));
    let mut capture = Capture::new(readers.collect::<Result<Vec<_>, _>>()?);
    let events = TimeOrdered::new(capture.by_ref()).collect();
    Ok((
        events,
        capture.outline().lost,
        capture.diagnostics().count(),
    ))
}

fn analyze(events: &[Event]) -> BlockAnalysis {
    let mut analyzer = BlockAnalyzer::new({
        let mut options = BlockOptions::default();
        options.list_ios = true;
        options.interval_ns = Some(1_000_000_000);
        options
    });
    let events = events.iter().copied();
    Identified::new(events).for_each(|event| analyzer.push(&event));
    assert!(analyzer.drain_ios().count() < 1000);
    assert!(analyzer.drain_rows().count() < 100_000);
    analyzer.finish()
}

/// Everything that is made of a capture.
fn everything(events: &[Event]) {
    assert!(!btt::render(&analyze(events)).is_empty());
    let identified = Identified::new(events.iter().copied());
    let analysis = Analyzer::analyze(&Manifest::default(), Options::default(), identified);
    assert!(!text::render(&analysis, &text::TextOptions::default()).is_empty());
    assert!(json::render(&analysis).contains("stats") || analysis.devices.is_empty());
}

#[test]
fn every_cut_keeps_what_is_whole() {
    let whole = CPUS.map(<[u8]>::to_vec);
    let (all, lost, notes) = read(&whole).unwrap();
    assert_eq!((all.len(), lost, notes), (405, 0, 0));
    let mut before = 0;
    for end in 0..=CPUS[0].len() {
        let cut = [CPUS[0][..end].to_vec(), whole[1].clone()];
        let Ok((events, lost, notes)) = read(&cut) else {
            assert!((1..4).contains(&end), "{end}");
            continue;
        };
        // Each cut has what the one before had, or one record more; a cut within a record is noted.
        assert!(
            events.len() == before || events.len() == before + 1 || before == 0,
            "{end}"
        );
        assert_eq!(lost, 0, "{end}");
        assert!(notes <= 1, "{end}");
        before = events.len();
        if end % 97 == 0 {
            everything(&events);
        }
    }
    assert_eq!(before, 405);
}

#[test]
fn a_gap_in_the_numbers_is_a_loss() {
    let records: Vec<_> = Reader::new(CPUS[0]).unwrap().collect();
    let sizes = records.iter().map(|trace| 48 + trace.payload.len());
    let starts: Vec<usize> = sizes
        .scan(0, |at, size| Some(std::mem::replace(at, *at + size)))
        .collect();
    let numbered: Vec<usize> = (0..records.len())
        .filter(|place| records[*place].notify().is_none())
        .collect();
    let (from, to) = (starts[numbered[40]], starts[numbered[47]]);
    let between = (numbered[40]..numbered[47]).filter(|place| records[*place].notify().is_none());
    let gone = between.count() as u64;
    let damaged = [
        [&CPUS[0][..from], &CPUS[0][to..]].concat(),
        CPUS[1].to_vec(),
    ];
    let (events, lost, _) = read(&damaged).unwrap();
    assert_eq!(lost, gone);
    let losses = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::Loss));
    assert_eq!(losses.map(|event| event.object).collect::<Vec<_>>(), [gone]);
    let analysis = Analyzer::analyze(
        &Manifest::default(),
        Options::default(),
        Identified::new(events.into_iter()),
    );
    assert_eq!(analysis.trace.lost, gone);
}

#[test]
fn an_absurd_time_costs_its_record() {
    let first = Reader::new(CPUS[0])
        .unwrap()
        .map(|trace| 48 + trace.payload.len());
    let sizes: Vec<usize> = first.collect();
    let at: usize = sizes[..60].iter().sum();
    let mut damaged = CPUS.map(<[u8]>::to_vec);
    damaged[0][at + 15] = 0x70;
    let (mut events, lost, notes) = read(&damaged).unwrap();
    events.retain(|event| event.kind() != Some(Kind::Loss));
    // Its number is missing, so it counts as lost.
    assert_eq!((events.len(), lost, notes), (404, 1, 1));
    let whole = captures::events("ext3-seqw-mq-ide");
    assert_eq!(
        events.last().map(|e| e.ts_ns),
        whole.last().map(|e| e.ts_ns)
    );
}

#[test]
fn any_number_of_devices_fits() {
    let queue = |dev: u32| Event {
        ts_ns: u64::from(dev),
        kind: Kind::Queue as u8,
        dev,
        bytes: 512,
        ..Event::default()
    };
    let mut analyzer = BlockAnalyzer::new(BlockOptions::default());
    Identified::new((0..1_000_000).map(queue)).for_each(|event| analyzer.push(&event));
    assert_eq!(analyzer.finish().devices.len(), 1024);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn flipped_bits_never_panic(
        flips in prop::collection::vec((0usize..2, any::<prop::sample::Index>(), 0u8..8), 1..40),
        ends in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let mut files = CPUS.map(<[u8]>::to_vec);
        for (file, at, bit) in flips {
            let place = at.index(files[file].len());
            files[file][place] ^= 1 << bit;
        }
        files[0].truncate(ends.0.index(CPUS[0].len()) + 1);
        files[1].truncate(ends.1.index(CPUS[1].len()) + 1);
        if let Ok((events, ..)) = read(&files) {
            prop_assert!(events.len() <= 405 + 40);
            everything(&events);
        }
    }

    #[test]
    fn other_files_are_refused_or_empty(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        if let Ok((events, ..)) = read(&[bytes]) {
            everything(&events);
        }
    }
}
