//! What QEMU's command line says: name, accelerator, monitors, the agent's channel, and the disks.
//!
//! Pure: takes the arguments, opens nothing. Options that say nothing about these are stepped over.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod arguments;

use std::collections::{BTreeMap, BTreeSet};

use nestrace_trace::manifest::Limit;
use serde_json::{Map, Value};

use arguments::{WITH_ANY_ARGUMENT, WITHOUT_ARGUMENT};

use super::block_node::{BlockGraph, BlockNode};
use super::channel::Channel;
use super::device_model;
use super::drive::{self, Drives, Interface};
use super::option_syntax;

/// Name of the virtio-serial port of nestrace's agent.
pub const AGENT_PORT: &str = "org.nestrace.agent.0";

/// Everything read from one command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `-name`.
    pub name: Option<String>,
    /// `-uuid`.
    pub uuid: Option<String>,
    /// First accelerator that is asked for (`kvm`, `tcg`, …); empty where none is named.
    pub accel: String,
    /// `-machine` type.
    pub machine: Option<String>,
    /// Server sockets that speak QMP, in order.
    pub monitors: Vec<Endpoint>,
    /// Server socket behind the agent's port.
    pub agent: Option<Endpoint>,
    /// What else says how the guest could get the agent's channel.
    pub channel: Channel,
    /// Disks in the order of the options that attach them.
    pub disks: Vec<DiskOption>,
    /// Every image path that is named anywhere, attached to the guest or not (firmware, say).
    pub files: BTreeSet<String>,
    /// What the command line holds that could not be understood or followed.
    pub notes: Vec<String>,
}

/// A socket of QEMU's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A UNIX socket's path in QEMU's mount namespace, or `@NAME` for an abstract one.
    Path(String),
    /// A descriptor that QEMU was started with.
    Fd(u32),
}

/// One disk as the command line attaches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskOption {
    /// Id of the `-drive`: given, or the one that QEMU makes up (`virtio0`).
    pub drive: Option<String>,
    /// Whether the user gave that id.
    pub drive_named: bool,
    /// `-device` id.
    pub qdev: Option<String>,
    /// Node name at the top, where `-blockdev` gives one.
    pub node_name: Option<String>,
    /// `virtio-blk`, `virtio-scsi`, `ide`, …
    pub bus: String,
    /// Where the data is.
    pub source: DiskSource,
    /// Cache mode as it works, from every option that has a say in it.
    pub cache: Option<String>,
    /// `threads`, `native`, `io_uring`.
    pub aio: Option<String>,
    /// The iothread of the device or of its controller.
    pub iothread: Option<String>,
    /// The guest may only read.
    pub read_only: bool,
    /// Writes go to a temporary overlay (`snapshot=on`).
    pub snapshot: bool,
    /// `serial=`.
    pub serial: Option<String>,
    /// Limits that libvirt has set.
    pub limits: Vec<Limit>,
}

impl DiskOption {
    /// Bytes of its texts, those of its block nodes excepted, which have a bound of their own.
    fn text_len(&self) -> usize {
        let source = match &self.source {
            DiskSource::Outside(text) | DiskSource::HostPci(text) => text.len(),
            DiskSource::Missing | DiskSource::Node(_) => 0,
        };
        let texts = [&self.drive, &self.qdev, &self.node_name, &self.aio];
        let more = [&self.iothread, &self.serial];
        let texts = texts.into_iter().chain(more).flatten();
        texts.map(String::len).sum::<usize>() + source
    }
}

/// Where a disk's data is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskSource {
    /// The option refers to a drive or node that the command line does not have (or a drive without a medium).
    #[default]
    Missing,
    /// A chain of block nodes.
    Node(BlockNode),
    /// Past QEMU's block layer; why, for a person.
    Outside(String),
    /// A PCI device of the host, by address (`0000:01:00.0`) or sysfs path: a disk if its class says so.
    HostPci(String),
}

