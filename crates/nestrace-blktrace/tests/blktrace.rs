//! The blktrace reader against what blkparse says of the same capture, and against damage.

use std::fmt::Write;

use nestrace_blktrace::{Action, Notify, OpenError, Reader, Trace, Version, category, event};
use nestrace_trace::DiagnosticKind;
use proptest::prelude::*;

const CPU_0: &[u8] = include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0");
const CPU_1: &[u8] = include_bytes!("../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.1");
const BLKPARSE: &str = include_str!("../../../fixtures/blktrace/ext3-seqw-mq-ide/blkparse.txt");

fn read(bytes: &[u8]) -> (Vec<Trace>, Vec<DiagnosticKind>) {
    let mut reader = Reader::new(bytes).unwrap();
    let traces = reader.by_ref().collect();
    (
        traces,
        reader
            .diagnostics()
            .iter()
            .map(|diagnostic| diagnostic.kind)
            .collect(),
    )
}

/// `RM`, `FWFSM`, `N`, in the order that blkparse uses.
fn rwbs(trace: &Trace) -> String {
    let has = |bit| trace.category() & bit != 0;
    let kind = match trace.bytes {
        _ if has(category::DISCARD) => 'D',
        _ if has(category::WRITE) => 'W',
        0 => 'N',
        _ => 'R',
    };
    let mut text = String::new();
    text.extend(has(category::FLUSH).then_some('F'));
    text.push(kind);
    let marks = [
        (category::FUA, 'F'),
        (category::AHEAD, 'A'),
        (category::SYNC, 'S'),
        (category::META, 'M'),
    ];
    text.extend(
        marks
            .into_iter()
            .filter_map(|(bit, letter)| has(bit).then_some(letter)),
    );
    text
}

/// A line as blkparse prints it, in single blanks and without the process.
fn line(trace: &Trace, action: Action, start_ns: u64) -> String {
    let time_ns = trace.time_ns - start_ns;
    let mut line = format!(
        "{},{} {} {} {}.{:09} {} {} {}",
        trace.device >> 20,
        trace.device & 0xf_ffff,
        trace.cpu,
        trace.sequence,
        time_ns / 1_000_000_000,
        time_ns % 1_000_000_000,
        trace.tid,
        action.letter(),
        rwbs(trace),
    );
    match action {
        Action::Plug => {}
        Action::Split => write!(line, " {} / {}", trace.sector, trace.number().unwrap()).unwrap(),
        Action::Unplug | Action::UnplugTimer => {
            write!(line, " {}", trace.number().unwrap()).unwrap()
        }
        _ if trace.bytes > 0 => write!(line, " {} + {}", trace.sector, trace.bytes / 512).unwrap(),
        Action::Complete => write!(line, " {}", trace.sector).unwrap(),
        _ => {}
    }
    line
}

#[test]
fn every_line_of_blkparse_is_read() {
    let (mut traces, diagnostics) = read(CPU_0);
    let (others, more) = read(CPU_1);
    assert!(diagnostics.is_empty() && more.is_empty());
    traces.extend(others);
    traces.sort_by_key(|trace| (trace.time_ns, trace.cpu, trace.sequence));
    let events = || {
        traces
            .iter()
            .filter_map(|trace| Some((trace, trace.action()?)))
    };
    let start_ns = events().next().unwrap().0.time_ns;
    let ours: Vec<String> = events()
        .map(|(trace, action)| line(trace, action, start_ns))
        .collect();

    let theirs: Vec<String> = BLKPARSE
        .lines()
        .take_while(|line| !line.starts_with("CPU"))
        .map(|line| {
            let words = line
                .split_whitespace()
                .filter(|word| !word.starts_with('['));
            words.collect::<Vec<_>>().join(" ")
        })
        .filter(|line| !line.is_empty())
        .collect();
    assert_eq!((ours.len(), theirs.len()), (397, 397));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
}

#[test]
fn notifications_are_told_from_events() {
    let (traces, _) = read(CPU_0);
    let names: Vec<String> = traces
        .iter()
        .filter(|trace| trace.notify() == Some(Notify::Process))
        .map(|trace| {
            String::from_utf8_lossy(&trace.payload)
                .trim_end_matches('\0')
                .to_owned()
        })
        .collect();
    assert!(names.contains(&"fio".to_owned()), "{names:?}");
    assert_eq!(
        traces
            .iter()
            .filter(|trace| trace.notify() == Some(Notify::Timestamp))
            .count(),
        1
    );
}

