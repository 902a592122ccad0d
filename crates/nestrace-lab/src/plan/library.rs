//! Workloads that have a name: FAST'12's micro set, Filebench's personalities, iozone's tests, the modes
//! of sysbench fileio, databases, and what installations do.
//!
//! Filebench and iozone are no Debian packages, and a guest of the rig holds little: all but sysbench's and the
//! shell ones are jobs of fio. Each says in its note what of its model it leaves out. Where the programs themselves are
//! found they do it ([`real_tool`]).

use nestrace_report::lab::Metric;

use super::file_io::{self, FileIo};
use super::oltp::{self, Oltp};
use super::real_tool;
use super::workload::{Action, FioJobs, Scale, Script, Workload};

/// Names of the library.
pub const NAMES: [&str; 28] = [
    "seqread",
    "seqwrite",
    "randread",
    "randwrite",
    "fileserver",
    "webserver",
    "dbserver",
    "mailserver",
    "iozone-write",
    "iozone-rewrite",
    "iozone-read",
    "iozone-reread",
    "iozone-randread",
    "iozone-randwrite",
    "sysbench-seqwr",
    "sysbench-seqrewr",
    "sysbench-seqrd",
    "sysbench-rndrd",
    "sysbench-rndwr",
    "sysbench-rndrw",
    "oltp-point-select",
    "oltp-insert",
    "oltp-update-index",
    "oltp-read-write",
    "create-files",
    "open-files",
    "fsck-files",
    "unpack-tree",
];

/// What a plan may say of a workload of the library, where it is not the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice<'t> {
    /// In fio's words: `8k`.
    pub block_size: Option<&'t str>,
    /// Connections of a database.
    pub threads: Option<u32>,
    /// Bytes of the disk, which bound how many files there can be; `None` where it is not known.
    pub image_bytes: Option<u64>,
}

/// A workload by its name.
#[must_use]
pub fn named(name: &str, scale: Scale, choice: Choice<'_>) -> Option<Workload> {
    let Choice {
        block_size,
        threads,
        image_bytes,
    } = choice;
    let n_files = n_small_files(&scale, image_bytes);
    let (model, test) = name.split_once('-').unwrap_or((name, ""));
    let (note, metric, action) = match (model, test) {
        ("seqread" | "seqwrite" | "randread" | "randwrite", "") => {
            micro(name, &scale, block_size.unwrap_or("8k"))
        }
        ("fileserver" | "webserver" | "dbserver" | "mailserver", "") => personality(name, &scale),
        ("iozone", test) => iozone(test, &scale, block_size.unwrap_or("64k"))?,
        ("sysbench", mode) => sysbench(mode, block_size.unwrap_or("16k"))?,
        ("oltp", test) => database(test, &scale, threads.unwrap_or(CONNECTIONS))?,
        ("create", "files") => create_files(n_files),
        ("open", "files") => open_files(n_files),
        ("fsck", "files") => fsck_files(n_files),
        ("unpack", "tree") => unpack_tree(&scale),
        _ => return None,
    };
    Some(Workload {
        name: name.to_owned(),
        note,
        metric,
        scale,
        action,
        upgrade: None,
        model: match (model, test) {
            ("fileserver" | "webserver" | "dbserver" | "mailserver", "") => {
                Some(real_tool::filebench(name, &scale))
            }
            ("iozone", test) => real_tool::iozone(test, &scale, block_size.unwrap_or("64k")),
            _ => None,
        },
        places: Vec::new(),
    })
}

/// Whether a workload of the library has a block size that a plan may choose.
#[must_use]
pub fn has_block_size(name: &str) -> bool {
    let models = [
        "seqread",
        "seqwrite",
        "randread",
        "randwrite",
        "iozone",
        "sysbench",
    ];
    let model = name.split('-').next().unwrap_or(name);
    NAMES.contains(&name) && models.contains(&model)
}

/// Whether a workload of the library goes past the guest's page cache in blocks of a size that a plan may choose.
#[must_use]
pub fn is_direct(name: &str) -> bool {
    has_block_size(name) && !name.starts_with("iozone")
}

type Parts = (String, Metric, Action);

