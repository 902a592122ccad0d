//! What syncs of programs waited for that was not their own, from the events to the findings.

use nestrace_abi::flags::{self, op};
use nestrace_analyzer::analysis::{Evidence, Finding};
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::manifest::{GuestMount, GuestSide, Manifest, Probe, Refused};
use nestrace_trace::{Event, Kind, Source};

use crate::two_sides::{self, Disk, Streams, VDA, VM1, WAY};

const START: u64 = 10_000_000_000;
/// Device number of the file system.
const FS: u32 = VDA | 1;
const JOURNAL: u32 = 9;

/// A guest's file system that its agent recorded with all calls.
fn manifest(change: impl Fn(&mut GuestSide)) -> Manifest {
    let mut manifest = two_sides::manifest();
    let side = &mut manifest.guest_sides[0];
    side.mounts = vec![GuestMount {
        disk: "vda".into(),
        dev: FS,
        fs_type: "ext4".into(),
        mount_point: "/srv".into(),
        options: "rw,nodelalloc".into(),
    }];
    let probe = |name: &str, source: Source| Probe {
        name: name.into(),
        source: source.name().into(),
        ..Probe::default()
    };
    side.probes = vec![
        probe("sys_enter", Source::File),
        probe("balance_dirty_pages", Source::HostFs),
    ];
    change(side);
    manifest
}

/// Who syncs which file.
#[derive(Clone, Copy)]
struct Sync {
    tid: u32,
    inode: u64,
    op: u8,
    bytes: u64,
    /// Transactions of all of it, and of its data.
    transactions: (u64, u64),
}

struct World {
    streams: Streams,
    at: u64,
    place: u64,
    transaction: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            streams: Streams::new(2),
            at: START,
            place: 0,
            transaction: 100,
        };
        for (tid, name) in [(1, *b"db"), (2, *b"cp")] {
            let event = Event {
                object: u64::from(tid),
                tid,
                related: u64::from(u16::from_le_bytes(name)),
                ..Event::default()
            };
            world.streams.guest(VM1, START - 1000, Kind::Thread, event);
        }
        world
    }

    fn call(&mut self, at: u64, kind: Kind, tid: u32, inode: u64, event: Event) {
        let disk = Disk { dev: 0, ..VM1 };
        let event = Event {
            tid,
            inode,
            owner_dev: FS,
            ..event
        };
        self.streams.guest(disk, at, kind, event);
    }

    fn write(&mut self, tid: u32, inode: u64, offset: u64, bytes: u64) {
        let event = Event {
            sub: op::WRITE,
            offset,
            bytes,
            ..Event::default()
        };
        self.call(self.at, Kind::SyscallEnter, tid, inode, event);
        let event = Event {
            sub: op::WRITE,
            offset: bytes,
            ..Event::default()
        };
        self.call(self.at + 1_000, Kind::SyscallExit, tid, inode, event);
        self.at += 2_000;
    }

    /// A bio of a file's pages, or of the file system's own without one; gives its end.
    fn bio(&mut self, at: u64, tid: u32, file: Option<(u64, u64)>, bytes: u64) -> u64 {
        self.place += bytes;
        let end = self
            .streams
            .bio(VM1, at, flags::OP_WRITE, self.place, bytes, WAY);
        let mut events = self.streams.guests[0].iter_mut();
        let queue = events.rfind(|event| event.kind == Kind::Queue as u8);
        let queue = queue.expect("its Q");
        let (inode, offset) = file.unwrap_or((u64::from(VDA), self.place));
        queue.sub = flags::OWNER_PAGES;
        queue.inode = inode;
        queue.owner_dev = if file.is_some() { FS } else { 5 };
        queue.file_offset = offset;
        queue.tid = tid;
        end
    }

    fn journal(&mut self, kind: Kind, at: u64) {
        let event = Event {
            object: self.transaction,
            tid: JOURNAL,
            ..Event::default()
        };
        self.streams.guest(VM1, at, kind, event);
    }

    /// The next commit, from `at`, with another file's data; gives its end.
    fn commit(&mut self, at: u64, others: Option<(u64, u64, u64)>) -> u64 {
        self.transaction += 1;
        self.journal(Kind::JournalCommitStart, at);
        let mut end = at + 1_000;
        if let Some((inode, offset, bytes)) = others {
            end = self.bio(end, JOURNAL, Some((inode, offset)), bytes) + 1_000;
        }
        end = self.bio(end, JOURNAL, None, 4096) + 1_000;
        self.journal(Kind::JournalCommitEnd, end);
        end
    }

    fn sync_begins(&mut self, at: u64, sync: Sync) {
        let event = Event {
            sub: sync.op,
            ..Event::default()
        };
        self.call(at, Kind::SyscallEnter, sync.tid, sync.inode, event);
        self.call(at, Kind::SyncEnter, sync.tid, sync.inode, event);
    }

    fn sync_ends(&mut self, at: u64, sync: Sync) {
        let event = Event {
            sub: sync.op,
            related: sync.transactions.0 | sync.transactions.1 << 32,
            ..Event::default()
        };
        self.call(at, Kind::SyncExit, sync.tid, sync.inode, event);
        let event = Event {
            related: 0,
            ..event
        };
        self.call(at + 500, Kind::SyscallExit, sync.tid, sync.inode, event);
        self.at = self.at.max(at + 20_000);
    }

    /// A write of the sync's bytes at its `n`-th place, its sync, and the commit of that, which writes another file's data.
    /// `by_data`: whether the data need the commit.
    fn synced(&mut self, n: u64, mut sync: Sync, by_data: bool, others: Option<(u64, u64, u64)>) {
        self.write(sync.tid, sync.inode, n * sync.bytes, sync.bytes);
        let at = self.at;
        self.sync_begins(at, sync);
        let data = self.bio(
            at + 1_000,
            sync.tid,
            Some((sync.inode, n * sync.bytes)),
            sync.bytes,
        );
        let end = self.commit(data + 1_000, others);
        let number = self.transaction;
        sync.transactions = (number, if by_data { number } else { 3 });
        self.sync_ends(end + 1_000, sync);
    }

    fn analyze(self, manifest: &Manifest) -> Analysis {
        self.streams.analyze(manifest, Options::default())
    }
}

