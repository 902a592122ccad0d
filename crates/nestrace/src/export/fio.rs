//! Logs that fio replays (`--read_iolog`, version 3): one for each device.
//!
//! The requests as the device got them, each at its first D. Files are named after devices without a path
//! (`vda`, never `/dev/vda`), so that a replay that forgets `--replay_redirect` does not write to a disk.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BinaryHeap},
    fmt::Write as _,
};

use nestrace_analyzer::Identified;
use nestrace_trace::{Event, TimeOrdered, device_number, redact};

use super::{
    chosen::{Chosen, device_name, devices_of},
    new_file::{NewFile, with_ending},
    requests::{Op, Request, Requests, Step},
};
use crate::{
    bundle,
    cli::ExportArgs,
    exit::{DONE, Failure, INPUT, note, noted, say},
};

/// fio knows version 3 since 3.31 (2022).
const HEADER: &str = "fio version 3 iolog\n";
/// Requests of a light recording that are put into the order of their D: they are known at their C.
const HELD: usize = 1 << 16;
/// Devices of one machine; their files are open at once.
const MAX_DEVICES: usize = 512;
/// Characters of a device's name: a file system takes names of 255 bytes.
const LONGEST_NAME: usize = 100;

/// One device's log.
struct Log {
    name: String,
    file: NewFile,
    /// Time of the last line, microseconds.
    last_us: u64,
    reads: u64,
    writes: u64,
    discards: u64,
    flushes: u64,
    bytes: u64,
}

impl Log {
    fn begin(name: String, mut file: NewFile) -> Result<Self, Failure> {
        // fio loses the time up to the first action that is later than 0, so the file is opened at 1.
        file.put(format!("{HEADER}0 {name} add\n1 {name} open\n").as_bytes())?;
        Ok(Self {
            name,
            file,
            last_us: 1,
            reads: 0,
            writes: 0,
            discards: 0,
            flushes: 0,
            bytes: 0,
        })
    }

    fn write(&mut self, request: &Request, since_ns: u64) -> Result<(), Failure> {
        let (action, n) = match request.op {
            Op::Read => ("read", &mut self.reads),
            Op::Write => ("write", &mut self.writes),
            Op::Discard => ("trim", &mut self.discards),
            Op::Flush => ("sync", &mut self.flushes),
            Op::Other => return Ok(()),
        };
        // A write of zeroes has no data in some drivers; what fio would do without bytes is nothing.
        let (offset, bytes) = match request.op {
            Op::Flush => (0, 0),
            _ if request.bytes == 0 => return Ok(()),
            _ => (request.offset, request.bytes),
        };
        *n += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        // fio takes an earlier time for no wait at all and then counts from there.
        self.last_us = self.last_us.max(1 + since_ns / 1000);
        let (at_us, name) = (self.last_us, &self.name);
        let mut line = String::with_capacity(64);
        // Writing into a String cannot fail.
        let _ = writeln!(line, "{at_us} {name} {action} {offset} {bytes}");
        self.file.put(line.as_bytes())
    }

    fn finish(mut self) -> Result<(), Failure> {
        let close = format!("{} {} close\n", self.last_us, self.name);
        self.file.put(close.as_bytes())?;
        say(format_args!(
            "{}: {} reads, {} writes, {} discards, {} flushes",
            self.file.path().display(),
            self.reads,
            self.writes,
            self.discards,
            self.flushes
        ));
        self.file.finish()
    }
}

/// The logs of all devices, by their numbers.
struct Logs<'a> {
    args: &'a ExportArgs,
    chosen: &'a Chosen,
    names: Vec<(String, u32)>,
    by_device: BTreeMap<u32, Log>,
    n_left_out: u64,
    /// Requests of a light recording, the earliest first.
    held: BinaryHeap<Reverse<ByIssue>>,
    /// D of the first request: what was before it is nothing to wait for.
    start_ns: Option<u64>,
}

/// Ordered by D.
#[derive(PartialEq, Eq)]
struct ByIssue(Request);

impl Ord for ByIssue {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |by: &Self| (by.0.issued_ns, by.0.dev, by.0.offset);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for ByIssue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Logs<'_> {
    fn take(&mut self, step: Step) -> Result<(), Failure> {
        match step {
            Step::Issued(request) => self.write(&request),
            Step::Whole(request) => self.hold(request),
            Step::Ended(_) => Ok(()),
        }
    }

    /// Keeps a request until those with an earlier D have come, as far as there is room.
    fn hold(&mut self, request: Request) -> Result<(), Failure> {
        self.held.push(Reverse(ByIssue(request)));
        if self.held.len() <= HELD {
            return Ok(());
        }
        match self.held.pop() {
            Some(Reverse(ByIssue(first))) => self.write(&first),
            None => Ok(()),
        }
    }

