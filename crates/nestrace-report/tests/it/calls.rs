//! Calls of a guest's programs, in the text and on the page.

use nestrace_abi::flags::{self, op};
use nestrace_analyzer::{Analysis, Options};
use nestrace_report::{html, text};
use nestrace_trace::manifest::{GuestFile, GuestMount, State};
use nestrace_trace::{Event, Kind};

use crate::two_sides::{self, Streams, VDA, VM1, WAY};

const START: u64 = 10_000_000_000;
const LOG: &str = "/srv/volumes/0001/mysql/data/a-folder-with-a-long-name/and-one-more/ib_logfile0";
/// Its end, as a sentence has it.
const SHORT: &str = "…/mysql/data/a-folder-with-a-long-name/and-one-more/ib_logfile0";
const DATA: &str = "/srv/volumes/0001/mysql/data/ibdata1";
/// O_DIRECT of x86-64's `fcntl.h`.
const O_DIRECT: u32 = 0o40_000;

/// A database that syncs its log 100 times, and writes its data 100 times by io_uring.
fn database() -> Analysis {
    let mut streams = Streams::new(2);
    let mut at = START;
    for n in 0..100 {
        at = streams.bio(VM1, at, flags::OP_WRITE, n << 20, 4096, WAY) + 50_000 + n * 100;
    }
    streams.under_fsyncs(VM1, 7);
    let slow = two_sides::Way {
        device: 900_000,
        ..WAY
    };
    for n in 0..100 {
        let submission = Event {
            sub: op::WRITE,
            tid: 500,
            object: 0xffff_8880_0010_0000 + n * 256,
            offset: n * 8192,
            bytes: 8192,
            inode: 8,
            owner_dev: VDA,
            aux: O_DIRECT,
            ..Event::default()
        };
        streams.guest(VM1, at, Kind::UringSubmit, submission);
        let end = streams.bio(
            VM1,
            at + 1_000,
            flags::OP_WRITE,
            1 << 32 | n << 20,
            8192,
            slow,
        );
        let completion = Event {
            offset: 8192,
            ..submission
        };
        streams.guest(VM1, end + 1_000, Kind::UringComplete, completion);
        at = end + 50_000 + n * 100;
    }
    let mut manifest = two_sides::manifest();
    manifest.end_mono_ns = at + 1_000_000;
    manifest.state = State::Complete;
    let side = &mut manifest.guest_sides[0];
    side.mounts = vec![GuestMount {
        disk: "vda".into(),
        dev: VDA,
        mount_point: "/srv".into(),
        ..GuestMount::default()
    }];
    side.files = [(7, LOG), (8, DATA)]
        .map(|(inode, path)| {
            let mut file = GuestFile::default();
            (file.dev, file.inode, file.path) = (VDA, inode, path.into());
            file
        })
        .into();
    streams.analyze(&manifest, Options::default())
}

#[test]
fn a_program_waits_in_its_syncs_and_not_in_what_it_submits() {
    let analysis = database();
    let calls = analysis.calls.as_ref().expect("calls are known");
    let of = |op: &str| {
        let mut rows = calls.iter().filter(|row| row.op.name() == op);
        rows.next().expect("a row")
    };
    assert_eq!((of("write").n, of("write").submitted), (100, 100));
    assert_eq!((of("fsync").n, of("fsync").submitted), (100, 0));
    assert_eq!((of("write").linked, of("fsync").linked), (100, 100));
    let page = text::render(&analysis, &text::TextOptions::default());
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        // Not half of it, although the writes take longer.
        format!("db waits 100 % of the time of its calls in fsync of {SHORT}: "),
        format!("Each of the 100 writes of {DATA} that db submits takes "),
        " at the host's device; the program goes on meanwhile.".to_owned(),
        "db (2 files): ".to_owned(),
        "; 100 async ones, ".to_owned(),
        // The end of a long path.
        "…/volumes/0001/mysql/data/a-folder-with-a-long-name/and-one-more/ib_logfile0".to_owned(),
        "async write 100 0 %".to_owned(),
        "async: by aio or io_uring, from submission to completion.".to_owned(),
    ] {
        assert!(words.contains(&said), "no {said:?} in\n{page}");
    }
    let too_wide = page.lines().find(|line| line.chars().count() > 80);
    assert_eq!(too_wide, None, "{page}");
}

#[test]
fn the_page_has_the_same_table() {
    let page = html::render(&database()).expect("a page");
    for said in [
        "Calls of vm1",
        LOG,
        "<td>async write</td>",
        "<td>fsync</td>",
        "db (2 files): ",
        "async: by aio or io_uring",
    ] {
        assert!(page.contains(said), "no {said:?}");
    }
}
