//! Discovery against real QEMUs, paused at their first instruction, on real file systems.

mod rig;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_record::guest::{DiscoverError, Selection, discover, qmp, tree};
use rig::{Loop, Mounted, QEMU, Qemu, Running, directory, disk, guest, ready, run, sparse};

const TOOLS: &[&str] = &["qemu-system-x86_64", "qemu-img", "losetup", "mount"];

/// `MAJOR << 20 | MINOR` of what `stat` shows.
fn kernel_dev(dev: u64) -> u32 {
    (libc::major(dev) << 20) | libc::minor(dev)
}

#[test]
fn images_on_every_host_file_system() {
    if !ready(&[TOOLS, &["mkfs.xfs", "mkfs.btrfs", "mkfs.ext4"]].concat()) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let sizes = [
        ("ext2", 64, "ext2"),
        ("ext3", 64, "ext3"),
        ("ext4", 64, "ext4"),
        ("xfs", 320, "xfs"),
        ("ext3", 64, "ext4"),
    ];
    let mut kept = Vec::new();
    let mut drives = Vec::new();
    for (index, (made_as, mib, mounted_as)) in sizes.iter().enumerate() {
        let file = base.join(format!("backing{index}"));
        let device = Loop::new(sparse(&file, *mib));
        run(&[&format!("mkfs.{made_as}"), "-q", device.path()]);
        let mount = Mounted::new(
            mounted_as,
            "noatime",
            device.path(),
            &base.join(format!("m{index}")),
        );
        let image = mount.0.join("disk.img");
        sparse(&image, 16);
        drives.push(format!(
            "file={},format=raw,if=none,id=d{index},cache=writeback",
            image.display()
        ));
        kept.push((mount, device, image, file));
    }
    let devices: Vec<String> = (0..sizes.len())
        .map(|i| format!("virtio-blk-pci,drive=d{i}"))
        .collect();
    let arguments: Vec<&str> = drives
        .iter()
        .flat_map(|d| ["-drive", d])
        .chain(devices.iter().flat_map(|d| ["-device", d]))
        .collect();
    let qemu = Qemu::start(base, &arguments);
    let found = qemu.discover();
    assert_eq!(found.diagnostics, [], "nothing is missing");
    for (index, (mount, device, image, file)) in kept.iter().enumerate() {
        let disk = disk(&found, &format!("d{index}"));
        let top = &disk.images[0];
        let about = fs::metadata(image).expect("stat");
        assert_eq!(
            (top.path.as_str(), top.inode, top.dev),
            (
                image.to_str().expect("UTF-8"),
                about.ino(),
                kernel_dev(about.dev())
            )
        );
        assert_eq!(
            (top.size, top.allocated, top.direct),
            (16 << 20, about.blocks() * 512, Some(false))
        );
        assert_eq!(top.devices, [device.name()]);
        let mounted = top.mount.as_ref().expect("a mount");
        // Made as ext3, mounted as ext4: the features tell.
        assert_eq!(mounted.fs_type, sizes[index].0, "{mounted:?}");
        assert_eq!(mounted.mount_point, mount.0.to_str().expect("UTF-8"));
        assert!(mounted.options.contains("noatime"), "{mounted:?}");
        let below = found
            .topology
            .devices
            .iter()
            .find(|d| d.name == device.name())
            .expect("the loop device");
        let backing = below.loop_file.as_ref().expect("a backing file");
        assert_eq!(
            (below.kind.as_str(), backing.path.as_str()),
            ("loop", file.to_str().expect("UTF-8"))
        );
        assert_eq!(backing.inode, fs::metadata(file).expect("stat").ino());
        assert_eq!(below.beneath, backing.devices);
        assert!(
            !below.beneath.is_empty()
                && below.nr_requests > 0
                && below.size == (sizes[index].1 << 20)
        );
        let bottom = found
            .topology
            .devices
            .iter()
            .find(|d| d.name == below.beneath[0])
            .expect("the root disk");
        assert_eq!(
            bottom.dev,
            kernel_dev(fs::metadata(file).expect("stat").dev())
        );
    }
    let text = tree::render(&found.topology);
    assert_eq!(text.matches("xfs on ").count(), 1, "{text}");
}

