//! Command lines as people and libvirt write them.

use super::*;
use crate::guest::block_node::{Backing, Storage};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn chain(node: &BlockNode) -> String {
    let storage = match &node.storage {
        Storage::Path(path) => path.clone(),
        Storage::Elsewhere(why) => format!("<{}>", why.split(':').next().unwrap_or_default()),
        Storage::Unknown => "unknown".to_owned(),
    };
    let below = match &node.backing {
        Backing::Node(below) => format!(" <- {}", chain(below)),
        Backing::Nothing => " <- nothing".to_owned(),
        Backing::FromHeader => String::new(),
    };
    format!("{}:{storage}{below}", node.format.as_deref().unwrap_or("?"))
}

fn show(disk: &DiskOption) -> String {
    let source = match &disk.source {
        DiskSource::Missing => "missing".to_owned(),
        DiskSource::Node(node) => chain(node),
        DiskSource::Outside(why) => format!("<{}>", why.split(':').next().unwrap_or_default()),
        DiskSource::HostPci(place) => format!("pci:{place}"),
    };
    let mut text = format!("{} {source}", disk.bus);
    for (key, value) in [
        ("drive", &disk.drive),
        ("qdev", &disk.qdev),
        ("node", &disk.node_name),
        ("cache", &disk.cache),
        ("aio", &disk.aio),
        ("iothread", &disk.iothread),
    ] {
        if let Some(value) = value {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    for (word, set) in [("ro", disk.read_only), ("snapshot", disk.snapshot)] {
        if set {
            text.push_str(&format!(" {word}"));
        }
    }
    text
}

fn disks(line: &str) -> String {
    disks_of(&words(&format!("qemu-system-x86_64 {line}")))
}

fn disks_of(argv: &[String]) -> String {
    parse(argv)
        .disks
        .iter()
        .map(show)
        .collect::<Vec<_>>()
        .join("\n")
}

#[track_caller]
fn check(line: &str, expected: &str) {
    assert_eq!(disks(line), expected, "{line}");
}

#[test]
fn hand_written_drives() {
    check(
        "-drive file=/a.img,if=virtio",
        "virtio-blk ?:/a.img drive=virtio0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a.img,if=virtio,format=raw,cache=none,aio=native",
        "virtio-blk raw:/a.img drive=virtio0 cache=none aio=native",
    );
    check(
        "-drive file=/a.img,format=qcow2,id=d0,if=virtio,cache=directsync,aio=io_uring",
        "virtio-blk qcow2:/a.img drive=d0 cache=directsync aio=io_uring",
    );
    check(
        "-drive file=/a,,b.img,if=virtio",
        "virtio-blk ?:/a,b.img drive=virtio0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a -drive file=/b",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads\nide ?:/b drive=ide0-hd1 cache=writeback aio=threads",
    );
    check(
        "-M vmport=off,type=q35 -drive file=/a -drive file=/b",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads\nide ?:/b drive=ide1-hd0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a,if=scsi,bus=0,unit=3",
        "scsi ?:/a drive=scsi0-hd3 cache=writeback aio=threads",
    );
    check("-drive file=/a,if=pflash,format=raw,unit=0", "");
    check("-drive file=/a,if=none,id=x", "");
    check("-drive if=ide,media=cdrom", "");
    check(
        "-drive file=/a.iso,media=cdrom",
        "ide ?:/a.iso drive=ide0-cd0 cache=writeback aio=threads ro",
    );
    check(
        "-drive file=/a,if=floppy",
        "floppy ?:/a drive=floppy0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a,if=virtio,readonly=on",
        "virtio-blk ?:/a drive=virtio0 cache=writeback aio=threads ro",
    );
    check(
        "-drive file=/a,if=virtio,snapshot=on,cache=none",
        "virtio-blk ?:/a drive=virtio0 cache=unsafe aio=threads snapshot",
    );
    check(
        "-snapshot -hda /a",
        "ide ?:/a drive=ide0-hd0 cache=unsafe aio=threads snapshot",
    );
    check(
        "-drive driver=qcow2,file.driver=file,file.filename=/a,if=virtio,cache.direct=on",
        "virtio-blk qcow2:/a drive=virtio0 cache=none aio=threads",
    );
    check(
        "-drive file=/a,file.locking=off,if=virtio",
        "virtio-blk ?:/a drive=virtio0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a,if=virtio,format=qcow2,backing.driver=raw,backing.file.driver=file,backing.file.filename=/b",
        "virtio-blk qcow2:/a <- raw:/b drive=virtio0 cache=writeback aio=threads",
    );
    check(
        "-drive file=/a,if=virtio,node-name=top,format=raw",
        "virtio-blk raw:/a drive=virtio0 node=top cache=writeback aio=threads",
    );
}

#[test]
fn cache_modes() {
    let cache = |line: &str| {
        parse(&words(&format!("qemu-system-x86_64 {line}"))).disks[0]
            .cache
            .clone()
            .unwrap_or_default()
    };
    for (options, mode) in [
        ("", "writeback"),
        (",cache=off", "none"),
        (",cache=writethrough", "writethrough"),
        (",cache=unsafe", "unsafe"),
        (",cache=none,cache.writeback=off", "directsync"),
        (",cache=writeback,cache.direct=on", "none"),
        (",cache.writeback=off", "writethrough"),
        (",cache.no-flush=on", "unsafe"),
        (",cache=unsafe,cache.no-flush=off", "writeback"),
    ] {
        assert_eq!(
            cache(&format!("-drive file=/a,if=virtio{options}")),
            mode,
            "{options}"
        );
    }
    for (drive, device, mode) in [
        ("cache=none", "write-cache=off", "directsync"),
        ("cache=directsync", "write-cache=on", "none"),
        ("cache=writeback", "write-cache=auto", "writeback"),
        ("cache=unsafe", "write-cache=off", "unsafe"),
    ] {
        let line =
            format!("-drive file=/a,if=none,id=d,{drive} -device virtio-blk-pci,drive=d,{device}");
        assert_eq!(cache(&line), mode, "{line}");
    }
    for (blockdev, device, mode) in [
        ("", "", "writeback"),
        (",cache.direct=on", "", "none"),
        (",cache.direct=on", ",write-cache=off", "directsync"),
        ("", ",write-cache=off", "writethrough"),
        (",cache.no-flush=on", "", "unsafe"),
    ] {
        let line = format!(
            "-blockdev file,node-name=n,filename=/a{blockdev} -device virtio-blk-pci,drive=n{device}"
        );
        assert_eq!(cache(&line), mode, "{line}");
    }
}

#[test]
fn legacy_shortcuts() {
    check(
        "-hda /a -hdb /b -cdrom /c",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads\nide ?:/b drive=ide0-hd1 cache=writeback aio=threads\nide ?:/c drive=ide1-cd0 cache=writeback aio=threads ro",
    );
    check(
        "-machine q35 -cdrom /c",
        "ide ?:/c drive=ide2-cd0 cache=writeback aio=threads ro",
    );
    check(
        "-fda /f",
        "floppy ?:/f drive=floppy0 cache=writeback aio=threads",
    );
    check(
        "/a.img",
        "ide ?:/a.img drive=ide0-hd0 cache=writeback aio=threads",
    );
    check(
        "-nographic /a.img",
        "ide ?:/a.img drive=ide0-hd0 cache=writeback aio=threads",
    );
    check("-m 512 -smp 2 -S", "");
    check(
        "--hda /a",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads",
    );
    check(
        "-append -hda -hdb /b",
        "ide ?:/b drive=ide0-hd1 cache=writeback aio=threads",
    );
    check(
        "-future-switch -hda /a",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads",
    );
    check(
        "-future-option value -serial - -hda /a",
        "ide ?:/a drive=ide0-hd0 cache=writeback aio=threads",
    );
    let arm = words("/usr/bin/qemu-system-aarch64 -M virt -hda /a");
    assert_eq!(
        disks_of(&arm),
        "virtio-blk ?:/a drive=virtio0 cache=writeback aio=threads"
    );
}

#[test]
fn drives_with_devices() {
    check(
        "-drive file=/a,if=none,id=d0,format=raw,cache=none -device virtio-blk-pci,drive=d0,id=vda-disk,iothread=io0 -object iothread,id=io0",
        "virtio-blk raw:/a drive=d0 qdev=vda-disk cache=none aio=threads iothread=io0",
    );
    check(
        "-device virtio-scsi-pci,id=s0,iothread=io0 -drive file=/a,if=none,id=d0 -device scsi-hd,drive=d0,bus=s0.0",
        "virtio-scsi ?:/a drive=d0 cache=writeback aio=threads iothread=io0",
    );
    check(
        "-drive file=/dev/sdb,if=none,id=d0,format=raw -device scsi-block,drive=d0",
        "scsi raw:/dev/sdb drive=d0 cache=writeback aio=threads",
    );
    check(
        "-device virtio-blk-pci,drive=nowhere,id=v",
        "virtio-blk missing qdev=v node=nowhere",
    );
    check("-device ide-cd,bus=ide.0", "");
    check(
        "-device nvme,drive=d,serial=1 -drive file=/a,if=none,id=d",
        "nvme ?:/a drive=d cache=writeback aio=threads",
    );
    check(
        "-device usb-storage,drive=d -drive file=/a,if=none,id=d",
        "usb ?:/a drive=d cache=writeback aio=threads",
    );
    check(
        "-chardev socket,id=c,path=/run/vu.sock -device vhost-user-blk-pci,chardev=c,id=v",
        "virtio-blk <vhost-user-blk> qdev=v",
    );
    check("-device vfio-pci,host=01:00.0", "vfio pci:01:00.0");
    check("-device e1000,netdev=n -netdev user,id=n", "");
}

#[test]
fn blockdevs() {
    check(
        "-blockdev driver=file,node-name=s,filename=/a,aio=io_uring,cache.direct=on -blockdev qcow2,node-name=f,file=s,cache.direct=on -device virtio-blk-pci,drive=f,id=v",
        "virtio-blk qcow2:/a qdev=v node=f cache=none aio=io_uring",
    );
    check(
        "-blockdev driver=qcow2,node-name=f,file.driver=file,file.filename=/a,file.aio=native,cache.direct=on -device virtio-blk-pci,drive=f",
        "virtio-blk qcow2:/a node=f cache=none aio=native",
    );
    check(
        r#"-blockdev {"driver":"qcow2","node-name":"f","file":{"driver":"file","filename":"/a"},"backing":{"driver":"raw","file":{"driver":"file","filename":"/b"}}} -device {"driver":"virtio-blk-pci","drive":"f","write-cache":"off"}"#,
        "virtio-blk qcow2:/a <- raw:/b node=f cache=writethrough aio=threads",
    );
    check(
        "-blockdev file,node-name=s,filename=/a -blockdev raw,node-name=r,file=s -object throttle-group,id=g -blockdev throttle,node-name=t,throttle-group=g,file=r -device ide-hd,drive=t",
        "ide raw:/a node=t cache=writeback aio=threads",
    );
    check(
        r#"-blockdev {"driver":"nbd","node-name":"n","server":{"type":"unix","path":"/s"}} -device virtio-blk-pci,drive=n"#,
        "virtio-blk ?:<nbd> node=n cache=writeback",
    );
    check(
        "-drive file=nbd://host/x,if=virtio",
        "virtio-blk ?:<nbd> drive=virtio0 cache=writeback",
    );
    check(
        "-drive file=rbd:pool/image,format=raw,if=virtio",
        "virtio-blk raw:<rbd> drive=virtio0 cache=writeback",
    );
    check(
        "-add-fd fd=24,set=3,opaque=x -drive file=/dev/fdset/3,if=virtio",
        "virtio-blk ?:/dev/fdset/3 drive=virtio0 cache=writeback aio=threads",
    );
    check(
        "-blockdev {broken -device virtio-blk-pci,drive=n",
        "virtio-blk missing node=n",
    );
    let argv = words(
        "q -drive if=virtio,file=json:{\"driver\":\"qcow2\",,\"file\":{\"driver\":\"file\",,\"filename\":\"/a\"}}",
    );
    assert_eq!(
        disks_of(&argv),
        "virtio-blk qcow2:/a drive=virtio0 cache=writeback aio=threads"
    );
}

#[test]
fn a_monitor_that_is_not_asked_is_noted() {
    let read = parse(&words("q -qmp tcp:127.0.0.1:4444,server=on,wait=off"));
    assert!(read.monitors.is_empty());
    assert!(
        read.notes[0].starts_with("-qmp tcp:127.0.0.1:4444,server=on,wait=off: QMP over TCP"),
        "{:?}",
        read.notes
    );
    for monitor in ["-mon chardev=m,mode=control", "-qmp chardev:m"] {
        let chardev = "-chardev socket,id=m,host=127.0.0.1,port=4444,server=on,wait=off";
        let read = parse(&words(&format!("q {chardev} {monitor}")));
        let told = |note: &String| note.starts_with("-chardev m: QMP over TCP");
        assert!(read.notes.iter().any(told), "{:?}", read.notes);
    }
}

#[test]
fn identity_and_sockets() {
    let read = |line: &str| parse(&words(&format!("qemu-system-x86_64 {line}")));
    let check = |line: &str, expected: &str| {
        let r = read(line);
        let got = format!("{:?} {:?} {:?} {:?}", r.name, r.accel, r.monitors, r.agent);
        assert_eq!(got, expected, "{line}");
    };
    check("", "None \"\" [] None");
    check("-name vm1", "Some(\"vm1\") \"\" [] None");
    check(
        "-name guest=vm1,debug-threads=on -accel tcg,thread=multi",
        "Some(\"vm1\") \"tcg\" [] None",
    );
    check(
        "-name a,,b,process=x -enable-kvm",
        "Some(\"a,b\") \"kvm\" [] None",
    );
    check("-machine q35,accel=kvm:tcg", "None \"kvm\" [] None");
    check("-M pc -accel kvm -accel tcg", "None \"kvm\" [] None");
    check(
        "-qmp unix:/q.sock,server=on,wait=off",
        "None \"\" [Path(\"/q.sock\")] None",
    );
    check(
        "-qmp-pretty unix:/q.sock,server,nowait",
        "None \"\" [Path(\"/q.sock\")] None",
    );
    check("-qmp unix:/q.sock", "None \"\" [] None");
    check("-qmp tcp:localhost:4444,server=on", "None \"\" [] None");
    check(
        "-qmp chardev:m -chardev socket,id=m,path=/m,server=on",
        "None \"\" [Path(\"/m\")] None",
    );
    check(
        "-chardev socket,id=m,path=/m,server=on,wait=off -mon chardev=m,mode=control",
        "None \"\" [Path(\"/m\")] None",
    );
    check(
        "-chardev socket,id=m,path=/m,server=on -mon m",
        "None \"\" [] None",
    );
    check(
        "-chardev socket,id=m,fd=27,server=on,wait=off -mon chardev=m,id=monitor,mode=control",
        "None \"\" [Fd(27)] None",
    );
    check(
        "-chardev socket,id=m,path=x,abstract=on,server=on -mon m,mode=control",
        "None \"\" [Path(\"@x\")] None",
    );
    check(
        "-chardev stdio,id=m -mon m,mode=control",
        "None \"\" [] None",
    );
    check(
        "-chardev socket,id=a,path=/a,server=on -device virtserialport,chardev=a,name=org.nestrace.agent.0",
        "None \"\" [] Some(Path(\"/a\"))",
    );
    check(
        "-chardev socket,id=a,fd=30,server=on -device {\"driver\":\"virtserialport\",\"chardev\":\"a\",\"name\":\"org.nestrace.agent.0\"}",
        "None \"\" [] Some(Fd(30))",
    );
    check(
        "-chardev socket,id=a,path=/a -device virtserialport,chardev=a,name=org.nestrace.agent.0",
        "None \"\" [] None",
    );
    check(
        "-device virtserialport,chardev=a,name=org.qemu.guest_agent.0",
        "None \"\" [] None",
    );
    assert_eq!(read("-uuid 8c5b").uuid.as_deref(), Some("8c5b"));
    assert_eq!(read("-readconfig /x").notes.len(), 1);
}

/// One disk on a qcow2 chain, one on a raw block device, one CD-ROM without a medium and one with.
/// `libvirt.args` is `/proc/PID/cmdline` of a domain that libvirt 9.0 (Debian 12) started here.
#[test]
fn libvirt() {
    let argv: Vec<String> = include_str!("libvirt.args")
        .lines()
        .map(str::to_owned)
        .collect();
    let read = parse(&argv);
    assert_eq!(read.name.as_deref(), Some("lv-nestrace"));
    assert_eq!(
        read.uuid.as_deref(),
        Some("a53cafef-b03e-4068-89a0-76b2e0d5a737")
    );
    assert_eq!(read.accel, "tcg");
    assert_eq!(read.monitors, [Endpoint::Fd(30)]);
    assert_eq!(read.agent, Some(Endpoint::Fd(29)));
    assert_eq!(read.notes, Vec::<String>::new());
    let disks: Vec<String> = read.disks.iter().map(show).collect();
    assert_eq!(
        disks,
        [
            "virtio-blk qcow2:/tmp/lv/top.qcow2 <- raw:/tmp/lv/base.img qdev=virtio-disk0 node=libvirt-4-format cache=none aio=io_uring iothread=iothread1",
            "virtio-scsi raw:/dev/loop4 qdev=scsi0-0-0-0 node=libvirt-3-format cache=directsync aio=native",
            "ide raw:/tmp/lv/cd.iso qdev=ide0-0-1 node=libvirt-1-format cache=writeback aio=threads ro",
        ]
    );
}

#[test]
fn files_that_are_no_disk_of_the_guest_are_known_too() {
    let read = parse(&words(
        "q -drive file=/vars,if=pflash -pflash /more -pflash /most -drive file=/loose,if=none -blockdev file,node-name=n,filename=/code -blockdev qcow2,node-name=x,file.driver=file,file.filename=/in",
    ));
    assert!(read.disks.is_empty());
    let files: Vec<&str> = read.files.iter().map(String::as_str).collect();
    assert_eq!(files, ["/code", "/in", "/loose", "/more", "/most", "/vars"]);
}

#[test]
fn mtdblock_is_a_drive_of_that_interface() {
    let disks = |line: &str| format!("{:?}", parse(&words(line)).disks);
    let drive = disks("q -drive file=/flash,if=mtd");
    assert!(drive.contains("/flash"), "{drive}");
    assert_eq!(disks("q -mtdblock /flash"), drive);
}

/// Bytes of all texts of a command line's disks, block nodes included.
fn text_of_disks(line: &CommandLine) -> usize {
    line.disks
        .iter()
        .map(|disk| format!("{disk:?}").len())
        .sum()
}

/// Command lines of less than 1 MiB that are made to cost more: in time, or in memory by texts that many disks refer to.
#[test]
fn costly_command_lines_stay_cheap() {
    let long = "x".repeat(300_000);
    let repeated = |first: &[String], more: &[&str], n: usize| {
        let more = more.iter().map(|word| (*word).to_owned());
        let more: Vec<String> = more.collect();
        let argv = std::iter::once("qemu".to_owned()).chain(first.iter().cloned());
        argv.chain((0..n).flat_map(|_| more.clone()))
            .collect::<Vec<_>>()
    };
    let device = ["-device", "virtio-blk-pci,drive=a"];
    let node = |text: &str| vec!["-blockdev".to_owned(), text.to_owned()];
    let quorum = |name: &str, child: &str| {
        let children = vec![format!("{child:?}"); 64].join(",");
        node(&format!(
            r#"{{"driver":"quorum","node-name":"{name}","children":[{children}]}}"#
        ))
    };
    let leaf = |name: &str| node(&format!("file,node-name={name},filename=/{long}"));
    let fan_out = [leaf("c"), quorum("b", "c"), quorum("a", "b")].concat();
    let iothread = vec![
        "-device".to_owned(),
        format!("virtio-scsi-pci,id=s,iothread={long}"),
    ];
    let serial = vec!["-drive".to_owned(), format!("id=a,serial={long}")];
    let nested = (0..60).fold("\"z\"".to_owned(), |inner, n| {
        format!(r#"{{"driver":"raw","node-name":"n{n}","file":{inner}}}"#)
    });
    let nested = nested.replace("\"z\"", &format!("\"{long}\""));
    let cases = [
        (
            "drives without a unit",
            repeated(&[], &["-drive", "file=x"], 8000),
        ),
        ("a long path", repeated(&leaf("a"), &device, 8000)),
        ("a quorum of quorums", repeated(&fan_out, &device, 2000)),
        (
            "a long iothread",
            repeated(&iothread, &["-device", "scsi-hd,drive=x"], 8000),
        ),
        ("a long serial", repeated(&serial, &device, 8000)),
        ("nodes in nodes", repeated(&node(&nested), &device, 10)),
        (
            "small values",
            repeated(&node(&format!("raw{}", ",a.b=1".repeat(150_000))), &[], 0),
        ),
    ];
    for (what, argv) in cases {
        let begin = std::time::Instant::now();
        let read = parse(&argv);
        // Without the bounds it is minutes, or gigabytes.
        let took = begin.elapsed();
        assert!(
            took < std::time::Duration::from_secs(10),
            "{what}: {took:?}"
        );
        let bytes = text_of_disks(&read);
        assert!(bytes < 32 << 20, "{what}: {bytes} bytes");
        eprintln!(
            "{what}: {took:?}, {bytes} bytes, {} disks",
            read.disks.len()
        );
    }
}

#[test]
fn what_is_beyond_the_bounds_is_noted() {
    let drives = |n: usize| -> Vec<String> {
        let drive = ["-drive".to_owned(), "file=x,if=virtio".to_owned()];
        let argv = std::iter::once("qemu".to_owned());
        argv.chain((0..n).flat_map(|_| drive.clone())).collect()
    };
    let read = parse(&drives(1000));
    assert_eq!((read.disks.len(), read.notes.len()), (1000, 0));
    assert_eq!(read.disks[999].drive.as_deref(), Some("virtio999"));
    let read = parse(&drives(MAX_DISKS + 1));
    assert_eq!(read.disks.len(), MAX_DISKS);
    let beyond = parse(&drives(MAX_OPTIONS + 1));
    assert_eq!(beyond.disks.len(), 0);
    assert!(beyond.notes[0].contains("none of its disks is followed"));
    assert!(read.notes[0].contains("the rest is not read"));
}
