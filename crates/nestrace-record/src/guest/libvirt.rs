//! What libvirt knows of a domain that runs. libvirt holds QEMU's monitor, but it writes the state of each domain to a
//! file after each change: a disk that was plugged in, a medium, a snapshot, a block job that moved the top of an
//! image chain (`qemuDomainObjPrivateXMLFormat` and `virDomainObjSave`; seen with 9.0).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nestrace_trace::manifest::{Limit, LimitPlace};
use roxmltree::{Document, Node, ParsingOptions};

use super::block_node::{self, Backing, BlockNode, Storage};
use super::cache_mode::CacheMode;
use super::command_line::{DiskOption, DiskSource};
use super::device_model;
use super::process::Process;
use super::qmp::Iotune;
use crate::topology::namespace;

/// A domain with hundreds of disks has a tenth of it.
const MAX_BYTES: u64 = 4 << 20;
const MAX_NODES: u32 = 1 << 18;
/// Disks that are taken; libvirt has names for fewer on one bus.
const MAX_DISKS: usize = 1024;
/// Links of an image chain.
const MAX_IMAGES: usize = 256;
const CONTROLLER: &str = "controller";

/// A disk device of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainDisk {
    /// QEMU's id of the device.
    pub alias: String,
    /// The disk; `None` for a drive without a medium.
    pub medium: Option<DiskOption>,
}