#[test]
fn btrfs_with_two_devices_and_a_subvolume() {
    if !ready(&[TOOLS, &["mkfs.btrfs", "btrfs"]].concat()) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let loops = [
        Loop::new(sparse(&base.join("a"), 160)),
        Loop::new(sparse(&base.join("b"), 160)),
    ];
    run(&["mkfs.btrfs", "-q", loops[0].path(), loops[1].path()]);
    let mount = Mounted::new("btrfs", "noatime", loops[0].path(), &base.join("m"));
    let subvolume = mount.0.join("sub");
    run(&[
        "btrfs",
        "subvolume",
        "create",
        subvolume.to_str().expect("UTF-8"),
    ]);
    let image = subvolume.join("disk.qcow2");
    run(&[
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        image.to_str().expect("UTF-8"),
        "16M",
    ]);
    let drive = format!(
        "file={},if=virtio,id=d,cache=none,aio=native",
        image.display()
    );
    let qemu = Qemu::start(base, &["-drive", &drive]);
    let found = qemu.discover();
    let disk = disk(&found, "d");
    let top = &disk.images[0];
    assert_eq!(
        (
            disk.format.as_str(),
            disk.cache.as_deref(),
            disk.aio.as_deref()
        ),
        ("qcow2", Some("none"), Some("native"))
    );
    assert_eq!(top.direct, Some(true));
    let mut expected = [loops[0].name(), loops[1].name()];
    expected.sort_unstable();
    let mut devices = top.devices.clone();
    devices.sort_unstable();
    assert_eq!(devices, expected);
    // `stat` shows the subvolume's own number; the kernel's events carry the super block's.
    let stat_dev = kernel_dev(fs::metadata(&image).expect("stat").dev());
    let line = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let line = line
        .lines()
        .find(|l| l.split(' ').nth(4) == mount.0.to_str())
        .expect("the mount");
    let (major, minor) = line
        .split(' ')
        .nth(2)
        .and_then(|d| d.split_once(':'))
        .expect("a number");
    let super_dev =
        (major.parse::<u32>().expect("major") << 20) | minor.parse::<u32>().expect("minor");
    assert_eq!(top.dev, super_dev);
    assert_ne!(
        top.dev, stat_dev,
        "this kernel shows no difference: the test proves nothing"
    );
}