/// One record with a payload, in the other byte order than the fixture's.
fn big_endian(action: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in [0x6561_7407_u32, 3] {
        bytes.extend(field.to_be_bytes());
    }
    for field in [5_000_000_000_u64, 4096] {
        bytes.extend(field.to_be_bytes());
    }
    for field in [8192, action, 77, 7 << 20 | 1, 2] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(5_u16.to_be_bytes());
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[test]
fn the_other_byte_order_cgroups_and_remaps() {
    let mut payload = 42_u64.to_be_bytes().to_vec();
    payload.extend([0, 0x70, 0, 3, 0, 0x70, 0, 1]);
    payload.extend(2048_u64.to_be_bytes());
    let (traces, diagnostics) = read(&big_endian(0x0002_0100 | Action::Remap as u32, &payload));
    assert!(diagnostics.is_empty());
    let [trace] = traces.as_slice() else {
        panic!("{traces:?}")
    };
    assert_eq!(
        (trace.action(), trace.category(), trace.cgroup),
        (Some(Action::Remap), category::WRITE, Some(42))
    );
    assert_eq!(
        (trace.time_ns, trace.sector, trace.bytes),
        (5_000_000_000, 4096, 8192)
    );
    assert_eq!(
        (trace.tid, trace.device, trace.cpu, trace.error),
        (77, 7 << 20 | 1, 2, 5)
    );
    let remap = trace.remap().unwrap();
    assert_eq!(
        (remap.from_device, remap.to_device, remap.from_sector),
        (7 << 20 | 3, 7 << 20 | 1, 2048)
    );
}

/// The capture as a kernel writes version 8 (`struct blk_io_trace2`), each event tagged with a cgroup.
fn version_8(traces: &[Trace]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for trace in traces {
        let cgroup: &[u8] = match trace.action() {
            Some(_) => &77_u64.to_le_bytes(),
            None => &[],
        };
        let tag = if cgroup.is_empty() { 0 } else { 1 << 8 };
        bytes.extend(0x6561_7408_u32.to_le_bytes());
        bytes.extend(trace.sequence.to_le_bytes());
        bytes.extend(trace.time_ns.to_le_bytes());
        bytes.extend(trace.sector.to_le_bytes());
        bytes.extend(trace.bytes.to_le_bytes());
        bytes.extend(trace.tid.to_le_bytes());
        bytes.extend((trace.raw_action | tag).to_le_bytes());
        bytes.extend(trace.device.to_le_bytes());
        bytes.extend(trace.cpu.to_le_bytes());
        bytes.extend(trace.error.to_le_bytes());
        let payload_len = cgroup.len() + trace.payload.len();
        bytes.extend((payload_len as u16).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(cgroup);
        bytes.extend(&trace.payload);
    }
    bytes
}

#[test]
fn version_8_and_its_cgroups_say_the_same() {
    let (seven, _) = read(CPU_0);
    let bytes = version_8(&seven);
    assert_eq!(Reader::new(&bytes[..]).unwrap().version(), Version::V8);
    let (mut eight, diagnostics) = read(&bytes);
    assert!(diagnostics.is_empty());
    for (eight, seven) in eight.iter_mut().zip(&seven) {
        let is_event = eight.action().is_some();
        assert_eq!(eight.cgroup.take(), is_event.then_some(77));
        eight.raw_action = seven.raw_action;
    }
    assert_eq!(eight, seven);
}

#[test]
fn zones_of_version_8_are_not_taken_for_reads() {
    let mut append = Trace::default();
    append.raw_action = Action::Issue as u64 | 1 << 32;
    append.bytes = 4096;
    let (traces, _) = read(&version_8(&[append]));
    let flags: Vec<u32> = traces.iter().filter_map(event).map(|e| e.op()).collect();
    assert_eq!(flags, [nestrace_trace::flags::OP_OTHER]);
}

#[test]
fn what_is_no_capture_is_refused_by_name() {
    assert!(matches!(
        Reader::new(&b"nothing of the kind"[..]),
        Err(OpenError::NotBlktrace)
    ));
    assert!(matches!(
        Reader::new(&b"\x07ta"[..]),
        Err(OpenError::NotBlktrace)
    ));
    let mut newer = CPU_0.to_vec();
    newer[0] = 9;
    assert!(matches!(
        Reader::new(&newer[..48]),
        Err(OpenError::Version { found: 9 })
    ));
    // Where records of a known version follow, that one byte is damaged.
    assert!(Reader::new(&newer[..]).is_ok());
    assert_eq!(read(&[]), (vec![], vec![]));
}

#[test]
fn a_cut_file_gives_what_is_whole_and_says_so() {
    let (whole, _) = read(CPU_0);
    let (cut, diagnostics) = read(&CPU_0[..CPU_0.len() - 1]);
    assert_eq!(
        (cut.as_slice(), diagnostics),
        (&whole[..whole.len() - 1], vec![DiagnosticKind::Truncated])
    );
}

#[test]
fn a_damaged_record_costs_itself_and_no_other() {
    let (whole, _) = read(CPU_0);
    // The first record has 48 bytes and a payload of 8 to 16; the third one's magic is broken.
    let third: usize = whole[..2]
        .iter()
        .map(|trace| 48 + trace.payload.len())
        .sum();
    let mut bytes = CPU_0.to_vec();
    bytes[third] ^= 0xff;
    let (read, diagnostics) = read(&bytes);
    assert_eq!(diagnostics, [DiagnosticKind::BatchDamaged]);
    assert_eq!((&read[..2], &read[2..]), (&whole[..2], &whole[3..]));
}

proptest! {
    #[test]
    fn no_damage_panics_or_invents_much(changes in prop::collection::vec((4..CPU_0.len(), any::<u8>()), 1..40), end in 48..CPU_0.len()) {
        let mut bytes = CPU_0[..end].to_vec();
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        let (traces, _) = read(&bytes);
        let total: usize = traces.iter().map(|trace| 48 + trace.payload.len()).sum();
        prop_assert!(total <= bytes.len());
    }
}
