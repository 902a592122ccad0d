//! What QMP tells, and what is left when somebody else holds it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::TOOLS;
use crate::rig::{Qemu, directory, disk, guest, ready, run, sparse};
use nestrace_record::guest::qmp;

/// Many times what a monitor is given: the machine may be busy.
const SOON: Duration = Duration::from_secs(10);

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
    assert!(took < SOON, "{took:?}");
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
    assert!(took < SOON, "{took:?}");
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
            .any(|d| d.message.contains("another client has")),
        "{:?}",
        busy.diagnostics
    );
    let mut disks = this.disks.clone();
    for disk in &mut disks {
        // Node names that QEMU makes up, and the number of queues where none is asked for, are known to QMP alone.
        disk.queues = None;
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
        ("virtio-scsi", "raw", Some("none"), None)
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