#[test]
fn qmp_free_and_busy_tell_the_same_disks() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let path = |name: &str| base.join(name).to_str().expect("UTF-8").to_owned();
    sparse(&base.join("base.img"), 16);
    run(&[
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        "base.img",
        "-F",
        "raw",
        &path("mid.qcow2"),
    ]);
    run(&[
        "qemu-img",
        "create",
        "-q",
        "-f",
        "qcow2",
        "-b",
        &path("mid.qcow2"),
        "-F",
        "qcow2",
        &path("top.qcow2"),
    ]);
    sparse(&base.join("plain.img"), 8);
    sparse(&base.join("cd.iso"), 1);
    let qmp_socket = path("qmp.sock");
    let agent = path("agent.sock");
    let storage = format!(
        r#"{{"driver":"file","node-name":"s0","filename":"{}","aio":"io_uring","cache":{{"direct":true,"no-flush":false}}}}"#,
        path("top.qcow2")
    );
    let arguments = [
        "-name",
        "guest=both-ways,debug-threads=on",
        "-uuid",
        "c7a5fdbd-edaf-9455-926a-d65c16db1809",
        "-object",
        "iothread,id=io0",
        "-qmp",
        &format!("unix:{qmp_socket},server=on,wait=off"),
        "-blockdev",
        &storage,
        "-blockdev",
        r#"{"driver":"qcow2","node-name":"f0","file":"s0","cache":{"direct":true,"no-flush":false}}"#,
        "-device",
        r#"{"driver":"virtio-blk-pci","drive":"f0","id":"vda-disk","iothread":"io0"}"#,
        "-device",
        "virtio-scsi-pci,id=scsi0",
        "-drive",
        &format!(
            "file={},if=none,id=plain,format=raw,cache=directsync,aio=native",
            path("plain.img")
        ),
        "-device",
        "scsi-hd,drive=plain,bus=scsi0.0",
        "-drive",
        &format!("file={},format=raw,media=cdrom", path("cd.iso")),
        "-device",
        "virtio-serial-pci",
        "-chardev",
        &format!("socket,id=agent,path={agent},server=on,wait=off"),
        "-device",
        "virtserialport,chardev=agent,name=org.nestrace.agent.0",
    ];
    let qemu = Qemu::start(base, &arguments);

    let begin = Instant::now();
    let free = qemu.discover();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(free.diagnostics, []);
    let this = guest(&free);
    assert_eq!(this.sources, ["qmp", "command line", "proc"]);
    assert_eq!(
        (this.name.as_str(), this.accel.as_str(), this.pid),
        ("both-ways", "tcg", qemu.pid)
    );
    assert_eq!(
        this.uuid.as_deref(),
        Some("c7a5fdbd-edaf-9455-926a-d65c16db1809")
    );
    assert_eq!(
        (this.qmp.as_deref(), this.agent.as_deref()),
        (Some(qmp_socket.as_str()), Some(agent.as_str()))
    );
    let names: Vec<&str> = this.disks.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["vda-disk", "plain", "ide0-cd0"]);
    let vda = disk(&free, "vda-disk");
    let chain: Vec<(&str, &str)> = vda
        .images
        .iter()
        .map(|i| (i.path.as_str(), i.format.as_str()))
        .collect();
    let files = [path("top.qcow2"), path("mid.qcow2"), path("base.img")];
    assert_eq!(
        chain,
        [
            (files[0].as_str(), "qcow2"),
            (files[1].as_str(), "qcow2"),
            (files[2].as_str(), "raw")
        ]
    );
    assert_eq!(
        (
            vda.bus.as_str(),
            vda.cache.as_deref(),
            vda.aio.as_deref(),
            vda.iothread.as_deref()
        ),
        ("virtio-blk", Some("none"), Some("io_uring"), Some("io0"))
    );
    assert_eq!(vda.images[0].direct, Some(true));
    let plain = disk(&free, "plain");
    assert_eq!(
        (
            plain.bus.as_str(),
            plain.cache.as_deref(),
            plain.format.as_str()
        ),
        ("virtio-scsi", Some("directsync"), "raw")
    );
    assert!(disk(&free, "ide0-cd0").read_only && !vda.read_only);

    let stats = qmp::block_stats(qemu.pid, &qmp_socket).expect("QMP was left free");
    let row = stats
        .iter()
        .find(|s| s.device.as_deref() == Some("plain"))
        .expect("the drive is counted");
    assert_eq!(
        row.counts,
        qmp::BlockCounts::default(),
        "a paused guest reads nothing"
    );
    assert!(
        stats
            .iter()
            .any(|s| s.qdev.as_deref().is_some_and(|q| q.contains("vda-disk")))
    );

    let mut holder = UnixStream::connect(&qmp_socket).expect("connect");
    let mut greeting = [0; 8];
    holder.read_exact(&mut greeting).expect("a greeting");
    let begin = Instant::now();
    let busy = qemu.discover();
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(800), "{took:?}");
    assert_eq!(guest(&busy).sources, ["command line", "proc"]);
    assert_eq!(guest(&busy).qmp, None);
    assert_eq!(
        guest(&busy).qemu_version,
        this.qemu_version,
        "the binary says the same version"
    );
    assert!(
        busy.diagnostics
            .iter()
            .any(|d| d.message.contains("another client holds")),
        "{:?}",
        busy.diagnostics
    );
    let mut disks = this.disks.clone();
    for disk in &mut disks {
        // Node names that QEMU makes up are known to QMP alone.
        disk.node = disk.node.take().filter(|node| !node.starts_with('#'));
    }
    assert_eq!(guest(&busy).disks, disks);
    assert_eq!(busy.topology.devices, free.topology.devices);
}

#[test]
fn cache_modes_are_the_same_from_both_witnesses() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let modes = ["none", "writeback", "writethrough", "directsync", "unsafe"];
    let mut drives = Vec::new();
    for mode in modes {
        let image = base.join(format!("{mode}.img"));
        sparse(&image, 4);
        drives.push(format!(
            "file={},format=raw,if=virtio,id={mode},cache={mode}",
            image.display()
        ));
    }
    let image = base.join("off.img");
    sparse(&image, 4);
    drives.push(format!(
        "file={},format=raw,if=none,id=off,cache=none",
        image.display()
    ));
    let qmp_socket = base.join("q").to_str().expect("UTF-8").to_owned();
    let server = format!("unix:{qmp_socket},server=on,wait=off");
    let mut arguments: Vec<&str> = drives.iter().flat_map(|d| ["-drive", d]).collect();
    arguments.extend([
        "-device",
        "virtio-blk-pci,drive=off,write-cache=off",
        "-qmp",
        &server,
    ]);
    let qemu = Qemu::start(base, &arguments);
    let check = |source: &str| {
        let found = qemu.discover();
        assert_eq!(guest(&found).sources[0], source);
        for mode in modes {
            let disk = disk(&found, mode);
            assert_eq!(disk.cache.as_deref(), Some(mode), "{source}");
            assert_eq!(
                disk.images[0].direct,
                Some(matches!(mode, "none" | "directsync")),
                "{source}"
            );
        }
        assert_eq!(
            disk(&found, "off").cache.as_deref(),
            Some("directsync"),
            "{source}"
        );
    };
    check("qmp");
    let _holder = UnixStream::connect(&qmp_socket).expect("connect");
    thread::sleep(Duration::from_millis(50));
    check("command line");
}

