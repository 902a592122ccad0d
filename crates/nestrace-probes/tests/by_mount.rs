//! The guest's way to choose file I/O, on the running kernel: calls of any process on regular files of a
//! mount, plain `read` and `write` included, and of nothing else. Needs root, and fio.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{Read as _, Seek as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
};

use nestrace_abi::{Source, flags::op};
use nestrace_kernel::plan::{Wanted as PlanWanted, plan};
use nestrace_probes::{
    collect::{Collector, translate::translation},
    globals::Globals,
    kernel_facts,
    load::{Mounts, Probes, Wanted},
    mountinfo,
};
use nestrace_trace::{Event, Kind};

/// A file system in memory, mounted for as long as this lives.
struct Mounted {
    folder: tempfile::TempDir,
    /// What an ext4 lies on instead.
    image: Option<tempfile::NamedTempFile>,
}

impl Mounted {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "nestrace-test"])
            .arg(folder.path()));
        let image = None;
        Self { folder, image }
    }

    /// An ext4 with a journal, on a loop device.
    fn ext4() -> Self {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(image.path()));
        let folder = tempfile::tempdir().unwrap();
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(image.path())
            .arg(folder.path()));
        let image = Some(image);
        Self { folder, image }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `MAJOR << 20 | MINOR`, from mountinfo as a guest's agent has it.
    fn dev(&self) -> u32 {
        let mounts = mountinfo::read(0).unwrap();
        let place = self.folder.path();
        let mut ours = mounts.iter().filter(|m| Path::new(&m.mount_point) == place);
        ours.next_back().unwrap().dev
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.folder.path()).status();
    }
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Probes that look at one mount.
struct Traced {
    probes: Probes,
    collector: Collector,
}

impl Traced {
    fn new(mount: &Mounted, except: Vec<u32>) -> Self {
        let (facts, layout) = kernel_facts::gather();
        assert!(facts.may_trace(), "this test needs root");
        let globals = Globals::resolve(&layout, mount.image.is_some());
        let wanted = Wanted {
            mounts: Some(Mounts {
                devices: [mount.dev()].into(),
                except,
            }),
            ring_bytes: 1 << 20,
            ..Wanted::default()
        };
        let mut probes = Probes::load(&globals, &wanted).unwrap();
        let wanted = PlanWanted {
            mounts: true,
            cpu: false,
            ..PlanWanted::default()
        };
        probes.attach(&plan(&facts, &layout, wanted));
        let refused: Vec<_> = probes
            .refused
            .iter()
            .filter(|probe| {
                let may_lack = ["no tracepoint", "no function", "no kprobes", "not loaded"];
                !may_lack.iter().any(|reason| probe.reason.contains(reason))
            })
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
        let translation = translation(&layout, &globals.end_io);
        let collector = Collector::new(probes.rings_mut().len(), translation);
        Self { probes, collector }
    }

    fn attaches(&self, tracepoint: &str) -> bool {
        let refused = |probe: &nestrace_trace::manifest::Refused| probe.name == tracepoint;
        !self.probes.refused.iter().any(refused)
    }

    /// All events while `work` runs.
    fn record(&mut self, work: impl FnOnce()) -> Vec<Event> {
        self.probes.set_gate(true).unwrap();
        work();
        self.probes.set_gate(false).unwrap();
        let mut events = Vec::new();
        self.collector
            .drain_all(self.probes.rings_mut(), |event| events.push(event));
        for source in Source::ALL {
            assert_eq!(self.probes.lost(*source).unwrap(), 0, "{source:?}");
        }
        events
    }
}

/// File events while `work` runs.
fn recorded(mount: &Mounted, except: Vec<u32>, work: impl FnOnce()) -> Vec<Event> {
    let mut events = Traced::new(mount, except).record(work);
    events.retain(|event| event.kind().map(Kind::source) == Some(Source::File));
    events
}