/// The state of a domain cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LibvirtError {
    /// The file.
    #[error("read {place}")]
    Read {
        /// Its path as this process sees it.
        place: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is not what libvirt writes.
    #[error("read {place}: {why}")]
    Text {
        /// Its path as this process sees it.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The disks of a domain that libvirt runs as this process.
///
/// # Errors
/// There is no such file (QEMU was not started by libvirt), it cannot be read, or it tells of another domain.
pub fn disks(
    process: &Process,
    name: &str,
    uuid: Option<&str>,
) -> Result<Vec<DomainDisk>, LibvirtError> {
    let name = name.replace('/', "");
    let user = std::fs::metadata(process.proc_path("")).map_or(0, |about| about.uid());
    let system = format!("root/run/libvirt/qemu/{name}.xml");
    let session = format!("root/run/user/{user}/libvirt/qemu/run/{name}.xml");
    let text = read_file(process, &system).or_else(|error| {
        if user == 0 {
            return Err(error);
        }
        read_file(process, &session).map_err(|_| error)
    });
    let (place, text) = text?;
    parse(&text, uuid).map_err(|why| LibvirtError::Text { place, why })
}

/// What is there may be the work of a QEMU that was taken over: a FIFO, a link, no end.
fn read_file(process: &Process, name: &str) -> Result<(String, String), LibvirtError> {
    let path = process.proc_path(name);
    let place = path.display().to_string();
    let text = || {
        let mut options = OpenOptions::new();
        options.custom_flags(libc::O_NOFOLLOW | libc::O_PATH);
        let file = namespace::read_regular(&options.read(true).open(&path)?)?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text)
    };
    match text() {
        Ok(text) => Ok((place, text)),
        Err(source) => Err(LibvirtError::Read { place, source }),
    }
}

/// Reads the disks in the state of a domain.
///
/// # Errors
/// What is wrong with the text, or that it is of another domain than the one with this UUID.
pub fn parse(text: &str, uuid: Option<&str>) -> Result<Vec<DomainDisk>, String> {
    let options = ParsingOptions {
        nodes_limit: MAX_NODES,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options).map_err(|e| e.to_string())?;
    let domain = child(document.root_element(), "domain").ok_or("it has no domain")?;
    let found = text_of(domain, "uuid");
    if let (Some(uuid), Some(found)) = (uuid, found)
        && uuid != found
    {
        return Err(format!("it is of the domain {found:?}"));
    }
    let devices = child(domain, "devices").ok_or("it has no devices")?;
    let is_scsi = |node: &Node<'_, '_>| {
        node.has_tag_name(CONTROLLER) && node.attribute("type") == Some("scsi")
    };
    let controllers: Vec<Node<'_, '_>> = devices.children().filter(is_scsi).collect();
    let disks = devices.children().filter(|node| node.has_tag_name("disk"));
    let disks: Vec<DomainDisk> = disks
        .take(MAX_DISKS + 1)
        .filter_map(|disk| of(disk, &controllers))
        .collect();
    if disks.len() > MAX_DISKS || controllers.len() > MAX_DISKS {
        return Err(format!("it has more than {MAX_DISKS} disks"));
    }
    Ok(disks)
}

fn of(disk: Node<'_, '_>, controllers: &[Node<'_, '_>]) -> Option<DomainDisk> {
    let alias = attribute(disk, "alias", "name")?.to_owned();
    let Some(source) = child(disk, "source").filter(|source| names_a_place(*source)) else {
        return Some(DomainDisk {
            alias,
            medium: None,
        });
    };
    let driver = |name: &str| attribute(disk, "driver", name);
    let (bus, controller) = bus(disk, controllers);
    let iothread = driver("iothread")
        .or_else(|| attribute(controller?, "driver", "iothread"))
        .map(|number| format!("iothread{number}"));
    let cache = driver("cache").and_then(CacheMode::from_name);
    let medium = DiskOption {
        qdev: Some(alias.clone()),
        node_name: filter_node(disk).or_else(|| top_node(source)),
        bus,
        source: source_of(disk, source),
        cache: Some(cache.unwrap_or_default().name().to_owned()),
        aio: Some(driver("io").unwrap_or("threads").to_owned()),
        iothread,
        read_only: child(disk, "readonly").is_some(),
        serial: text_of(disk, "serial").map(str::to_owned),
        limits: limits(disk),
        ..DiskOption::default()
    };
    Some(DomainDisk {
        alias,
        medium: Some(medium),
    })
}

/// `<iotune>`: what `virsh blkdeviotune` sets.
fn limits(disk: Node<'_, '_>) -> Vec<Limit> {
    let Some(tune) = child(disk, "iotune") else {
        return Vec::new();
    };
    let value = |name: &str| {
        let text = text_of(tune, name).map(str::trim);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let iotune = Iotune {
        iops: value("total_iops_sec"),
        iops_rd: value("read_iops_sec"),
        iops_wr: value("write_iops_sec"),
        bps: value("total_bytes_sec"),
        bps_rd: value("read_bytes_sec"),
        bps_wr: value("write_bytes_sec"),
        group: None,
    };
    match text_of(tune, "group_name") {
        Some(group) => iotune.limits(LimitPlace::ThrottleGroup, group),
        None => iotune.limits(LimitPlace::Iotune, ""),
    }
}

/// The bus by the name that [`device_model`] gives it, and the controller of a SCSI disk.
fn bus<'a, 'input>(
    disk: Node<'a, 'input>,
    controllers: &[Node<'a, 'input>],
) -> (String, Option<Node<'a, 'input>>) {
    let name = match attribute(disk, "target", "bus").unwrap_or_default() {
        "virtio" => "virtio-blk",
        "sata" => "ide",
        "fdc" => "floppy",
        "scsi" => {
            let index = attribute(disk, "address", CONTROLLER).unwrap_or("0");
            let mut controllers = controllers.iter();
            let controller = controllers.find(|node| node.attribute("index") == Some(index));
            let model = controller.and_then(|node| node.attribute("model"));
            let is_virtio = model.is_some_and(|model| model.starts_with("virtio"));
            let name = if is_virtio { "virtio-scsi" } else { "scsi" };
            return (name.to_owned(), controller.copied());
        }
        other => other,
    };
    (name.to_owned(), None)
}

/// A drive whose medium was ejected keeps a source, with a number alone.
fn names_a_place(source: Node<'_, '_>) -> bool {
    let mut attributes = source.attributes();
    attributes.any(|attribute| !["index", "startupPolicy"].contains(&attribute.name()))
}

/// QEMU's name of a filter above the image: what copies on read.
fn filter_node(disk: Node<'_, '_>) -> Option<String> {
    let names = child(child(disk, "privateData")?, "nodenames")?;
    let name = names.children().find_map(|node| node.attribute("name"));
    name.map(str::to_owned)
}

/// QEMU's name of an image's node. Newer versions have no format node above a raw image.
fn top_node(source: Node<'_, '_>) -> Option<String> {
    let names = child(child(source, "privateData")?, "nodenames")?;
    let of_type = |kind: &str| {
        let mut names = names.children();
        names
            .find(|node| node.attribute("type") == Some(kind))?
            .attribute("name")
    };
    of_type("format")
        .or_else(|| of_type("storage"))
        .map(str::to_owned)
}

fn source_of(disk: Node<'_, '_>, source: Node<'_, '_>) -> DiskSource {
    match disk.attribute("type") {
        Some("vhostuser") => {
            return device_model::vhost_user("vhost-user-blk", source.attribute("path"));
        }
        Some("vhostvdpa") => return device_model::vhost_vdpa(),
        _ => {}
    }
    let format = attribute(disk, "driver", "type");
    DiskSource::Node(chain(disk, format, source, MAX_IMAGES))
}

/// `element` is a disk, a backing store or a data store: all have a type and a source.
fn chain(
    element: Node<'_, '_>,
    format: Option<&str>,
    source: Node<'_, '_>,
    left: usize,
) -> BlockNode {
    let image = |element: Node<'_, '_>| {
        let source = child(element, "source")?;
        Some(chain(
            element,
            attribute(element, "format", "type"),
            source,
            left.checked_sub(1)?,
        ))
    };
    let backing = child(element, "backingStore").map_or(Backing::FromHeader, |below| {
        image(below).map_or(Backing::Nothing, |node| Backing::Node(Box::new(node)))
    });
    BlockNode {
        node_name: top_node(source),
        format: format.map(str::to_owned),
        storage: storage(element.attribute("type"), source),
        start: slice_offset(source).unwrap_or(0),
        backing,
        data_file: child(source, "dataStore").and_then(image).map(Box::new),
        ..BlockNode::default()
    }
}

/// `<slices><slice type='storage' offset='…' size='…'/></slices>`: where in the file the image begins.
fn slice_offset(source: Node<'_, '_>) -> Option<u64> {
    let slice = child(child(source, "slices")?, "slice")?;
    let is_of_storage = slice.attribute("type") == Some("storage");
    slice
        .attribute("offset")?
        .parse()
        .ok()
        .filter(|_| is_of_storage)
}

fn storage(kind: Option<&str>, source: Node<'_, '_>) -> Storage {
    let path = |name: &str| {
        let path = source.attribute(name);
        path.map_or(Storage::Unknown, |path| Storage::Path(path.to_owned()))
    };
    match kind {
        Some("file") => path("file"),
        Some("block") => path("dev"),
        Some("network") => {
            let attribute = |name: &str| source.attribute(name).unwrap_or_default();
            block_node::storage_of_name(&format!("{}:{}", attribute("protocol"), attribute("name")))
        }
        Some("nvme") => block_node::storage_of_name("nvme://"),
        _ => Storage::Unknown,
    }
}

fn child<'a, 'input>(node: Node<'a, 'input>, name: &str) -> Option<Node<'a, 'input>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn attribute<'a>(node: Node<'a, '_>, element: &str, name: &str) -> Option<&'a str> {
    child(node, element)?.attribute(name)
}

fn text_of<'a>(node: Node<'a, '_>, element: &str) -> Option<&'a str> {
    child(node, element)?.text()
}

#[cfg(test)]
mod tests;
