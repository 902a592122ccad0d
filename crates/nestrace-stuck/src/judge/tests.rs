use super::*;
use crate::facts::{
    CgroupLimit, DiskCounts, DiskFacts, DiskLimits, ImageFacts, ProcessFacts, RemoteFacts,
    RingFacts, ThreadFacts,
};

const SECOND: u64 = 1_000_000_000;

/// vm1 with vda on /img (ext4 on dm-3 over sdb): idle.
fn idle() -> Facts {
    let device = |name: &str, kind: &str, beneath: &[&str]| DeviceFacts {
        name: name.to_owned(),
        kind: kind.to_owned(),
        beneath: beneath.iter().map(|name| (*name).to_owned()).collect(),
        in_flight_before: Some(0),
        in_flight: Some(0),
        completed: Some(0),
        ..DeviceFacts::default()
    };
    let disk = DiskFacts {
        name: "vda".to_owned(),
        aio: Some("io_uring".to_owned()),
        in_flight_before: Some(0),
        in_flight: Some(0),
        completed: Some(DiskCounts::default()),
        images: vec![ImageFacts {
            path: "/img/vm1.qcow2".to_owned(),
            fs_type: "ext4".to_owned(),
            mount_point: "/img".to_owned(),
            source: "/dev/mapper/img".to_owned(),
            devices: vec!["dm-3".to_owned()],
        }],
        ..DiskFacts::default()
    };
    Facts {
        interval_ns: 2 * SECOND,
        guests: vec![GuestFacts {
            name: "vm1".to_owned(),
            pid: 4711,
            run_state: Some("running".to_owned()),
            n_threads: 5,
            disks: vec![disk],
            ..GuestFacts::default()
        }],
        devices: vec![device("dm-3", "dm", &["sdb"]), device("sdb", "disk", &[])],
        ..Facts::default()
    }
}

/// The same with requests that nothing completes.
fn waiting() -> Facts {
    let mut facts = idle();
    facts.guests[0].disks[0].in_flight_before = Some(31);
    facts.guests[0].disks[0].in_flight = Some(32);
    facts.guests[0].disks[0].idle_ns = Some(41 * SECOND);
    facts
}

fn blocked(stack: &[&str]) -> ThreadFacts {
    ThreadFacts {
        pid: 4711,
        tid: 4720,
        name: "worker".to_owned(),
        state: "D".to_owned(),
        system_call: Some("pwrite".to_owned()),
        file: Some("/img/vm1.qcow2".to_owned()),
        disk: Some("vda".to_owned()),
        stack: stack.iter().map(|frame| (*frame).to_owned()).collect(),
        asleep_ns: Some(41 * SECOND),
        ..ThreadFacts::default()
    }
}

fn check(facts: Facts, verdict: Verdict, kind: Option<HolderKind>, sentence: &str) {
    let answer = judge(facts);
    let guest = &answer.guests[0];
    assert_eq!(guest.sentence, sentence);
    let holder = guest.holder.as_ref().map(|holder| holder.kind);
    assert_eq!((guest.verdict, holder), (verdict, kind), "{sentence}");
}

#[test]
fn nothing_in_flight() {
    check(
        idle(),
        Verdict::Idle,
        None,
        "nothing of vm1 is stuck: nothing is in flight",
    );
}

#[test]
fn a_healthy_busy_guest() {
    let mut facts = waiting();
    facts.guests[0].disks[0].completed = Some(DiskCounts {
        reads: 1_400,
        writes: 1_000,
        time_ns: 2_400 * 800_000,
        ..DiskCounts::default()
    });
    // At the moment of each sample requests are in flight everywhere.
    for device in &mut facts.devices {
        device.in_flight_before = Some(8);
        device.in_flight = Some(8);
        device.completed = Some(2_400);
    }
    facts.guests[0].rings.push(RingFacts {
        fd: 9,
        in_flight_before: 32,
        in_flight: 32,
        completed: 2_400,
    });
    check(
        facts,
        Verdict::Working,
        None,
        "nothing of vm1 is stuck: 1,200 requests a second complete, 800 µs each on average",
    );
}

#[test]
fn a_long_sync_of_a_disk_that_works_is_named_as_the_oldest() {
    let mut facts = waiting();
    facts.guests[0].disks[0].completed = Some(DiskCounts {
        writes: 10,
        time_ns: SECOND,
        ..DiskCounts::default()
    });
    let mut thread = blocked(&["jbd2_log_wait_commit", "ext4_sync_file"]);
    thread.system_call = Some("fdatasync".to_owned());
    facts.guests[0].threads.push(thread);
    check(
        facts,
        Verdict::Working,
        None,
        "nothing of vm1 is stuck: 5.0 requests a second complete, 100.0 ms each on average; the oldest waits since 41 s in \
         fdatasync of /img/vm1.qcow2, in jbd2_log_wait_commit",
    );
}