fn fio(jobs: &[(&str, String)], is_timed: bool) -> FioJobs {
    let jobs = jobs.iter();
    FioJobs {
        jobs: jobs
            .map(|(name, options)| ((*name).to_owned(), options.clone()))
            .collect(),
        is_timed,
        ..FioJobs::default()
    }
}

/// FAST'12: 8 KiB, 255 in parallel, native asynchronous I/O. O_DIRECT, because Linux' native I/O is
/// synchronous without it.
fn micro(name: &str, scale: &Scale, block_size: &str) -> Parts {
    let rw = match name {
        "seqread" => "read",
        "seqwrite" => "write",
        other => other,
    };
    // Writing at random is writing into a file that is there.
    let overwrite = if name == "randwrite" {
        " --overwrite=1"
    } else {
        ""
    };
    let options = format!(
        "--rw={rw} --bs={} --ioengine=libaio --iodepth=255 --direct=1 --size={}{overwrite}",
        block_size, scale.data_bytes
    );
    let published = if block_size == "8k" {
        ""
    } else {
        " (published: 8k)"
    };
    let note = format!(
        "FAST'12's micro benchmark with fio: {block_size}{published}, 255 in flight, native asynchronous I/O with O_DIRECT (without it, the I/O is not asynchronous); size and time are scaled"
    );
    let jobs = Action::Fio(fio(&[("micro", options)], true));
    (note, Metric::BytesPerSecond, jobs)
}

/// Filebench's personalities with the parameters of its own files (`fileserver.f`, `webserver.f`,
/// `oltp.f`, `varmail.f`); the number of files is scaled.
fn personality(name: &str, scale: &Scale) -> Parts {
    let jobs = match name {
        "fileserver" => file_server(scale),
        "webserver" => web_server(scale),
        "dbserver" => database_server(scale),
        _ => mail_server(scale),
    };
    let note = if name == "dbserver" {
        String::from(
            "Filebench's dbserver as fio jobs: its 200 readers, 10 writers and log with their I/O sizes; each runs as fast as it can, while Filebench's semaphores hold back writers and log, so the mix of operations differs; the log is written in order, not at random, and file sizes are scaled",
        )
    } else {
        format!(
            "Filebench's {name} as fio jobs: its threads, file and I/O sizes and its mix of operations, \
             drawn at random instead of in one order; no file is made or deleted during the run, and the number of files is scaled"
        )
    };
    (
        note,
        Metric::OperationsPerSecond,
        Action::Fio(fio(&jobs, true)),
    )
}

/// Files of each thread where `share` (per cent) of the data is in files of `bytes`.
fn files(scale: &Scale, share: u64, bytes: u64, threads: u64) -> u64 {
    (scale.data_bytes / 100 * share / bytes / threads).max(1)
}

/// Options of jobs on many files: each operation draws a file, as Filebench does. There is no random map, because with one
/// fio 3.33 can loop for ever after its warm-up: it draws among files that it counts as done (`get_next_file_rand()`).
const DRAWN_FILES: &str = "--file_service_type=random --norandommap=1";

/// 50 threads; of three operations on files of 128 KiB one writes it whole, one appends 16 KiB, one reads
/// it whole.
fn file_server(scale: &Scale) -> Vec<(&'static str, String)> {
    let n = files(scale, 100, 128 << 10, 50);
    vec![(
        "files",
        format!(
            "--rw=randrw --rwmixread=33 --bssplit=128k/100,128k/50:16k/50 --ioengine=psync \
             --numjobs=50 --nrfiles={n} --filesize=128k {DRAWN_FILES}"
        ),
    )]
}

/// 100 threads; ten files of 16 KiB are read for each append of 16 KiB.
fn web_server(scale: &Scale) -> Vec<(&'static str, String)> {
    let n = files(scale, 100, 16 << 10, 100);
    vec![(
        "pages",
        format!(
            "--rw=randrw --rwmixread=91 --bs=16k --ioengine=psync --numjobs=100 --nrfiles={n} \
             --filesize=16k {DRAWN_FILES}"
        ),
    )]
}

