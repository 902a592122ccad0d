//! `status.xml` is `/run/libvirt/qemu/NAME.xml` of libvirt 9.0 (Debian 12) without its list of QEMU's capabilities,
//! `domain.args` the arguments of its QEMU. Since the start the first disk got a snapshot, a disk of virtio-blk
//! and one of virtio-scsi were plugged in, and one was taken away.

use super::*;
use crate::guest::command_line;
use crate::guest::disks::{PlannedDisk, Witness, plan};

const STATUS: &str = include_str!("status.xml");
const UUID: &str = "4166d94d-ef70-43b7-ab47-1a6b6cf54bc9";

fn images(node: &BlockNode) -> String {
    let storage = match &node.storage {
        Storage::Path(path) => path.as_str(),
        Storage::Elsewhere(why) => why.split(':').next().unwrap_or_default(),
        Storage::Unknown => "unknown",
    };
    let below = match &node.backing {
        Backing::Node(below) => format!(" <- {}", images(below)),
        Backing::Nothing => String::from("."),
        Backing::FromHeader => String::new(),
    };
    format!("{}:{storage}{below}", node.format.as_deref().unwrap_or("?"))
}

fn show(planned: &PlannedDisk) -> String {
    let disk = &planned.disk;
    let mut text = format!("{} {}", disk.name, disk.bus);
    for value in [
        &disk.node,
        &disk.cache,
        &disk.aio,
        &disk.iothread,
        &disk.serial,
    ] {
        text += &format!(" {}", value.as_deref().unwrap_or("-"));
    }
    text += if disk.read_only { " ro " } else { " rw " };
    text + &planned.chain.as_ref().map(images).unwrap_or_default()
}

#[test]
fn disks_are_those_of_today() {
    let argv: Vec<String> = include_str!("domain.args")
        .lines()
        .map(str::to_owned)
        .collect();
    let line = command_line::parse(&argv);
    assert!(line.channel.libvirt);
    assert_eq!(line.uuid.as_deref(), Some(UUID));
    let domain = parse(STATUS, Some(UUID)).unwrap();
    let shown = |witness| plan(&line, witness).iter().map(show).collect::<Vec<_>>();
    assert_eq!(
        shown(Witness::None),
        [
            "virtio-disk0 virtio-blk libvirt-4-format none io_uring iothread1 s1 rw qcow2:/lv/top.qcow2 <- raw:/lv/base.img",
            "ide0-0-1 ide libvirt-3-format writeback threads - - ro raw:/lv/cd.iso",
            "scsi0-0-0-1 virtio-scsi libvirt-1-format writeback threads iothread1 - rw raw:/lv/gone.raw",
        ]
    );
    assert_eq!(
        shown(Witness::Libvirt(&domain)),
        [
            "virtio-disk0 virtio-blk libvirt-10-format none io_uring iothread1 s1 rw \
             qcow2:/lv/snap.qcow2 <- qcow2:/lv/top.qcow2 <- raw:/lv/base.img.",
            "ide0-0-1 ide libvirt-3-format writeback threads - - ro raw:/lv/cd.iso.",
            "virtio-disk1 virtio-blk libvirt-7-format writethrough threads - plugged rw \
             qcow2:/lv/plug.qcow2 <- raw:/lv/base.img.",
            "ua-mine virtio-scsi libvirt-9-format none native iothread1 - rw raw:/dev/loop0.",
        ]
    );
}

/// What the command line and libvirt say of a disk, as `name bus chain`.
fn both(line: &str, disk: &str) -> Vec<String> {
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let text = format!("<s><domain><devices>{disk}</devices></domain></s>");
    let domain = parse(&text, None).unwrap();
    let planned = plan(&command_line::parse(&argv), Witness::Libvirt(&domain));
    let shown = planned.iter().map(|planned| {
        let why = planned.disk.not_followed.as_deref().unwrap_or_default();
        let chain = planned.chain.as_ref().map(images).unwrap_or_default();
        format!("{} {chain}{why}", planned.disk.name)
    });
    shown.collect()
}

