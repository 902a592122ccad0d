//! blktrace's files and dumps of blkparse, damaged.

use std::fs;
use std::path::{Path, PathBuf};

use crate::limited::{Outcome, RESIDENT_KIB, nestrace, peak_kib};
use crate::recording::capture;

/// Every command that takes a capture.
fn every_command(base: &Path) -> Vec<Outcome> {
    let folder = tempfile::tempdir().expect("folder");
    let out = folder.path().join("out.nest").display().to_string();
    let base = base.display().to_string();
    let good = capture().display().to_string();
    let runs: [&[&str]; 5] = [
        &["analyze", &base, "--format", "json"],
        &["analyze", &base, "--format", "btt"],
        &["analyze", &base, "--report", &format!("{out}.html")],
        &["compare", &good, &base],
        &["import", "blktrace", &base, "-o", &out],
    ];
    runs.map(|words| {
        let outcome = nestrace(words);
        outcome.check();
        outcome
    })
    .into()
}

/// The capture's two files in a folder of their own.
fn copy(folder: &Path) -> (PathBuf, [PathBuf; 2]) {
    let cpus = [0, 1].map(|cpu| folder.join(format!("gt.blktrace.{cpu}")));
    for (cpu, to) in cpus.iter().enumerate() {
        fs::copy(format!("{}.blktrace.{cpu}", capture().display()), to).expect("a copy");
    }
    (folder.join("gt"), cpus)
}

fn events(outcome: &Outcome) -> u64 {
    outcome.analysis()["trace"]["events"]
        .as_u64()
        .expect("a number")
}

#[test]
fn cut_captures_keep_what_is_whole() {
    let folder = tempfile::tempdir().expect("folder");
    let (base, [first, _]) = copy(folder.path());
    let whole = fs::read(&first).expect("file");
    let all = events(&every_command(&base)[0]);
    let mut before = 0;
    for tenth in [1, 3, 6, 9, 10] {
        fs::write(&first, &whole[..whole.len() * tenth / 10]).expect("file");
        let found = events(&every_command(&base)[0]);
        assert!(found >= before && found <= all, "{before} {found} {all}");
        before = found;
    }
    assert_eq!(before, all);
    // Empty: nothing happened on that processor.
    fs::write(&first, "").expect("file");
    assert!(events(&every_command(&base)[0]) < all);
    assert!(peak_kib() < RESIDENT_KIB, "{} KiB", peak_kib());
}

#[test]
fn flipped_bits_cost_a_few_records() {
    let folder = tempfile::tempdir().expect("folder");
    let (base, [first, _]) = copy(folder.path());
    let whole = fs::read(&first).expect("file");
    let analyze = || {
        nestrace(&[
            "analyze".as_ref(),
            base.as_os_str(),
            "--format=json".as_ref(),
        ])
    };
    let all = events(&analyze());
    for n in 0..20 {
        let mut damaged = whole.clone();
        damaged[n * whole.len() / 20 + n] ^= 1 << (n % 8);
        fs::write(&first, damaged).expect("file");
        let found = events(&analyze());
        assert!(
            found + 3 >= all && found <= all + 3,
            "{n}: {found} of {all}"
        );
    }
}

/// blktrace has neither a manifest nor an end that could be missing.
#[test]
fn damage_of_a_capture_is_called_that() {
    let folder = tempfile::tempdir().expect("folder");
    let (base, [first, _]) = copy(folder.path());
    let whole = fs::read(&first).expect("file");
    let middle = whole.len() / 2;
    // The magic number of a record.
    let magic = whole[middle..].windows(3).position(|it| it == b"tae");
    let record = middle + magic.expect("a record");
    let mut flipped = whole.clone();
    flipped[record] ^= 1;
    for damaged in [flipped.as_slice(), &whole[..record + 20]] {
        fs::write(&first, damaged).expect("file");
        let page = folder.path().join("page.html");
        let words = ["analyze".as_ref(), base.as_os_str(), "--report".as_ref()];
        let analyzed = nestrace(&[&words[..], &[page.as_os_str(), "--force".as_ref()]].concat());
        let page = fs::read_to_string(page).expect("a page");
        let good = capture();
        let compared = nestrace(&["compare".as_ref(), good.as_os_str(), base.as_os_str()]);
        for (text, said) in [
            (
                &analyzed.done().stdout,
                "A file of the recording is cut or damaged",
            ),
            (&page, "A file of the recording is cut or damaged"),
            (&compared.done().stdout, "a file of B is cut or damaged"),
        ] {
            assert!(text.contains(said), "{text}");
            assert!(
                !text.contains("not closed") && !text.contains("manifest"),
                "{text}"
            );
        }
    }
}

#[test]
fn other_files_in_a_captures_place_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let (base, [first, second]) = copy(folder.path());
    let elf = fs::read(env!("CARGO_BIN_EXE_nestrace")).expect("a program");
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01".repeat(100);
    for bytes in [&elf[..100_000], &png, b"x", &[0xff; 5000], &[0; 5000]] {
        for file in [&first, &second] {
            fs::write(file, bytes).expect("file");
        }
        for outcome in every_command(&base).iter().chain(&every_command(&first)) {
            outcome.refused();
        }
    }
    fs::remove_file(&first).expect("removed");
    nix::unistd::mkfifo(&first, nix::sys::stat::Mode::S_IRWXU).expect("fifo");
    every_command(&base).iter().for_each(|outcome| {
        outcome.refused();
    });
}

/// A dump of blkparse: the same records, in one file.
#[test]
fn dumps_are_read_as_far_as_they_go() {
    let folder = tempfile::tempdir().expect("folder");
    let (_, [first, second]) = copy(folder.path());
    let dump = folder.path().join("gt.bin");
    let both = [
        fs::read(first).expect("file"),
        fs::read(second).expect("file"),
    ]
    .concat();
    for end in [both.len(), both.len() - 1, both.len() / 2, 49, 3, 0] {
        fs::write(&dump, &both[..end]).expect("file");
        let outcomes = every_command(&dump);
        if end > 1000 {
            outcomes.iter().for_each(|outcome| {
                outcome.done();
            });
        }
    }
    // Absurd times of a record: it is left out or late, and all others stay.
    let analyze = || {
        nestrace(&[
            "analyze".as_ref(),
            dump.as_os_str(),
            "--format=json".as_ref(),
        ])
    };
    fs::write(&dump, &both).expect("file");
    let all = events(&analyze());
    for (at, stamp) in [(0, u64::MAX), (0, 1), (1, u64::MAX / 2), (1, 0)] {
        let mut odd = both.clone();
        // The time of a record stands after magic number and sequence.
        let place = at * odd.len() / 2 / 8 * 8;
        let Some(record) = odd[place..]
            .windows(4)
            .position(|magic| magic[1..] == [0x61, 0x65, 0x65])
        else {
            continue;
        };
        odd[place + record + 7..place + record + 15].copy_from_slice(&stamp.to_le_bytes());
        fs::write(&dump, odd).expect("file");
        let found = events(&analyze());
        assert!(found + 5 >= all, "{found} of {all}");
    }
}