/// 200 readers and 10 writers of 2 KiB in ten files, writes synchronous; a log in pieces of 256 KiB. fio has nothing like
/// Filebench's semaphores, by which readers wake writers and log: here they run side by side.
fn database_server(scale: &Scale) -> Vec<(&'static str, String)> {
    let file = (scale.data_bytes / 100 * 9 / 10).max(1 << 20) >> 12 << 12;
    let names: Vec<String> = (0..10).map(|n| format!("data{n}")).collect();
    let of = |rw: &str, threads: u32, more: &str| {
        format!(
            "--rw={rw} --bs=2k --ioengine=psync --numjobs={threads} --filename={} --size={} --overwrite=1{more}",
            names.join(":"),
            file * 10
        )
    };
    vec![
        ("read", of("randread", 200, "")),
        ("write", of("randwrite", 10, " --sync=dsync")),
        (
            "log",
            String::from(
                "--rw=write --bs=256k --ioengine=psync --sync=dsync --filename=log --size=10m",
            ),
        ),
    ]
}

/// 16 threads; files of 16 KiB are read whole, and as often written and synced. Each write is synced by itself: with
/// `--fsync=1` fio syncs a file that it draws anew, also after a read.
fn mail_server(scale: &Scale) -> Vec<(&'static str, String)> {
    let n = files(scale, 100, 16 << 10, 16);
    vec![(
        "mails",
        format!(
            "--rw=randrw --rwmixread=50 --bs=16k --sync=sync --ioengine=psync --numjobs=16 \
             --nrfiles={n} --filesize=16k {DRAWN_FILES}"
        ),
    )]
}

/// One file, one thread, through the page cache, each test once over the file.
fn iozone(test: &str, scale: &Scale, record: &str) -> Option<Parts> {
    let (rw, more, is_warm) = match test {
        "write" => ("write", " --end_fsync=1", false),
        "rewrite" => ("write", " --overwrite=1 --end_fsync=1", false),
        "read" => ("read", "", false),
        "reread" => ("read", "", true),
        "randread" => ("randread", "", true),
        "randwrite" => ("randwrite", " --overwrite=1 --end_fsync=1", false),
        _ => return None,
    };
    let options = format!(
        "--rw={rw} --bs={record} --ioengine=psync --size={}{more}",
        scale.data_bytes
    );
    let mut jobs = fio(&[("iozone", options)], false);
    jobs.is_warm = is_warm;
    let note = "iozone's test as a fio job: one thread, one file, records in order or at random; the time includes a sync at the end (iozone -e)";
    Some((note.to_owned(), Metric::BytesPerSecond, Action::Fio(jobs)))
}

/// One file, O_DIRECT, synchronous, one thread.
fn sysbench(mode: &str, block_size: &str) -> Option<Parts> {
    if !file_io::MODES.contains(&mode) {
        return None;
    }
    let test = FileIo {
        mode: mode.to_owned(),
        block_bytes: file_io::bytes(block_size)?,
    };
    let note = format!(
        "sysbench fileio {mode}: one file, {block_size}, O_DIRECT, synchronous, one thread, a sync every 100 requests where it writes"
    );
    Some((note, Metric::OperationsPerSecond, Action::FileIo(test)))
}

/// Connections where the plan does not say: the least of what was published, 12 to 60.
const CONNECTIONS: u32 = 12;

/// MariaDB under sysbench's own client.
fn database(test: &str, scale: &Scale, threads: u32) -> Option<Parts> {
    if !["point-select", "insert", "update-index", "read-write"].contains(&test) {
        return None;
    }
    let rows = oltp::rows(scale);
    let job = Oltp {
        test: test.replace('-', "_"),
        threads,
        rows,
    };
    let connections = if threads == 1 {
        "connection"
    } else {
        "connections"
    };
    let note = format!(
        "sysbench's OLTP on MariaDB (InnoDB, O_DIRECT): {threads} {connections}, {} tables of {rows} rows; a quarter of them fits into the server's cache; each transaction is synced",
        oltp::TABLES
    );
    Some((note, Metric::OperationsPerSecond, Action::Oltp(job)))
}

/// Folders of E3.
const FOLDERS: u64 = 50;

/// Small files that a translated guest makes or opens in a second, at least.
const FILES_PER_SECOND: u64 = 500;

/// Seconds that it takes to do something with each of `n` files.
fn seconds(n: u64) -> u32 {
    10 + (n / FILES_PER_SECOND) as u32
}

/// mke2fs makes an inode for so many bytes of a disk, at least, and no more later.
const BYTES_OF_AN_INODE: u64 = 16 << 10;
/// Inodes that mke2fs takes for itself.
const OWN_INODES: u64 = 11;