#[test]
fn deleted_and_renamed_images() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let (gone, moved) = (base.join("gone.img"), base.join("moved.img"));
    sparse(&gone, 8);
    sparse(&moved, 8);
    let inode = fs::metadata(&gone).expect("stat").ino();
    let drives = [
        format!("file={},format=raw,if=virtio,id=gone", gone.display()),
        format!("file={},if=virtio,id=moved,format=raw", moved.display()),
    ];
    let qemu = Qemu::start(base, &["-drive", &drives[0], "-drive", &drives[1]]);
    fs::remove_file(&gone).expect("delete");
    fs::rename(&moved, base.join("elsewhere.img")).expect("rename");
    // Another file takes the name of the deleted one.
    sparse(&gone, 2);
    let found = qemu.discover();
    let top = &disk(&found, "gone").images[0];
    assert_eq!((top.inode, top.size), (inode, 8 << 20));
    assert!(!top.devices.is_empty());
    let lost = disk(&found, "moved");
    assert!(
        lost.images.is_empty()
            && lost
                .not_followed
                .as_deref()
                .is_some_and(|r| r.contains("moved.img")),
        "{lost:?}"
    );
}

#[test]
fn disks_that_are_plugged_in_and_out() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let path = |name: &str| base.join(name).to_str().expect("UTF-8").to_owned();
    for name in ["first.img", "hot.img", "vars.img"] {
        sparse(&base.join(name), 4);
    }
    let socket = path("q");
    let qemu = Qemu::start(
        base,
        &[
            "-device",
            "virtio-scsi-pci,id=scsi0",
            "-drive",
            &format!("file={},format=raw,if=none,id=first", path("first.img")),
            "-device",
            "scsi-hd,drive=first,id=first-disk",
            "-blockdev",
            &format!(
                "raw,node-name=vars,file.driver=file,file.filename={}",
                path("vars.img")
            ),
            "-qmp",
            &format!("unix:{socket},server=on,wait=off"),
        ],
    );
    let mut monitor = qmp::Qmp::connect(qemu.pid, &socket).expect("QMP");
    let node = serde_json::json!({"driver": "raw", "node-name": "hot", "cache": {"direct": true}, "file": {"driver": "file", "filename": path("hot.img")}});
    monitor
        .execute("blockdev-add", &node)
        .expect("blockdev-add");
    let device = serde_json::json!({"driver": "scsi-hd", "drive": "hot", "id": "hot-disk"});
    monitor.execute("device_add", &device).expect("device_add");
    monitor
        .execute("device_del", &serde_json::json!({"id": "first-disk"}))
        .expect("device_del");
    drop(monitor);

    let names = |found: &nestrace_record::guest::Discovery| -> Vec<String> {
        guest(found).disks.iter().map(|d| d.name.clone()).collect()
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    let free = loop {
        let found = qemu.discover();
        if names(&found) == ["hot-disk"] {
            break found;
        }
        assert!(Instant::now() < deadline, "{:?}", names(&found));
        thread::sleep(Duration::from_millis(50));
    };
    let hot = disk(&free, "hot-disk");
    assert_eq!(
        (
            hot.bus.as_str(),
            hot.format.as_str(),
            hot.cache.as_deref(),
            hot.aio.as_deref()
        ),
        ("scsi", "raw", Some("none"), None)
    );
    assert_eq!(hot.images[0].path, path("hot.img"));

    let _holder = UnixStream::connect(&socket).expect("connect");
    thread::sleep(Duration::from_millis(50));
    let busy = qemu.discover();
    assert_eq!(names(&busy), ["first", "disk1"], "firmware is no disk");
    assert!(
        disk(&busy, "first")
            .not_followed
            .as_deref()
            .is_some_and(|r| r.contains("does not have")),
        "{busy:#?}"
    );
    let found = &disk(&busy, "disk1").images[0];
    assert_eq!(
        (found.path.as_str(), found.inode, found.direct),
        (path("hot.img").as_str(), hot.images[0].inode, Some(true))
    );
}

