//! Images on real file systems and devices.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::rig::{Loop, Mounted, QEMU, Qemu, Running, directory, disk, guest, ready, run, sparse};
use crate::{TOOLS, kernel_dev};
use nestrace_record::guest::tree;
use nestrace_trace::device_number;

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
    let in_place = mount.0.join("disk.raw");
    let name = in_place.to_str().expect("UTF-8");
    run(&[
        "qemu-img", "create", "-q", "-f", "raw", "-o", "nocow=on", name, "16M",
    ]);
    let other = format!("file={name},if=virtio,id=nocow,format=raw");
    let qemu = Qemu::start(base, &["-drive", &drive, "-drive", &other]);
    let found = qemu.discover();
    let marks = ["d", "nocow"].map(|id| disk(&found, id).images[0].nocow);
    assert_eq!(marks, [Some(false), Some(true)]);
    let text = tree::render(&found.topology);
    assert_eq!(text.matches("NOCOW").count(), 1, "{text}");
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
    let number = line.split(' ').nth(2).and_then(device_number::parse);
    assert_eq!(top.dev, number.expect("a number"));
    assert_ne!(
        top.dev, stat_dev,
        "this kernel shows no difference: the test proves nothing"
    );
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
fn a_container_on_overlayfs() {
    if !ready(&[TOOLS, &["unshare", "mkfs.xfs"]].concat()) {
        return;
    }
    let dir = directory();
    let base = dir.path();
    let device = Loop::new(sparse(&base.join("backing"), 320));
    run(&["mkfs.xfs", "-q", device.path()]);
    let layers = Mounted::new("xfs", "noatime", device.path(), &base.join("layers"));
    for layer in ["lower", "upper", "work"] {
        fs::create_dir(layers.0.join(layer)).expect("mkdir");
    }
    sparse(&layers.0.join("lower/base.img"), 4);
    let merged = base.join("merged");
    fs::create_dir(&merged).expect("mkdir");
    let at = layers.0.display();
    let script = format!(
        "mount -t overlay overlay -o lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work {merged} && truncate -s 8M {merged}/top.img && exec {QEMU} \"$@\"",
        merged = merged.display()
    );
    let drives = ["top", "base"].map(|name| {
        let read_only = if name == "base" { "on" } else { "off" };
        format!(
            "file={}/{name}.img,format=raw,if=virtio,id={name},readonly={read_only}",
            merged.display()
        )
    });
    let program = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let qemu = Qemu::start_with(
        &program,
        base,
        &["-drive", &drives[0], "-drive", &drives[1]],
    );
    let found = qemu.discover();
    for (name, layer) in [("top", "upper/top.img"), ("base", "lower/base.img")] {
        let image = &disk(&found, name).images[0];
        let held = fs::metadata(layers.0.join(layer)).expect("the layer has it");
        assert_eq!(
            image.path,
            merged.join(format!("{name}.img")).to_str().expect("UTF-8")
        );
        assert_eq!(
            (image.inode, image.dev),
            (held.ino(), kernel_dev(held.dev())),
            "{layer}"
        );
        assert_eq!(
            image.mount.as_ref().map(|m| m.fs_type.as_str()),
            Some("xfs")
        );
        assert_eq!(
            (image.devices.as_slice(), image.direct),
            ([device.name().to_owned()].as_slice(), Some(false))
        );
    }
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
