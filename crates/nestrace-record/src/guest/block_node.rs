//! QEMU's block graph as the command line (or a `json:` file name) describes it, walked down to the
//! files that hold the data.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::option_syntax;

/// A format node over its storage: one link of an image chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockNode {
    /// `node-name`, if given.
    pub node_name: Option<String>,
    /// `raw`, `qcow2`, …; `None` where QEMU probes.
    pub format: Option<String>,
    /// Where the bytes are.
    pub storage: Storage,
    /// Where in the storage the image begins, in bytes: raw's `offset`.
    pub start: u64,
    /// The byte of the image that its user sees first: the `offset` of a raw node over another format.
    pub shown_from: u64,
    /// What lies behind it.
    pub backing: Backing,
    /// qcow2's external data file, if the options name it.
    pub data_file: Option<Box<Self>>,
    /// Further members of drivers that spread over several children (quorum, blkverify).
    pub further: Vec<Self>,
    /// `cache.direct` of the storage node, if set there or above it.
    pub direct: Option<bool>,
    /// `cache.no-flush` of the storage node, if set there or above it.
    pub no_flush: Option<bool>,
    /// `aio` of the storage node, if set.
    pub aio: Option<String>,
    /// `read-only`.
    pub read_only: bool,
}

/// Where a node's bytes are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// The description is not complete (a reference to a node that is not there).
    #[default]
    Unknown,
    /// A file or block device, by the path that QEMU opened.
    Path(String),
    /// Not on this host's file systems or block devices; why, for a person.
    Elsewhere(String),
}

/// What lies behind an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// What the image's own header says.
    #[default]
    FromHeader,
    /// Nothing, whatever the header says.
    Nothing,
    /// This node.
    Node(Box<BlockNode>),
}

/// Drivers that pass requests on to one child and add nothing of their own to the image chain.
const FILTERS: &[&str] = &[
    "throttle",
    "copy-on-read",
    "blkdebug",
    "blklogwrites",
    "blkreplay",
    "preallocate",
    "compress",
    "copy-before-write",
    "snapshot-access",
    "replication",
    "mirror_top",
    "commit_top",
    "backup-top",
];

/// How deep a graph may nest before the walk gives up (hostile or cyclic references).
const MAX_DEPTH: usize = 64;
/// How many nodes one walk may visit: references may fan out (a quorum of quorums of …). Long texts count for more.
const MAX_VISITS: usize = 4096;
/// And all walks of a graph together: many disks may refer to one node.
const MAX_ALL_VISITS: usize = 1 << 16;
/// Bytes of text that count as a visit.
const TEXT_OF_A_VISIT: usize = 64;
/// Nodes within nodes whose names can be referred to: each is kept with all that is in it.
const MAX_NAMED_DEPTH: usize = 8;

/// Whether a driver is a filter: it has no bytes of its own.
#[must_use]
pub fn is_filter(driver: &str) -> bool {
    FILTERS.contains(&driver)
}

/// Cache switches and aio that a child takes from its parent unless it sets its own.
#[derive(Clone, Default)]
struct Inherited {
    direct: Option<bool>,
    no_flush: Option<bool>,
    aio: Option<String>,
    read_only: bool,
}

/// Every `-blockdev`, by node name, inline children included.
#[derive(Clone, Debug, Default)]
pub struct BlockGraph {
    nodes: BTreeMap<String, Map<String, Value>>,
    visits: Cell<usize>,
    all_visits: Cell<usize>,
}

impl BlockGraph {
    /// Adds a `-blockdev`, with the children that it defines inline.
    pub fn add(&mut self, node: &Map<String, Value>) {
        self.add_nested(node, 0);
    }

    fn add_nested(&mut self, node: &Map<String, Value>, depth: usize) {
        if depth > MAX_NAMED_DEPTH {
            return;
        }
        if let Some(name) = option_syntax::text_at(node, &["node-name"]) {
            self.nodes.insert(name, node.clone());
        }
        for child in node.values().filter_map(Value::as_object) {
            self.add_nested(child, depth + 1);
        }
    }

