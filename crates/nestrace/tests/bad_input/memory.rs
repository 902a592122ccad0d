//! Streams that were made to fill the memory: it stays within a small multiple of what they hold.

use std::path::Path;

use nestrace_trace::{Event, Kind};

use crate::limited::{RESIDENT_KIB, nestrace, peak_kib};
use crate::recording::{bundle, write_stream};

/// Events of such a stream: 105 bytes each before compression, 63 MB in all.
const EVENTS: u64 = 600_000;

/// Writes a stream of events of these kinds in turn, each about things that no other event is about.
fn write_distinct(bundle: &Path, file: &str, kinds: &[Kind]) {
    let distinct = |n: u64| Event {
        ts_ns: 1_000_000_000 + n * 1000,
        kind: kinds[n as usize % kinds.len()] as u8,
        sub: (n % 5) as u8,
        cpu: (n % 4096) as u16,
        tid: n as u32,
        dev: n as u32,
        object: n * 64,
        related: n * 64 + 8,
        offset: n << 12,
        bytes: 4096,
        flags: (n % 4) as u32,
        inode: n,
        file_offset: n << 12,
        owner_dev: n as u32,
        iocb: n * 32,
        origin: n * 32,
        cgroup: n,
        ..Event::default()
    };
    let batches = (0..EVENTS / 60_000).map(|batch| {
        let first = batch * 60_000;
        (first..first + 60_000).map(distinct).collect()
    });
    write_stream(bundle, file, batches);
}

/// Analyzes a recording whose streams are such ones.
fn analyze_distinct(kinds: &[Kind]) {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "many");
    write_distinct(&bundle, "host.arrows", kinds);
    write_distinct(&bundle, "guest-vm1.arrows", kinds);
    nestrace(&["analyze".as_ref(), bundle.as_os_str()]).done();
    assert!(peak_kib() < RESIDENT_KIB, "{kinds:?}: {} KiB", peak_kib());
}

#[test]
fn a_device_for_every_event() {
    analyze_distinct(&[Kind::Queue, Kind::Issue, Kind::Complete]);
}

#[test]
fn nothing_that_begins_ever_ends() {
    analyze_distinct(&[Kind::Queue]);
    analyze_distinct(&[
        Kind::SyscallEnter,
        Kind::AioSubmit,
        Kind::UringSubmit,
        Kind::DioBegin,
    ]);
    analyze_distinct(&[Kind::AcctStart, Kind::AioPreadv, Kind::AioFlush]);
}

#[test]
fn every_kind_at_once() {
    let kinds: Vec<Kind> = (0..=u8::MAX).filter_map(Kind::from_u8).collect();
    analyze_distinct(&kinds);
}