#[test]
fn a_device_that_completes_nothing() {
    let mut facts = waiting();
    facts.devices[1].in_flight_before = Some(32);
    facts.devices[1].in_flight = Some(32);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Device),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for host device dm-3, which completes \
         nothing; its lower device sdb has 32 requests in flight",
    );
}

#[test]
fn threads_say_since_when() {
    let mut facts = waiting();
    facts.guests[0]
        .threads
        .push(blocked(&["io_schedule", "__iomap_dio_rw"]));
    facts.devices[0].in_flight_before = Some(1);
    facts.devices[0].in_flight = Some(1);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Device),
        "vm1's vda waits since 41 s for host device dm-3, which has 1 request in flight and completes none",
    );
}

#[test]
fn a_suspended_device() {
    let mut facts = waiting();
    facts.devices[0].is_suspended = Some(true);
    facts.devices[0].dm_name = Some("img".to_owned());
    // Suspending freezes the file system above.
    let stack = ["percpu_rwsem_wait", "__percpu_down_read", "io_write"];
    facts.guests[0].threads.push(blocked(&stack));
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::SuspendedDevice),
        "vm1's vda waits since 41 s for host device dm-3, which is suspended; dmsetup resume img ends that",
    );
    // Nothing of an idle guest waits for it.
    let mut facts = idle();
    facts.devices[0].is_suspended = Some(true);
    check(
        facts,
        Verdict::Idle,
        None,
        "nothing of vm1 is stuck: nothing is in flight",
    );
}

#[test]
fn a_frozen_file_system() {
    let frozen = "vm1's vda waits since 41 s for the host's file system /img (ext4), which is frozen; fsfreeze -u /img ends \
                  that";
    for frames in [
        &[
            "percpu_rwsem_wait",
            "__percpu_down_read",
            "vfs_write",
            "ksys_pwrite64",
        ][..],
        &[
            "percpu_rwsem_wait",
            "__percpu_down_read",
            "io_write",
            "io_issue_sqe",
        ],
        &[
            "percpu_rwsem_wait",
            "__percpu_down_read",
            "aio_write",
            "io_submit_one",
        ],
    ] {
        let mut facts = waiting();
        facts.guests[0].threads.push(blocked(frames));
        check(
            facts,
            Verdict::Stuck,
            Some(HolderKind::FrozenFileSystem),
            frozen,
        );
    }
    // Without the right to read stacks.
    let mut thread = blocked(&[]);
    thread.wait_channel = Some("percpu_rwsem_wait".to_owned());
    let mut facts = waiting();
    facts.guests[0].threads.push(thread.clone());
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        frozen,
    );
    // Reads go on beside writes that are held.
    let mut facts = waiting();
    facts.guests[0]
        .threads
        .push(blocked(&["percpu_rwsem_wait", "vfs_write"]));
    facts.guests[0].disks[0].completed = Some(DiskCounts {
        reads: 100,
        ..DiskCounts::default()
    });
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        frozen,
    );
    // Other locks of the same kind.
    let mut facts = waiting();
    let fork = ["percpu_rwsem_wait", "__percpu_down_read", "copy_process"];
    facts.guests[0].threads.push(blocked(&fork));
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::KernelFunction),
        "vm1's vda waits since 41 s for copy_process in the kernel: thread 4720 is blocked in pwrite of /img/vm1.qcow2",
    );
}

#[test]
fn the_file_system_of_a_loop_devices_file() {
    let mut facts = waiting();
    facts.devices[1].name = "loop3".to_owned();
    facts.devices[0].beneath = vec!["loop3".to_owned()];
    facts.devices[1].loop_file = Some(ImageFacts {
        path: "/data/img".to_owned(),
        mount_point: "/data".to_owned(),
        fs_type: "xfs".to_owned(),
        ..ImageFacts::default()
    });
    let mut worker = blocked(&["percpu_rwsem_wait", "__percpu_down_read", "lo_rw_aio"]);
    worker.name = "kworker/u9:1-loop3".to_owned();
    facts.host.kernel_threads.push(worker);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for the host's file system /data (xfs), \
         which is frozen; fsfreeze -u /data ends that",
    );
}