    /// File names of all nodes, inline ones included.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        let mut names = Vec::new();
        for node in self.nodes.values() {
            file_names(node, &mut names, 0);
        }
        names.into_iter()
    }

    /// The chain that begins at the node `name`.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<BlockNode> {
        let node = self.nodes.get(name)?;
        self.visits.set(0);
        Some(self.walk(node, &Inherited::default(), 0))
    }

    /// The chain that a node's options describe.
    #[must_use]
    pub fn resolve_options(&self, node: &Map<String, Value>) -> BlockNode {
        self.visits.set(0);
        self.walk(node, &Inherited::default(), 0)
    }

    /// A child given by reference or inline. Only an inline child inherits.
    fn child(&self, value: &Value, from: &Inherited, depth: usize) -> BlockNode {
        match value {
            Value::String(name) => match self.nodes.get(name) {
                Some(node) => self.walk(node, &Inherited::default(), depth),
                None => BlockNode::default(),
            },
            Value::Object(node) => self.walk(node, from, depth),
            _ => BlockNode::default(),
        }
    }

    fn walk(&self, node: &Map<String, Value>, from: &Inherited, depth: usize) -> BlockNode {
        let settings = Inherited {
            direct: option_syntax::switch_at(node, &["cache", "direct"]).or(from.direct),
            no_flush: option_syntax::switch_at(node, &["cache", "no-flush"]).or(from.no_flush),
            aio: option_syntax::text_at(node, &["aio"]).or_else(|| from.aio.clone()),
            read_only: option_syntax::switch_at(node, &["read-only"]).unwrap_or(from.read_only),
        };
        let node_name = option_syntax::text_at(node, &["node-name"]);
        let driver = option_syntax::text_at(node, &["driver"]);
        let texts = [&node_name, &driver, &settings.aio].into_iter().flatten();
        self.count(texts.map(String::len).sum());
        let is_too_much = self.visits.get() > MAX_VISITS || self.all_visits.get() > MAX_ALL_VISITS;
        let mut walked = if depth > MAX_DEPTH || is_too_much {
            BlockNode::default()
        } else {
            match driver.as_deref() {
                None => self.probed(node, &settings, depth),
                Some(driver) if is_filter(driver) => self.filter(node, &settings, depth),
                Some(driver) => self.driver(driver, node, &settings, depth),
            }
        };
        if let Storage::Path(text) | Storage::Elsewhere(text) = &walked.storage {
            self.count(text.len());
        }
        walked.node_name = node_name;
        walked.read_only |= settings.read_only;
        walked
    }

    /// Counts a visit that copies so many bytes of text.
    fn count(&self, bytes: usize) {
        for visits in [&self.visits, &self.all_visits] {
            visits.set(visits.get().saturating_add(1 + bytes / TEXT_OF_A_VISIT));
        }
    }

    fn filter(&self, node: &Map<String, Value>, settings: &Inherited, depth: usize) -> BlockNode {
        match node.get("file").or_else(|| node.get("image")) {
            Some(child) => self.child(child, settings, depth + 1),
            None => BlockNode::default(),
        }
    }

    /// A node without a driver: `file=NAME` of a hand-written drive, whose protocol is in the name.
    fn probed(&self, node: &Map<String, Value>, settings: &Inherited, depth: usize) -> BlockNode {
        match (
            option_syntax::text_at(node, &["filename"]),
            node.get("file"),
        ) {
            (Some(name), _) => self.named(&name, settings, depth),
            (None, Some(child)) => {
                let mut below = self.child(child, settings, depth + 1);
                let name = child
                    .as_object()
                    .and_then(|c| option_syntax::text_at(c, &["filename"]));
                // The child says where the bytes are; what format they have is still to be probed.
                if !name.is_some_and(|n| n.starts_with("json:")) {
                    below.format = None;
                }
                if node.contains_key("backing") {
                    below.backing = self.backing(node, settings, depth);
                }
                below
            }
            (None, None) => BlockNode::default(),
        }
    }

    /// A file name, which may carry a protocol (`nbd:…`) or a whole description (`json:{…}`).
    fn named(&self, name: &str, settings: &Inherited, depth: usize) -> BlockNode {
        if let Some(json) = name.strip_prefix("json:")
            && let Ok(Value::Object(node)) = serde_json::from_str(json)
        {
            return self.walk(&node, settings, depth + 1);
        }
        leaf(storage_of_name(name), settings)
    }

    fn driver(
        &self,
        driver: &str,
        node: &Map<String, Value>,
        settings: &Inherited,
        depth: usize,
    ) -> BlockNode {
        if matches!(driver, "file" | "host_device" | "host_cdrom") {
            let name = option_syntax::text_at(node, &["filename"]).unwrap_or_default();
            let name = name.strip_prefix("file:").unwrap_or(&name).to_owned();
            return BlockNode {
                format: Some("raw".to_owned()),
                ..leaf(Storage::Path(name), settings)
            };
        }
        if let Some(reason) = elsewhere(driver, node) {
            return leaf(Storage::Elsewhere(reason), settings);
        }
        let mut children = self.members(node, settings, depth);
        let mut top = if children.is_empty() {
            BlockNode::default()
        } else {
            children.remove(0)
        };
        // `raw` over another format only cuts out a part of it (offset, size).
        let transparent = driver == "raw" && top.format.as_deref().is_some_and(|f| f != "raw");
        let offset = option_syntax::bytes_at(node, &["offset"]).filter(|_| driver == "raw");
        let cut = if transparent {
            &mut top.shown_from
        } else {
            &mut top.start
        };
        *cut = cut.saturating_add(offset.unwrap_or(0));
        if !transparent && !matches!(driver, "quorum" | "blkverify") {
            top.format = Some(driver.to_owned());
            top.backing = self.backing(node, settings, depth);
        }
        top.further.extend(children);
        if let Some(data) = node.get("data-file") {
            top.data_file = Some(Box::new(self.child(data, settings, depth + 1)));
        }
        top
    }

    /// The children that hold data: `file`, or all of a quorum's.
    fn members(
        &self,
        node: &Map<String, Value>,
        settings: &Inherited,
        depth: usize,
    ) -> Vec<BlockNode> {
        let mut members: Vec<&Value> = ["file", "test", "raw"]
            .iter()
            .filter_map(|k| node.get(*k))
            .collect();
        match node.get("children") {
            Some(Value::Array(children)) => members.extend(children),
            Some(Value::Object(children)) => members.extend(children.values()),
            _ => {}
        }
        members
            .into_iter()
            .take(MAX_DEPTH)
            .map(|m| self.child(m, settings, depth + 1))
            .collect()
    }

    fn backing(&self, node: &Map<String, Value>, settings: &Inherited, depth: usize) -> Backing {
        match node.get("backing") {
            None => Backing::FromHeader,
            Some(Value::Null) => Backing::Nothing,
            Some(Value::String(name)) if name.is_empty() => Backing::Nothing,
            Some(child) => {
                // A backing file takes the cache mode of its overlay but is always read-only.
                let mut node = self.child(
                    child,
                    &Inherited {
                        read_only: true,
                        ..settings.clone()
                    },
                    depth + 1,
                );
                node.read_only = true;
                Backing::Node(Box::new(node))
            }
        }
    }
}