/// What one call is expected to look like.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    op: u8,
    offset: u64,
    bytes: u64,
    buffer: u64,
    result: i64,
}

/// The calls of this thread, each with its return, in the order in which they were made.
fn calls(events: &[Event], path: &Path) -> Vec<Call> {
    let meta = fs::metadata(path).unwrap();
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() }.cast_unsigned();
    let ours: Vec<&Event> = events
        .iter()
        .filter(|event| {
            event.tid == tid && matches!(event.kind(), Some(Kind::SyscallEnter | Kind::SyscallExit))
        })
        .collect();
    let pair = |pair: &[&Event]| {
        let &[enter, exit] = pair else {
            panic!("{pair:?}")
        };
        assert_eq!(enter.kind(), Some(Kind::SyscallEnter), "{pair:?}");
        assert_eq!(exit.kind(), Some(Kind::SyscallExit), "{pair:?}");
        assert_eq!(enter.sub, exit.sub, "{pair:?}");
        assert_eq!((enter.inode, enter.dev), (meta.ino(), 0), "{enter:?}");
        Call {
            op: enter.sub,
            offset: enter.offset,
            bytes: enter.bytes,
            buffer: enter.iocb,
            result: exit.offset.cast_signed(),
        }
    };
    ours.chunks(2).map(pair).collect()
}

fn vector(parts: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let part = |part: &mut Vec<u8>| libc::iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    };
    parts.iter_mut().map(part).collect()
}

/// Every way to read and write a file from one thread, with what each call is expected to look like.
fn use_in_every_way(path: &Path, mut expect: impl FnMut(u8, u64, u64, *const u8, i64)) {
    let mut file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let fd = file.as_raw_fd();
    let mut buffer = vec![7u8; 4096];
    let at = buffer.as_ptr();
    file.write_all(&buffer).unwrap();
    expect(op::WRITE, 0, 4096, at, 4096);
    file.write_all(&buffer[..100]).unwrap();
    expect(op::WRITE, 4096, 100, at, 100);
    file.write_all_at(&buffer[..512], 8192).unwrap();
    expect(op::WRITE, 8192, 512, at, 512);
    let mut parts = [vec![1u8; 10], vec![2u8; 20]];
    let iov = vector(&mut parts);
    let first = iov[0].iov_base.cast_const().cast();
    // SAFETY: the parts outlive the calls.
    unsafe {
        assert_eq!(libc::writev(fd, iov.as_ptr(), 2), 30);
        expect(op::WRITE, 4196, 30, first, 30);
        assert_eq!(libc::pwritev2(fd, iov.as_ptr(), 1, -1, 0), 10);
        expect(op::WRITE, 4226, 10, first, 10);
        assert_eq!(libc::pwritev(fd, iov.as_ptr(), 2, 77), 30);
        expect(op::WRITE, 77, 30, first, 30);
        file.rewind().unwrap();
        assert_eq!(libc::readv(fd, iov.as_ptr(), 2), 30);
        expect(op::READ, 0, 30, first, 30);
        assert_eq!(libc::preadv(fd, iov.as_ptr(), 2, 8190), 30);
        expect(op::READ, 8190, 30, first, 30);
    }
    let n = file.read(&mut buffer[..50]).unwrap();
    expect(op::READ, 30, 50, at, n as i64);
    // More is asked for than there is.
    let n = file.read_at(&mut buffer, 8192).unwrap();
    assert_eq!(n, 512);
    expect(op::READ, 8192, 4096, at, 512);
    file.sync_all().unwrap();
    expect(op::FSYNC, 0, 0, std::ptr::null(), 0);
    file.sync_data().unwrap();
    expect(op::FDATASYNC, 0, 0, std::ptr::null(), 0);
    // SAFETY: no memory is passed.
    unsafe {
        assert_eq!(libc::fallocate(fd, 0, 4096, 16384), 0);
        expect(op::FALLOCATE, 4096, 16384, std::ptr::null(), 0);
        assert_eq!(libc::sync_file_range(fd, 0, 8192, 2), 0);
        expect(op::SYNC_FILE_RANGE, 0, 8192, std::ptr::null(), 0);
    }
    let mut log = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_APPEND)
        .open(path)
        .unwrap();
    log.write_all(&buffer[..3]).unwrap();
    expect(op::WRITE, 20480, 3, at, 3);
    log.write_all(&buffer[..5]).unwrap();
    expect(op::WRITE, 20483, 5, at, 5);
}