#[test]
fn the_journal() {
    let mut facts = waiting();
    facts.guests[0]
        .threads
        .push(blocked(&["jbd2_log_wait_commit", "ext4_sync_file"]));
    let mut worker = blocked(&[
        "schedule",
        "jbd2_journal_wait_updates",
        "jbd2_journal_commit_transaction",
    ]);
    worker.name = "jbd2/dm-3-8".to_owned();
    facts.host.kernel_threads.push(worker);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Journal),
        "vm1's vda waits since 41 s for the host's journal of /img: jbd2/dm-3-8 waits in jbd2_journal_wait_updates since 41 s",
    );
}

#[test]
fn write_back() {
    let mut facts = waiting();
    facts.host.dirty = Some(3 << 30);
    facts.host.writeback = Some(64 << 20);
    let stack = [
        "schedule_timeout",
        "io_schedule_timeout",
        "balance_dirty_pages",
    ];
    facts.guests[0].threads.push(blocked(&stack));
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::DirtyThrottle),
        "vm1's vda waits since 41 s for the host's write-back: its page cache has 3072 MiB that are dirty and 64 MiB that are \
         being written",
    );
}

#[test]
fn network_file_systems_and_fuse() {
    for (stack, fs, source, kind, sentence) in [
        (
            "rpc_wait_bit_killable",
            "nfs4",
            "nas:/vms",
            HolderKind::Server,
            "vm1's vda waits since 41 s for the NFS server of /img (nas:/vms), which does not answer",
        ),
        (
            "request_wait_answer",
            "fuse.sshfs",
            "b:/vms",
            HolderKind::Fuse,
            "vm1's vda waits since 41 s for the FUSE file system /img (b:/vms), which does not answer",
        ),
    ] {
        let mut facts = waiting();
        let image = &mut facts.guests[0].disks[0].images[0];
        image.fs_type = fs.to_owned();
        image.source = source.to_owned();
        image.devices.clear();
        facts.guests[0].threads.push(blocked(&["schedule", stack]));
        check(facts, Verdict::Stuck, Some(kind), sentence);
    }
}

#[test]
fn a_server_that_is_stopped() {
    let server = ProcessFacts {
        pid: 99,
        name: "qemu-nbd".to_owned(),
        state: "T".to_owned(),
    };
    let mut facts = waiting();
    facts.guests[0].disks[0].images.clear();
    facts.guests[0].disks[0].remote = Some(RemoteFacts {
        driver: "nbd".to_owned(),
        address: "nbd+unix:///?socket=/run/a".to_owned(),
        stopped_server: Some(server.clone()),
    });
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::Server),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for the server of \
         nbd+unix:///?socket=/run/a, qemu-nbd (pid 99), which is stopped; kill -CONT 99 starts it again",
    );
    if let Some(remote) = &mut facts.guests[0].disks[0].remote {
        remote.stopped_server = None;
    }
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Server),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for its nbd server \
         nbd+unix:///?socket=/run/a, which does not answer",
    );
    // The kernel's own client.
    let mut facts = waiting();
    facts.devices[1].name = "nbd0".to_owned();
    facts.devices[0].beneath = vec!["nbd0".to_owned()];
    facts.devices[1].server = Some(server);
    facts.devices[1].in_flight_before = Some(1);
    facts.devices[1].in_flight = Some(1);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Server),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for the server of nbd0, qemu-nbd (pid 99), \
         which is stopped; kill -CONT 99 starts it again",
    );
}

#[test]
fn limits() {
    let mut facts = waiting();
    facts.guests[0].disks[0].limits = DiskLimits {
        iops: 1,
        ..DiskLimits::default()
    };
    facts.guests[0].disks[0].completed = Some(DiskCounts {
        writes: 2,
        ..DiskCounts::default()
    });
    check(
        facts.clone(),
        Verdict::Limited,
        Some(HolderKind::QemuLimit),
        "vm1's vda is held back by QEMU's own limit of 1 requests a second (throttling.*, virsh blkdeviotune); 32 requests wait",
    );
    // Far below a limit it is not the limit.
    facts.guests[0].disks[0].limits.iops = 1_000;
    facts.guests[0].cgroup.limits.push(CgroupLimit {
        cgroup: "/machine.slice/vm1".to_owned(),
        device: "sdb".to_owned(),
        iops_wr: Some(1),
        ..CgroupLimit::default()
    });
    check(
        facts.clone(),
        Verdict::Limited,
        Some(HolderKind::CgroupLimit),
        "vm1's vda is held back by the limit of 1 writes a second on sdb of the cgroup /machine.slice/vm1 (io.max, \
         blkio.throttle); 32 requests wait",
    );
    facts.guests[0].cgroup.limits[0].iops_wr = Some(50);
    check(
        facts,
        Verdict::Working,
        None,
        "nothing of vm1 is stuck: 1.0 requests a second complete, 0 µs each on average",
    );
}

