//! Calls of a guest's programs: which bios each waited for, and which were somebody else's.

use nestrace_abi::end_io;
use nestrace_analyzer::analysis::{CallIo, CallRow};
use nestrace_analyzer::{Analysis, Analyzer, Options, StoryChoice};
use nestrace_trace::manifest::{GuestMount, Probe};

use crate::notation::{DEV, events};
use crate::one_guest;

/// The file system of the tests' files, which lies on the disk's first partition.
pub(crate) const MOUNT: &str = "7:1";
/// Two threads with names.
const THREADS: &str = "
    0 thread tid=1 tgid=1 name=db
    0 thread tid=2 tgid=2 name=copy
    0 thread tid=9 tgid=9 name=jbd2/vda1-8
";

fn analyze(text: &str) -> Analysis {
    analyze_with(Options::default(), text)
}

fn analyze_with(options: Options, text: &str) -> Analysis {
    let mut manifest = one_guest::manifest("ebpf", DEV);
    manifest.guest_sides[0].mounts = vec![GuestMount {
        disk: "vda".into(),
        dev: (7 << 20) | 1,
        fs_type: "ext4".into(),
        mount_point: "/data".into(),
        options: String::new(),
    }];
    let mut analyzer = Analyzer::new(&manifest, options);
    for event in events(&format!("{THREADS}{text}")) {
        analyzer.push_guest(0, &event);
    }
    analyzer.finish()
}

pub(crate) fn row<'a>(analysis: &'a Analysis, process: &str, op: &str, inode: u64) -> &'a CallRow {
    let calls = analysis.calls.as_ref().expect("calls are known");
    let is_it = |row: &&CallRow| {
        (row.process.as_str(), row.op.name(), row.file.inode) == (process, op, Some(inode))
    };
    calls
        .iter()
        .find(is_it)
        .unwrap_or_else(|| panic!("no {process} {op} {inode}: {calls:#?}"))
}

pub(crate) const fn io(bios: u64, bytes: u64) -> CallIo {
    let mut io = CallIo::none();
    io.bios = bios;
    io.bytes = bytes;
    io
}

/// A bio of pages of an inode, from Q to C.
fn bio(name: &str, tid: u32, what: &str, (from, to): (u64, u64), inode: u64, at: u64) -> String {
    format!(
        "{from}u Q {name} {what} {sector}+4096 tid={tid} sub=2 inode={inode} of={MOUNT} at={at}
         {from}u G {name} {what} tid={tid}
         {from}u D r{name} {what} {sector}+4096 rel={name} tid={tid}
         {to}u C r{name} {what} {sector}+4096 tid=0
        ",
        sector = at + inode * 1_048_576
    )
}

/// Lines in the order of time.
pub(crate) fn sorted(text: &str) -> String {
    let time = |line: &&str| -> u64 {
        let word = line.split_whitespace().next().unwrap_or("0");
        let digits = word.trim_end_matches('u');
        digits.parse::<u64>().expect("time") * if word.ends_with('u') { 1000 } else { 1 }
    };
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.contains('#'))
        .collect();
    lines.sort_by_key(time);
    lines.join("\n") + "\n"
}