const LOG: Sync = Sync {
    tid: 1,
    inode: 12,
    op: op::FSYNC,
    bytes: 64 << 10,
    transactions: (0, 0),
};
const RULES: [&str; 4] = [
    "sync-drags-others",
    "small-syncs",
    "sync-of-metadata",
    "log-on-shared-journal",
];

/// Of the rules about syncs.
fn found(analysis: &Analysis) -> Vec<&Finding> {
    let findings = analysis.findings.iter();
    findings.filter(|it| RULES.contains(&it.id)).collect()
}

fn only<'a>(analysis: &'a Analysis, id: &str) -> &'a Finding {
    let found = found(analysis);
    let [finding] = found.as_slice() else {
        panic!("{found:?}, unjudged {:?}", analysis.findings_unjudged);
    };
    assert_eq!(finding.id, id);
    finding
}

/// Why the rules cannot judge vm1's `vd`.
fn missing(analysis: &Analysis) -> Vec<(&'static str, &'static str)> {
    let unjudged = analysis.findings_unjudged.iter();
    let of_rules = unjudged.filter(|it| {
        RULES.contains(&it.id) && (it.guest.as_str(), it.disk.as_str()) == ("vm1", "vd")
    });
    of_rules.map(|it| (it.id, it.missing)).collect()
}

/// A log of 60 records beside a copy: each commit writes what the copy has written since the last.
fn beside_a_copy(drags: bool) -> World {
    let mut world = World::new();
    for n in 0..60 {
        world.write(2, 13, n << 16, 1 << 16);
        world.synced(n, LOG, true, drags.then_some((13, n << 16, 1 << 16)));
    }
    world
}

#[test]
fn syncs_that_write_another_programs_file_name_it_with_its_bytes() {
    let analysis = beside_a_copy(true).analyze(&manifest(|_| {}));
    let finding = only(&analysis, "sync-drags-others");
    assert_eq!(finding.evidence["program"], Evidence::from("db"));
    assert_eq!(finding.evidence["other_program"], Evidence::from("cp"));
    assert_eq!(finding.evidence["file"], Evidence::from("inode 12 on /srv"));
    assert_eq!(
        finding.evidence["other_file"],
        Evidence::from("inode 13 on /srv")
    );
    // All that the copy had made dirty.
    assert_eq!(finding.evidence["others_bytes"], Evidence::from(60 << 16));
    // One of three bios in a row.
    assert!((0.25..0.35).contains(&finding.share), "{finding:?}");
    let silent = beside_a_copy(false).analyze(&manifest(|_| {}));
    assert!(found(&silent).is_empty(), "{:?}", found(&silent));
    assert!(missing(&silent).is_empty(), "{:?}", missing(&silent));
}

#[test]
fn syncs_of_a_few_kib() {
    let with = |bytes: u64| {
        let mut world = World::new();
        for n in 0..100 {
            world.synced(n, Sync { bytes, ..LOG }, true, None);
        }
        world.analyze(&manifest(|_| {}))
    };
    let analysis = with(4096);
    let finding = only(&analysis, "small-syncs");
    assert_eq!(finding.evidence["bytes_per_sync"], Evidence::from(4096));
    assert_eq!(finding.evidence["syncs"], Evidence::from(100));
    assert!(found(&with(20 << 10)).is_empty());
}

