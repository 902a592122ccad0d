use super::*;
use crate::result::analysis::{CallFile, Evidence, OthersData};

const MS: u128 = 1_000_000;

fn named(path: &str) -> CallFile {
    CallFile {
        mount: String::from("/srv"),
        inode: Some(12),
        path: Some(path.to_owned()),
    }
}

fn mount(fs_type: &str, options: &str) -> GuestMount {
    GuestMount {
        disk: String::from("vda"),
        dev: 1,
        fs_type: fs_type.to_owned(),
        mount_point: String::from("/srv"),
        options: options.to_owned(),
    }
}

/// A log: 100 syncs of 64 KiB, 10 ms each, all followed.
fn log() -> FileSyncs {
    FileSyncs {
        program: String::from("db"),
        dev: 1,
        file: named("/srv/log"),
        counts: SyncCounts {
            writes: 100,
            written_bytes: 100 << 16,
            in_sequence: 100,
            syncs: 100,
            followed: 100,
            latency_ns: 1000 * MS,
            ..SyncCounts::default()
        },
        ..FileSyncs::default()
    }
}

fn with(change: impl Fn(&mut FileSyncs)) -> FileSyncs {
    let mut file = log();
    change(&mut file);
    file
}

/// Drags 4 MiB in half of its time.
fn beside_a_stream() -> FileSyncs {
    with(|file| {
        file.counts.others_data_ns = 500 * MS;
        file.others_data = vec![OthersData {
            process: Some(String::from("copy")),
            file: named("/srv/copy"),
            bytes: 4 << 20,
        }];
    })
}

/// Waits behind another program's commits for a third of its time.
fn beside_mail() -> FileSyncs {
    with(|file| {
        file.counts.behind = 80;
        file.counts.behind_ns = 330 * MS;
        file.behind = vec![(String::from("mail"), named("/srv/mail"))];
    })
}

fn for_times() -> FileSyncs {
    with(|file| {
        file.counts.for_times = 90;
        file.counts.for_times_ns = 600 * MS;
    })
}