#[test]
fn the_command_line_has_the_path_of_a_pools_volume() {
    const LINE: &str = "qemu -blockdev file,node-name=libvirt-2-storage,filename=/pool/base \
         -blockdev raw,node-name=libvirt-2-format,file=libvirt-2-storage \
         -blockdev file,node-name=libvirt-4-storage,filename=/pool/v \
         -blockdev qcow2,node-name=libvirt-4-format,file=libvirt-4-storage,backing=libvirt-2-format \
         -device virtio-blk-pci,drive=libvirt-4-format,id=virtio-disk0";
    let names = |number: u32| {
        format!(
            "<privateData><nodenames><nodename type='storage' name='libvirt-{number}-storage'/>\
             <nodename type='format' name='libvirt-{number}-format'/></nodenames></privateData>"
        )
    };
    let volume = |inside: &str| {
        format!(
            "<disk type='volume'><driver type='qcow2'/><source pool='p' volume='v'>{}</source>{inside}\
             <alias name='virtio-disk0'/></disk>",
            names(4)
        )
    };
    let base = format!(
        "<backingStore type='volume'><format type='raw'/><source pool='p' volume='base'>{}</source></backingStore>",
        names(2)
    );
    assert_eq!(both(LINE, &volume("")), ["virtio-disk0 qcow2:/pool/v"]);
    let chain = "qcow2:/pool/v <- raw:/pool/base";
    assert_eq!(
        both(LINE, &volume(&base)),
        [format!("virtio-disk0 {chain}")]
    );
    let snapshot = format!(
        "<disk type='file'><driver type='qcow2'/><source file='/s'>{}</source>\
         <backingStore type='volume'><format type='qcow2'/><source pool='p' volume='v'>{}</source>{base}</backingStore>\
         <alias name='virtio-disk0'/></disk>",
        names(9),
        names(4)
    );
    assert_eq!(
        both(LINE, &snapshot),
        [format!("virtio-disk0 qcow2:/s <- {chain}")]
    );
}

#[test]
fn devices_of_the_host_are_no_disks_of_libvirts() {
    const LINE: &str = "qemu -blockdev host_device,node-name=libvirt-2-backend,filename=/dev/sg0 \
         -device scsi-generic,drive=libvirt-2-backend,id=hostdev0 \
         -blockdev file,node-name=libvirt-1-storage,filename=/gone \
         -device scsi-hd,drive=libvirt-1-storage,id=scsi0-0-0-0";
    assert_eq!(both(LINE, ""), ["hostdev0 raw:/dev/sg0"]);
}

#[test]
fn a_filter_above_the_image_is_the_top() {
    let disk = "<disk type='file'><source file='/a'/><alias name='d'/><privateData><nodenames>\
                <nodename type='copyOnRead' name='libvirt-CoR-vdb'/></nodenames></privateData></disk>";
    let found = parse(
        &format!("<s><domain><devices>{disk}</devices></domain></s>"),
        None,
    )
    .unwrap();
    let node = found[0].medium.as_ref().unwrap().node_name.as_deref();
    assert_eq!(node, Some("libvirt-CoR-vdb"));
}

#[test]
fn nobody_has_so_many_disks() {
    let disk = "<disk><source file='/a'/><target bus='scsi'/><alias name='d'/></disk>";
    assert!(
        read(&disk.repeat(20_000))
            .unwrap_err()
            .contains("more than 1024 disks")
    );
    assert_eq!(
        read(&disk.repeat(1_000)).map(|disks| disks.len()),
        Ok(1_000)
    );
}

/// The disks in the state of a domain without a UUID.
fn read(disks: &str) -> Result<Vec<String>, String> {
    let text = format!("<domstatus><domain><devices>{disks}</devices></domain></domstatus>");
    let show = |disk: DomainDisk| match disk.medium {
        Some(medium) => match medium.source {
            DiskSource::Node(node) => format!("{} {} {}", disk.alias, medium.bus, images(&node)),
            source => format!("{} {} {source:?}", disk.alias, medium.bus),
        },
        None => format!("{} is empty", disk.alias),
    };
    Ok(parse(&text, Some(UUID))?.into_iter().map(show).collect())
}

