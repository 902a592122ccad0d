//! `nestrace guests`, and finding what `record` is to record.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

use nestrace_probes::block_device;
use nestrace_record::{
    guest::{self, DiscoverError, Discovery, Selection, program::ParsedProgram},
    roles::finder::discover_apart,
    topology::{Survey, image_file::FileIdentity},
};
use nestrace_trace::device_number;
use nestrace_trace::manifest::{Disk, Guest, Topology};

use crate::{
    cli::GuestsArgs,
    exit::{DONE, FAILURE, Failure, INPUT, USAGE, print, say},
};

/// Prints every running guest with its disks and what they lie on.
pub fn run(args: &GuestsArgs) -> Result<u8, Failure> {
    let selection = if args.guest.is_empty() {
        Selection::All
    } else {
        Selection::Named(args.guest.clone())
    };
    let found = discover_apart(&selection, false).map_err(|error| failure(&error))?;
    say_diagnostics(&found);
    if args.json {
        let json = serde_json::to_string_pretty(&found.topology)
            .map_err(|error| Failure::caused(FAILURE, &error))?;
        print(&format!("{json}\n"))?;
    } else if found.topology.guests.is_empty() {
        say("no QEMU guest is running");
    } else if args.how {
        print(&how(&found))?;
    } else {
        print(&guest::tree::render(&found.topology))?;
    }
    Ok(DONE)
}

/// How each guest gets the agent's channel.
fn how(found: &Discovery) -> String {
    let guests = found.topology.guests.iter().zip(&found.channels);
    let texts: Vec<String> = guests.map(|(guest, channel)| channel.how(guest)).collect();
    texts.join("\n")
}

fn say_diagnostics(found: &Discovery) {
    for line in diagnostics(found) {
        say(format_args!("note: {line}"));
    }
}

fn diagnostics(found: &Discovery) -> impl Iterator<Item = String> {
    found.diagnostics.iter().map(ToString::to_string)
}

/// What a search for guests that failed comes to.
pub fn failure(error: &DiscoverError) -> Failure {
    let code = match error {
        DiscoverError::UnknownGuest { .. } | DiscoverError::AmbiguousGuest { .. } => INPUT,
        _ => FAILURE,
    };
    let hint = match error {
        DiscoverError::UnknownGuest { wanted, .. } if wanted.parse::<u32>().is_ok() => {
            format!("a process id is written pid:{wanted}; nestrace guests shows what runs here")
        }
        _ => "nestrace guests shows what runs here".to_owned(),
    };
    Failure::caused(code, error).hint(hint)
}

/// What a recording is about, and what the user should know of it before.
#[derive(Default)]
pub struct Selected {
    /// The guests and devices.
    pub topology: Topology,
    /// For each guest: what its QEMU had open then.
    pub open_files: Vec<Option<BTreeSet<FileIdentity>>>,
    /// For each guest: when its process started, in clock ticks since boot.
    pub start_ticks: Vec<u64>,
    /// For each guest: what its program's tables say.
    pub programs: Vec<Option<ParsedProgram>>,
    /// For a person, one line each. They are said when recording begins: where it does not, the
    /// failure is the first line.
    pub notes: Vec<String>,
}

/// Finds the guests and devices that a recording is about.
///
/// # Errors
/// An unknown guest or device, a guest without disks that could be followed.
pub fn select(guests: &[String], devices: &[String]) -> Result<Selected, Failure> {
    let mut selected = Selected::default();
    if !guests.is_empty() {
        let mut found = discover_apart(&Selection::Named(guests.to_vec()), true)
            .map_err(|error| failure(&error))?;
        tell_apart(&mut found.topology.guests);
        selected.notes.extend(diagnostics(&found));
        for guest in &found.topology.guests {
            let not_followed = not_followed(guest);
            check_disks(guest, &not_followed, !devices.is_empty())?;
            selected.notes.extend(not_followed);
        }
        selected.topology = found.topology;
        selected.open_files = found.open_files;
        selected.start_ticks = found.start_ticks;
        selected.programs = found.programs;
    }
    for name in devices {
        add_device(&mut selected.topology, name)?;
    }
    Ok(selected)
}

