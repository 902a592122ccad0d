//! One list of disks from several witnesses: QMP, or libvirt where it holds QMP's monitor, knows what is attached now,
//! the command line knows how it was meant (aio, iothread, bus, what lies past QEMU's block layer).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod by_libvirt;

use nestrace_trace::manifest::Disk;

use super::block_node::{self, Backing, BlockNode, Storage};
use super::cache_mode::CacheMode;
use super::command_line::{CommandLine, DiskOption, DiskSource};
use super::device_model;
use super::drive;
use super::libvirt::DomainDisk;
use super::qmp::{BlockDevice, BlockInfo, Facts, ImageInfo};

/// A disk, and where to look for its images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedDisk {
    /// Everything but the images.
    pub disk: Disk,
    /// The top of its image chain, if it has one.
    pub chain: Option<BlockNode>,
    /// A PCI device of the host that was handed to the guest; a disk only if its class says so.
    pub host_pci: Option<String>,
    /// Something about it that a person should know.
    pub note: Option<String>,
}

/// Who knows what is attached now.
#[derive(Clone, Copy, Debug)]
pub enum Witness<'a> {
    /// QEMU itself.
    Qmp(&'a Facts),
    /// libvirt.
    Libvirt(&'a [DomainDisk]),
    /// No other source: what the command line says still holds.
    None,
}

/// The disks of a guest, in the order of the command line; those plugged in later follow.
#[must_use]
pub fn plan(line: &CommandLine, witness: Witness<'_>) -> Vec<PlannedDisk> {
    let as_is = |(index, option): (usize, &DiskOption)| from_option(index, option);
    match witness {
        Witness::Qmp(facts) => by_qmp(line, facts),
        Witness::Libvirt(domain) => {
            let now = by_libvirt::today(&line.disks, domain);
            now.iter().enumerate().map(as_is).collect()
        }
        Witness::None => line.disks.iter().enumerate().map(as_is).collect(),
    }
}

fn by_qmp(line: &CommandLine, facts: &Facts) -> Vec<PlannedDisk> {
    let from_line = line
        .disks
        .iter()
        .enumerate()
        .map(|(index, option)| from_option(index, option));
    let mut used = vec![false; facts.blocks.len()];
    let mut disks = Vec::new();
    for (option, planned) in line.disks.iter().zip(from_line) {
        let found = facts
            .blocks
            .iter()
            .zip(&used)
            .position(|(block, used)| !used && is_same(option, block));
        match found {
            Some(at) => {
                if let Some(used) = used.get_mut(at) {
                    *used = true;
                }
                disks.extend(
                    facts
                        .blocks
                        .get(at)
                        .and_then(|block| with_facts(planned, block, facts)),
                );
            }
            None if planned.disk.not_followed.is_some() || planned.host_pci.is_some() => {
                disks.push(planned)
            }
            // Ejected or unplugged since.
            None => {}
        }
    }
    let unused = facts
        .blocks
        .iter()
        .zip(&used)
        .filter(|(_, used)| !**used)
        .map(|(block, _)| block);
    for block in unused.filter(|block| is_disk(block)) {
        disks.extend(with_facts(
            hot_plugged(disks.len(), block, facts),
            block,
            facts,
        ));
    }
    disks
}

fn from_option(index: usize, option: &DiskOption) -> PlannedDisk {
    let given_drive = option.drive.clone().filter(|_| option.drive_named);
    let name = given_drive
        .or_else(|| option.qdev.clone())
        .or_else(|| option.drive.clone())
        .or_else(|| option.node_name.clone())
        .unwrap_or_else(|| format!("disk{index}"));
    let mut planned = PlannedDisk {
        disk: Disk {
            name,
            qdev: option.qdev.clone(),
            node: option.node_name.clone(),
            bus: option.bus.clone(),
            cache: option.cache.clone(),
            aio: option.aio.clone(),
            iothread: option.iothread.clone(),
            read_only: option.read_only,
            serial: option.serial.clone(),
            limits: option.limits.clone(),
            ..Disk::default()
        },
        ..PlannedDisk::default()
    };
    if option.snapshot {
        planned.note =
            Some("snapshot=on: writes go to a temporary file, which only QMP can name".to_owned());
    }
    match &option.source {
        DiskSource::Node(node) => {
            planned.disk.format = node.format.clone().unwrap_or_default();
            planned.chain = Some(node.clone());
        }
        DiskSource::Outside(reason) => planned.disk.not_followed = Some(reason.clone()),
        DiskSource::HostPci(place) => planned.host_pci = Some(place.clone()),
        DiskSource::Missing => {
            planned.disk.not_followed =
                Some("the command line refers to a drive that it does not define".to_owned());
        }
    }
    planned
}

/// Whether an option made the backend that QMP lists.
fn is_same(option: &DiskOption, block: &BlockInfo) -> bool {
    let node = block.inserted.as_ref().and_then(|i| i.node_name.as_deref());
    (!block.device.is_empty() && option.drive.as_deref() == Some(block.device.as_str()))
        || (option.qdev.is_some() && option.qdev.as_deref() == block.qdev_id())
        || (option.node_name.is_some() && option.node_name.as_deref() == node)
}

/// Backends that are shown to the guest as a disk: they have a device, and it is not firmware.
fn is_disk(block: &BlockInfo) -> bool {
    let is_flash = block.device.starts_with("pflash")
        || block.qdev.as_deref().is_some_and(|q| q.contains("flash"));
    block.qdev.is_some() && block.inserted.is_some() && !is_flash
}

/// A disk that the command line does not have.
fn hot_plugged(index: usize, block: &BlockInfo, facts: &Facts) -> PlannedDisk {
    let qdev = block.qdev_id();
    let driver = facts
        .drivers
        .iter()
        .find(|(id, _)| Some(id.as_str()) == qdev);
    let controller = facts
        .controllers
        .iter()
        .find(|(id, _)| Some(id.as_str()) == qdev)
        .map(|(_, controller)| controller.as_str());
    let option = DiskOption {
        drive: Some(block.device.clone()).filter(|d| !d.is_empty()),
        drive_named: true,
        qdev: qdev.map(str::to_owned),
        node_name: block.inserted.as_ref().and_then(|i| i.node_name.clone()),
        bus: driver
            .and_then(|(_, driver)| device_model::bus_of_driver(driver, controller))
            .unwrap_or_default(),
        serial: facts
            .serials
            .iter()
            .find(|(id, _)| Some(id.as_str()) == qdev)
            .map(|(_, serial)| serial.clone()),
        ..DiskOption::default()
    };
    let mut planned = from_option(index, &option);
    planned.disk.not_followed = None;
    planned
}

/// Corrects a disk by what QMP says; `None` for a drive without a medium.
fn with_facts(mut planned: PlannedDisk, block: &BlockInfo, facts: &Facts) -> Option<PlannedDisk> {
    let inserted = block.inserted.as_ref()?;
    let mut chain = chain_of(inserted);
    if has_cut_name(inserted)
        && let Some(named) = &planned.chain
        && named.node_name.is_some()
        && named.node_name == inserted.node_name
    {
        // The same node, as the command line has it whole.
        chain = named.clone();
    }
    let queues = facts.queues.iter();
    let mut queues = queues.filter(|(id, _)| Some(id.as_str()) == block.qdev_id());
    planned.disk.queues = queues.next().map(|(_, queues)| *queues);
    let cache = cache_of(inserted, &chain, facts);
    for chain in std::iter::once(&mut chain).chain(&mut planned.chain) {
        drive::substitute_fd_sets(chain, &facts.fd_sets);
    }
    // aio, and a format that a filter hides, hold only for the image that the command line named.
    let known = planned.chain.take().filter(|c| c.storage == chain.storage);
    planned.disk.node = inserted.node_name.clone().or(planned.disk.node);
    planned.disk.read_only = inserted.ro;
    planned.disk.virtual_size = inserted
        .image
        .as_ref()
        .map_or(0, |image| image.virtual_size);
    planned.disk.not_followed = None;
    planned.disk.limits = facts.set.limits_of(block);
    if known.is_none() {
        planned.disk.aio = None;
    }
    planned.note = known
        .as_ref()
        .and_then(|_| switched_write_cache(&planned.disk, inserted));
    planned.disk.cache = cache;
    if chain.format.is_none() {
        chain.format = known.and_then(|k| k.format);
    }
    planned.disk.format = chain.format.clone().unwrap_or_default();
    planned.chain = Some(chain);
    Some(planned)
}

/// QEMU cuts names at 4,095 characters; a description in JSON is none any more then.
fn has_cut_name(inserted: &BlockDevice) -> bool {
    let is_cut = |name: &str| {
        let json = name.strip_prefix("json:");
        json.is_some_and(|json| serde_json::from_str::<serde_json::Value>(json).is_err())
    };
    let mut image = inserted.image.as_ref();
    while let Some(this) = image {
        if is_cut(&this.filename) {
            return true;
        }
        image = this.backing_image.as_deref();
    }
    is_cut(&inserted.file)
}

/// The guest decides about the write cache too: firmware, and drivers that cannot flush, switch it off.
fn switched_write_cache(configured: &Disk, inserted: &BlockDevice) -> Option<String> {
    let configured = CacheMode::from_name(configured.cache.as_deref()?)?;
    let now = inserted.cache?.writeback;
    (configured.writeback != now).then(|| {
        format!(
            "the guest has switched the disk's write cache {} (configured: {}); firmware does that while booting",
            if now { "on" } else { "off" },
            configured.name()
        )
    })
}

/// The backend says whether the guest sees a write cache; O_DIRECT and dropped flushes are those of
/// the node that opens the file.
fn cache_of(inserted: &BlockDevice, chain: &BlockNode, facts: &Facts) -> Option<String> {
    let top = inserted.cache?;
    let storage = facts.nodes.iter().find(|node| {
        matches!(node.drv.as_str(), "file" | "host_device" | "host_cdrom")
            && matches!(&chain.storage, Storage::Path(path) if *path == node.file)
    });
    let below = storage.and_then(|node| node.cache).unwrap_or(top);
    Some(
        CacheMode {
            writeback: top.writeback,
            direct: below.direct,
            no_flush: below.no_flush || top.no_flush,
        }
        .name()
        .to_owned(),
    )
}

/// How many images of a chain are taken from QMP.
const MAX_IMAGES: usize = 256;

/// The image chain as QMP tells it.
fn chain_of(inserted: &BlockDevice) -> BlockNode {
    match &inserted.image {
        Some(image) => chain_of_image(image, MAX_IMAGES),
        None => BlockNode {
            format: format_of(&inserted.drv),
            ..block_node::node_of_name(&inserted.file)
        },
    }
}

fn chain_of_image(image: &ImageInfo, left: usize) -> BlockNode {
    let below = image.backing_image.as_deref().filter(|_| left > 0);
    let named = block_node::node_of_name(&image.filename);
    if block_node::is_filter(&image.format) {
        // A filter shows its child's name, and as its backing image the child itself.
        return match below {
            Some(below) => chain_of_image(below, left - 1),
            None => BlockNode {
                format: None,
                ..named
            },
        };
    }
    let shows_part = image.format == "raw" && named.format.as_deref().is_some_and(|f| f != "raw");
    if shows_part {
        // A part of an image of another format: the name describes that one.
        return named;
    }
    BlockNode {
        format: format_of(&image.format).or(named.format),
        backing: below.map_or(Backing::Nothing, |b| {
            Backing::Node(Box::new(chain_of_image(b, left - 1)))
        }),
        data_file: image.data_file().map(|name| {
            Box::new(BlockNode {
                format: Some("raw".to_owned()),
                backing: Backing::Nothing,
                ..block_node::node_of_name(name)
            })
        }),
        storage: named.storage,
        start: named.start,
        shown_from: named.shown_from,
        further: named.further,
        ..BlockNode::default()
    }
}

/// A driver as an image format: the protocol drivers show raw bytes.
fn format_of(driver: &str) -> Option<String> {
    match driver {
        "" => None,
        "file" | "host_device" | "host_cdrom" => Some("raw".to_owned()),
        filter if block_node::is_filter(filter) => None,
        // Spread over several children, which have formats of their own.
        "quorum" | "blkverify" => None,
        format => Some(format.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::command_line::parse;

    fn plan_of(line: &str, blocks: &str) -> String {
        let argv: Vec<String> = std::iter::once("qemu")
            .chain(line.split(' '))
            .map(str::to_owned)
            .collect();
        let facts = (!blocks.is_empty()).then(|| Facts {
            blocks: serde_json::from_str(blocks).expect("test JSON parses"),
            drivers: vec![("hot".to_owned(), "scsi-hd".to_owned())],
            controllers: vec![("hot".to_owned(), "virtio-scsi-pci".to_owned())],
            fd_sets: [("/dev/fdset/3".to_owned(), "/proc/self/fd/7".to_owned())].into(),
            ..Facts::default()
        });
        plan(
            &parse(&argv),
            facts.as_ref().map_or(Witness::None, Witness::Qmp),
        )
        .iter()
        .map(show)
        .collect::<Vec<_>>()
        .join("\n")
    }

    fn show(planned: &PlannedDisk) -> String {
        let disk = &planned.disk;
        let mut text = format!("{} {} {}", disk.name, disk.bus, disk.format);
        for (key, value) in [
            ("cache", &disk.cache),
            ("aio", &disk.aio),
            ("why", &disk.not_followed),
        ] {
            if let Some(value) = value {
                text.push_str(&format!(
                    " {key}={}",
                    value.split(':').next().unwrap_or_default()
                ));
            }
        }
        let mut node = planned.chain.as_ref();
        while let Some(link) = node {
            if let Storage::Path(path) = &link.storage {
                text.push_str(&format!(" <- {path}"));
            }
            node = match &link.backing {
                Backing::Node(below) => Some(below),
                _ => None,
            };
        }
        text
    }

    const VDA: &str = r#"{"device":"","qdev":"/machine/peripheral/v/virtio-backend","inserted":{"node-name":"f","drv":"qcow2","file":"/a","cache":{"writeback":false,"direct":true,"no-flush":false},
        "image":{"filename":"/a","format":"qcow2","backing-image":{"filename":"/b","format":"raw"}}}}"#;
    const LINE: &str = "-blockdev file,node-name=s,filename=/a,aio=native -blockdev qcow2,node-name=f,file=s -device virtio-blk-pci,drive=f,id=v";

    #[test]
    fn names_of_disks() {
        let name = |line: &str| {
            plan_of(line, "")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(
            name("-drive file=/a,if=none,id=d -device virtio-blk-pci,drive=d,id=v"),
            "d"
        );
        assert_eq!(
            name("-blockdev file,node-name=n,filename=/a -device virtio-blk-pci,drive=n,id=v"),
            "v"
        );
        assert_eq!(
            name("-blockdev file,node-name=n,filename=/a -device virtio-blk-pci,drive=n"),
            "n"
        );
        assert_eq!(name("-drive file=/a,if=virtio"), "virtio0");
        assert_eq!(name("-device vhost-user-blk-pci,chardev=c"), "disk0");
    }

    #[test]
    fn without_qmp_the_command_line_decides() {
        assert_eq!(
            plan_of(LINE, ""),
            "v virtio-blk qcow2 cache=writeback aio=native <- /a"
        );
        assert_eq!(
            plan_of("-device virtio-blk-pci,drive=x,id=v", ""),
            "v virtio-blk  why=the command line refers to a drive that it does not define"
        );
    }

    #[test]
    fn qmp_decides_what_is_attached() {
        assert_eq!(
            plan_of(LINE, &format!("[{VDA}]")),
            "v virtio-blk qcow2 cache=directsync aio=native <- /a <- /b"
        );
        assert_eq!(plan_of(LINE, "[]"), "");
        assert_eq!(
            plan_of("-device vhost-user-blk-pci,chardev=c,id=u", "[]"),
            "u virtio-blk  why=vhost-user-blk"
        );
        let hot = VDA.replace("/v/", "/hot/").replace("\"f\"", "\"g\"");
        assert_eq!(
            plan_of(LINE, &format!("[{hot},{VDA}]")),
            "v virtio-blk qcow2 cache=directsync aio=native <- /a <- /b\nhot virtio-scsi qcow2 cache=directsync <- /a <- /b"
        );
        // A set's descriptor, and a description that QEMU cut: the command line has it whole.
        let of_set = VDA.replace("/a", "/dev/fdset/3");
        assert_eq!(
            plan_of(&LINE.replace("/a", "/dev/fdset/3"), &format!("[{of_set}]")),
            "v virtio-blk qcow2 cache=directsync aio=native <- /proc/self/fd/7 <- /b"
        );
        let cut = VDA.replace("\"/b\"", r#""json:{\"driver\": \"qcow2\", \"fi...""#);
        let line = LINE.replace(
            "file=s ",
            "file=s,backing.file.filename=/b,backing.driver=qcow2,backing.file.driver=file ",
        );
        assert_eq!(
            plan_of(&line, &format!("[{cut}]")),
            "v virtio-blk qcow2 cache=directsync aio=native <- /a <- /b"
        );
        let changed = VDA.replace("/a", "/new");
        assert_eq!(
            plan_of(LINE, &format!("[{changed}]")),
            "v virtio-blk qcow2 cache=directsync <- /new <- /b"
        );
        let empty = r#"[{"device":"ide1-cd0","qdev":"/machine/unattached/device[1]"}]"#;
        assert_eq!(plan_of("-S", empty), "");
        let flash = VDA.replace(
            "/machine/peripheral/v/virtio-backend",
            "/machine/system.flash0",
        );
        assert_eq!(plan_of("-S", &format!("[{flash}]")), "");
    }

    #[test]
    fn a_part_of_another_format_is_that_format() {
        let block = r#"[{"device":"","qdev":"/machine/peripheral/v/virtio-backend","inserted":{"node-name":"f","drv":"raw","file":"x",
            "image":{"format":"raw","filename":"json:{\"driver\":\"raw\",\"offset\":4096,\"file\":{\"driver\":\"qcow2\",\"file\":{\"driver\":\"file\",\"filename\":\"/a\"}}}"}}}]"#;
        let shown = plan_of("-device virtio-blk-pci,drive=f,id=v", block);
        assert!(
            shown.contains(" qcow2 ") && shown.contains("<- /a"),
            "{shown}"
        );
    }
}