#[test]
fn every_call_on_a_file_of_the_mount_and_no_other() {
    let (mount, other) = (Mounted::new(), Mounted::new());
    let mut expected = Vec::new();
    let events = recorded(&mount, Vec::new(), || {
        // What is no regular file, or lies elsewhere.
        let (mut from, mut to) = std::io::pipe().unwrap();
        to.write_all(b"pipe").unwrap();
        from.read_exact(&mut [0u8; 4]).unwrap();
        fs::write(other.file("elsewhere"), b"elsewhere").unwrap();
        File::open("/dev/zero")
            .unwrap()
            .read_exact(&mut [0u8; 8])
            .unwrap();
        fs::read_to_string("/proc/self/stat").unwrap();
        use_in_every_way(&mount.file("a"), |op, offset, bytes, buffer, result| {
            expected.push(Call {
                op,
                offset,
                bytes,
                buffer: buffer as u64,
                result,
            });
        });
        fs::write(other.file("elsewhere"), b"again").unwrap();
    });
    assert_eq!(calls(&events, &mount.file("a")), expected);
    let dev = mount.dev();
    let strangers = events
        .iter()
        .filter(|event| event.inode != 0 && event.owner_dev != dev);
    assert_eq!(strangers.count(), 0);
}

#[test]
fn who_records_is_left_out_and_others_are_not() {
    let mount = Mounted::new();
    let events = recorded(&mount, vec![std::process::id()], || {
        fs::write(mount.file("own"), b"own").unwrap();
        let script = "printf other > \"$0\"";
        run(Command::new("sh")
            .args(["-c", script])
            .arg(mount.file("other")));
    });
    let other = fs::metadata(mount.file("other")).unwrap().ino();
    let enters: Vec<_> = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::SyscallEnter))
        .map(|event| (event.inode, event.sub, event.bytes))
        .collect();
    assert_eq!(enters, [(other, op::WRITE, 5)]);
}

#[test]
fn native_aio_and_io_uring_by_their_files() {
    let (mount, other) = (Mounted::new(), Mounted::new());
    let events = recorded(&mount, Vec::new(), || {
        for engine in ["libaio", "io_uring"] {
            for folder in [&mount, &other] {
                run(Command::new("fio")
                    .args([
                        "--name=job",
                        "--rw=write",
                        "--bs=4k",
                        "--size=64k",
                        "--iodepth=4",
                    ])
                    .arg(format!("--ioengine={engine}"))
                    .arg(format!("--filename={}", folder.file(engine).display()))
                    .current_dir("/tmp"));
            }
        }
    });
    let of = |kind: Kind| {
        events
            .iter()
            .filter(move |event| event.kind() == Some(kind))
    };
    for (kind, engine) in [(Kind::AioSubmit, "libaio"), (Kind::UringSubmit, "io_uring")] {
        let inode = fs::metadata(mount.file(engine)).unwrap().ino();
        let offsets: BTreeSet<u64> = of(kind).map(|event| event.offset).collect();
        assert_eq!(
            offsets,
            (0..16).map(|block| block * 4096).collect(),
            "{engine}"
        );
        assert_eq!(of(kind).count(), 16, "{engine}");
        for event in of(kind) {
            assert_eq!(
                (event.inode, event.owner_dev),
                (inode, mount.dev()),
                "{event:?}"
            );
            assert_eq!((event.sub, event.bytes), (op::WRITE, 4096), "{event:?}");
            assert_ne!(event.iocb, 0, "{event:?}");
        }
    }
    let submitted: Vec<u64> = of(Kind::UringSubmit).map(|event| event.object).collect();
    assert_eq!(of(Kind::UringComplete).count(), 16);
    for event in of(Kind::UringComplete) {
        assert!(submitted.contains(&event.object), "{event:?}");
        assert_eq!(event.offset, 4096, "{event:?}");
    }
    let submits =
        |event: &&Event| event.kind() == Some(Kind::SyscallEnter) && event.sub == op::IO_SUBMIT;
    assert_eq!(events.iter().filter(submits).count(), 0);
}

