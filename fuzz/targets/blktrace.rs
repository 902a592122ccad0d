//! Any bytes as a blktrace file, and records made from them as a sound one.
//!
//! Of any bytes: no panic, nothing invented, and the same records however the bytes arrive. Of a sound
//! file: every record comes back as it was written, and a file that ends early gives the same records up
//! to there.

use std::io::Read;

use nestrace_blktrace::{Capture, Reader, Trace, Writer, event};
use nestrace_trace::{Event, Source, TimeOrdered};

/// Checks one input.
pub fn check(input: &[u8]) {
    any_bytes(input);
    sound_file(input);
}

fn any_bytes(input: &[u8]) {
    let Some(records) = read(input) else {
        assert!(read(Portions(input)).is_none());
        return;
    };
    let payload: usize = records.iter().map(|trace| trace.payload.len()).sum();
    assert!(
        payload + records.len() * 48 <= input.len(),
        "more than there is"
    );
    assert_eq!(Some(&records), read(Portions(input)).as_ref());
    same_events(input, &records);
    // Both halves as the files of two processors.
    let halves = input.split_at(input.len() / 2);
    let readers = [halves.0, halves.1]
        .into_iter()
        .filter_map(|half| Reader::new(half).ok());
    let mut capture = Capture::new(readers.collect());
    let events: Vec<Event> = TimeOrdered::new(capture.by_ref()).collect();
    let outline = capture.outline();
    assert!(events.len() <= 2 * (input.len() / 24) + 2);
    assert!(outline.devices.len() <= 256 && outline.n_events <= events.len() as u64);
    assert!(capture.diagnostics().count() <= 2000);
}

/// A capture of one file, which takes most records in runs, gives the events of its records.
fn same_events(input: &[u8], records: &[Trace]) {
    let mut capture = Capture::new(Reader::new(input).into_iter().collect());
    let is_of_blocks = |event: &Event| {
        event
            .kind()
            .is_some_and(|kind| kind.source() == Source::Block)
    };
    let given: Vec<Event> = capture.by_ref().filter(is_of_blocks).collect();
    if capture.outline().ignored == 0 {
        let expected: Vec<Event> = records.iter().filter_map(event).collect();
        assert_eq!(given, expected);
    }
}

fn read(input: impl Read) -> Option<Vec<Trace>> {
    let mut reader = Reader::new(input).ok()?;
    let records = reader.by_ref().collect();
    assert!(reader.diagnostics().len() <= 1000);
    Some(records)
}

/// Gives a few bytes at a time, as a pipe does.
struct Portions<'a>(&'a [u8]);

impl Read for Portions<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = (1 + self.0.len() % 7).min(to.len());
        self.0.read(&mut to[..n])
    }
}

/// Makes records of one processor from the input, 16 bytes each.
fn sound_file(input: &[u8]) {
    let mut writer = Writer::new(Vec::new());
    let mut ends = Vec::new();
    let mut written = Vec::new();
    let mut time_ns = 1_000_000;
    for bytes in input.as_chunks::<16>().0 {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        time_ns += u64::from(word(0) % 50_000_000);
        let mut trace = Trace::default();
        trace.time_ns = time_ns;
        trace.sector = u64::from(word(4));
        trace.bytes = word(8) & 0xff_fe00;
        // Actions 1 to 14, without a payload of their own meaning.
        trace.raw_action = u64::from(1 + word(12) % 14);
        trace.device = 8 << 20 | (word(12) >> 30);
        trace.tid = word(12) & 0xffff;
        if writer.write(&trace).is_err() {
            return;
        }
        written.push((trace.time_ns, trace.sector, trace.bytes, trace.raw_action));
        ends.push(written.len());
    }
    let file = writer.into_inner();
    let told = |bytes: &[u8]| -> Vec<(u64, u64, u32, u64)> {
        let records = read(bytes).unwrap_or_default().into_iter();
        let records = records.filter(|trace| trace.notify().is_none());
        records
            .map(|trace| (trace.time_ns, trace.sector, trace.bytes, trace.raw_action))
            .collect()
    };
    assert_eq!(told(&file), written);
    let cut = file.len() * usize::from(input.last().copied().unwrap_or_default()) / 256;
    let whole = cut / (file.len() / written.len().max(1)).max(1);
    let start = told(&file[..cut]);
    assert!(
        written.starts_with(&start) && start.len() == whole.min(written.len()),
        "cut at {cut}"
    );
}