#[test]
fn commits_that_no_data_needs() {
    let with = |op: u8, by_data: bool| {
        let mut world = World::new();
        for n in 0..60 {
            world.synced(n % 7 * 3, Sync { op, ..LOG }, by_data, None);
        }
        world.analyze(&manifest(|_| {}))
    };
    let analysis = with(op::FSYNC, false);
    let finding = only(&analysis, "sync-of-metadata");
    assert_eq!(finding.evidence["syncs_for_times"], Evidence::from(60));
    // The commit is one of the two bios of a sync.
    assert!((0.4..0.6).contains(&finding.share), "{finding:?}");
    assert!(found(&with(op::FSYNC, true)).is_empty());
    assert!(found(&with(op::FDATASYNC, true)).is_empty());
    assert!(found(&with(op::FDATASYNC, false)).is_empty());
}

/// A log whose syncs begin while a commit is under way that a sync of this file has asked for.
fn behind_a_commit_for(other: Sync) -> Analysis {
    let mut world = World::new();
    for n in 0..60 {
        world.write(1, LOG.inode, n * LOG.bytes, LOG.bytes);
        let at = world.at;
        world.sync_begins(at, other);
        let others = world.commit(at + 1_000, None);
        let first = world.transaction;
        world.sync_begins(at + 2_000, LOG);
        let ended = Sync {
            transactions: (first, first),
            ..other
        };
        world.sync_ends(others + 500, ended);
        let end = world.commit(others + 1_000, None);
        let second = world.transaction;
        let ended = Sync {
            transactions: (second, second),
            ..LOG
        };
        world.sync_ends(end + 1_000, ended);
    }
    world.analyze(&manifest(|_| {}))
}

#[test]
fn a_log_behind_the_commits_of_another_file() {
    let mail = Sync {
        tid: 2,
        inode: 14,
        ..LOG
    };
    let analysis = behind_a_commit_for(mail);
    let finding = only(&analysis, "log-on-shared-journal");
    assert_eq!(finding.evidence["other_program"], Evidence::from("cp"));
    assert_eq!(
        finding.evidence["other_file"],
        Evidence::from("inode 14 on /srv")
    );
    assert_eq!(finding.evidence["syncs_behind_others"], Evidence::from(60));
    // Another thread's sync of the log itself.
    let itself = behind_a_commit_for(Sync { tid: 2, ..LOG });
    assert!(found(&itself).is_empty(), "{:?}", found(&itself));
}

#[test]
fn without_calls_the_rules_say_why() {
    let no_calls = |why: &str, change: fn(&mut GuestSide)| {
        let analysis = beside_a_copy(true).analyze(&manifest(change));
        assert!(found(&analysis).is_empty());
        let missing = missing(&analysis);
        assert_eq!(missing.len(), RULES.len(), "{why}: {missing:?}");
        assert!(missing.iter().all(|it| it.1.contains(why)), "{missing:?}");
        // Whether there is anything to gain below the programs is another matter.
        let mut unjudged = analysis.findings_unjudged.iter();
        assert!(unjudged.all(|it| it.id != "nothing-to-gain"));
    };
    no_calls("calls of the guest's programs were not recorded", |side| {
        side.backend = "blktrace".into();
    });
    no_calls("calls of the guest's programs were not recorded", |side| {
        side.probes
            .retain(|probe| probe.source != Source::File.name());
    });
    no_calls("agent was older", |side| {
        side.probes.retain(|probe| probe.name == "sys_enter");
    });
    // A kernel that lacks the probe is no older agent.
    let refused = manifest(|side| {
        let lacks = side.probes.pop().expect("the probe");
        side.probes_refused = vec![Refused {
            name: lacks.name,
            ..Refused::default()
        }];
    });
    only(&beside_a_copy(true).analyze(&refused), "sync-drags-others");
    // No file system of the guest, no file that a program syncs.
    let bare = beside_a_copy(true).analyze(&manifest(|side| side.mounts.clear()));
    assert!(found(&bare).is_empty() && missing(&bare).is_empty());
}

#[test]
fn a_guest_that_was_not_recorded_from_inside_is_not_judged() {
    let mut alone = manifest(|_| {});
    alone.guest_sides.clear();
    let mut world = beside_a_copy(true);
    world.streams.guests.clear();
    let analysis = world.analyze(&alone);
    let missing = missing(&analysis);
    assert_eq!(missing.len(), RULES.len(), "{missing:?}");
    assert!(missing.iter().all(|it| it.1.contains("from inside")));
}