#[test]
fn a_device_that_stalls_below_a_limit_is_the_holder() {
    let mut facts = waiting();
    facts.guests[0].disks[0].limits.iops = 500;
    facts.devices[1].in_flight_before = Some(1);
    facts.devices[1].in_flight = Some(1);
    let answer = judge(facts);
    let holder = answer.guests[0].holder.clone().unwrap();
    assert_eq!(
        (holder.kind, holder.name.as_str()),
        (HolderKind::Device, "sdb")
    );
}

#[test]
fn requests_that_nothing_outside_of_qemu_has() {
    check(
        waiting(),
        Verdict::Stuck,
        Some(HolderKind::Qemu),
        "vm1's vda waits since at least 2.0 s (the last request completed 41 s ago) for QEMU itself: it has 32 requests, and \
         no device below it has one that waits as long",
    );
}

#[test]
fn run_states() {
    let mut facts = idle();
    facts.guests[0].run_state = Some("paused".to_owned());
    check(
        facts,
        Verdict::Paused,
        Some(HolderKind::RunState),
        "vm1 is paused (QMP's stop, virsh suspend): cont or virsh resume goes on",
    );
    // What waits all the same is more.
    let mut facts = waiting();
    facts.guests[0].run_state = Some("inmigrate".to_owned());
    facts.devices[0].is_suspended = Some(true);
    let answer = judge(facts);
    assert_eq!(answer.guests[0].verdict, Verdict::Stuck);
    assert_eq!(
        answer.guests[0].also,
        ["vm1 waits for an incoming migration"]
    );
    let mut facts = waiting();
    facts.guests[0].run_state = Some("io-error".to_owned());
    facts.guests[0].disks[0].io_status = Some("nospace".to_owned());
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::IoError),
        "vm1 is stopped by an I/O error of vda: no space is left for its image (/img/vm1.qcow2 on /img); once that is \
         repaired, QMP's cont (virsh resume) goes on",
    );
}

#[test]
fn stopped_processes() {
    let mut facts = idle();
    facts.guests[0].run_state = None;
    facts.guests[0].monitor_silence = Some("failed to get a greeting".to_owned());
    facts.guests[0].is_stopped = true;
    let mut thread = blocked(&[]);
    thread.state = "T".to_owned();
    facts.guests[0].threads.push(thread.clone());
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::Signal),
        "vm1's QEMU is stopped by a signal since 41 s; kill -CONT 4711 starts it again",
    );
    facts.guests[0].is_stopped = false;
    thread.state = "t".to_owned();
    thread.role = "vcpu 0".to_owned();
    thread.tracer = Some(ProcessFacts {
        pid: 77,
        name: "gdb".to_owned(),
        state: "S".to_owned(),
    });
    facts.guests[0].threads = vec![thread];
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::Tracer),
        "thread 4720 (vcpu 0) of vm1's QEMU is stopped by gdb (pid 77), which traces it since 41 s; it has 5 threads",
    );
    facts.guests[0].threads.clear();
    facts.guests[0].cgroup.frozen = Some("/machine.slice/vm1".to_owned());
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::CgroupFreezer),
        "vm1 is frozen with the cgroup /machine.slice/vm1 (cgroup.freeze or freezer.state)",
    );
}

#[test]
fn without_qmp() {
    let silent = |mut facts: Facts| {
        let guest = &mut facts.guests[0];
        guest.run_state = None;
        guest.monitor_silence = Some("another client has the monitor".to_owned());
        guest.disks[0].in_flight = None;
        guest.disks[0].in_flight_before = None;
        guest.disks[0].completed = None;
        guest.disks[0].idle_ns = None;
        facts
    };
    check(
        silent(idle()),
        Verdict::Unknown,
        None,
        "nothing of vm1 is seen to be stuck, but QMP gave no answer (another client has the monitor); 0.0 requests a second \
         complete on dm-3",
    );
    // The rings of the only disk say that it waits.
    let mut facts = silent(idle());
    facts.devices[1].in_flight_before = Some(32);
    facts.devices[1].in_flight = Some(32);
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::Device),
        "vm1's vda lies on host device dm-3, which completes nothing; its lower device sdb has 32 requests in flight; whether \
         the guest waits for it cannot be seen without QMP",
    );
    facts.guests[0].rings.push(RingFacts {
        fd: 9,
        in_flight_before: 32,
        in_flight: 32,
        completed: 0,
    });
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::Device),
        "vm1's vda waits since at least 2.0 s for host device dm-3, which completes nothing; its lower device sdb has 32 \
         requests in flight",
    );
}