type Rule = fn(Programs<'_>) -> Judgement;

fn judge(rule: Rule, mount: &GuestMount, files: &[FileSyncs]) -> Judgement {
    rule(Programs {
        mounts: &[mount],
        syncs: files,
        calls_ns: 1100 * MS,
    })
}

/// What a rule says: its share in percent, nothing, or what is missing.
fn said(rule: Rule, fs_type: &str, file: FileSyncs) -> Result<Option<u64>, Missing> {
    let case = judge(rule, &mount(fs_type, "rw"), &[file])?;
    Ok(case.map(|case| (case.share * 100.0).round() as u64))
}

#[test]
fn a_sync_that_writes_another_file() {
    for (file, expected) in [
        (beside_a_stream(), Ok(Some(45))),
        (log(), Ok(None)),
        // Too few syncs, too few bytes, too little time.
        (
            FileSyncs {
                counts: SyncCounts {
                    syncs: 9,
                    followed: 9,
                    ..beside_a_stream().counts
                },
                ..beside_a_stream()
            },
            Ok(None),
        ),
        (
            with(|file| {
                *file = beside_a_stream();
                file.others_data[0].bytes = 1 << 19;
            }),
            Ok(None),
        ),
        (
            with(|file| {
                *file = beside_a_stream();
                file.counts.others_data_ns = 50 * MS;
            }),
            Ok(None),
        ),
        (
            with(|file| {
                *file = beside_a_stream();
                file.counts.followed = 97;
            }),
            Err(NOT_FOLLOWED),
        ),
    ] {
        let what = format!("{file:?}");
        assert_eq!(said(dragging, "ext4", file), expected, "{what}");
    }
    // Elsewhere no commit writes data of files.
    assert_eq!(said(dragging, "xfs", beside_a_stream()), Ok(None));
}

#[test]
fn both_programs_and_files_are_named_and_the_advice_fits_the_mount() {
    for (fs_type, options, first) in [
        (
            "ext4",
            "rw,nodelalloc",
            "Mount /srv with delayed allocation",
        ),
        ("ext4", "rw,relatime", "Give /srv/log a file system"),
        ("ext3", "rw", "Mount /srv as ext4"),
    ] {
        let case = judge(dragging, &mount(fs_type, options), &[beside_a_stream()]);
        let case = case.unwrap().expect("it fires");
        for word in ["db", "/srv/log", "copy", "/srv/copy"] {
            assert!(case.title.contains(word), "{}", case.title);
        }
        assert_eq!(case.evidence["others_bytes"], Evidence::Whole(4 << 20));
        assert!(case.advice[0].starts_with(first), "{:?}", case.advice);
        let last = case.advice.last().unwrap();
        assert!(
            last.contains("data=writeback") && last.contains("deleted files"),
            "{last}"
        );
    }
}

#[test]
fn a_program_that_syncs_every_few_kib() {
    let small = |syncs: u64, bytes: u64| {
        with(|file| {
            file.counts.syncs = syncs;
            file.counts.followed = syncs;
            file.counts.written_bytes = bytes;
        })
    };
    for (file, expected) in [
        (small(100, 100 << 12), Ok(Some(91))),
        (small(100, 100 << 14), Ok(Some(91))),
        (small(100, (100 << 14) + 1), Ok(None)),
        (small(99, 99 << 12), Ok(None)),
        (
            with(|file| {
                *file = small(100, 100 << 12);
                file.counts.latency_ns = 50 * MS;
            }),
            Ok(None),
        ),
        (
            with(|file| {
                *file = small(100, 100 << 12);
                file.counts.followed = 50;
            }),
            Err(NOT_FOLLOWED),
        ),
    ] {
        let what = format!("{file:?}");
        assert_eq!(said(super::small, "xfs", file), expected, "{what}");
    }
    // Many files of a program are one matter, two programs are two.
    let halves = |program: &str| {
        [small(60, 60 << 12), small(60, 60 << 12)].map(|file| FileSyncs {
            program: program.to_owned(),
            ..file
        })
    };
    let [first, second] = halves("mail");
    let ext4 = mount("ext4", "rw");
    let of_one = judge(super::small, &ext4, &[first.clone(), second.clone()]);
    let of_one = of_one.unwrap().expect("it fires");
    assert_eq!(of_one.evidence["syncs"], Evidence::Whole(120));
    let other = FileSyncs {
        program: String::from("db"),
        ..second
    };
    assert!(
        judge(super::small, &ext4, &[first, other])
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_commit_for_times_alone() {
    for (fs_type, file, expected) in [
        ("ext4", for_times(), Ok(Some(55))),
        ("ext4", log(), Ok(None)),
        (
            "ext4",
            with(|file| {
                *file = for_times();
                file.counts.for_times = 49;
            }),
            Ok(None),
        ),
        (
            "ext4",
            with(|file| {
                *file = for_times();
                file.counts.for_times_ns = 50 * MS;
            }),
            Ok(None),
        ),
        (
            "ext4",
            with(|file| {
                *file = for_times();
                file.counts.unknown_commit = 3;
            }),
            Err(NO_COMMITS),
        ),
        (
            "ext4",
            with(|file| {
                *file = for_times();
                file.counts.followed = 90;
            }),
            Err(NOT_FOLLOWED),
        ),
        // No commit of XFS is recorded; ext2 makes none.
        ("xfs", log(), Err(NOT_EXT4)),
        ("xfs", with(|file| file.counts.syncs = 49), Ok(None)),
        ("ext2", log(), Ok(None)),
    ] {
        let what = format!("{fs_type} {file:?}");
        assert_eq!(said(of_metadata, fs_type, file), expected, "{what}");
    }
}

#[test]
fn a_log_that_waits_for_others_commits() {
    for (fs_type, file, expected) in [
        ("ext4", beside_mail(), Ok(Some(30))),
        ("ext4", log(), Ok(None)),
        // No log is written at random.
        (
            "ext4",
            with(|file| {
                *file = beside_mail();
                file.counts.in_sequence = 89;
            }),
            Ok(None),
        ),
        (
            "ext4",
            with(|file| {
                *file = beside_mail();
                file.counts.behind_ns = 50 * MS;
            }),
            Ok(None),
        ),
        ("btrfs", log(), Err(NOT_EXT4)),
    ] {
        let what = format!("{fs_type} {file:?}");
        assert_eq!(said(shared_journal, fs_type, file), expected, "{what}");
    }
    let case = judge(shared_journal, &mount("ext4", "rw"), &[beside_mail()]);
    let case = case.unwrap().expect("it fires");
    assert!(
        case.explanation.contains("mail for /srv/mail"),
        "{}",
        case.explanation
    );
}