#[test]
fn a_read_waits_for_pages_of_its_range_whoever_queued_them() {
    let read = |tid, from, to, at| {
        format!(
            "{from}u read {at}+4096 tid={tid} inode=5 of={MOUNT}
             {to}u exit-read result=4096 tid={tid}
            "
        )
    };
    let text = sorted(
        &[
            read(1, 10, 100, 0),
            bio("own", 1, "R", (20, 90), 5, 0),
            // Read ahead before any call needs it, then another thread's read waits for it.
            bio("ahead", 1, "Rr", (21, 200), 5, 8192),
            read(2, 150, 210, 8192),
            // From the cache.
            read(1, 300, 302, 0),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let first = row(&analysis, "db", "read", 5);
    assert_eq!((first.n, first.without_io), (2, 1));
    assert_eq!((first.waited, first.deferred), (io(1, 4096), io(0, 0)));
    let second = row(&analysis, "copy", "read", 5);
    assert_eq!((second.n, second.without_io), (1, 0));
    assert_eq!(second.waited, io(1, 4096));
    assert_eq!(second.file.mount, "/data");
    let guest = &analysis.guest_calls[0];
    assert_eq!((guest.waited.bios, guest.other.bios), (2, 0), "{guest:?}");
}

#[test]
fn what_is_written_back_later_is_the_writer_s_and_nobody_waits() {
    let text = sorted(
        &[
            format!(
                "10u write 0+8192 tid=1 inode=5 of={MOUNT}
                 20u exit-write result=8192 tid=1
                "
            ),
            bio("back", 7, "W", (1000, 1100), 5, 4096),
            bio("stray", 7, "W", (1000, 1100), 6, 0),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let writer = row(&analysis, "db", "write", 5);
    assert_eq!((writer.n, writer.without_io), (1, 1));
    assert_eq!((writer.waited, writer.deferred), (io(0, 0), io(1, 4096)));
    let delay = writer.deferred_delay_ns.expect("a delay");
    assert_eq!(delay.max, Some(980_000));
    assert_eq!(analysis.guest_calls[0].other, io(1, 4096));
}

/// A sync of `inode` by thread 1 from 10 to 500 µs that ends with these transactions, and a commit of number 7.
fn sync_and_commit(inode: u64, transactions: &str, more: &str) -> Analysis {
    let text = [
        format!(
            "10u fsync fd tid=1 inode={inode} of={MOUNT}
             11u sync-enter tid=1 inode={inode} of={MOUNT}
             490u sync-exit tid=1 inode={inode} of={MOUNT} rel={transactions} result=0
             500u exit-fsync tid=1 result=0
            "
        ),
        bio("mine", 1, "W", (20, 100), inode, 0),
        "110u journal-start 0x7 tid=9
         480u journal-end 0x7 tid=9
        "
        .into(),
        bio("others", 9, "W", (120, 300), 6, 0),
        more.to_owned(),
    ];
    analyze(&sorted(&text.concat()))
}

#[test]
fn a_sync_waits_for_its_own_transaction_and_drags_others_data() {
    let write = format!(
        "1u write 0+4096 tid=2 inode=6 of={MOUNT}
         2u exit-write result=4096 tid=2
        "
    );
    let analysis = sync_and_commit(5, "0x7", &write);
    let sync = row(&analysis, "db", "fsync", 5);
    assert_eq!((sync.n, sync.without_io), (1, 0));
    assert_eq!(sync.waited, io(2, 8192));
    let [others] = sync.others_data.as_slice() else {
        panic!("{:?}", sync.others_data);
    };
    assert_eq!(others.process.as_deref(), Some("copy"));
    assert_eq!((others.file.inode, others.bytes), (Some(6), 4096));
}

#[test]
fn a_sync_does_not_wait_for_another_transaction() {
    // 0 is not known; 6 was committed before; 8 is the next.
    for transaction in ["0x0", "0x6", "0x8"] {
        let analysis = sync_and_commit(5, transaction, "");
        let sync = row(&analysis, "db", "fsync", 5);
        assert_eq!(sync.waited, io(1, 4096), "{transaction}");
        assert!(sync.others_data.is_empty());
        assert_eq!(analysis.guest_calls[0].journal, io(1, 4096));
    }
}

#[test]
fn two_journals_with_one_number_are_ambiguous() {
    let second = "130u journal-start 0x7 tid=10
                  400u journal-end 0x7 tid=10
                 ";
    let analysis = sync_and_commit(5, "0x7", second);
    assert_eq!(row(&analysis, "db", "fsync", 5).waited, io(1, 4096));
}

#[test]
fn write_back_that_began_after_a_sync_s_own_is_not_waited_for() {
    let both = [
        bio("before", 7, "W", (5, 60), 5, 4096),
        bio("after", 7, "W", (150, 200), 5, 8192),
    ];
    let analysis = sync_and_commit(5, "0x0", &both.concat());
    // Its own, and the one that was under way.
    assert_eq!(row(&analysis, "db", "fsync", 5).waited, io(2, 8192));
}

#[test]
fn a_sync_waits_for_the_trees_of_btrfs_that_it_writes() {
    let sync_with = |of: &str| {
        let text = [
            "10u fsync fd tid=1 inode=300 of=7:1\n500u exit-fsync tid=1 result=0\n".into(),
            bio("data", 1, "W", (20, 100), 300, 0),
            bio("trees", 1, "W", (110, 200), 1, 0),
        ];
        let analysis = analyze(&sorted(&text.concat().replace(MOUNT, of)));
        row(&analysis, "db", "fsync", 300).waited
    };
    assert_eq!(sync_with("0:23"), io(2, 8192));
    // On a file system with a device of its own, inode 1 is another file.
    assert_eq!(sync_with(MOUNT), io(1, 4096));
}

#[test]
fn a_call_that_is_recorded_at_its_return_has_the_name_that_comes_next() {
    let text = format!(
        "100u unlinked tid=40 of={MOUNT} issued=10u result=0
         101u thread tid=40 tgid=40 name=rm
         110u unlinked tid=41 of={MOUNT} issued=20u result=0
         111u read 0+4096 tid=40 inode=5 of={MOUNT}
         120u exit-read result=4096 tid=40
        "
    );
    let analysis = analyze(&text);
    let calls = analysis.calls.as_ref().expect("calls are known");
    let unlinks = calls.iter().filter(|row| row.op.name() == "unlink");
    let mut names: Vec<&str> = unlinks.map(|row| row.process.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["rm", "unknown thread"]);
}

#[test]
fn direct_io_is_its_control_block_s() {
    let direct = |name: &str, place: u64, to: u64, origin: &str| {
        format!(
            "30u Q {name} R {place}+4096 tid=1 sub=1 inode=5 of={MOUNT} at={place} iocb=k{origin} origin={origin}
             30u G {name} R tid=1
             31u D r{name} R {place}+4096 rel={name} tid=1
             {to}u C r{name} R {place}+4096 tid=0
            "
        )
    };
    // Two control blocks of one io_submit: the thread alone would not tell them apart.
    let submitted = format!(
        "10u aio-submit-read a 0+4096 tid=1 inode=5 of={MOUNT} aux=16384
         11u aio-submit-read b 65536+4096 tid=1 inode=5 of={MOUNT} aux=16384
        "
    );
    let text = sorted(
        &[
            submitted,
            direct("x", 0, 200, "a"),
            direct("y", 65536, 100, "b"),
        ]
        .concat(),
    );
    let mut options = Options::default();
    options.call_story = Some(StoryChoice::Slowest(9));
    let analysis = analyze_with(options, &text);
    let row = row(&analysis, "db", "read", 5);
    assert_eq!((row.n, row.without_io, row.waited), (2, 0, io(2, 8192)));
    let slow: Vec<(u64, u64)> = analysis
        .call_stories
        .iter()
        .map(|story| (story.offset, story.latency_ns))
        .collect();
    assert_eq!(slow, [(0, 190_000), (65536, 89_000)]);
}

#[test]
fn a_log_that_was_forced_is_waited_for_by_who_forced_it() {
    let log = format!(
        "10u fsync fd tid=1 inode=5 of={MOUNT}
         20u log-force 0x1 tid=1 dev={MOUNT}
         30u Q log Wfu 4194304+4096 tid=8 end_io={xlog}
         30u G log Wfu tid=8
         31u D rlog Wfu 4194304+4096 rel=log tid=8
         90u C rlog Wfu 4194304+4096 tid=0
         100u exit-fsync tid=1 result=0
         12u fsync fd tid=2 inode=6 of={MOUNT}
         110u exit-fsync tid=2 result=0
        ",
        xlog = end_io::XFS_LOG
    );
    let analysis = analyze(&sorted(&log));
    assert_eq!(row(&analysis, "db", "fsync", 5).waited, io(1, 4096));
    let other = row(&analysis, "copy", "fsync", 6);
    assert_eq!((other.without_io, other.waited), (1, io(0, 0)));
}

/// Two XFS on one disk force their logs: what each sync waits for is the write that it names.
#[test]
fn of_two_logs_each_sync_has_its_own() {
    let log = |name: &str, place: u64, (from, to): (u64, u64)| {
        format!(
            "{from}u Q {name} Wfu {place}+4096 tid=8 end_io={xlog}
             {from}u G {name} Wfu tid=8
             {from}u D r{name} Wfu {place}+4096 rel={name} tid=8
             {to}u C r{name} Wfu {place}+4096 tid=0
            ",
            xlog = end_io::XFS_LOG
        )
    };
    let sync = |tid: u32, inode: u64, dev: &str, bio: &str| {
        format!(
            "10u fsync fd tid={tid} inode={inode} of={dev}
             20u log-force 0x1 tid={tid} dev={dev}
             25u log-wait {bio} tid={tid} dev={dev} rel=0x1
             100u exit-fsync tid={tid} result=0
            "
        )
    };
    let text = sorted(
        &[
            sync(1, 5, MOUNT, "here"),
            sync(2, 6, "7:2", "there"),
            log("here", 4_194_304, (30, 90)),
            log("there", 8_388_608, (31, 80)),
        ]
        .concat(),
    );
    let analysis = with_trees(&text);
    assert_eq!(journals_of(&analysis, 1), [(10, 80, vec![4_194_304])]);
    assert_eq!(journals_of(&analysis, 2), [(10, 70, vec![8_388_608])]);
}

pub(crate) fn with_trees(text: &str) -> Analysis {
    let mut options = Options::default();
    options.call_story = Some(StoryChoice::Slowest(9));
    analyze_with(options, text)
}

/// Waits of a thread's calls for journals and logs: from and to in µs after the call's begin, and where the bios lie.
pub(crate) fn journals_of(analysis: &Analysis, tid: u32) -> Vec<(i64, i64, Vec<u64>)> {
    let of_thread = analysis.call_stories.iter().filter(|call| call.tid == tid);
    let waits = of_thread.flat_map(|call| &call.tree.children);
    waits
        .filter(|wait| wait.layer.name() == "guest_journal")
        .map(|wait| {
            let places = wait.children.iter().map(|bio| bio.offset).collect();
            (wait.from_ns / 1000, wait.to_ns / 1000, places)
        })
        .collect()
}

const BTRFS: &str = "0:40";

/// A write of a btrfs' trees by a thread.
fn tree(name: &str, tid: u32, place: u64, (from, to): (u64, u64)) -> String {
    format!(
        "{from}u Q {name} Wm {place}+16384 tid={tid} sub=2 inode=1 of={BTRFS} at=0
         {from}u G {name} W tid={tid}
         {from}u D r{name} Wm {place}+16384 rel={name} tid={tid}
         {to}u C r{name} Wm {place}+16384 tid=0
        "
    )
}

/// Writes of a btrfs' trees by one call, with another one that waits for them.
fn two_syncs_of_btrfs(second: &str) -> Analysis {
    with_trees(&sorted(
        &[
            format!(
                "10u fsync fd tid=1 inode=5 of={BTRFS}
                 20u commit-wait 0x7 tid=1 dev={BTRFS} rel=0x5
                 100u exit-fsync tid=1 result=0
                 200u fsync fd tid=1 inode=5 of={BTRFS}
                 210u commit-wait 0x8 tid=1 dev={BTRFS} rel=0x5
                 300u exit-fsync tid=1 result=0
                 15u fsync fd tid=2 inode=6 of={BTRFS}
                "
            ),
            second.replace("BTRFS", BTRFS),
            tree("one", 1, 1_048_576, (30, 90)),
            tree("two", 1, 2_097_152, (220, 290)),
        ]
        .concat(),
    ))
}

#[test]
fn a_sync_of_btrfs_waits_for_the_commit_that_it_names_and_the_log_before() {
    const LOG_7: u64 = 1_048_576;
    const LOG_8: u64 = 2_097_152;
    let waits_for = |number: &str, at: u64, end: u64, more: &str| {
        let analysis = two_syncs_of_btrfs(&format!(
            "{at}u commit-wait {number} tid=2 dev=BTRFS rel=0x5 {more}
             {end}u exit-fsync tid=2 result=0
            "
        ));
        // Each bio is the first one's to wait for it.
        let waited = |process, inode| row(&analysis, process, "fsync", inode).waited.bios;
        assert_eq!(waited("db", 5) + waited("copy", 6), 2);
        assert_eq!(journals_of(&analysis, 1), [], "what it writes is its own");
        journals_of(&analysis, 2)
    };
    assert_eq!(waits_for("0x7", 30, 95, ""), [(15, 75, vec![LOG_7])]);
    let both = [(35, 75, vec![LOG_7]), (35, 275, vec![LOG_8])];
    assert_eq!(waits_for("0x8", 50, 310, ""), both);
    // Log 7 had ended.
    assert_eq!(waits_for("0x8", 150, 310, ""), [(135, 275, vec![LOG_8])]);
    assert_eq!(waits_for("0x7", 150, 310, ""), []);
    assert_eq!(waits_for("0x9", 150, 310, ""), [(135, 275, vec![LOG_8])]);
    // Another subvolume's, a transaction's, and a commit that had not ended.
    assert_eq!(waits_for("0x7", 30, 95, "rel=0x100"), []);
    assert_eq!(waits_for("0x7", 30, 95, "sub=2"), []);
    assert_eq!(waits_for("0x7", 30, 80, ""), []);
}

#[test]
fn a_sync_waits_for_the_transaction_that_the_kernels_own_thread_commits() {
    const PLACE: u64 = 1_048_576;
    let waits_for = |committer: &str, number: &str| {
        let text = format!(
            "0 thread tid=3 tgid=3 name={committer}
             10u fsync fd tid=1 inode=5 of={BTRFS}
             20u commit-wait 0x7 tid=3 dev={BTRFS} sub=2
             35u commit-wait {number} tid=1 dev={BTRFS} sub=2
             100u exit-fsync tid=1 result=0
            "
        );
        let before = tree("before", 3, 2 * PLACE, (15, 80));
        let text = [text, before, tree("its", 3, PLACE, (30, 90))].concat();
        journals_of(&with_trees(&sorted(&text)), 1)
    };
    assert_eq!(waits_for("btrfs-transacti", "0x7"), [(25, 80, vec![PLACE])]);
    assert_eq!(waits_for("btrfs-transacti", "0x8"), []);
    // A worker writes for any commit.
    assert_eq!(waits_for("kworker/u8:1", "0x7"), []);
}

#[test]
fn an_msync_begins_before_it_comes_to_its_file() {
    let text = sorted(
        &[
            format!(
                "20u msync tid=1 inode=5 of={MOUNT} issued=10u
                 100u exit-msync tid=1 result=0
                "
            ),
            bio("its", 1, "W", (30, 90), 5, 0),
            // Perhaps of pages outside of its range.
            bio("other", 7, "W", (25, 80), 5, 8192),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let row = row(&analysis, "db", "msync", 5);
    assert_eq!((row.n, row.waited), (1, io(1, 4096)));
    assert_eq!(row.latency_ns.max, Some(90_000));
}

#[test]
fn pages_are_of_the_one_write_that_changes_them_as_they_are_written_back() {
    let write = |tid: u32, at: u64| {
        format!(
            "10u write {at}+4096 tid={tid} inode=5 of={MOUNT}
             100u exit-write result=4096 tid={tid}
            "
        )
    };
    let text = sorted(
        &[
            write(1, 0),
            write(2, 4096),
            bio("its", 7, "W", (30, 60), 5, 0),
            // Of two of them, and of one that begins later.
            bio("both", 7, "W", (31, 61), 5, 0).replace("+4096", "+8192"),
            bio("early", 7, "W", (5, 62), 5, 4096),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    assert_eq!(row(&analysis, "db", "write", 5).deferred, io(1, 4096));
    assert_eq!(row(&analysis, "copy", "write", 5).deferred, io(0, 0));
    assert_eq!(analysis.guest_calls[0].other.bios, 2);
}

fn segment(row: &CallRow, name: &str) -> f64 {
    let segment = row.segments.iter().find(|segment| segment.name == name);
    segment.map_or(0.0, |segment| segment.mean_ns)
}

#[test]
fn pauses_of_a_writer_end_with_its_call() {
    let text = format!(
        "10u write 0+4096 tid=1 inode=5 of={MOUNT}
         20u throttle tid=1 result=30000
         60u throttle tid=1 result=900000
         100u exit-write result=4096 tid=1
        "
    );
    let analysis = analyze(&text);
    let writer = row(&analysis, "db", "write", 5);
    assert_eq!((writer.n, writer.without_io, writer.linked), (1, 0, 1));
    assert_eq!(segment(writer, "guest_dirty_throttle"), 70_000.0);
    assert_eq!(segment(writer, "guest_fs_submit"), 10_000.0);
    assert_eq!(segment(writer, "guest_fs_between"), 10_000.0);
}

#[test]
fn a_call_waits_for_space_in_the_log() {
    let text = format!(
        "10u write 0+4096 tid=1 inode=5 of={MOUNT}
         20u log-space-sleep 0x0 tid=1 dev={MOUNT}
         50u log-space-wake 0x0 tid=1 dev={MOUNT}
         50u log-space-sleep 0x0 tid=1 dev={MOUNT}
         80u log-space-wake 0x0 tid=1 dev={MOUNT}
         100u exit-write result=4096 tid=1
         120u log-space-sleep 0x0 tid=2 dev={MOUNT}
         170u log-space-wake 0x0 tid=2 dev={MOUNT}
         # Its end was lost.
         172u log-space-sleep 0x0 tid=2 dev={MOUNT}
         180u unlinked tid=2 of={MOUNT} issued=110u result=0
        "
    );
    let analysis = analyze(&text);
    let writer = row(&analysis, "db", "write", 5);
    assert_eq!((writer.n, writer.without_io, writer.linked), (1, 0, 1));
    assert_eq!(segment(writer, "guest_journal"), 60_000.0);
    assert_eq!(segment(writer, "guest_fs_submit"), 10_000.0);
    let calls = analysis.calls.as_ref().expect("calls are known");
    let unlink = calls.iter().find(|row| row.op.name() == "unlink");
    let unlink = unlink.expect("it is known");
    assert_eq!(segment(unlink, "guest_journal"), 50_000.0);
}

#[test]
fn a_fault_on_a_mapped_file_waits_until_it_looks_again() {
    let text = sorted(
        &[
            format!(
                "10u page-fault tid=1 inode=5 of={MOUNT} result=8192
                 120u page-fault tid=1 inode=5 of={MOUNT} result=8192
                 # In the cache.
                 200u page-fault tid=1 inode=5 of={MOUNT} result=12288
                 300u page-fault tid=1 inode=5 of={MOUNT} result=16384
                "
            ),
            bio("page", 1, "R", (20, 100), 5, 8192),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let faults = row(&analysis, "db", "page_fault", 5);
    assert_eq!((faults.n, faults.waited), (1, io(1, 4096)));
    assert_eq!(faults.latency_ns.max, Some(110_000));
}

/// The kernel maps a page that has come together with those around it, and does not look for it again.
#[test]
fn a_fault_that_does_not_look_again_ends_with_the_read_of_its_page() {
    let text = sorted(
        &[
            format!(
                "10u page-fault tid=1 inode=5 of={MOUNT} result=8192
                 200u page-fault tid=1 inode=5 of={MOUNT} result=65536
                 # Waits for what the other thread has queued.
                 50u page-fault tid=2 inode=5 of={MOUNT} result=8192
                 # Was there; somebody else reads it long after.
                 400u page-fault tid=2 inode=5 of={MOUNT} result=131072
                 900u page-fault tid=2 inode=5 of={MOUNT} result=4096
                "
            ),
            bio("first", 1, "R", (20, 100), 5, 8192),
            bio("second", 1, "R", (210, 300), 5, 65536),
            bio("others", 3, "R", (500, 600), 5, 131_072),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let faults = row(&analysis, "db", "page_fault", 5);
    assert_eq!((faults.n, faults.waited), (2, io(2, 8192)));
    assert_eq!(faults.latency_ns.max, Some(100_000));
    let other = row(&analysis, "copy", "page_fault", 5);
    assert_eq!((other.n, other.latency_ns.max), (1, Some(50_000)));
    assert_eq!(analysis.guest_calls[0].other, io(1, 4096));
}

#[test]
fn a_call_that_is_told_at_its_return_waited_for_what_its_thread_read() {
    let metadata = |name: &str, tid: u32, from: u64, to: u64| {
        format!(
            "{from}u Q {name} Rm 8388608+4096 tid={tid} sub=2 inode={DEV} of=0:5 at=8388608
             {from}u G {name} R tid={tid}
             {from}u D r{name} Rm 8388608+4096 rel={name} tid={tid}
             {to}u C r{name} Rm 8388608+4096 tid=0
            "
        )
    };
    let text = sorted(
        &[
            metadata("dir", 1, 20, 90),
            // Another thread's, and one from before.
            metadata("other", 2, 30, 80),
            metadata("before", 1, 2, 5),
            format!("100u unlinked tid=1 of={MOUNT} issued=10u result=0\n"),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let calls = analysis.calls.as_ref().expect("calls");
    let unlink = calls
        .iter()
        .find(|row| row.op.name() == "unlink")
        .expect("unlink");
    assert_eq!((unlink.n, unlink.waited), (1, io(1, 4096)));
    assert_eq!(unlink.latency_ns.max, Some(90_000));
    assert_eq!(analysis.guest_calls[0].other.bios, 2);
}

/// A guest that begins syncs without end, on one file that it writes all the time: what is held has a bound, and each
/// bio is counted once all the same.
#[test]
fn calls_without_end_hold_no_more_than_they_may() {
    const BIOS: u64 = 3_000;
    let mut text = String::new();
    for tid in 1..12_000 {
        text.push_str(&format!("10u fsync fd tid={tid} inode=5 of={MOUNT}\n"));
    }
    for n in 0..BIOS {
        text.push_str(&bio(
            &format!("b{n}"),
            70_000,
            "W",
            (20 + n, 20 + n),
            5,
            n * 4096,
        ));
    }
    let analysis = analyze(&text);
    let guest = &analysis.guest_calls[0];
    assert_eq!(guest.unended, 11_999);
    let all = [guest.waited, guest.deferred, guest.journal, guest.other];
    assert_eq!(all.iter().map(|io| io.bios).sum::<u64>(), BIOS);
}

#[test]
fn events_that_are_lost_leave_no_call_and_no_bio_behind() {
    let text = sorted(
        &[
            format!("10u fsync fd tid=1 inode=5 of={MOUNT}\n"),
            bio("mine", 1, "W", (20, 30), 5, 0),
            "40u loss total=3 sub=1\n".into(),
            // The end is of a call that may be another.
            "50u exit-fsync tid=1 result=0\n".into(),
        ]
        .concat(),
    );
    let analysis = analyze(&text);
    let guest = &analysis.guest_calls[0];
    assert_eq!((guest.unended, guest.waited.bios), (1, 0));
    assert_eq!(guest.deferred, io(1, 4096));
}

#[test]
fn without_calls_there_is_a_reason() {
    let probe = |source: &str| Probe {
        source: source.to_owned(),
        ..Probe::default()
    };
    let recorded = |backend, sources: &[&str], mounted: bool| {
        let mut manifest = one_guest::manifest(backend, DEV);
        let side = &mut manifest.guest_sides[0];
        side.probes = sources.iter().copied().map(probe).collect();
        side.mounts = vec![GuestMount::default(); usize::from(mounted)];
        manifest
    };
    for (manifest, reason) in [
        (recorded("blktrace", &[], true), "blktrace"),
        (recorded("ebpf", &["block"], true), "--detail io"),
        (recorded("ebpf", &["block"], false), "--detail io"),
        (recorded("ebpf", &["block", "file"], false), "mounted"),
        (recorded("ebpf", &["block", "file"], true), "no call"),
        // Repaired without a manifest: the detail is not known.
        (recorded("ebpf", &[], true), "no call"),
    ] {
        let mut analyzer = Analyzer::new(&manifest, Options::default());
        for event in events(&bio("b", 1, "R", (1, 2), 5, 0)) {
            analyzer.push_guest(0, &event);
        }
        let analysis = analyzer.finish();
        assert!(analysis.calls.is_none());
        let why = analysis.guest_calls[0].why_none.as_deref();
        assert!(why.is_some_and(|why| why.contains(reason)), "{why:?}");
    }
}