/// A shell that reads, and becomes a program that reads on.
#[test]
fn a_thread_that_takes_another_name_is_introduced_again() {
    let mount = Mounted::new();
    fs::write(mount.file("a"), b"line\nline\n").unwrap();
    let events = Traced::new(&mount, Vec::new()).record(|| {
        let script = "read line < \"$0\"; exec dd if=\"$0\" of=/dev/null bs=1 count=3 status=none";
        run(Command::new("sh").args(["-c", script]).arg(mount.file("a")));
    });
    let of = |kind: Kind| {
        let of_kind = move |event: &&Event| event.kind() == Some(kind);
        events.iter().filter(of_kind)
    };
    let names: Vec<String> = of(Kind::Thread).map(Event::thread_name).collect();
    assert_eq!(names, ["sh", "dd"]);
    let threads: BTreeSet<u32> = of(Kind::SyscallEnter).map(|event| event.tid).collect();
    assert_eq!(threads.len(), 1, "one thread under two names");
}

#[test]
fn a_second_recording_knows_nothing_of_the_first() {
    let mount = Mounted::new();
    let mut traced = Traced::new(&mount, Vec::new());
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() }.cast_unsigned();
    for name in ["first", "second"] {
        let events = traced.record(|| fs::write(mount.file(name), name).unwrap());
        let kinds: Vec<_> = events
            .iter()
            .filter(|event| event.tid == tid)
            .filter_map(Event::kind)
            .collect();
        assert_eq!(
            kinds.iter().filter(|kind| **kind == Kind::Thread).count(),
            1,
            "{name}: {kinds:?}"
        );
        assert_eq!(
            kinds
                .iter()
                .filter(|kind| **kind == Kind::SyscallExit)
                .count(),
            1,
            "{name}: {kinds:?}"
        );
    }
}

/// What a sync of ext4 waits for, and what the journal does meanwhile.
#[test]
fn a_sync_names_its_transaction_and_the_commit_its_phases() {
    let mount = Mounted::ext4();
    let name = mount.file("a");
    let events = Traced::new(&mount, Vec::new()).record(|| {
        let mut file = File::create(&name).unwrap();
        for round in 0..20 {
            file.write_all(&[round; 4096]).unwrap();
            if round % 2 == 0 {
                file.sync_all().unwrap();
            } else {
                file.sync_data().unwrap();
            }
        }
    });
    let inode = fs::metadata(&name).unwrap().ino();
    let of = |kind: Kind| {
        let of_kind = move |event: &&Event| event.kind() == Some(kind);
        events.iter().filter(of_kind)
    };
    let ended: BTreeSet<u64> = of(Kind::JournalCommitEnd).map(|end| end.object).collect();
    let exits: Vec<_> = of(Kind::SyncExit).collect();
    let enters: Vec<_> = of(Kind::SyncEnter).collect();
    assert_eq!((exits.len(), enters.len()), (20, 20));
    for (enter, exit) in enters.iter().zip(&exits) {
        assert_eq!((exit.inode, exit.offset), (inode, 0), "{exit:?}");
        let datasync = enter.sub == op::FDATASYNC;
        let waits_for = if datasync {
            exit.related >> 32
        } else {
            exit.related & 0xffff_ffff
        };
        assert!(
            ended.contains(&waits_for),
            "{waits_for} is not in {ended:?}"
        );
    }
    for id in ended {
        let steps: Vec<_> = events
            .iter()
            .filter(|event| event.object == id)
            .filter_map(|event| match event.kind()? {
                Kind::JournalCommitStart => Some(0),
                Kind::JournalCommitPhase => Some(event.sub),
                Kind::JournalCommitEnd => Some(9),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [0, 1, 2, 3, 9], "transaction {id}");
    }
}

/// A call by path that has returned: op, result and inode.
fn done(events: &[Event], mount: &Mounted) -> Vec<(u8, i64, u64)> {
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() }.cast_unsigned();
    let calls = events
        .iter()
        .filter(|event| event.tid == tid && event.kind() == Some(Kind::CallDone));
    calls
        .map(|call| {
            assert_eq!(call.owner_dev, mount.dev(), "{call:?}");
            let took_ns = call.ts_ns - call.related;
            assert!((1..1_000_000_000).contains(&took_ns), "{call:?}");
            (call.sub, call.offset.cast_signed(), call.inode)
        })
        .collect()
}