/// A file of 2 bytes for each 4 KiB of the scale's data, as far as every file system has an inode for each; as many
/// in each folder.
fn n_small_files(scale: &Scale, image_bytes: Option<u64>) -> u64 {
    let inodes = image_bytes.map_or(u64::MAX, |bytes| bytes / BYTES_OF_AN_INODE);
    let most = inodes.saturating_sub(FOLDERS + OWN_INODES).min(1_000_000);
    let n = (scale.data_bytes >> 12).min(most) / FOLDERS * FOLDERS;
    n.max(FOLDERS)
}

/// What was not made does not count: a loop goes on where nothing can be made any more.
fn make_files(n: u64) -> String {
    let each = n / FOLDERS;
    format!(
        "d=0; while [ $d -lt {FOLDERS} ]; do mkdir d$d || exit 1; i=0; while [ $i -lt {each} ]; do \
         echo a > d$d/f$i || exit 1; i=$((i + 1)); done; d=$((d + 1)); done"
    )
}

fn create_files(n: u64) -> Parts {
    let script = Script {
        measure: format!("{}; sync", make_files(n)),
        operations: n,
        seconds: seconds(n),
        ..Script::default()
    };
    let note = format!(
        "{n} files of 2 bytes in {FOLDERS} folders by a shell's loop, and a sync (published: 15 million in 501)"
    );
    (note, Metric::OperationsPerSecond, Action::Script(script))
}

fn open_files(n: u64) -> Parts {
    let script = Script {
        prepare: make_files(n),
        measure: format!(
            "d=0; while [ $d -lt {FOLDERS} ]; do for f in d$d/f*; do : < $f; done; d=$((d + 1)); done"
        ),
        operations: n,
        seconds: seconds(n),
        ..Script::default()
    };
    let note = format!(
        "{n} files in {FOLDERS} folders are opened and closed by a shell's loop (published: 15 million in 501)"
    );
    (note, Metric::OperationsPerSecond, Action::Script(script))
}

fn fsck_files(n: u64) -> Parts {
    let script = Script {
        prepare: format!(
            "{}; cd /; umount {}",
            make_files(n),
            super::workload::FOLDER
        ),
        measure: String::from("$fsck $dev"),
        seconds: seconds(n),
        ..Script::default()
    };
    let note = format!(
        "a file system with {n} files of 2 bytes in {FOLDERS} folders is checked in full and read-only by its \
         own program, unmounted (published: 15 million in 501)"
    );
    (note, Metric::Seconds, Action::Script(script))
}

/// Average bytes of a file of the tree, as the archive is made (`experiment/tree.rs`).
pub(super) const TREE_FILE: u64 = 16 << 10;