#[test]
fn sources_of_every_kind() {
    let disk = |kind: &str, source: &str, bus: &str| {
        let text = format!(
            "<disk type='{kind}'><driver type='raw'/>{source}<target bus='{bus}'/><alias name='d'/></disk>"
        );
        read(&text).unwrap().concat()
    };
    assert_eq!(disk("file", "<source file='/a'/>", "sata"), "d ide raw:/a");
    assert_eq!(
        disk("block", "<source dev='/dev/b'/>", "scsi"),
        "d scsi raw:/dev/b"
    );
    assert_eq!(
        disk(
            "network",
            "<source protocol='rbd' name='pool/image'/>",
            "virtio"
        ),
        "d virtio-blk raw:rbd"
    );
    assert_eq!(
        disk("nvme", "<source namespace='1'/>", "virtio"),
        "d virtio-blk raw:nvme"
    );
    assert_eq!(
        disk("volume", "<source pool='p'/>", "usb"),
        "d usb raw:unknown"
    );
    assert!(
        disk("vhostuser", "<source path='/s'/>", "virtio")
            .contains("vhost-user-blk: another process")
    );
    assert!(disk("vhostvdpa", "<source dev='/dev/v'/>", "virtio").contains("vhost-vdpa: "));
    assert_eq!(disk("file", "", "fdc"), "d is empty");
    assert_eq!(
        disk("file", "<source index='6'><privateData/></source>", "ide"),
        "d is empty"
    );
    let data = "<disk type='file'><driver type='qcow2'/><source file='/a'><dataStore type='block'><format type='raw'/>\
                <source dev='/dev/data'/></dataStore></source><alias name='d'/></disk>";
    let found = parse(
        &format!("<s><domain><devices>{data}</devices></domain></s>"),
        None,
    )
    .unwrap();
    let Some(DiskSource::Node(node)) = found[0].medium.as_ref().map(|medium| &medium.source) else {
        panic!("{found:?}");
    };
    assert_eq!(
        node.data_file.as_deref().map(images).as_deref(),
        Some("raw:/dev/data")
    );
    let slices = "<disk type='file'><driver type='qcow2'/><source file='/a.ova'><slices>\
                  <slice type='storage' offset='512' size='1024'/></slices></source><alias name='d'/></disk>";
    let found = parse(
        &format!("<s><domain><devices>{slices}</devices></domain></s>"),
        None,
    )
    .unwrap();
    let Some(DiskSource::Node(node)) = found[0].medium.as_ref().map(|medium| &medium.source) else {
        panic!("{found:?}");
    };
    assert_eq!(node.start, 512);
}

#[test]
fn what_libvirt_does_not_write_is_refused() {
    let why = |text: &str| parse(text, Some(UUID)).unwrap_err();
    assert!(why("").contains("root"), "{}", why(""));
    assert_eq!(why("<a/>"), "it has no domain");
    assert_eq!(why("<a><domain/></a>"), "it has no devices");
    let entities = "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>";
    assert!(why(entities).contains("DTD"), "{}", why(entities));
    let other = STATUS.replace(UUID, "another");
    assert_eq!(why(&other), "it is of the domain \"another\"");
    assert!(parse(&other, None).is_ok());
    let nested = "<backingStore type='file'><format type='raw'/><source file='/a'/>";
    let deep = format!(
        "<disk type='file'><source file='/a'/>{}{}<alias name='d'/></disk>",
        nested.repeat(100_000),
        "</backingStore>".repeat(100_000)
    );
    // Too deep for the parser, or cut: never a crash.
    let _ = read(&deep);
    let deep = format!(
        "<disk type='file'><source file='/a'/>{}{}<alias name='d'/></disk>",
        nested.repeat(300),
        "</backingStore>".repeat(300)
    );
    assert_eq!(read(&deep).map(|disks| disks.len()), Ok(1));
}

#[test]
fn limits_that_libvirt_has_set() {
    let limits = |tune: &str| -> Vec<String> {
        let text = STATUS.replacen("<backingStore", &format!("{tune}<backingStore"), 1);
        let disks = parse(&text, None).unwrap();
        let limits = disks
            .iter()
            .flat_map(|disk| disk.medium.iter().flat_map(|it| &it.limits));
        let texts = limits.map(|limit| format!("{} by {}", limit.words(), limit.place()));
        texts.collect()
    };
    assert_eq!(limits(""), [""; 0]);
    let tune = "<iotune><total_bytes_sec>1048577</total_bytes_sec><read_iops_sec>21</read_iops_sec></iotune>";
    assert_eq!(
        limits(tune),
        [
            "21 reads a second by QEMU's throttle of the disk (iotune)",
            "1048577 bytes a second by QEMU's throttle of the disk (iotune)"
        ]
    );
    let tune = "<iotune><write_iops_sec>3</write_iops_sec><group_name>gold</group_name></iotune>";
    assert_eq!(
        limits(tune),
        ["3 writes a second by QEMU's throttle group gold"]
    );
}

#[test]
fn only_a_file_is_read() {
    let this = Process {
        pid: std::process::id(),
        ..Process::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| format!("root{}/{name}", folder.path().display());
    std::fs::write(folder.path().join("file"), "text").unwrap();
    std::os::unix::fs::symlink("file", folder.path().join("link")).unwrap();
    nix::unistd::mkfifo(&folder.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(read_file(&this, &at("file")).unwrap().1, "text");
    for name in ["link", "fifo", "missing", "."] {
        assert!(read_file(&this, &at(name)).is_err(), "{name}");
    }
    assert!(disks(&this, "../../etc/passwd", None).is_err());
}