#[test]
fn files_and_folders_that_calls_by_path_make_and_remove() {
    let (mount, other) = (Mounted::new(), Mounted::new());
    let folder = |mounted: &Mounted| File::open(mounted.folder.path()).unwrap();
    let (ours, elsewhere) = (folder(&mount), folder(&other));
    let mut inode = 0;
    let events = recorded(&mount, Vec::new(), || {
        for place in [&ours, &elsewhere] {
            let at = place.as_raw_fd();
            // SAFETY: the names end with a null.
            unsafe {
                let flags = libc::O_CREAT | libc::O_WRONLY;
                let fd = libc::openat(at, c"new".as_ptr(), flags, 0o644);
                if place.as_raw_fd() == ours.as_raw_fd() {
                    inode = fs::metadata(mount.file("new")).unwrap().ino();
                }
                // It is there already.
                libc::close(libc::openat(at, c"new".as_ptr(), flags, 0o644));
                libc::close(libc::openat(at, c"new".as_ptr(), libc::O_RDONLY));
                libc::close(fd);
                assert_eq!(libc::mkdirat(at, c"d".as_ptr(), 0o755), 0);
                assert_eq!(libc::mkdirat(at, c"d".as_ptr(), 0o755), -1);
                assert_eq!(libc::renameat(at, c"new".as_ptr(), at, c"d/x".as_ptr()), 0);
                assert_eq!(libc::unlinkat(at, c"d/x".as_ptr(), 0), 0);
                assert_eq!(libc::unlinkat(at, c"d".as_ptr(), libc::AT_REMOVEDIR), 0);
            }
        }
        // By an absolute path: what it creates is seen, what it removes is not.
        File::create(mount.file("absolute")).unwrap();
        fs::remove_file(mount.file("absolute")).unwrap();
    });
    let done = done(&events, &mount);
    let ops: Vec<u8> = done.iter().map(|(op, ..)| *op).collect();
    let expected = [
        op::OPEN,
        op::MKDIR,
        op::MKDIR,
        op::RENAME,
        op::UNLINK,
        op::RMDIR,
        op::OPEN,
    ];
    assert_eq!(ops, expected, "{done:?}");
    assert_eq!(done[0].2, inode);
    let exists = i64::from(-libc::EEXIST);
    assert_eq!((done[1].1, done[2].1), (0, exists));
}

/// A shell works in a folder of the mount, with names that begin there.
#[test]
fn names_that_begin_at_the_current_folder() {
    let (mount, other) = (Mounted::new(), Mounted::new());
    let events = recorded(&mount, Vec::new(), || {
        for place in [&mount, &other] {
            let script = "mkdir a b && rmdir b && : > c && mv c d && rm d && truncate -s 9 a/t";
            run(Command::new("sh")
                .args(["-c", script])
                .current_dir(place.folder.path()));
        }
    });
    let count = |op: u8| {
        let of = |event: &&Event| event.kind() == Some(Kind::CallDone) && event.sub == op;
        events.iter().filter(of).count()
    };
    let ops = [op::MKDIR, op::RMDIR, op::RENAME, op::UNLINK, op::OPEN];
    assert_eq!(ops.map(count), [2, 1, 1, 1, 2], "{events:?}");
}

