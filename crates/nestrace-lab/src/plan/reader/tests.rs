use nestrace_report::lab::Metric;

use super::*;
use crate::plan::library;

const WORKLOAD: &str = "[[workload]]\nname = 'randwrite'\n";

fn plan(text: &str) -> Plan {
    let text = format!("name = 'p'\n{text}\n{WORKLOAD}");
    read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The text is the whole plan; the error begins with the place.
fn refused(text: &str, expected: &str) {
    let error = read(text).expect_err(text).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}

fn ids(plan: &Plan) -> Vec<&str> {
    plan.cells.iter().map(|cell| cell.id.as_str()).collect()
}

#[test]
fn each_combination_has_its_baseline_before_it() {
    let plan = plan("[axes]\nguest_fs = ['ext4', 'xfs']\nhost_fs = ['ext4', 'btrfs']");
    assert_eq!(
        ids(&plan),
        [
            "ext4-on-bd",
            "ext4-on-ext4",
            "ext4-on-btrfs",
            "xfs-on-bd",
            "xfs-on-ext4",
            "xfs-on-btrfs"
        ]
    );
    let baselines: Vec<Option<usize>> = plan.cells.iter().map(|cell| cell.baseline).collect();
    assert_eq!(baselines, [None, Some(0), Some(0), None, Some(3), Some(3)]);
}

#[test]
fn what_varies_is_in_the_name_and_a_baseline_has_no_image() {
    let plan =
        plan("[axes]\nformat = ['raw', 'qcow2']\nbus = ['virtio', 'ide']\nhost_fs = ['bd', 'xfs']");
    assert_eq!(
        ids(&plan),
        [
            "ext4-on-bd-virtio",
            "ext4-on-bd-ide",
            "ext4-on-xfs-raw-virtio",
            "ext4-on-xfs-raw-ide",
            "ext4-on-xfs-qcow2-virtio",
            "ext4-on-xfs-qcow2-ide"
        ]
    );
}

#[test]
fn impossible_combinations_are_left_out_with_a_reason() {
    let plan = plan("[axes]\ncache = ['none', 'writeback']\naio = ['native', 'threads']");
    // Three cells with their baselines.
    assert_eq!(plan.cells.len(), 6);
    let [excluded] = plan.excluded.as_slice() else {
        panic!("{:?}", plan.excluded);
    };
    assert!(excluded.reason.contains("aio=native"), "{excluded:?}");
}

#[test]
fn excludes_and_includes() {
    let text = "[axes]\nguest_fs = ['ext4', 'xfs']\nhost_fs = ['ext4', 'xfs']\n\
                [[exclude]]\nguest_fs = 'xfs'\nhost_fs = 'ext4'\nreason = 'known'\n\
                [[include]]\nguest_fs = 'jfs'\nhost_fs = ['ext2', 'ext3']";
    let plan = plan(text);
    assert_eq!(
        ids(&plan),
        [
            "ext4-on-bd",
            "ext4-on-ext4",
            "ext4-on-xfs",
            "xfs-on-bd",
            "xfs-on-xfs",
            "jfs-on-bd",
            "jfs-on-ext2",
            "jfs-on-ext3"
        ]
    );
    assert_eq!(plan.excluded[0].reason, "known");
}

#[test]
fn mistakes_are_told_with_their_place() {
    let all = |rest: &str| format!("name = 'p'\n{rest}\n{WORKLOAD}");
    for (text, expected) in [
        ("name = 'p'\nname = 'q'", "line 2, column 1: duplicate key"),
        ("name = ", "line 1, column"),
        ("", "a plan needs a name"),
        ("name = 'p'", "a plan needs a workload"),
        (
            "name = 'a b'\n[[workload]]\nname='randread'",
            "line 1, column 8: a name has letters",
        ),
    ] {
        refused(text, expected);
    }
    for (rest, expected) in [
        (
            "repetition = 3",
            "line 2, column 1: unknown key \"repetition\"; did you mean \"repetitions\"?",
        ),
        (
            "repetitions = 0",
            "line 2, column 15: repetitions has to be a whole number from 1 to 100",
        ),
        ("repetitions = '3'", "line 2, column 15: "),
        (
            "image_size = '12X'",
            "line 2, column 14: image_size has to be a size",
        ),
        (
            "image_size = '256M'\n[axes]\nguest_fs = 'xfs'",
            "line 2, column 14: image_size has to be at least 300M for xfs",
        ),
        (
            "experiment = 'E9'",
            "line 2, column 14: experiment has to be E1",
        ),
        (
            "[axes]\ncahce = ['none']",
            "line 3, column 1: unknown key \"cahce\"; did you mean \"cache\"?",
        ),
        (
            "[axes]\nguest_fs = ['ext4', 'ntfs']",
            "line 3, column 21: guest_fs has no value \"ntfs\"",
        ),
        ("[axes]\nguest_fs = ['ext4', 'ext5']", "did you mean \"ext"),
        (
            "[axes]\ncache = ['none', 'none']",
            "line 3, column 18: cache has \"none\" twice",
        ),
        ("[axes]\ncache = []", "line 3, column 9: cache is empty"),
        (
            "[axes]\ncache = ['none', 'writeback']",
            "line 3, column 18: cache \"writeback\" cannot be in any combination: aio=native",
        ),
        (
            "[axes]\nhost_fs = 'bd'\nformat = 'qcow2'",
            "line 4, column 10: format \"qcow2\" cannot be in any combination: the bare device has no image",
        ),
        (
            "[axes]\nhost_fs = 'bd'\nhost_mount_options = ['', 'noatime']",
            "line 4, column 27: host_mount_options \"noatime\" cannot be in any combination",
        ),
        (
            "[[include]]\nhost_fs = 'bd'\npreallocation = 'full'",
            "line 4, column 17: preallocation \"full\" cannot be in any combination",
        ),
        (
            "image_size = '2T'\n[axes]\nhost_fs = ['ext4', 'ext3']",
            "line 2, column 14: image_size has to be less than 2T on ext3",
        ),
        (
            "[axes]\nguest_mount_options = ['rw; reboot']",
            "line 3, column 24: guest_mount_options has no value",
        ),
        (
            "[[exclude]]\nguest_fs = 'xfs'",
            "this exclude fits no combination",
        ),
        (
            "[[exclude]]\nworkload = 'randwrit'",
            "no workload \"randwrit\"; did you mean \"randwrite\"?",
        ),
        ("[[include]]\ncache = 'writeback'", "aio=native needs"),
    ] {
        refused(&all(rest), expected);
    }
}

#[test]
fn workloads_are_the_librarys_or_ones_own() {
    let with = |workload: &str| format!("name = 'p'\n[[workload]]\n{workload}");
    for (workload, expected) in [
        (
            "name = 'randwrit'",
            "line 3, column 8: there is no workload \"randwrit\"; did you mean \"randwrite\"?",
        ),
        (
            "name = 'a'\nuse = 'seqread'\ncommand = 'ls'",
            "a workload has either",
        ),
        (
            "name = 'a'\nfio = '--rw=read # --bs=4k'",
            "fio has to have options of fio and no shell syntax",
        ),
        ("name = 'a'\nfio = '--rw=read; reboot'", "no shell syntax"),
        (
            "name = 'a'\nblocksize = '4k'\nuse = 'seqread'",
            "did you mean \"block_size\"?",
        ),
        (
            "name = 'seqread'\n[[workload]]\nname = 'seqread'",
            "has the workload",
        ),
        (
            "name = 'seqread'\ndata_size = '1T'",
            "at most half of image_size",
        ),
    ] {
        refused(&with(workload), expected);
    }
    let own = read(&with("name = 'a'\nfio = '--rw=read --bs=1m'")).unwrap();
    assert!(
        own.cells[0]
            .workload
            .measure_script(None)
            .contains("--bs=1m")
    );
    let sized = read(&with(
        "name = 'seq-4k'\nuse = 'sysbench-seqrd'\nblock_size = '4k'",
    ))
    .unwrap();
    assert!(
        sized.cells[0]
            .workload
            .measure_script(None)
            .contains("--file-block-size=4096 ")
    );
    let command = read(&with(
        "name = 'a'\ncommand = 'tar -xf x'\nprepare = 'touch x'",
    ))
    .unwrap();
    assert_eq!(command.cells[0].workload.metric, Metric::Seconds);
}

#[test]
fn some_cells_are_run_with_what_they_are_compared_with_and_no_other_disks() {
    let mut plan = Plan::read(crate::plan::shipped::text("quick").unwrap()).unwrap();
    let (all, all_seconds) = (plan.schedule(), plan.estimate().seconds);
    plan.run_only(&[String::from("xfs-on-ext4")]).unwrap();
    let some = plan.schedule();
    let ids: BTreeSet<&str> = some
        .steps
        .iter()
        .map(|step| plan.cells[step.cell].id.as_str())
        .collect();
    assert_eq!(ids, ["xfs-on-bd", "xfs-on-ext4"].into());
    assert_eq!((all.steps.len(), some.steps.len()), (24, 8));
    let disks = |schedule: &crate::plan::Schedule| {
        schedule
            .batches
            .iter()
            .map(|batch| batch.disks.len())
            .sum::<usize>()
    };
    assert_eq!((disks(&all), disks(&some)), (3, 2));
    let seconds = plan.estimate().seconds;
    assert!(seconds < 150 && seconds * 2 < all_seconds, "{seconds}");
    let error = plan.run_only(&[String::from("xfs-on-ext5")]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("this plan has no cell \"xfs-on-ext5\"; did you mean"),
        "{error}"
    );
}

#[test]
fn each_block_has_every_cell_once_and_the_order_is_the_seeds() {
    let text = |seed: u32| {
        plan(&format!(
            "repetitions = 3\nseed = {seed}\n[axes]\nguest_fs = ['ext4', 'xfs']\nhost_fs = ['ext2', 'ext3', 'ext4', 'xfs', 'btrfs']\nbus = ['virtio', 'ide']"
        ))
    };
    let plan = text(7);
    let schedule = plan.schedule();
    assert_eq!(schedule, plan.schedule());
    assert_ne!(schedule.steps, text(8).schedule().steps);
    let n = plan.cells.len();
    assert_eq!(schedule.steps.len(), n * 4);
    for block in schedule.steps.chunks(n) {
        let mut cells: Vec<usize> = block.iter().map(|step| step.cell).collect();
        cells.sort_unstable();
        assert_eq!(cells, (0..n).collect::<Vec<_>>());
        assert!(block.iter().all(|step| step.kind == block[0].kind));
    }
    for batch in &schedule.batches {
        let ide = batch
            .disks
            .iter()
            .filter(|disk| disk.combination.disk.bus == nestrace_rig::stack::Bus::Ide);
        assert!(batch.disks.len() <= 8 && ide.count() <= 4);
    }
}

#[test]
fn an_image_whose_blocks_have_a_place_is_new_for_each_run() {
    let plan = plan(
        "repetitions = 2\n[axes]\nguest_fs = ['ext4', 'xfs']\nformat = 'qcow2'\npreallocation = ['off', 'metadata']",
    );
    let schedule = plan.schedule();
    // The bare device and the sparse image are both guest file systems'; of the third kind each cell has its own.
    let disks: Vec<_> = schedule.batches.iter().flat_map(|b| &b.disks).collect();
    let own: Vec<_> = disks.iter().filter_map(|disk| disk.only_for).collect();
    assert_eq!((disks.len(), own.len()), (4, 2));
    for cell in own {
        assert!(plan.cells[cell].id.contains("metadata"));
        let uses: Vec<usize> = (0..schedule.steps.len())
            .filter(|&n| schedule.steps[n].cell == cell)
            .collect();
        assert_eq!(uses.len(), 3);
        for pair in uses.windows(2) {
            let between = schedule.steps[pair[0]..=pair[1]].windows(2);
            let mut boots = between.filter(|steps| steps[1].needs_boot_after(&steps[0]));
            assert!(boots.next().is_some());
        }
    }
    assert_eq!(schedule.n_boots(), 3);
}

#[test]
fn each_repetition_has_disks_of_its_own() {
    let schedule = plan("repetitions = 4\n[axes]\nhost_fs = ['ext4', 'btrfs']").schedule();
    assert_eq!(schedule.batches.len(), 1);
    // The recorded run is one more.
    assert_eq!(schedule.n_boots(), 5);
}

#[test]
fn an_upgrade_is_of_ext3_and_leaves_the_others_out() {
    let text = "name = 'p'\n[axes]\nguest_fs = ['ext3', 'ext4']\n\
                [[workload]]\nname = 'read'\nuse = 'iozone-read'\n\
                [[workload]]\nname = 'old'\nuse = 'iozone-read'\nupgrade = 'old'\n";
    let plan = read(text).unwrap();
    assert_eq!(
        ids(&plan),
        [
            "ext3-on-bd-read",
            "ext3-on-ext4-read",
            "ext4-on-bd-read",
            "ext4-on-ext4-read",
            "ext3-on-bd-old",
            "ext3-on-ext4-old",
        ]
    );
    // An upgraded cell is compared with an upgraded one.
    assert_eq!(plan.cells[5].baseline, Some(4));
    assert!(plan.excluded[0].reason.contains("only ext3"));
    for (rest, expected) in [
        (
            "[[workload]]\nname = 'x'\nuse = 'iozone-read'\nupgrade = 'both'",
            "line 5, column 11: upgrade has to be \"old\" or \"new\"",
        ),
        (
            "[[workload]]\nname = 'x'\nuse = 'iozone-read'\nupgrade = 'old'\n[[workload]]\nname = 'randread'",
            "line 5, column 11: upgrade needs ext3",
        ),
        (
            "[[workload]]\nname = 'x'\nuse = 'iozone-read'\nupgrade = 'old'",
            "line 5, column 11: upgrade needs ext3",
        ),
        (
            "[[workload]]\nname = 'x'\nuse = 'create-files'\nupgrade = 'old'",
            "line 5, column 11: upgrade is for jobs of fio",
        ),
        (
            "[[workload]]\nname = 'x'\ncommand = 'true'\nupgrade = 'old'",
            "line 5, column 11: upgrade is for jobs of fio",
        ),
    ] {
        refused(&format!("name = 'p'\n{rest}\n"), expected);
    }
}

#[test]
fn a_key_that_would_change_nothing_is_refused() {
    for (rest, expected) in [
        (
            "name = 'mailserver'\nblock_size = '4k'",
            "line 4, column 14: block_size has no effect on mailserver",
        ),
        (
            "name = 'iozone-read'\nseconds = 3",
            "seconds has no effect on iozone-read",
        ),
        (
            "name = 'create-files'\nfio = '--bs=4k'",
            "fio has no effect on create-files",
        ),
        (
            "name = 'sysbench-rndrd'\nfio = '--bs=4k'",
            "fio has no effect on sysbench-rndrd",
        ),
        (
            "name = 'x'\ncommand = 'true'\ndata_size = '4M'",
            "data_size has no effect on a command",
        ),
        (
            "name = 'randread'\nprepare = 'true'",
            "prepare has no effect",
        ),
        (
            "name = 'randread'\nblock_size = '4 k; reboot'",
            "block_size has to be like 4096, 8k or 1m",
        ),
        (
            "name = 'randread'\nmost_seconds = 12",
            "line 4, column 16: most_seconds has to be more than the 12 s that \"randread\" takes",
        ),
    ] {
        refused(&format!("name = 'p'\n[[workload]]\n{rest}\n"), expected);
    }
}

#[test]
fn a_command_says_how_long_it_takes_and_what_it_is() {
    let text =
        |more: &str| format!("name = 'p'\n[[workload]]\nname = 'x'\ncommand = 'make'\n{more}");
    let of = |more: &str| read(&text(more)).unwrap().cells[0].workload.clone();
    let usual = of("");
    assert_eq!(
        (usual.expected_seconds(), usual.note.as_str()),
        (10, "the time of `make`")
    );
    let long = of("seconds = 7200\nabout = 'a build'");
    assert_eq!(
        (long.expected_seconds(), long.note.as_str()),
        (7200, "a build")
    );
    assert!(long.most_seconds() > 7200 * 6);
    assert_eq!(
        of("seconds = 7200\nmost_seconds = 7201").most_seconds(),
        7201
    );
}

#[test]
fn sizes_that_cannot_be_have_their_place() {
    for (rest, expected) in [
        (
            "data_size = '400M'",
            "line 2, column 13: data_size has to be at most half",
        ),
        (
            "data_size = '8388608T'",
            "line 2, column 13: data_size has to be at most half",
        ),
        (
            "memory = '511M'",
            "line 2, column 10: memory has to be from 512M",
        ),
        (
            "image_size = '1M'",
            "line 2, column 14: image_size has to be at least 128M",
        ),
        (
            "image_size = '16777215T'",
            "line 2, column 14: image_size has to be at most 16T",
        ),
        (
            "image_size = '8388607T'",
            "line 2, column 14: image_size has to be at most 16T",
        ),
    ] {
        refused(
            &format!("name = 'p'\n{rest}\n[[workload]]\nname = 'randread'\n"),
            expected,
        );
    }
}

#[test]
fn an_include_may_be_of_some_workloads_and_is_told_where_it_cannot_be() {
    let text = "name = 'p'\n[axes]\nguest_fs = ['ext3', 'ext4']\n\
                [[workload]]\nname = 'randread'\n\
                [[workload]]\nname = 'old'\nuse = 'iozone-read'\nupgrade = 'old'\n\
                [[include]]\nguest_fs = 'xfs'\n[[include]]\nguest_fs = 'jfs'\nworkload = 'randread'\n";
    let plan = read(text).unwrap();
    let has = |id: &str| plan.cells.iter().any(|cell| cell.id == id);
    assert!(has("xfs-on-ext4-randread") && has("jfs-on-ext4-randread"));
    let told = |what: &str| plan.excluded.iter().any(|one| one.what.starts_with(what));
    assert!(told("xfs on ext4") && !told("jfs"), "{:?}", plan.excluded);
}

#[test]
fn trees_of_different_sizes_are_different_trees() {
    let text = "name = 'p'\n[[workload]]\nname = 'a'\nuse = 'unpack-tree'\ndata_size = '1M'\n\
                [[workload]]\nname = 'b'\nuse = 'unpack-tree'\ndata_size = '4M'\n";
    let plan = read(text).unwrap();
    assert_eq!(plan.trees().into_iter().collect::<Vec<_>>(), [64, 256]);
    for cell in &plan.cells {
        let script = cell.workload.measure_script(None);
        let own = format!("/lab-tree-{}.tar", cell.workload.tree_entries());
        assert!(script.contains(&own), "{script}");
    }
}

#[test]
fn numbers_of_axes_are_decimal_however_they_are_written() {
    for (written, kib) in [
        ("0x40", 64),
        ("0o20", 16),
        ("0b1000", 8),
        ("1_024", 1024),
        ("+5", 5),
    ] {
        let plan = plan(&format!("[axes]\nguest_read_ahead_kib = {written}"));
        let nested = plan.cells.last().unwrap();
        assert_eq!(
            nested.combination.guest_read_ahead_kib,
            Some(kib),
            "{written}"
        );
    }
    let all = |rest: &str| format!("name = 'p'\n[axes]\n{rest}\n{WORKLOAD}");
    for (rest, expected) in [
        (
            "guest_read_ahead_kib = [64, 0x40]",
            "line 3, column 29: guest_read_ahead_kib has \"64\" twice",
        ),
        (
            "guest_read_ahead_kib = 0xffffffffffffffff",
            "line 3, column 24: guest_read_ahead_kib has a number that is too large",
        ),
        ("guest_read_ahead_kib = -1", "has no value \"-1\""),
    ] {
        refused(&all(rest), expected);
    }
}

#[test]
fn words_of_an_image_are_for_the_hosts_that_have_one() {
    let cells = ids(&plan("[axes]\nhost_fs = ['bd', 'ext4']\nformat = 'qcow2'")).join(" ");
    assert_eq!(cells, "ext4-on-bd ext4-on-ext4");
    // A sparse qcow2 file is as large as what was written.
    for host in ["host_fs = 'ext3'\nformat = 'qcow2'", "host_fs = 'xfs'"] {
        plan(&format!("image_size = '2T'\n[axes]\n{host}"));
    }
}

#[test]
fn the_largest_plan_has_an_estimate() {
    let workloads: String = library::NAMES
        .iter()
        .map(|name| format!("[[workload]]\nname = '{name}'\n"))
        .collect();
    let plan = read(&format!(
        "name = 'p'\nimage_size = '16T'\ndata_size = '7T'\nseconds = 86400\nwarm_up_seconds = 600\n\
         record_seconds = 600\nrepetitions = 100\nmemory = '1T'\n\
         [axes]\nhost_fs = ['ext4', 'xfs', 'btrfs']\nhost_mount_options = ['', 'noatime']\n\
         [host]\nin_guest = true\n{workloads}"
    ))
    .unwrap();
    let estimate = plan.estimate();
    assert!(estimate.work_bytes > 6 * (16 << 40) && estimate.seconds > 86_400);
    for cell in &plan.cells {
        assert!(cell.workload.most_seconds() > 0);
    }
}

#[test]
fn what_could_only_fail_is_refused_with_its_place() {
    let options = "noatime,".repeat(30);
    let long = format!("[axes]\nguest_mount_options = ['', '{options}']\n{WORKLOAD}");
    let short = format!("[axes]\nguest_mount_options = '{options}'\n{WORKLOAD}");
    for (rest, expected) in [
        (
            long.as_str(),
            "line 3, column 28: a cell's name would have 257 bytes: the limit is 200",
        ),
        (
            &format!("{WORKLOAD}[[include]]\nguest_mount_options = '{options}'"),
            "line 5, column 23: a cell's name would have",
        ),
        (
            "data_size = '1023K'",
            "line 2, column 13: data_size has to be at least 1M",
        ),
        (
            "[[workload]]\nname = 'mailserver'\ndata_size = '512'",
            "line 4, column 13: data_size has to be at least 1M",
        ),
        (
            "[[workload]]\nname = 'randread'\nblock_size = '4000'",
            "line 4, column 14: block_size has to be a multiple of 512: randread has O_DIRECT",
        ),
        (
            "[[workload]]\nname = 'sysbench-rndrd'\nblock_size = '1000'",
            "line 4, column 14: block_size has to be a multiple of 512",
        ),
        (
            "data_size = '4M'\n[[workload]]\nname = 'iozone-read'\nblock_size = '8m'",
            "line 5, column 14: block_size has to be at most data_size",
        ),
        (
            "[[workload]]\nname = 'x'\ncommand = ' '",
            "line 4, column 11: command is empty",
        ),
        (
            "[[workload]]\nname = 'randread'\nfio = ''",
            "line 4, column 7: fio is empty",
        ),
        (
            "record_seconds = 5\nrecord = false",
            "line 2, column 18: record_seconds has no effect",
        ),
        (
            "kernel = ''",
            "line 2, column 10: kernel has to be a series",
        ),
        (
            "kernel = '6.1; reboot'",
            "line 2, column 10: kernel has to be a series",
        ),
    ] {
        let own = if rest.contains("[[workload]]") {
            ""
        } else {
            WORKLOAD
        };
        refused(&format!("name = 'p'\n{rest}\n{own}"), expected);
    }
    // What does not vary is in no name, and records are of any size.
    for rest in [
        short.as_str(),
        "[[workload]]\nname = 'iozone-read'\nblock_size = '1000'",
    ] {
        read(&format!("name = 'p'\n{rest}\n")).unwrap();
    }
}

#[test]
fn each_exclude_is_judged_by_itself() {
    let axes = "[axes]\nguest_fs = ['ext4', 'xfs']\nhost_fs = ['ext4', 'xfs']\n";
    let all = "[[exclude]]\nguest_fs = 'xfs'\nreason = 'first'\n";
    let one = "[[exclude]]\nguest_fs = 'xfs'\nhost_fs = 'ext4'\n";
    for excludes in [format!("{all}{one}"), format!("{one}{all}")] {
        let plan = plan(&format!("{axes}{excludes}"));
        assert_eq!(ids(&plan), ["ext4-on-bd", "ext4-on-ext4", "ext4-on-xfs"]);
    }
    for (excludes, expected) in [
        (
            "[[exclude]]",
            "line 5, column 1: an exclude has to name axes",
        ),
        (
            "[[exclude]]\nreason = 'all'",
            "line 5, column 1: an exclude has to name axes",
        ),
        (
            "[[exclude]]\nguest_fs = 'jfs'",
            "line 5, column 1: this exclude fits no combination",
        ),
        (
            "[[exclude]]\nguest_fs = ['ext4', 'xfs']",
            "line 5, column 1: no combination is left; left out: ",
        ),
    ] {
        refused(
            &format!("name = 'p'\n{axes}{excludes}\n{WORKLOAD}"),
            expected,
        );
    }
}

#[test]
fn words_that_are_nowhere_near_get_no_suggestion() {
    for word in ["''", "4", "'zzz'"] {
        let text = format!("name = 'p'\n[axes]\nguest_fs = {word}\n{WORKLOAD}");
        refused(&text, "; there is ext2, ext3");
    }
}

#[test]
fn nothing_of_a_plan_commands_the_terminal() {
    for (rest, expected) in [
        (
            "about = \"a\\u001b[2Jb\"",
            "line 2, column 9: about has a control character",
        ),
        (
            "[[exclude]]\nguest_fs = 'ext4'\nreason = \"\\u0007\"",
            "line 4, column 10: reason has a control character",
        ),
        (
            "[axes]\nguest_fs = \"\\u001b[2J\"",
            "guest_fs has no value \"\\u{1b}[2J\"",
        ),
        ("\"\\u001b\" = 1", "unknown key \"\\u{1b}\""),
    ] {
        refused(&format!("name = 'p'\n{rest}\n{WORKLOAD}"), expected);
    }
    let lines =
        "name = 'p'\n[[workload]]\nname = 'x'\ncommand = \"\"\"\nif true; then\n\ttrue\nfi\"\"\"\n";
    read(lines).unwrap();
}

#[test]
fn databases_have_as_many_connections_as_the_plan_says() {
    let text = "name = 'p'\nimage_size = '512M'\n\
                [[workload]]\nname = 'oltp-insert'\n\
                [[workload]]\nname = 'few'\nuse = 'oltp-insert'\nthreads = 1\n\
                [[workload]]\nname = 'many'\nuse = 'oltp-insert'\nthreads = 512\n";
    let plan = read(text).unwrap();
    for (name, threads) in [("oltp-insert", 12), ("few", 1), ("many", 512)] {
        let mut cells = plan.cells.iter();
        let cell = cells.find(|cell| cell.workload.name == name).unwrap();
        let oltp = cell.workload.oltp().unwrap();
        assert_eq!(oltp.threads, threads);
        let told = format!(": {threads} connection");
        assert!(cell.workload.note.contains(&told), "{}", cell.workload.note);
    }
    for (rest, expected) in [
        (
            "name = 'oltp-insert'\nthreads = 0",
            "line 4, column 11: threads has to be a whole number from 1 to 512",
        ),
        (
            "name = 'oltp-insert'\nthreads = 513",
            "line 4, column 11: threads has to be",
        ),
        (
            "name = 'randread'\nthreads = 4",
            "line 4, column 11: threads has no effect on randread",
        ),
        (
            "name = 'x'\ncommand = 'true'\nthreads = 4",
            "line 5, column 11: threads has no effect on a command",
        ),
    ] {
        refused(&format!("name = 'p'\n[[workload]]\n{rest}\n"), expected);
    }
}