/// Reads the arguments of a QEMU process, its own name first.
///
/// ```
/// use nestrace_record::guest::command_line::parse;
/// let argv = ["qemu-system-x86_64", "-name", "vm1", "-drive", "file=/a.img,if=virtio,cache=none"];
/// let read = parse(&argv.map(String::from));
/// assert_eq!(read.name.as_deref(), Some("vm1"));
/// assert_eq!(read.disks[0].cache.as_deref(), Some("none"));
/// ```
#[must_use]
pub fn parse(argv: &[String]) -> CommandLine {
    let mut reader = Reader {
        program: argv.first().cloned().unwrap_or_default(),
        block_interface: Interface::default_of(argv),
        drives: Drives::of_machine(argv),
        ..Reader::default()
    };
    let mut rest = argv.iter().skip(1).peekable();
    while let Some(word) = rest.next() {
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            reader.option("hda", word);
            continue;
        };
        let known = handles(option) || WITH_ANY_ARGUMENT.contains(&option);
        let takes = known
            || rest
                .peek()
                .is_some_and(|next| !next.starts_with('-') || next.len() == 1);
        if WITHOUT_ARGUMENT.contains(&option) || !takes {
            reader.switch(option);
        } else if let Some(argument) = rest.next() {
            reader.option(option, argument);
        }
    }
    reader.finish()
}

/// Disks: libvirt has names for fewer on one bus.
const MAX_DISKS: usize = 1024;
/// Drives, devices and chardevs, of each: QEMU with a thousand disks has little more than a thousand.
const MAX_OPTIONS: usize = 4096;
/// Values in all options together: each takes some hundred times as many bytes as it has here. A thousand disks have half.
const MAX_VALUES: usize = 1 << 16;
/// Bytes of text in all disks together: options of many disks may refer to one long text.
const MAX_DISK_TEXT: usize = 4 << 20;

/// What is collected on the way through the arguments.
#[derive(Default)]
struct Reader {
    n_values: usize,
    is_too_much: bool,
    program: String,
    read: CommandLine,
    graph: BlockGraph,
    drives: Drives,
    block_interface: Interface,
    devices: Vec<Map<String, Value>>,
    chardevs: BTreeMap<String, Map<String, Value>>,
    monitor_chardevs: Vec<String>,
    /// Order of what attaches disks: index into drives, or into devices.
    attached: Vec<Attach>,
    enable_kvm: bool,
    snapshot: bool,
}

/// What attaches a disk.
#[derive(Clone, Copy)]
enum Attach {
    Drives(usize),
    Device(usize),
}

/// Options that [`Reader::option`] reads.
fn handles(option: &str) -> bool {
    matches!(
        option,
        "name"
            | "uuid"
            | "accel"
            | "machine"
            | "M"
            | "qmp"
            | "qmp-pretty"
            | "mon"
            | "chardev"
            | "device"
            | "object"
            | "blockdev"
            | "drive"
            | "readconfig"
            | "hda"
            | "hdb"
            | "hdc"
            | "hdd"
            | "cdrom"
            | "fda"
            | "fdb"
            | "sd"
            | "mtdblock"
            | "pflash"
    )
}

impl Reader {
    fn switch(&mut self, option: &str) {
        match option {
            "enable-kvm" => self.enable_kvm = true,
            "snapshot" => self.snapshot = true,
            _ => {}
        }
    }

    fn option(&mut self, option: &str, argument: &str) {
        let before = self.drives.len();
        self.n_values += 1 + argument.matches([',', '{', '[', '.']).count();
        let n_most = before.max(self.devices.len()).max(self.chardevs.len());
        if self.n_values > MAX_VALUES || n_most >= MAX_OPTIONS {
            self.is_too_much = true;
            return;
        }
        match option {
            "name" => {
                let pairs = option_syntax::split(argument, Some("guest"));
                self.read.name = option_syntax::last(&pairs, "guest").map(str::to_owned);
            }
            "uuid" => self.read.uuid = Some(argument.to_owned()),
            "accel" => self.accel(option_syntax::last(&option_syntax::split(argument, Some("accel")), "accel")),
            "machine" | "M" => self.machine(argument),
            "qmp" | "qmp-pretty" => self.qmp(argument),
            "mon" => self.monitor(argument),
            "chardev" => self.chardev(argument),
            "device" => self.device(argument),
            "object" => {}
            "blockdev" => match option_syntax::object(argument, Some("driver")) {
                Some(node) => self.graph.add(&node),
                None => self.read.notes.push(format!("-blockdev {argument} is not valid JSON")),
            },
            "drive" => self.drives.add(&option_syntax::split(argument, None), self.block_interface),
            "readconfig" => self.read.notes.push(format!(
                "-readconfig {argument} is not read: disks that only it defines are known through QMP alone"
            )),
            "hda" => self.drives.add_simple(self.block_interface, 0, argument),
            "hdb" => self.drives.add_simple(self.block_interface, 1, argument),
            "hdc" => self.drives.add_simple(self.block_interface, 2, argument),
            "hdd" => self.drives.add_simple(self.block_interface, 3, argument),
            "cdrom" => self.drives.add_cdrom(self.block_interface, argument),
            "fda" => self.drives.add_simple(Interface::Floppy, 0, argument),
            "fdb" => self.drives.add_simple(Interface::Floppy, 1, argument),
            "sd" => self.drives.add_simple(Interface::Sd, 0, argument),
            "mtdblock" => self.drives.add_file(Interface::Mtd, argument),
            "pflash" => self.drives.add_file(Interface::Pflash, argument),
            _ => {}
        }
        self.attached
            .extend((before..self.drives.len()).map(Attach::Drives));
    }