#[test]
fn syncs_of_file_systems_and_copies_by_the_kernel() {
    let mount = Mounted::new();
    let path = mount.file("a");
    let mut expected = Vec::new();
    let events = recorded(&mount, Vec::new(), || {
        fs::write(&path, [1u8; 8192]).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let fd = file.as_raw_fd();
        let mut call = |op, offset, bytes, result: i64| {
            expected.push((op, offset, bytes, result));
        };
        call(op::WRITE, 0, 8192, 8192);
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let mut at = 4096;
        let target = File::create(mount.file("b")).unwrap();
        // SAFETY: what is pointed to is there.
        unsafe {
            assert_eq!(libc::ftruncate(fd, 6000), 0);
            call(op::TRUNCATE, 6000, 0, 0);
            let n = libc::sendfile(null.as_raw_fd(), fd, &raw mut at, 9999);
            call(op::READ, 4096, 9999, n as i64);
            let n = libc::copy_file_range(
                fd,
                std::ptr::null_mut(),
                target.as_raw_fd(),
                std::ptr::null_mut(),
                100,
                0,
            );
            call(op::WRITE, 0, 100, n as i64);
            assert_eq!(libc::syncfs(fd), 0);
            call(op::SYNCFS, 0, 0, 0);
            libc::sync();
            call(op::SYNC, 0, 0, 0);
        }
    });
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() }.cast_unsigned();
    let ours: Vec<_> = events
        .iter()
        .filter(|event| {
            event.tid == tid && matches!(event.kind(), Some(Kind::SyscallEnter | Kind::SyscallExit))
        })
        .collect();
    let calls: Vec<_> = ours
        .chunks(2)
        .map(|pair| {
            let (enter, exit) = (pair[0], pair[1]);
            assert_eq!(enter.sub, exit.sub);
            (
                enter.sub,
                enter.offset,
                enter.bytes,
                exit.offset.cast_signed(),
            )
        })
        .collect();
    assert_eq!(calls, expected);
}

/// A writer on a file system whose device may have few dirty pages.
#[test]
fn a_writer_that_is_throttled() {
    let mount = Mounted::ext4();
    let dev = mount.dev();
    let bdi = PathBuf::from(format!("/sys/class/bdi/{}:{}", dev >> 20, dev & 0xf_ffff));
    // Before 6.2 only the whole machine can have such a limit, which a test does not set.
    let limit = fs::read_to_string("/proc/sys/vm/dirty_bytes").unwrap();
    if bdi.join("max_bytes").exists() {
        fs::write(bdi.join("strict_limit"), "1").unwrap();
        fs::write(bdi.join("max_bytes"), "262144").unwrap();
    } else if limit.trim() == "0" {
        eprintln!("skipped: this kernel has no limit of dirty bytes for one device");
        return;
    }
    // SAFETY: no preconditions.
    let tid = unsafe { libc::gettid() }.cast_unsigned();
    let events = Traced::new(&mount, Vec::new()).record(|| {
        let mut file = File::create(mount.file("a")).unwrap();
        for _ in 0..320 {
            file.write_all(&[7; 65536]).unwrap();
        }
    });
    let ours = events.iter().filter(|event| event.tid == tid);
    let (mut throttled_ns, mut slept_ns, mut pauses) = (0, 0, 0);
    let mut pause: Option<&Event> = None;
    for event in ours {
        if let Some(began) = pause.take() {
            let took_ns = event.ts_ns - began.ts_ns;
            slept_ns += took_ns;
            throttled_ns += began.offset;
        }
        if event.kind() == Some(Kind::DirtyThrottle) {
            assert!(
                (1_000_000..=200_000_000).contains(&event.offset),
                "{event:?}"
            );
            pauses += 1;
            pause = Some(event);
        }
    }
    eprintln!("{pauses} pauses of {throttled_ns} ns in all; next events after {slept_ns} ns");
    assert!(pauses > 0);
    // A jiffy is at most 10 ms, and a sleep may end within the last one.
    assert!(slept_ns + pauses * 10_000_000 >= throttled_ns);
}