/// The guest that runs, where no other does, as `pid:N`.
///
/// # Errors
/// Where none runs, or several do: then their names are said.
pub fn only_one() -> Result<String, Failure> {
    let found = discover_apart(&Selection::All, false).map_err(|error| failure(&error))?;
    match found.topology.guests.as_slice() {
        [only] => Ok(format!("pid:{}", only.pid)),
        [] => Err(Failure::new(INPUT, "no QEMU guest is running")
            .hint("--device NAME records a block device of the host")),
        several => {
            let names: Vec<&str> = several.iter().map(|guest| guest.name.as_str()).collect();
            let message = format!("several guests are running: {}", names.join(", "));
            Err(Failure::new(USAGE, message)
                .hint("choose with --guest NAME, which may be repeated"))
        }
    }
}

/// Streams and sides are tied to a guest by its name, which several may have.
fn tell_apart(guests: &mut [Guest]) {
    // Again, because one may be called what another becomes.
    for _ in 0..guests.len() {
        let mut n_of: BTreeMap<String, u32> = BTreeMap::new();
        for guest in guests.iter() {
            *n_of.entry(guest.name.clone()).or_default() += 1;
        }
        for guest in guests.iter_mut().filter(|guest| n_of[&guest.name] > 1) {
            guest.name = format!("{} (pid:{})", guest.name, guest.pid);
        }
    }
}

/// One line for each disk that cannot be followed on this host.
fn not_followed(guest: &Guest) -> Vec<String> {
    let line = |disk: &Disk| {
        let reason = disk.not_followed.as_ref()?;
        Some(format!(
            "disk {} of guest {} cannot be followed here: {reason}",
            disk.name, guest.name
        ))
    };
    guest.disks.iter().filter_map(line).collect()
}

/// An error if the guest has no disk that can be followed, and no device was named instead.
fn check_disks(guest: &Guest, not_followed: &[String], has_devices: bool) -> Result<(), Failure> {
    if guest.disks.len() > not_followed.len() || has_devices {
        return Ok(());
    }
    let why = if guest.disks.is_empty() {
        "has no disks".to_owned()
    } else {
        format!(
            "has no disk that can be followed on this host ({})",
            not_followed.join("; ")
        )
    };
    Err(Failure::new(INPUT, format!("guest {} {why}", guest.name))
        .hint("nestrace guests shows its disks; --device NAME records a block device of the host"))
}

/// Adds a block device, by kernel name or path, and what lies below it.
fn add_device(topology: &mut Topology, name: &str) -> Result<(), Failure> {
    let unknown = |why: String| {
        Failure::new(INPUT, format!("device {name}: {why}"))
            .hint(format!("block devices here: {}", device_names()))
    };
    let dev = if name.contains('/') {
        let meta = fs::metadata(name).map_err(|error| unknown(error.to_string()))?;
        block_device::from_stat(meta.rdev())
    } else {
        let text = fs::read_to_string(Path::new("/sys/class/block").join(name).join("dev"))
            .map_err(|_| unknown("there is no such block device".to_owned()))?;
        device_number::parse(&text)
            .ok_or_else(|| unknown(format!("malformed device number {text:?}")))?
    };
    let mut survey = Survey::default();
    survey
        .device(dev)
        .ok_or_else(|| unknown("it is not a block device".to_owned()))?;
    for device in survey.into_devices().0 {
        if topology.devices.iter().all(|known| known.dev != device.dev) {
            topology.devices.push(device);
        }
    }
    Ok(())
}

fn device_names() -> String {
    let Ok(entries) = fs::read_dir("/sys/class/block") else {
        return "unknown".to_owned();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            fs::read_to_string(entry.path().join("size")).is_ok_and(|size| size.trim() != "0")
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use nestrace_trace::bundle::{guest_of_stream, guest_stream};

    use super::*;

    #[test]
    fn guests_of_one_name_are_told_apart() {
        let names = |all: &[(&str, u32)]| -> Vec<String> {
            let guest = |(name, pid): &(&str, u32)| Guest {
                name: (*name).to_owned(),
                pid: *pid,
                ..Guest::default()
            };
            let mut guests: Vec<Guest> = all.iter().map(guest).collect();
            tell_apart(&mut guests);
            guests.into_iter().map(|guest| guest.name).collect()
        };
        let found = names(&[("twin", 11), ("vm", 13), ("twin", 12)]);
        assert_eq!(found, ["twin (pid:11)", "vm", "twin (pid:12)"]);
        let found = names(&[("twin", 11), ("twin", 12), ("twin (pid:11)", 14)]);
        let streams: BTreeSet<String> = found.iter().map(|name| guest_stream(name)).collect();
        assert_eq!(streams.len(), 3, "{found:?}");
        let read = found
            .iter()
            .map(|name| guest_of_stream(&guest_stream(name)));
        assert!(read.eq(found.iter().cloned().map(Some)));
    }
}
