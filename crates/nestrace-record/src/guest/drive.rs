//! `-drive`, `-hda`, `-cdrom` and their kin: the old way to define a disk, where one option makes the
//! image, its cache mode and (unless `if=none`) the device.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::block_node::{self, BlockGraph, BlockNode, Storage};
use super::cache_mode::CacheMode;
use super::command_line::{DiskOption, DiskSource};
use super::option_syntax;

/// Where a drive is plugged in (`if=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// IDE, or AHCI on q35.
    #[default]
    Ide,
    /// The machine's SCSI controller.
    Scsi,
    /// virtio-blk.
    Virtio,
    /// Floppy.
    Floppy,
    /// Firmware flash: not a disk.
    Pflash,
    /// Memory technology device.
    Mtd,
    /// SD card.
    Sd,
    /// Xen's block device.
    Xen,
    /// Nowhere: a `-device` refers to it.
    Unattached,
}

impl Interface {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "ide" => Self::Ide,
            "scsi" => Self::Scsi,
            "virtio" => Self::Virtio,
            "floppy" => Self::Floppy,
            "pflash" => Self::Pflash,
            "mtd" => Self::Mtd,
            "sd" => Self::Sd,
            "xen" => Self::Xen,
            "none" => Self::Unattached,
            _ => return None,
        })
    }

    /// What a drive without `if=` gets: QEMU asks the machine; the target's usual machine decides here.
    #[must_use]
    pub fn default_of(argv: &[String]) -> Self {
        let program = argv
            .first()
            .map_or("", |p| p.rsplit('/').next().unwrap_or(p));
        let microvm = argv
            .iter()
            .any(|a| a == "microvm" || a.starts_with("microvm,"));
        let is_virtio = [
            "-aarch64",
            "-arm",
            "-riscv64",
            "-riscv32",
            "-s390x",
            "-loongarch64",
        ]
        .iter()
        .any(|target| program.ends_with(target));
        match program {
            _ if microvm || is_virtio => Self::Virtio,
            _ if program.ends_with("-ppc64") => Self::Scsi,
            _ => Self::Ide,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ide => "ide",
            Self::Scsi => "scsi",
            Self::Virtio => "virtio",
            Self::Floppy => "floppy",
            Self::Pflash => "pflash",
            Self::Mtd => "mtd",
            Self::Sd => "sd",
            Self::Xen => "xen",
            Self::Unattached => "none",
        }
    }

    /// Name of the bus in the manifest.
    const fn bus(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-blk",
            other => other.name(),
        }
    }
}

/// One drive.
#[derive(Clone, Debug)]
struct Drive {
    id: String,
    named: bool,
    interface: Interface,
    cdrom: bool,
    node: Option<Map<String, Value>>,
    cache: CacheMode,
    snapshot: bool,
    serial: Option<String>,
}

/// Every drive of a command line, in order.
#[derive(Clone, Debug, Default)]
pub struct Drives {
    drives: Vec<Drive>,
    used: BTreeSet<(Interface, u32)>,
    /// By interface and first unit that was looked at: all units before this one are used.
    used_up_to: BTreeMap<(Interface, u32), u32>,
    one_ide_unit: bool,
}

/// Keys of `-drive` that are not options of the block node.
const DRIVE_KEYS: &[&str] = &[
    "if",
    "index",
    "bus",
    "unit",
    "media",
    "id",
    "cache",
    "snapshot",
    "serial",
    "werror",
    "rerror",
    "copy-on-read",
    "readonly",
    "format",
    "addr",
    "detect-zeroes",
    "discard",
    "stats-account-invalid",
    "stats-account-failed",
];