    fn write(&mut self, request: &Request) -> Result<(), Failure> {
        let (Some(issued_ns), true) = (request.issued_ns, self.chosen.takes(request.dev)) else {
            return Ok(());
        };
        let start_ns = *self.start_ns.get_or_insert(issued_ns);
        if !self.by_device.contains_key(&request.dev) {
            if self.by_device.len() >= MAX_DEVICES {
                self.n_left_out += 1;
                return Ok(());
            }
            let taken = |name: &str| self.by_device.values().any(|log| log.name == name);
            let name = file_name(&device_name(&self.names, request.dev), request.dev, taken);
            let path = with_ending(&self.args.output, &format!(".{name}.iolog"));
            let log = Log::begin(name, NewFile::create(&path, self.args.force)?)?;
            self.by_device.insert(request.dev, log);
        }
        match self.by_device.get_mut(&request.dev) {
            Some(log) => log.write(request, issued_ns.saturating_sub(start_ns)),
            None => Ok(()),
        }
    }
}

/// What a device is called in the name of its file and in its log. A guest says what its disks are called, and what it
/// says is no path here (`cciss/c0d0` is an honest one).
fn file_name(device: &str, dev: u32, taken: impl Fn(&str) -> bool) -> String {
    let mut name: String = device.chars().take(LONGEST_NAME).map(plain).collect();
    let number: String = device_number::text(dev).chars().map(plain).collect();
    if name.chars().all(|c| c == '.') {
        name.clone_from(&number);
    }
    while taken(&name) {
        name = format!("{name}-{number}");
    }
    name
}

fn plain(c: char) -> char {
    let stays = c.is_ascii_alphanumeric() || "._-".contains(c);
    if stays { c } else { '-' }
}

/// Writes a log for each device of the host, or of one guest.
pub fn run(args: &ExportArgs) -> Result<u8, Failure> {
    let mut bundle = bundle::open(&args.input)?;
    for diagnostic in &bundle.diagnostics {
        note(diagnostic);
    }
    let chosen = Chosen::of(args, &bundle)?;
    if args.redact {
        bundle.manifest = redact::manifest(&bundle.manifest);
    }
    let manifest = &bundle.manifest;
    let side = chosen
        .guest
        .and_then(|place| manifest.guest_sides.get(bundle.guests[place].side));
    let mut logs = Logs {
        args,
        chosen: &chosen,
        names: devices_of(manifest, side),
        by_device: BTreeMap::new(),
        n_left_out: 0,
        held: BinaryHeap::new(),
        start_ns: None,
    };
    let requests = match chosen.guest {
        None => Requests::of_host(manifest),
        Some(_) => Requests::of_guest(),
    };
    let stream = match chosen.guest {
        None => &mut bundle.host,
        Some(place) => &mut bundle.guests[place].stream,
    };
    write(
        Identified::new(TimeOrdered::new(stream.events())),
        requests,
        &mut logs,
    )?;
    bundle.note_damage(&mut noted);
    finish(logs)
}

fn write(
    events: impl Iterator<Item = Event>,
    mut requests: Requests,
    logs: &mut Logs<'_>,
) -> Result<(), Failure> {
    let mut steps = Vec::new();
    for event in events {
        requests.push(&event, |step| steps.push(step));
        steps.drain(..).try_for_each(|step| logs.take(step))?;
    }
    while let Some(Reverse(ByIssue(request))) = logs.held.pop() {
        logs.write(&request)?;
    }
    Ok(())
}

fn finish(logs: Logs<'_>) -> Result<u8, Failure> {
    let args = logs.args;
    if logs.by_device.is_empty() {
        let path = args.input.display();
        return Err(
            Failure::new(INPUT, format!("{path}: no requests were recorded"))
                .hint("nestrace analyze lists the recorded devices; choose one with --device"),
        );
    }
    if logs.n_left_out > 0 {
        note(format_args!(
            "{} requests were left out: their devices are beyond the limit of {MAX_DEVICES}",
            logs.n_left_out
        ));
    }
    let discards: u64 = logs.by_device.values().map(|log| log.discards).sum();
    if discards > 0 {
        note(format_args!(
            "fio up to 3.33 skips discards (\"bad ddir: 2\") and says so"
        ));
    }
    // Of the device with the most to replay: another's may hold flushes only.
    let busiest = logs.by_device.values().max_by_key(|log| log.bytes);
    let busiest = busiest.map(|log| log.file.path().display().to_string());
    for log in logs.by_device.into_values() {
        log.finish()?;
    }
    say(format_args!(
        "next: fio --name=replay --read_iolog={} --replay_redirect=FILE --ioengine=libaio --direct=1 --iodepth=64",
        busiest.unwrap_or_default()
    ));
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_s_name_is_no_path() {
        for (device, name) in [
            ("vda", "vda"),
            ("cciss/c0d0", "cciss-c0d0"),
            ("nest/../../x", "nest-..-..-x"),
            ("8:16", "8-16"),
            ("my disk\n", "my-disk-"),
            ("", "8-16"),
            ("..", "8-16"),
        ] {
            assert_eq!(
                file_name(device, 8 << 20 | 16, |_| false),
                name,
                "{device:?}"
            );
        }
        let long = file_name(&"ä".repeat(300), 0, |_| false);
        assert_eq!(long.len(), LONGEST_NAME);
    }

    #[test]
    fn two_disks_of_one_name_have_two_files() {
        let name = |taken: &[&str]| file_name("a/b", 8 << 20 | 16, |name| taken.contains(&name));
        assert_eq!(name(&["a-b"]), "a-b-8-16");
        assert_eq!(name(&["a-b", "a-b-8-16"]), "a-b-8-16-8-16");
    }
}