    fn accel(&mut self, list: Option<&str>) {
        if let Some(first) = list.and_then(|l| l.split(':').next())
            && self.read.accel.is_empty()
        {
            self.read.accel = first.to_owned();
        }
    }

    fn machine(&mut self, argument: &str) {
        let pairs = option_syntax::split(argument, Some("type"));
        self.accel(option_syntax::last(&pairs, "accel"));
        if let Some(machine) = option_syntax::last(&pairs, "type") {
            self.read.machine = Some(machine.to_owned());
        }
    }

    /// `-qmp unix:PATH,server=on` or `-qmp chardev:ID`.
    fn qmp(&mut self, argument: &str) {
        if let Some(id) = argument.strip_prefix("chardev:") {
            self.monitor_chardevs.push(id.to_owned());
        } else if let Some(unix) = argument.strip_prefix("unix:") {
            let pairs = option_syntax::split(unix, Some("path"));
            let server = option_syntax::last(&pairs, "server").is_some_and(|v| v != "off");
            if let (Some(path), true) = (option_syntax::last(&pairs, "path"), server) {
                self.read.monitors.push(Endpoint::Path(path.to_owned()));
            }
        } else if argument.starts_with("tcp:") || argument.starts_with("telnet:") {
            self.read.notes.push(over_tcp(&format!("-qmp {argument}")));
        }
    }

    fn monitor(&mut self, argument: &str) {
        let pairs = option_syntax::split(argument, Some("chardev"));
        // `control` alone is the spelling of QEMU 0.13.
        let control = option_syntax::last(&pairs, "mode") == Some("control")
            || option_syntax::last(&pairs, "control").is_some();
        if let (true, Some(id)) = (control, option_syntax::last(&pairs, "chardev")) {
            self.monitor_chardevs.push(id.to_owned());
        }
    }

    fn chardev(&mut self, argument: &str) {
        if let Some(chardev) = option_syntax::object(argument, Some("backend"))
            && let Some(id) = option_syntax::text_at(&chardev, &["id"])
        {
            self.chardevs.insert(id, chardev);
        }
    }

    fn device(&mut self, argument: &str) {
        match option_syntax::object(argument, Some("driver")) {
            Some(device) => {
                self.attached.push(Attach::Device(self.devices.len()));
                self.devices.push(device);
            }
            None => self
                .read
                .notes
                .push(format!("-device {argument} is not valid JSON")),
        }
    }

    /// Whether a chardev is a socket of TCP.
    fn is_tcp(&self, id: &str) -> bool {
        let chardev = self.chardevs.get(id);
        chardev.is_some_and(|chardev| {
            option_syntax::text_at(chardev, &["backend"]).as_deref() == Some("socket")
                && (option_syntax::text_at(chardev, &["port"]).is_some()
                    || option_syntax::text_at(chardev, &["host"]).is_some())
        })
    }

    /// The server socket behind a chardev, if it is one.
    fn endpoint(&self, id: &str) -> Option<Endpoint> {
        let chardev = self.chardevs.get(id)?;
        if option_syntax::text_at(chardev, &["backend"]).as_deref() != Some("socket") {
            return None;
        }
        if let Some(fd) = option_syntax::text_at(chardev, &["fd"]) {
            return fd.parse().ok().map(Endpoint::Fd);
        }
        let path = option_syntax::text_at(chardev, &["path"])?;
        let server = option_syntax::switch_at(chardev, &["server"]).unwrap_or(false);
        let abstract_name = option_syntax::switch_at(chardev, &["abstract"]).unwrap_or(false);
        server.then(|| {
            Endpoint::Path(if abstract_name {
                format!("@{path}")
            } else {
                path
            })
        })
    }