/// Pages of a mapped file, each far from the others.
#[test]
fn faults_on_a_mapped_file() {
    let mount = Mounted::ext4();
    let path = mount.file("a");
    fs::write(&path, vec![7u8; 8 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    let inode = file.metadata().unwrap().ino();
    file.sync_all().unwrap();
    // SAFETY: no memory is passed.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let offsets = [0u64, 3 << 20, 6 << 20];
    let mut traced = Traced::new(&mount, Vec::new());
    if !traced.attaches("mm_filemap_fault") {
        eprintln!("skipped: this kernel has no tracepoint mm_filemap_fault");
        return;
    }
    // SAFETY: a new mapping.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8 << 20,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(map, libc::MAP_FAILED);
    // SAFETY: within the mapping.
    unsafe { libc::madvise(map, 8 << 20, libc::MADV_RANDOM) };
    let events = traced.record(|| {
        for offset in offsets {
            // SAFETY: within the mapping.
            let byte = unsafe { std::ptr::read_volatile(map.cast::<u8>().add(offset as usize)) };
            assert_eq!(byte, 7);
        }
    });
    // SAFETY: it was mapped above.
    unsafe { libc::munmap(map, 8 << 20) };
    let faults: BTreeSet<u64> = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::PageFault) && event.inode == inode)
        .map(|event| event.offset)
        .collect();
    assert_eq!(faults, offsets.into());
}

#[test]
fn an_msync_that_waits_is_a_call_on_its_file() {
    let (mount, other) = (Mounted::ext4(), Mounted::ext4());
    let map = |path: &Path| {
        fs::write(path, [7; 4096]).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        // SAFETY: a new mapping, which stays until the process ends.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        map.expose_provenance()
    };
    let (here, there) = (map(&mount.file("a")), map(&other.file("a")));
    let events = Traced::new(&mount, Vec::new()).record(|| {
        for (map, flags) in [
            (here, libc::MS_SYNC),
            (here, libc::MS_ASYNC),
            (there, libc::MS_SYNC),
        ] {
            // SAFETY: both are mapped.
            let result = unsafe {
                let map = std::ptr::with_exposed_provenance_mut::<u8>(map);
                map.write_volatile(1);
                libc::msync(map.cast(), 4096, flags)
            };
            assert_eq!(result, 0);
        }
    });
    // SAFETY: both are mapped, and nothing refers to them.
    unsafe {
        libc::munmap(std::ptr::with_exposed_provenance_mut(here), 4096);
        libc::munmap(std::ptr::with_exposed_provenance_mut(there), 4096);
    }
    let inode = fs::metadata(mount.file("a")).unwrap().ino();
    let of = |kind: Kind| {
        let is_it = move |event: &&Event| event.kind() == Some(kind) && event.sub == op::MSYNC;
        events.iter().filter(is_it).collect::<Vec<&Event>>()
    };
    let (begins, ends) = (of(Kind::SyscallEnter), of(Kind::SyscallExit));
    assert_eq!((begins.len(), ends.len()), (1, 1));
    assert_eq!((begins[0].inode, begins[0].owner_dev), (inode, mount.dev()));
    assert!(begins[0].related != 0 && begins[0].related <= begins[0].ts_ns);
    assert!(begins[0].ts_ns < ends[0].ts_ns);
    assert_eq!(ends[0].offset, 0);
}