/// Every `filename` in a node and the children that it defines inline.
pub fn file_names(node: &Map<String, Value>, names: &mut Vec<String>, depth: usize) {
    if let Some(name) = option_syntax::text_at(node, &["filename"])
        && let Storage::Path(path) = node_of_name(&name).storage
    {
        names.push(path);
    }
    for child in node
        .values()
        .filter_map(Value::as_object)
        .filter(|_| depth < MAX_DEPTH)
    {
        file_names(child, names, depth + 1);
    }
}

fn leaf(storage: Storage, settings: &Inherited) -> BlockNode {
    BlockNode {
        storage,
        direct: settings.direct,
        no_flush: settings.no_flush,
        aio: settings.aio.clone(),
        read_only: settings.read_only,
        ..BlockNode::default()
    }
}

/// What a file name in QEMU's syntax refers to. `json:` names are for [`BlockGraph`].
#[must_use]
pub fn storage_of_name(name: &str) -> Storage {
    let Some((protocol, rest)) = protocol(name) else {
        return Storage::Path(name.to_owned());
    };
    match protocol {
        "file" | "host_device" | "host_cdrom" => {
            let rest = rest
                .strip_prefix("//")
                .filter(|r| r.starts_with('/'))
                .unwrap_or(rest);
            Storage::Path(rest.to_owned())
        }
        _ => {
            let driver = protocol.split('+').next().unwrap_or(protocol);
            Storage::Elsewhere(reason(driver, Some(name)))
        }
    }
}