    fn finish(mut self) -> CommandLine {
        if self.enable_kvm && self.read.accel.is_empty() {
            self.read.accel = "kvm".to_owned();
        }
        let monitors: Vec<Endpoint> = self
            .monitor_chardevs
            .iter()
            .filter_map(|id| self.endpoint(id))
            .collect();
        self.read.monitors.extend(monitors);
        let of_tcp = self.monitor_chardevs.iter().filter(|id| self.is_tcp(id));
        let notes: Vec<String> = of_tcp
            .map(|id| over_tcp(&format!("-chardev {id}")))
            .collect();
        self.read.notes.extend(notes);
        self.agent();
        self.read.channel = Channel::of(
            &self.devices,
            self.chardevs.keys().map(String::as_str),
            self.program_and_machine(),
        );
        let attached = match self.is_too_much {
            // No QEMU has as much: disks are no more than memory that somebody wants to be used.
            true => Vec::new(),
            false => std::mem::take(&mut self.attached),
        };
        let is_without_disks = self.is_too_much;
        let mut text = 0;
        for attach in attached {
            if text > MAX_DISK_TEXT || self.read.disks.len() >= MAX_DISKS {
                self.is_too_much = true;
                break;
            }
            let disk = match attach {
                Attach::Drives(index) => self.drives.own_disk(index, &self.graph),
                Attach::Device(index) => self.device_disk(index),
            };
            if let Some(disk) = disk {
                text += disk.text_len();
                self.read.disks.push(disk);
            }
        }
        if self.is_too_much {
            self.read.notes.push(format!(
                "it has more than {MAX_DISKS} disks, {MAX_OPTIONS} devices, {MAX_VALUES} values, or {} MiB of text for its disks: the rest is not read{}",
                MAX_DISK_TEXT >> 20,
                if is_without_disks { ", and none of its disks is followed" } else { "" }
            ));
        }
        self.read.files = self.graph.files().chain(self.drives.files()).collect();
        for disk in &mut self.read.disks {
            disk.snapshot |= self.snapshot && disk.drive.is_some();
            if disk.snapshot {
                // The temporary overlay is always opened so. Which file it is, only QMP knows.
                disk.cache = Some("unsafe".to_owned());
            }
            if let DiskSource::Node(node) = &mut disk.source {
                // What `-add-fd` hands over, QEMU closes: the set has a copy with another number.
                drive::substitute_fd_sets(node, &BTreeMap::new());
            }
        }
        self.read
    }

    fn program_and_machine(&self) -> (&str, &str) {
        (&self.program, self.read.machine.as_deref().unwrap_or(""))
    }

    fn agent(&mut self) {
        let port = self
            .devices
            .iter()
            .find(|d| option_syntax::text_at(d, &["name"]).as_deref() == Some(AGENT_PORT));
        let Some(chardev) = port.and_then(|p| option_syntax::text_at(p, &["chardev"])) else {
            return;
        };
        self.read.agent = self.endpoint(&chardev);
        if self.read.agent.is_none() {
            self.read.notes.push(format!(
                "the agent's port is there, but its chardev {chardev} is not a listening UNIX socket (server=on)"
            ));
        }
    }

    /// The disk that a `-device` attaches, if it attaches one.
    fn device_disk(&self, index: usize) -> Option<DiskOption> {
        let device = self.devices.get(index)?;
        let model = device_model::of(device, &self.devices, &self.chardevs)?;
        let mut disk = DiskOption {
            qdev: option_syntax::text_at(device, &["id"]),
            bus: model.bus,
            iothread: model.iothread,
            ..DiskOption::default()
        };
        if let Some(source) = model.outside {
            disk.source = source;
            return Some(disk);
        }
        let drive = model.drive?;
        self.drives.attach(&drive, &self.graph, &mut disk);
        disk.serial = option_syntax::text_at(device, &["serial"]).or(disk.serial);
        if let Some(writeback) = option_syntax::switch_at(device, &["write-cache"]) {
            drive::override_writeback(&mut disk, writeback);
        }
        disk.read_only |= model.read_only;
        match disk.source {
            DiskSource::Missing if model.read_only => None,
            _ => Some(disk),
        }
    }
}

fn over_tcp(option: &str) -> String {
    format!(
        "{option}: QMP over TCP is not asked, because who answers there cannot be checked: \
         add -qmp unix:PATH,server=on,wait=off"
    )
}

#[cfg(test)]
mod tests;