#[test]
fn another_mount_namespace() {
    if !ready(&[TOOLS, &["unshare", "mkfs.ext4"]].concat()) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let device = Loop::new(sparse(&base.join("backing"), 64));
    run(&["mkfs.ext4", "-q", device.path()]);
    let inner = base.join("inner");
    fs::create_dir(&inner).expect("mkdir");
    let script = format!(
        "mount -t ext4 {} {inner} && truncate -s 8M {inner}/disk.img && ln -s {inner}/disk.img {inner}/link.img && exec {QEMU} \"$@\"",
        device.path(),
        inner = inner.display()
    );
    let drive = format!(
        "file={}/link.img,format=raw,if=virtio,id=d",
        inner.display()
    );
    let server = format!("unix:{}/q.sock,server=on,wait=off", inner.display());
    let program = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let qemu = Qemu::start_with(&program, &inner, &["-drive", &drive, "-qmp", &server]);
    assert!(
        !inner.join("disk.img").exists(),
        "the mount must not be seen here"
    );
    let found = qemu.discover();
    assert_eq!(found.diagnostics, []);
    assert_eq!(guest(&found).sources[0], "qmp");
    let top = &disk(&found, "d").images[0];
    assert_eq!(
        (top.size, top.devices.as_slice()),
        (8 << 20, [device.name().to_owned()].as_slice())
    );
    assert_eq!(
        top.mount.as_ref().map(|m| m.mount_point.as_str()),
        inner.to_str()
    );
}

#[test]
fn block_devices_and_disks_that_are_elsewhere() {
    if !ready(&[TOOLS, &["qemu-nbd"]].concat()) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let device = Loop::new(sparse(&base.join("backing"), 16));
    sparse(&base.join("exported"), 4);
    let socket = base.join("nbd.sock");
    let _server = Running(
        Command::new("qemu-nbd")
            .args(["-t", "-f", "raw", "-k"])
            .arg(&socket)
            .arg(base.join("exported"))
            .spawn()
            .expect("qemu-nbd starts"),
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "qemu-nbd does not listen");
        thread::sleep(Duration::from_millis(10));
    }
    let drives = [
        format!(
            "file={},format=raw,if=virtio,id=raw,cache=none",
            device.path()
        ),
        format!(
            "file=nbd:unix:{},format=raw,if=virtio,id=far",
            socket.display()
        ),
    ];
    let qemu = Qemu::start(base, &["-drive", &drives[0], "-drive", &drives[1]]);
    let found = qemu.discover();
    let raw = disk(&found, "raw");
    let top = &raw.images[0];
    assert!(top.is_block_device && top.mount.is_none() && raw.not_followed.is_none());
    assert_eq!(
        top.dev,
        kernel_dev(fs::metadata(&device.0).expect("stat").rdev())
    );
    assert_eq!(
        (top.size, top.direct, top.devices.as_slice()),
        (16 << 20, Some(true), [device.name().to_owned()].as_slice())
    );
    let far = disk(&found, "far");
    assert!(far.images.is_empty());
    assert!(
        far.not_followed
            .as_deref()
            .is_some_and(|r| r.starts_with("nbd:")),
        "{far:?}"
    );
}