impl Drives {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.drives.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.drives.is_empty()
    }

    /// No drives yet, on the machine that the arguments ask for.
    #[must_use]
    pub fn of_machine(argv: &[String]) -> Self {
        let options = argv.iter().zip(argv.iter().skip(1));
        let machines = options.filter(|(option, _)| {
            option.starts_with('-') && matches!(option.trim_start_matches('-'), "machine" | "M")
        });
        // The type may stand behind other properties; several options are one, whose last type counts.
        let is_q35 = |argument: &String| {
            let pairs = option_syntax::split(argument, Some("type"));
            let kind = option_syntax::last(&pairs, "type")?;
            Some(kind.starts_with("q35") || kind.starts_with("pc-q35"))
        };
        Self {
            one_ide_unit: machines
                .filter_map(|(_, argument)| is_q35(argument))
                .next_back()
                .unwrap_or(false),
            ..Self::default()
        }
    }

    /// Units a bus has, where the drive's made-up id names bus and unit. q35's AHCI has one a port.
    fn units(&self, interface: Interface) -> Option<u32> {
        match interface {
            Interface::Ide if self.one_ide_unit => Some(1),
            Interface::Ide => Some(2),
            Interface::Scsi => Some(7),
            _ => None,
        }
    }

    /// `-drive`.
    pub fn add(&mut self, pairs: &[(String, String)], default: Interface) {
        let get = |key: &str| option_syntax::last(pairs, key);
        let interface = get("if").and_then(Interface::from_name).unwrap_or(default);
        let cdrom = get("media") == Some("cdrom");
        let place = (get("index"), get("bus"), get("unit"));
        let unit = self.place(interface, place);
        let (id, named) = match get("id") {
            Some(id) => (id.to_owned(), true),
            None => (
                made_up_id(interface, cdrom, unit, self.units(interface)),
                false,
            ),
        };
        let node = node_of(pairs);
        self.drives.push(Drive {
            id,
            named,
            interface,
            cdrom,
            cache: cache_of(pairs),
            snapshot: get("snapshot").is_some_and(|v| matches!(v, "on" | "yes" | "true")),
            // QEMU 3.1 and older take it here, newer ones only at the device.
            serial: get("serial").map(str::to_owned),
            node,
        });
    }

    /// `-cdrom`.
    pub fn add_cdrom(&mut self, interface: Interface, file: &str) {
        let keys = ["file", "index", "media"].map(str::to_owned);
        let values = [file, "2", "cdrom"].map(str::to_owned);
        self.add(&keys.into_iter().zip(values).collect::<Vec<_>>(), interface);
    }

    /// `-hda` to `-hdd`, a bare word, `-fda`, `-sd` and the like: the `index`-th of an interface.
    pub fn add_simple(&mut self, interface: Interface, index: u32, file: &str) {
        let pairs = [
            ("file".to_owned(), file.to_owned()),
            ("index".to_owned(), index.to_string()),
        ];
        self.add(&pairs, interface);
    }

    /// `-pflash`, `-mtdblock`: the next of an interface.
    pub fn add_file(&mut self, interface: Interface, file: &str) {
        self.add(&[("file".to_owned(), file.to_owned())], interface);
    }

    /// File names of all drives, firmware and unattached ones included.
    pub fn files(&self) -> impl Iterator<Item = String> + '_ {
        let mut names = Vec::new();
        for node in self.drives.iter().filter_map(|d| d.node.as_ref()) {
            block_node::file_names(node, &mut names, 0);
        }
        names.into_iter()
    }

    /// The unit that a drive gets, counted over all buses of its interface.
    fn place(
        &mut self,
        interface: Interface,
        at: (Option<&str>, Option<&str>, Option<&str>),
    ) -> u32 {
        let number = |text: Option<&str>| text.and_then(|t| t.parse::<u32>().ok());
        let units = self.units(interface).unwrap_or(u32::MAX);
        let unit = match (number(at.0), number(at.1), number(at.2)) {
            (Some(index), _, _) => index,
            (None, bus, Some(unit)) => bus.unwrap_or(0).saturating_mul(units).saturating_add(unit),
            (None, bus, None) => {
                let from = bus.unwrap_or(0).saturating_mul(units);
                let next = self.used_up_to.entry((interface, from)).or_insert(from);
                let mut units = *next..=u32::MAX;
                let free = units.find(|unit| !self.used.contains(&(interface, *unit)));
                *next = free.unwrap_or(from);
                *next
            }
        };
        self.used.insert((interface, unit));
        unit
    }

    /// The disk of a drive that brings its own device (`if=virtio`, `-hda`).
    #[must_use]
    pub fn own_disk(&self, index: usize, graph: &BlockGraph) -> Option<DiskOption> {
        let drive = self.drives.get(index)?;
        if matches!(drive.interface, Interface::Unattached | Interface::Pflash)
            || drive.node.is_none()
        {
            return None;
        }
        let mut disk = DiskOption {
            bus: drive.interface.bus().to_owned(),
            ..DiskOption::default()
        };
        fill(&mut disk, drive, graph);
        Some(disk)
    }

    /// Gives a device's disk what its `drive=` refers to: a drive's id, or a node name.
    pub fn attach(&self, reference: &str, graph: &BlockGraph, disk: &mut DiskOption) {
        if let Some(drive) = self.drives.iter().find(|d| d.id == reference) {
            fill(disk, drive, graph);
        } else if let Some(node) = graph.resolve(reference) {
            disk.node_name = Some(reference.to_owned());
            let mode = CacheMode {
                writeback: true,
                direct: node.direct.unwrap_or(false),
                no_flush: node.no_flush.unwrap_or(false),
            };
            finish(disk, node, mode);
        } else {
            disk.node_name = Some(reference.to_owned());
        }
    }
}