fn unpack_tree(scale: &Scale) -> Parts {
    let n = (scale.data_bytes / TREE_FILE).clamp(10, 4_000);
    let script = Script {
        measure: format!("tar -xf {} && sync", super::workload::tree(n as u32)),
        tree_entries: n as u32,
        seconds: seconds(n),
        ..Script::default()
    };
    let note = format!(
        "a tree of {n} files is unpacked and synced, instead of installing an operating system"
    );
    (note, Metric::Seconds, Action::Script(script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_workload() {
        let scale = Scale {
            seconds: 2,
            warm_up_seconds: 1,
            data_bytes: 32 << 20,
            most_seconds: None,
        };
        for name in NAMES {
            let workload =
                named(name, scale, Choice::default()).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(workload.name, name);
            assert!(!workload.measure_script(None).is_empty() && !workload.note.is_empty());
        }
        for other in [
            "",
            "iozone",
            "iozone-x",
            "seqread-x",
            "unpack",
            "oltp-delete",
        ] {
            assert_eq!(named(other, scale, Choice::default()), None, "{other}");
        }
    }

    #[test]
    fn there_is_an_inode_for_each_small_file() {
        let n = |data_size: &str, image_size: &str| {
            let text = format!(
                "name = 'p'\nimage_size = '{image_size}'\ndata_size = '{data_size}'\n\
                 [[workload]]\nname = 'create-files'\n"
            );
            let plan = super::super::Plan::read(&text).unwrap();
            match &plan.cells[0].workload.action {
                Action::Script(script) => script.operations,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(n("16M", "1G"), 4_050);
        // 65,536 and 32,768 inodes; folders and the file system itself take some.
        assert_eq!((n("512M", "1G"), n("128M", "512M")), (65_450, 32_700));
        assert_eq!(n("1M", "128M"), 250);
    }

    #[test]
    fn files_that_cannot_be_made_end_their_loop() {
        use nestrace_rig::external_tool::{Tool, ToolError};

        // A file where a folder should be, and a folder in place of a file.
        for there in [": > d3", "mkdir -p d3/f1; mkdir() { command mkdir -p $1; }"] {
            let folder = tempfile::tempdir().unwrap();
            let script = format!("{there}\n(\n{}; sync\n); exit $?", make_files(100));
            let made = Tool::new("sh").args(["-c", &script]);
            let made = made.current_dir(folder.path()).run();
            assert!(matches!(made, Err(ToolError::Failed { .. })), "{made:?}");
            assert!(folder.path().join("d2/f1").exists() && !folder.path().join("d4").exists());
        }
    }

    #[test]
    fn the_files_of_a_personality_fit_the_scale() {
        let scale = Scale {
            seconds: 2,
            warm_up_seconds: 1,
            data_bytes: 64 << 20,
            most_seconds: None,
        };
        let Some(Workload {
            action: Action::Fio(jobs),
            ..
        }) = named("fileserver", scale, Choice::default())
        else {
            panic!("fio jobs");
        };
        let number = |options: &str, key: &str| -> u64 {
            let rest = options.split_once(key).unwrap().1;
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        let bytes: u64 = jobs
            .jobs
            .iter()
            .map(|(_, options)| {
                number(options, "--numjobs=") * number(options, "--nrfiles=") * (128 << 10)
            })
            .sum();
        assert!(
            bytes <= scale.data_bytes && bytes > scale.data_bytes / 2,
            "{bytes}"
        );
    }

    #[test]
    fn no_job_on_many_files_has_a_random_map() {
        for name in ["fileserver", "webserver", "mailserver"] {
            let scale = Scale {
                seconds: 2,
                warm_up_seconds: 1,
                data_bytes: 64 << 20,
                most_seconds: None,
            };
            let Some(Workload {
                action: Action::Fio(jobs),
                ..
            }) = named(name, scale, Choice::default())
            else {
                panic!("fio jobs");
            };
            for (_, options) in &jobs.jobs {
                assert!(options.contains("--nrfiles=") && options.contains("--norandommap=1"));
            }
        }
    }

    #[test]
    fn programs_that_workloads_come_from_do_them_where_they_are_found() {
        use super::super::Plan;

        let programs = |workload: &str, found: &[&str]| {
            let text = format!("name = 'p'\n[axes]\nguest_fs = 'ext3'\n[[workload]]\n{workload}\n");
            let plan = Plan::read(&text).unwrap();
            let plan = plan.with_models(|program| found.contains(&program));
            let workload = &plan.cells[0].workload;
            assert_eq!(
                workload.note.contains("itself"),
                !plan.guest_programs().is_empty()
            );
            workload.program()
        };
        let both = ["filebench", "iozone"];
        for name in ["fileserver", "webserver", "dbserver", "mailserver"] {
            let line = format!("name = '{name}'");
            assert_eq!(programs(&line, &both), "filebench");
            assert_eq!(programs(&line, &["iozone"]), "fio");
        }
        assert_eq!(programs("name = 'iozone-read'", &both), "iozone");
        assert_eq!(
            programs(
                "name = 'mine'\nuse = 'iozone-reread'\nupgrade = 'old'",
                &both
            ),
            "iozone"
        );
        // iozone would rewrite a file of its own, and none from before the upgrade.
        assert_eq!(
            programs(
                "name = 'mine'\nuse = 'iozone-rewrite'\nupgrade = 'old'",
                &both
            ),
            "fio"
        );
        // Options of fio's, a record that iozone does not take, and what is no model of either.
        assert_eq!(
            programs("name = 'iozone-read'\nfio = '--end_fsync=0'", &both),
            "fio"
        );
        assert_eq!(
            programs("name = 'iozone-read'\nblock_size = '512'", &both),
            "fio"
        );
        assert_eq!(programs("name = 'randread'", &both), "fio");
    }
}
