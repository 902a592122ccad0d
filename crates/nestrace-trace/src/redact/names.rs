//! Which word stands for which name.

use std::collections::BTreeMap;

use crate::manifest::Manifest;

/// What virtio-blk and IDE show of a serial number, bytes.
const SERIAL_SHOWN: usize = 20;

/// Names of one sort, numbered in the order in which they come.
#[derive(Debug)]
pub(super) struct Words {
    prefix: &'static str,
    known: BTreeMap<String, usize>,
}

impl Words {
    fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            known: BTreeMap::new(),
        }
    }

    fn number(&mut self, name: &str) -> usize {
        let next = self.known.len() + 1;
        *self.known.entry(name.to_owned()).or_insert(next)
    }

    /// The word for a name. No name has no word.
    pub(super) fn of(&mut self, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        let number = self.number(name);
        format!("{}-{number}", self.prefix)
    }
}

/// Serial numbers tie a guest's disk to QEMU's, and a guest is shown the first 20 bytes of some: words
/// that begin alike stand for numbers that do.
#[derive(Debug)]
pub(super) struct Serials {
    heads: Words,
    tails: Words,
}

impl Serials {
    /// The word for a serial number.
    pub(super) fn of(&mut self, serial: &str) -> String {
        let serial = serial.trim();
        if serial.is_empty() {
            return String::new();
        }
        let head = serial.get(..SERIAL_SHOWN).unwrap_or(serial);
        let tail = serial.get(head.len()..).unwrap_or_default();
        let mut word = format!("serial-{:013}", self.heads.number(head));
        if !tail.is_empty() {
            word.push_str(&self.tails.of(tail));
        }
        word
    }
}

/// The names of a recording.
#[derive(Debug)]
pub(super) struct Names {
    pub guests: Words,
    pub machines: Words,
    pub boots: Words,
    pub images: Words,
    pub sockets: Words,
    pub iothreads: Words,
    pub throttle_groups: Words,
    pub cgroups: Words,
    pub models: Words,
    pub servers: Words,
    pub exports: Words,
    pub serials: Serials,
    mounts: Words,
    sources: Words,
    /// `/dev/` and the kernel's names of the recorded devices.
    devices: Vec<String>,
    /// What may stand in a text, the longest first.
    in_texts: Vec<String>,
}

impl Names {
    pub(super) fn new(manifest: &Manifest) -> Self {
        let topology = &manifest.topology;
        let mut guests = Words::new("guest");
        let of_sides = manifest.guest_sides.iter().map(|side| &side.guest);
        for guest in topology
            .guests
            .iter()
            .map(|guest| &guest.name)
            .chain(of_sides)
        {
            guests.of(guest);
        }
        let machines = manifest
            .guest_sides
            .iter()
            .map(|side| &side.machine.hostname);
        let mut in_texts: Vec<String> =
            machines.chain([&manifest.host.hostname]).cloned().collect();
        for guest in &topology.guests {
            in_texts.extend([&guest.name].into_iter().chain(&guest.uuid).cloned());
            for disk in &guest.disks {
                in_texts.extend([&disk.name].into_iter().chain(&disk.qdev).cloned());
            }
        }
        in_texts.retain(|name| !name.is_empty());
        in_texts.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Self {
            guests,
            machines: Words::new("machine"),
            boots: Words::new("boot"),
            images: Words::new("image"),
            sockets: Words::new("socket"),
            iothreads: Words::new("iothread"),
            throttle_groups: Words::new("group"),
            cgroups: Words::new("cgroup"),
            models: Words::new("model"),
            servers: Words::new("server"),
            exports: Words::new("export"),
            serials: Serials {
                heads: Words::new("serial"),
                tails: Words::new(""),
            },
            mounts: Words::new("mount"),
            sources: Words::new("source"),
            devices: topology
                .devices
                .iter()
                .map(|device| format!("/dev/{}", device.name))
                .collect(),
            in_texts,
        }
    }

    /// The root says nothing about anybody.
    pub(super) fn mount_point(&mut self, path: &str) -> String {
        match path {
            "/" => String::from("/"),
            path => self.mounts.of(path),
        }
    }

    /// A device of the recording keeps its name; labels, volumes and servers do not.
    pub(super) fn source(&mut self, source: &str) -> String {
        if self.devices.iter().any(|device| device == source) {
            return source.to_owned();
        }
        self.sources.of(source)
    }

    /// A text in words, without known names, up to the first word that could be a path.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for name in &self.in_texts {
            text = without(&text, name);
        }
        let words: Vec<&str> = text
            .split(' ')
            .take_while(|word| !word.contains('/'))
            .collect();
        words.join(" ")
    }
}

/// A text without a name, where it stands as a word.
fn without(text: &str, name: &str) -> String {
    let of_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        let is_word = !of_word(before.chars().next_back()) && !of_word(after.chars().next());
        kept.push_str(before);
        kept.push_str(if is_word { "…" } else { name });
        rest = after;
    }
    kept.push_str(rest);
    kept
}

/// Options whose value is one of the file system's own words.
const OWN_WORDS: [&str; 12] = [
    "data",
    "errors",
    "compress",
    "compress-force",
    "discard",
    "space_cache",
    "cache",
    "jqfmt",
    "journal_checksum",
    "alloc_mode",
    "fsync_mode",
    "background_gc",
];

/// Mount options: flags, numbers and a file system's own words stay. What else has a value may name a path, a
/// person or a server.
pub(super) fn options(options: &str) -> String {
    let kept = options
        .split(',')
        .map(|option| match option.split_once('=') {
            None if option.contains('/') => String::from("removed"),
            None => option.to_owned(),
            Some((key, value)) if is_number(value) || OWN_WORDS.contains(&key) => option.to_owned(),
            Some((key, _)) => format!("{key}=removed"),
        });
    kept.collect::<Vec<_>>().join(",")
}

/// `30`, `32k`; not an address, and no name that begins with digits.
fn is_number(value: &str) -> bool {
    let unit = ['k', 'K', 'm', 'M', 'g', 'G', 't', 'T'];
    let digits = value.strip_suffix(unit).unwrap_or(value);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