#[test]
fn names_uuids_and_pids() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let unique = format!("nt-{}", std::process::id());
    let twin = format!("{unique}-twin");
    let uuid = format!("c7a5fdbd-edaf-9455-926a-{:012x}", std::process::id());
    let one = Qemu::start(dir.path(), &["-name", &unique, "-uuid", &uuid]);
    let twins = [
        Qemu::start(dir.path(), &["-name", &twin]),
        Qemu::start(dir.path(), &["-name", &twin]),
    ];
    let pids = |names: &[&str]| {
        let selection = Selection::Named(names.iter().map(|n| (*n).to_owned()).collect());
        discover(&selection).map(|d| d.topology.guests.iter().map(|g| g.pid).collect::<Vec<_>>())
    };
    assert_eq!(pids(&[&unique]).expect("by name"), [one.pid]);
    assert_eq!(pids(&[&uuid.to_uppercase()]).expect("by UUID"), [one.pid]);
    assert_eq!(
        pids(&[&format!("pid:{}", twins[1].pid), &unique]).expect("in order"),
        [twins[1].pid, one.pid]
    );
    match pids(&["no-such-guest"]) {
        Err(DiscoverError::UnknownGuest { running, .. }) => {
            assert!(running.contains(&unique), "{running:?}")
        }
        other => panic!("{other:?}"),
    }
    match pids(&[&twin]) {
        Err(DiscoverError::AmbiguousGuest { pids, .. }) => {
            assert_eq!(pids, [twins[0].pid, twins[1].pid])
        }
        other => panic!("{other:?}"),
    }
    let own = std::process::id();
    assert!(matches!(
        pids(&[&format!("pid:{own}")]),
        Err(DiscoverError::UnknownGuest { .. })
    ));
    let everything = discover(&Selection::All).expect("all");
    assert!(
        everything
            .topology
            .guests
            .iter()
            .any(|g| g.pid == one.pid && g.disks.is_empty())
    );
}

#[test]
fn qemu_under_other_names() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let copy = dir.path().join("my-vmm");
    fs::copy(QEMU, &copy).expect("copy");
    let name = |suffix: &str| format!("nt-{}-{suffix}", std::process::id());
    let (renamed, loaded) = (name("renamed"), name("loaded"));
    let copy = copy.to_str().expect("UTF-8");
    let by_copy = Qemu::start_with(
        &[copy],
        dir.path(),
        &[
            "-L",
            "/usr/share/qemu",
            "-L",
            "/usr/share/seabios",
            "-name",
            &renamed,
        ],
    );
    fs::remove_file(copy).expect("delete the executable");
    let by_loader = Qemu::start_with(
        &["/lib64/ld-linux-x86-64.so.2", QEMU],
        dir.path(),
        &[
            "-name",
            &loaded,
            "-L",
            "/usr/share/qemu",
            "-L",
            "/usr/share/seabios",
        ],
    );
    let found = discover(&Selection::All).expect("all");
    for (qemu, executable, name) in [
        (&by_copy, "my-vmm", &renamed),
        (&by_loader, "qemu-system-x86_64", &loaded),
    ] {
        let guest = found
            .topology
            .guests
            .iter()
            .find(|g| g.pid == qemu.pid)
            .unwrap_or_else(|| panic!("{name}: {found:#?}"));
        assert_eq!(
            (guest.name.as_str(), guest.executable.as_str()),
            (name.as_str(), executable)
        );
        assert!(guest.qemu_version.contains('.'), "{guest:?}");
    }
}

#[test]
fn guests_that_come_and_go() {
    if !ready(TOOLS) {
        return;
    }
    let churn = thread::spawn(|| {
        for _ in 0..12 {
            let child = Command::new(QEMU)
                .args(["-S", "-display", "none", "-machine", "q35,accel=tcg"])
                .spawn();
            let running = Running(child.expect("QEMU starts"));
            thread::sleep(Duration::from_millis(30));
            drop(running);
        }
    });
    while !churn.is_finished() {
        discover(&Selection::All).expect("whoever vanishes is left out");
    }
    churn.join().expect("the guests came and went");
}

#[test]
fn an_ordinary_user_is_told_what_is_hidden() {
    if !ready(TOOLS) {
        return;
    }
    let dir = directory();
    let image = dir.path().join("disk.img");
    sparse(&image, 4);
    let unique = format!("nt-{}-hidden", std::process::id());
    let drive = format!("file={},format=raw,if=virtio,id=d", image.display());
    let qemu = Qemu::start(dir.path(), &["-name", &unique, "-drive", &drive]);
    let found = thread::spawn(move || {
        // SAFETY: the system call itself (not glibc's wrapper) changes this thread alone, which does
        // nothing afterwards but look around.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(result, 0);
        discover(&Selection::Named(vec![unique]))
    })
    .join()
    .expect("no panic")
    .expect("it is listed");
    assert_eq!(guest(&found).pid, qemu.pid);
    assert_eq!(guest(&found).sources, ["command line"]);
    assert!(
        found
            .diagnostics
            .iter()
            .any(|d| d.message.contains("run as root")),
        "{:?}",
        found.diagnostics
    );
    let hidden = disk(&found, "d");
    assert!(hidden.not_followed.is_some() || !hidden.images.is_empty());
}