#[test]
fn io_that_is_in_no_queue_of_the_guests() {
    let mut facts = idle();
    facts.guests[0].rings.push(RingFacts {
        fd: 9,
        in_flight_before: 1,
        in_flight: 1,
        completed: 0,
    });
    facts.devices[0].is_suspended = Some(true);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::SuspendedDevice),
        "vm1's vda waits since at least 2.0 s for host device dm-3, which is suspended",
    );
}

#[test]
fn a_queue_of_several_disks() {
    let mut facts = waiting();
    let mut other = facts.guests[0].disks[0].clone();
    other.name = "vdb".to_owned();
    other.images[0].devices = vec!["sdb".to_owned()];
    facts.guests[0].disks.push(other);
    for disk in &mut facts.guests[0].disks {
        disk.is_shared_queue = true;
    }
    // The requests may be those of either disk.
    let answer = judge(facts.clone());
    assert_eq!(
        answer.guests[0].verdict,
        Verdict::Working,
        "{}",
        answer.guests[0].sentence
    );
    facts.guests[0].disks[1].completed = Some(DiskCounts {
        reads: 10,
        ..DiskCounts::default()
    });
    assert_eq!(judge(facts).guests[0].verdict, Verdict::Working);
}

#[test]
fn another_users_guest() {
    let mut facts = idle();
    facts.guests[0].is_hidden = true;
    facts.guests[0].disks.clear();
    check(
        facts,
        Verdict::Unknown,
        None,
        "vm1 belongs to another user: its threads and files cannot be seen; run as root",
    );
}

#[test]
fn a_thread_of_no_known_disk() {
    let mut facts = idle();
    let mut second = facts.guests[0].disks[0].clone();
    second.name = "vdb".to_owned();
    facts.guests[0].disks.push(second);
    let mut thread = blocked(&["percpu_rwsem_wait", "__percpu_down_read", "aio_write"]);
    thread.disk = None;
    thread.file = None;
    thread.system_call = Some("io_submit".to_owned());
    facts.guests[0].threads.push(thread);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        "vm1 waits since 41 s for the host's file system /img (ext4), which is frozen; fsfreeze -u /img ends that",
    );
}

#[test]
fn a_thread_of_io_uring_works_for_the_only_disk_that_waits() {
    let mut facts = waiting();
    let mut second = facts.guests[0].disks[0].clone();
    second.name = "vdb".to_owned();
    second.in_flight = Some(0);
    facts.guests[0].disks.push(second);
    let mut thread = blocked(&["percpu_rwsem_wait", "io_write", "__io_issue_sqe"]);
    thread.disk = None;
    thread.file = None;
    facts.guests[0].threads.push(thread);
    check(
        facts.clone(),
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        "vm1's vda waits since 41 s for the host's file system /img (ext4), which is frozen; fsfreeze -u /img ends that",
    );
    // Of several that wait it may be either's.
    facts.guests[0].disks[1].in_flight = Some(3);
    check(
        facts,
        Verdict::Stuck,
        Some(HolderKind::FrozenFileSystem),
        "vm1 waits since 41 s for the host's file system /img (ext4), which is frozen; fsfreeze -u /img ends that",
    );
}

#[test]
fn names_do_not_reach_a_terminal_as_they_are() {
    let mut facts = idle();
    facts.guests[0].name = "vm\u{1b}[2J1".to_owned();
    let text = crate::text::render(&judge(facts));
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn the_json() {
    let mut facts = waiting();
    facts.devices[0].is_suspended = Some(true);
    let answer = judge(facts);
    let json = serde_json::to_value(&answer).unwrap();
    assert_eq!(json["schema"], "nestrace-stuck/1");
    assert_eq!(json["guests"][0]["name"], "vm1");
    assert_eq!(json["guests"][0]["verdict"], "stuck");
    assert_eq!(json["guests"][0]["holder"]["kind"], "suspended_device");
    assert_eq!(json["guests"][0]["holder"]["name"], "dm-3");
    assert_eq!(json["guests"][0]["since_ns"], 2 * SECOND);
    assert_eq!(json["guests"][0]["disks"][0]["in_flight"], 32);
    assert!(json["guests"][0]["disks"][0]["aio"].is_string());
}