fn fill(disk: &mut DiskOption, drive: &Drive, graph: &BlockGraph) {
    disk.drive = Some(drive.id.clone());
    disk.drive_named = drive.named;
    disk.snapshot = drive.snapshot;
    disk.serial = disk.serial.take().or_else(|| drive.serial.clone());
    disk.read_only |= drive.cdrom;
    let Some(options) = &drive.node else { return };
    let node = graph.resolve_options(options);
    disk.node_name.clone_from(&node.node_name);
    let mode = CacheMode {
        direct: node.direct.unwrap_or(drive.cache.direct),
        no_flush: node.no_flush.unwrap_or(drive.cache.no_flush),
        ..drive.cache
    };
    finish(disk, node, mode);
}

fn finish(disk: &mut DiskOption, node: BlockNode, mode: CacheMode) {
    disk.cache = Some(mode.name().to_owned());
    disk.aio = match (&node.aio, &node.storage) {
        (Some(aio), _) => Some(aio.clone()),
        (None, Storage::Path(_)) => Some("threads".to_owned()),
        (None, _) => None,
    };
    disk.read_only |= node.read_only;
    disk.source = DiskSource::Node(node);
}

/// Applies a device's `write-cache=`, which overrules the drive's.
pub fn override_writeback(disk: &mut DiskOption, writeback: bool) {
    if let Some(mode) = disk.cache.as_deref().and_then(CacheMode::from_name) {
        disk.cache = Some(CacheMode { writeback, ..mode }.name().to_owned());
    }
}

/// `virtio0`, `ide1-cd0`: the ids that QEMU makes up, which QMP then shows.
fn made_up_id(interface: Interface, cdrom: bool, unit: u32, units: Option<u32>) -> String {
    let media = match interface {
        Interface::Ide | Interface::Scsi if cdrom => "-cd",
        Interface::Ide | Interface::Scsi => "-hd",
        _ => "",
    };
    match units {
        Some(units) => format!(
            "{}{}{media}{}",
            interface.name(),
            unit / units,
            unit % units
        ),
        None => format!("{}{media}{unit}", interface.name()),
    }
}

/// `cache=MODE`, overruled by `cache.writeback`, `cache.direct` and `cache.no-flush`.
fn cache_of(pairs: &[(String, String)]) -> CacheMode {
    let mut mode = option_syntax::last(pairs, "cache")
        .and_then(CacheMode::from_name)
        .unwrap_or_default();
    let switch = |key: &str| {
        option_syntax::switch(&Value::String(option_syntax::last(pairs, key)?.to_owned()))
    };
    mode.writeback = switch("cache.writeback").unwrap_or(mode.writeback);
    mode.direct = switch("cache.direct").unwrap_or(mode.direct);
    mode.no_flush = switch("cache.no-flush").unwrap_or(mode.no_flush);
    mode
}

/// The drive's options as those of a block node; `None` for a drive without a medium.
fn node_of(pairs: &[(String, String)]) -> Option<Map<String, Value>> {
    let mode = cache_of(pairs);
    let mut node = Map::new();
    for (key, value) in pairs
        .iter()
        .filter(|(k, _)| !DRIVE_KEYS.contains(&k.as_str()) && !k.starts_with("cache."))
    {
        match key.as_str() {
            "file" if value.is_empty() => {}
            // `file=` of a drive is a file name; a node's `file` is a child.
            "file" => option_syntax::insert_dotted(&mut node, "file.filename", value.clone()),
            key => option_syntax::insert_dotted(&mut node, key, value.clone()),
        }
    }
    if !["file", "driver", "filename", "children"]
        .iter()
        .any(|key| node.contains_key(*key))
    {
        return None;
    }
    if let Some(format) = option_syntax::last(pairs, "format") {
        node.insert("driver".to_owned(), Value::String(format.to_owned()));
    }
    let read_only =
        option_syntax::last(pairs, "readonly").or_else(|| option_syntax::last(pairs, "read-only"));
    if let Some(read_only) =
        read_only.and_then(|v| option_syntax::switch(&Value::String(v.to_owned())))
    {
        node.insert("read-only".to_owned(), Value::Bool(read_only));
    }
    node.insert(
        "cache".to_owned(),
        serde_json::json!({"direct": mode.direct, "no-flush": mode.no_flush}),
    );
    Some(node)
}

/// Replaces `/dev/fdset/N` by one of the descriptors in that set, as far as they are known, and `/dev/fd/N` likewise.
pub fn substitute_fd_sets(node: &mut BlockNode, sets: &BTreeMap<String, String>) {
    use super::block_node::Backing;
    if let Storage::Path(path) = &mut node.storage {
        if let Some(real) = sets.get(path) {
            real.clone_into(path);
        } else if let Some(fd) = path.strip_prefix("/dev/fd/") {
            *path = format!("/proc/self/fd/{fd}");
        }
    }
    if let Backing::Node(below) = &mut node.backing {
        substitute_fd_sets(below, sets);
    }
    if let Some(data) = &mut node.data_file {
        substitute_fd_sets(data, sets);
    }
    for further in &mut node.further {
        substitute_fd_sets(further, sets);
    }
}