/// The node of a name that QEMU reports or a header holds: a path, a protocol, or `json:{…}`.
#[must_use]
pub fn node_of_name(name: &str) -> BlockNode {
    BlockGraph::default().named(name, &Inherited::default(), 0)
}

/// `nbd` of `nbd:host:10809`: a colon before the first slash makes a protocol, as in QEMU.
fn protocol(name: &str) -> Option<(&str, &str)> {
    let end = name.find([':', '/'])?;
    let (protocol, rest) = name.split_at(end);
    let rest = rest.strip_prefix(':')?;
    (!protocol.is_empty()).then_some((protocol, rest))
}

/// Why a protocol driver's data cannot be followed here; `None` for format drivers.
fn elsewhere(driver: &str, node: &Map<String, Value>) -> Option<String> {
    let place = [
        "filename", "uri", "url", "image", "export", "path", "target", "device", "dir",
    ]
    .iter()
    .find_map(|key| option_syntax::text_at(node, &[key]));
    let server = ["server", "socket", "host"]
        .iter()
        .find_map(|key| match node.get(*key)? {
            Value::Object(server) => option_syntax::text_at(server, &["path"]).or_else(|| {
                let host = option_syntax::text_at(server, &["host"])?;
                let port = option_syntax::text_at(server, &["port"]).map(|p| format!(":{p}"));
                Some(format!("{host}{}", port.unwrap_or_default()))
            }),
            other => option_syntax::text(other),
        });
    let where_to = match (place, server) {
        (Some(place), Some(server)) => Some(format!("{place} at {server}")),
        (place, server) => place.or(server),
    };
    is_remote(driver).then(|| reason(driver, where_to.as_deref()))
}

/// Drivers whose data is not a file or block device of this host.
fn is_remote(driver: &str) -> bool {
    matches!(
        driver,
        "nbd"
            | "rbd"
            | "iscsi"
            | "http"
            | "https"
            | "ftp"
            | "ftps"
            | "ssh"
            | "gluster"
            | "nfs"
            | "sheepdog"
            | "vxhs"
            | "nvme"
            | "nvme-io_uring"
            | "virtio-blk-vfio-pci"
            | "virtio-blk-vhost-user"
            | "virtio-blk-vhost-vdpa"
            | "io_uring"
            | "null-co"
            | "null-aio"
            | "vvfat"
            | "fat"
    )
}

/// One line for a person: which driver, where it leads, and what that means for a recording.
fn reason(driver: &str, place: Option<&str>) -> String {
    let kind = match driver {
        "nbd" => "an NBD server, which another process or machine runs",
        "rbd" => "a Ceph cluster, reached by QEMU's own client",
        "iscsi" => "an iSCSI target, reached by QEMU's own initiator",
        "http" | "https" | "ftp" | "ftps" => "a web server",
        "ssh" => "another machine, reached over ssh",
        "gluster" => "a Gluster volume, reached by QEMU's own client",
        "nfs" => "an NFS server, reached by QEMU's own client",
        "nvme" => "an NVMe controller that QEMU drives itself, past the host's block layer",
        "nvme-io_uring" => {
            "an NVMe namespace that QEMU commands itself, past the host's block layer"
        }
        "virtio-blk-vfio-pci" | "virtio-blk-vhost-user" | "virtio-blk-vhost-vdpa" => {
            "a virtio-blk device that QEMU drives itself, past the host's block layer"
        }
        "null-co" | "null-aio" => "nothing: the null driver drops all data",
        "vvfat" | "fat" => "a directory that QEMU shows as a FAT disk",
        _ => "a place that is not a file or block device of this host",
    };
    match place {
        Some(place) => format!("{driver}: the data is in {kind} ({place})"),
        None => format!("{driver}: the data is in {kind}"),
    }
}

#[cfg(test)]
mod tests;
