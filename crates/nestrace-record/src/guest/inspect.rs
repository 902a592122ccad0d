//! Everything about one guest, from its process, its monitor and its images.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use nestrace_probes::{clock, proc_file, refusal::with_causes};
use nestrace_trace::manifest::{Disk, Guest};

use super::block_node::Storage;
use super::cache_mode::CacheMode;
use super::command_line::{AGENT_PORT, CommandLine};
use super::disks::{self, PlannedDisk, Witness};
use super::image_chain;
use super::libvirt::{self, DomainDisk};
use super::process::Process;
use super::program::Program;
use super::qemu_threads;
use super::qmp::{self, Facts};
use super::select::Identity;
use super::{executable, socket};
use crate::topology::image_file::{self, FileIdentity, Viewer};
use crate::topology::open_files::{self, OpenFile, OpenFiles};
use crate::topology::{Survey, namespace};

/// What only asking the process can tell; collected for all guests at the same time.
#[derive(Debug, Default)]
pub(super) struct Look {
    open: Option<OpenFiles>,
    facts: Option<Facts>,
    monitor: Option<String>,
    /// Where QMP does not answer.
    domain: Option<Vec<DomainDisk>>,
    version: String,
    notes: Vec<(String, String)>,
}

impl Look {
    /// What the process had open; `None` where that could not be listed.
    pub(super) fn open_files(&self) -> Option<BTreeSet<FileIdentity>> {
        let open = self.open.as_ref()?;
        Some(open.files.iter().map(|file| file.identity).collect())
    }
}

/// Asks one process: descriptors, monitor, version.
pub(super) fn look(process: &Process, line: &CommandLine) -> Look {
    let mut look = Look::default();
    match open_files::open_files(process.pid) {
        Ok(open) => {
            if open.is_cut {
                look.notes.push((
                    format!("/proc/{}/fd", process.pid),
                    format!(
                        "has more than {} descriptors; the others are not examined",
                        proc_file::MAX_DESCRIPTORS
                    ),
                ));
            }
            look.open = Some(open);
        }
        Err(error) => {
            let what = if error.kind() == io::ErrorKind::PermissionDenied {
                "cannot be read by this user, so deleted images, O_DIRECT and sockets by descriptor stay unknown"
                    .to_owned()
            } else {
                format!("cannot be read: {error}")
            };
            look.notes.push((format!("/proc/{}/fd", process.pid), what));
        }
    }
    let nothing = OpenFiles::default();
    let open = look.open.as_ref().unwrap_or(&nothing);
    let notes = look.notes.len();
    for endpoint in &line.monitors {
        let Some(path) = socket::path_of(endpoint, process, open) else {
            continue;
        };
        match qmp::ask(process.pid, &path) {
            Ok(facts) => {
                look.facts = Some(facts);
                look.monitor = Some(path);
                break;
            }
            Err(error) => look.notes.push((path, failed_to(&error))),
        }
    }
    if look.facts.is_none()
        && let Some(name) = line.name.as_deref().filter(|_| line.channel.libvirt)
    {
        match libvirt::disks(process, name, line.uuid.as_deref()) {
            Ok(disks) => {
                look.domain = Some(disks);
                // That the monitor is busy is no loss.
                look.notes.truncate(notes);
            }
            Err(error) => look.notes.push(("libvirt".to_owned(), failed_to(&error))),
        }
    }
    look.version = match &look.facts {
        Some(facts) if !facts.version.is_empty() => facts.version.clone(),
        _ => version_of(process),
    };
    look
}

/// The version in the binary, also where the dynamic loader runs it.
fn version_of(process: &Process) -> String {
    let own = Program::open(process.pid, process.start_ticks);
    let program = || {
        let path = Path::new(process.argv.first()?);
        namespace::open_regular(process.pid, path).ok()
    };
    own.ok()
        .and_then(|own| executable::version(own.file()))
        .or_else(|| executable::version(&program()?))
        .unwrap_or_default()
}

fn failed_to(error: &dyn std::error::Error) -> String {
    format!("failed to {}", with_causes(error))
}

/// Puts the guest together and follows its disks.
pub(super) fn guest(
    survey: &mut Survey,
    process: &Process,
    line: &CommandLine,
    identity: &Identity,
    look: Look,
) -> Guest {
    for (subject, message) in &look.notes {
        survey.note(subject, message.clone());
    }
    for note in &line.notes {
        survey.note("command line", note.clone());
    }
    let nothing = OpenFiles::default();
    let open = look.open.as_ref().unwrap_or(&nothing);
    let agent = line
        .agent
        .as_ref()
        .and_then(|endpoint| socket::path_of(endpoint, process, open))
        // Plugged in later, or handed to QEMU as a descriptor by libvirt.
        .or_else(|| look.facts.as_ref()?.agent.clone())
        .or_else(|| socket::listening(process, open, AGENT_PORT));
    if line.agent.is_some() && agent.is_none() {
        survey.note("agent channel", "its socket cannot be found".to_owned());
    }
    let mut sources = Vec::new();
    sources.extend(look.facts.is_some().then(|| "qmp".to_owned()));
    sources.extend(look.domain.is_some().then(|| "libvirt".to_owned()));
    sources.push("command line".to_owned());
    sources.extend(look.open.is_some().then(|| "proc".to_owned()));
    let witness = match (&look.facts, &look.domain) {
        (Some(facts), _) => Witness::Qmp(facts),
        (None, Some(domain)) => Witness::Libvirt(domain),
        (None, None) => Witness::None,
    };
    let planned = disks::plan(line, witness);
    let mut disks: Vec<Disk> = planned
        .into_iter()
        .filter_map(|disk| follow(survey, process, look.open.as_ref(), disk))
        .collect();
    let has_fd_sets = line
        .files
        .iter()
        .any(|file| file.starts_with("/dev/fdset/"));
    if has_fd_sets && look.facts.is_none() {
        survey.note(
            "command line",
            "images are named by sets of descriptors (-add-fd), and only QMP says which file is in which set: \
             give QEMU one more monitor (-qmp unix:PATH,server=on,wait=off)"
                .to_owned(),
        );
    }
    // The files of these sets are no disks of their own.
    if look.facts.is_none() && look.domain.is_none() && !has_fd_sets {
        let later = plugged_later(survey, process, line, open, &disks);
        disks.extend(later);
    }
    let asked = look.facts.as_ref();
    let jobs = asked.map(|facts| facts.set.jobs(&disks, clock::monotonic_ns()));
    Guest {
        name: identity.name.clone(),
        uuid: line
            .uuid
            .clone()
            .or_else(|| look.facts.as_ref()?.uuid.clone()),
        pid: process.pid,
        executable: process.executable.clone(),
        qemu_version: look.version.clone(),
        accel: accel(line, &look),
        sources,
        qmp: look.monitor.clone(),
        agent,
        vsock_cid: line.channel.vsock_cid,
        disks,
        jobs: jobs.unwrap_or_default(),
        threads: qemu_threads::threads(process, look.facts.as_ref()),
        event_rings: look.open.as_ref().map(|open| open.event_rings),
        ..Guest::default()
    }
}

/// A guest as its command line and its monitor have it. No file of its own is looked at, as one of them does not answer: each
/// disk has the image at its top, by its path, and the devices below the mount that this leads to.
pub(super) fn guest_without_files(
    survey: &mut Survey,
    process: &Process,
    line: &CommandLine,
    identity: &Identity,
) -> Guest {
    let nothing = OpenFiles::default();
    let mut monitors = line
        .monitors
        .iter()
        .filter_map(|endpoint| socket::path_of(endpoint, process, &nothing));
    let asked = monitors.find_map(|path| {
        let facts = qmp::ask(process.pid, &path).ok()?;
        Some((path, facts))
    });
    let witness = match &asked {
        Some((_, facts)) => Witness::Qmp(facts),
        None => Witness::None,
    };
    let planned = disks::plan(line, witness);
    let disks = planned.into_iter().map(|planned| {
        let mut disk = planned.disk;
        if let Some(Storage::Path(path)) = planned.chain.map(|top| top.storage) {
            disk.images = vec![survey.image_by_path(process.pid, &process.absolute(&path))];
        }
        disk
    });
    Guest {
        name: identity.name.clone(),
        uuid: line.uuid.clone(),
        pid: process.pid,
        executable: process.executable.clone(),
        disks: disks.collect(),
        qmp: asked.as_ref().map(|(path, _)| path.clone()),
        ..Guest::default()
    }
}

/// Which accelerator runs the guest: QMP and an open virtual machine of KVM are proof, options are wishes.
fn accel(line: &CommandLine, look: &Look) -> String {
    let kvm = look
        .facts
        .as_ref()
        .and_then(|f| f.kvm)
        .or_else(|| look.open.as_ref().map(|o| o.kvm));
    match (kvm, line.accel.as_str()) {
        (Some(true), _) => "kvm".to_owned(),
        (Some(false), "" | "kvm") => "tcg".to_owned(),
        (_, asked) => asked.to_owned(),
    }
}

/// Finds a disk's images; `None` for a PCI device that is no disk.
fn follow(
    survey: &mut Survey,
    process: &Process,
    open: Option<&OpenFiles>,
    planned: PlannedDisk,
) -> Option<Disk> {
    let mut disk = planned.disk;
    if let Some(note) = planned.note {
        survey.note(&disk.name, note);
    }
    if let Some(place) = planned.host_pci {
        disk.not_followed = Some(host_pci_reason(&place)?);
    }
    let Some(chain) = planned.chain else {
        return Some(disk);
    };
    let viewer = Viewer {
        pid: process.pid,
        open,
    };
    let followed = image_chain::follow(survey, process, viewer, &chain);
    disk.not_followed = followed.not_followed;
    if let Some(top) = followed.images.first() {
        if disk.format.is_empty() {
            disk.format.clone_from(&top.format);
        }
        disk.cache = disk.cache.map(|name| corrected(name, top.direct));
    }
    disk.images = followed.images;
    if disk.virtual_size == 0 {
        disk.virtual_size = virtual_size(viewer, &disk).unwrap_or(0);
    }
    Some(disk)
}

/// Bytes that the guest sees, from the top image itself.
fn virtual_size(viewer: Viewer<'_>, disk: &Disk) -> Option<u64> {
    let top = disk.images.first()?;
    if disk.format == "raw" {
        return Some(top.size.saturating_sub(top.start));
    }
    let header = image_file::find(viewer, &top.path)
        .ok()?
        .header(top.start)
        .ok()?
        .ok()?;
    header.virtual_size.filter(|_| header.format == disk.format)
}

/// Disks that were plugged in after the start, while neither QMP nor libvirt tells of them: files that carry QEMU's
/// image locks, or are open with O_DIRECT, and that the command line does not name. Their format is not looked for: the guest
/// may have written it, and what a header names would be followed.
fn plugged_later(
    survey: &mut Survey,
    process: &Process,
    line: &CommandLine,
    open: &OpenFiles,
    known: &[Disk],
) -> Vec<Disk> {
    let viewer = Viewer {
        pid: process.pid,
        open: Some(open),
    };
    let named: Vec<(u64, u64)> = line
        .files
        .iter()
        .filter_map(|path| image_file::find(viewer, &process.absolute(path)).ok())
        .map(|file| file.identity())
        .collect();
    let images: Vec<&str> = known
        .iter()
        .flat_map(|d| &d.images)
        .map(|i| i.path.as_str())
        .collect();
    let mut seen = Vec::new();
    let mut disks = Vec::new();
    // Incus and LXD switch QEMU's locks off (`locking=off`); nothing but images does QEMU open with O_DIRECT.
    let is_image = |file: &&OpenFile| file.writable && (file.image_locked || file.direct);
    for file in open.files.iter().filter(is_image) {
        if named.contains(&file.identity)
            || seen.contains(&file.identity)
            || images.contains(&file.path.as_str())
        {
            continue;
        }
        seen.push(file.identity);
        let Ok(found) = image_file::find(viewer, &format!("/proc/self/fd/{}", file.fd)) else {
            continue;
        };
        let image = survey.image(viewer, &file.path, "", &found);
        let name = format!("disk{}", known.len() + disks.len());
        survey.note(
            &name,
            format!("{} was plugged in after the start; its bus, format and cache mode are known to QMP alone", file.path),
        );
        disks.push(Disk {
            name,
            images: vec![image],
            ..Disk::default()
        });
    }
    disks
}

/// The descriptor's own O_DIRECT overrules what options and QMP say.
fn corrected(cache: String, direct: Option<bool>) -> String {
    match (CacheMode::from_name(&cache), direct) {
        (Some(mode), Some(direct)) => CacheMode { direct, ..mode }.name().to_owned(),
        _ => cache,
    }
}

/// Why a PCI device of the host cannot be followed; `None` if it is not a disk controller.
fn host_pci_reason(place: &str) -> Option<String> {
    let path = if place.starts_with('/') {
        place.to_owned()
    } else if place.matches(':').count() < 2 {
        format!("/sys/bus/pci/devices/0000:{place}")
    } else {
        format!("/sys/bus/pci/devices/{place}")
    };
    let class = sysfs_text(&Path::new(&path).join("class"));
    let kind = match class.as_deref().and_then(|c| c.trim().strip_prefix("0x")) {
        Some(class) if class.starts_with("0108") => "an NVMe controller",
        Some(class) if class.starts_with("01") => "a storage controller",
        Some(_) => return None,
        None => "a PCI device",
    };
    Some(format!(
        "vfio: the guest drives {kind} of the host itself ({place}); neither QEMU nor the host's block layer sees the requests"
    ))
}

/// An attribute in sysfs. The path comes from a command line: what it leads to elsewhere may be a FIFO, or have no end.
fn sysfs_text(path: &Path) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let text = path.starts_with("/sys").then(|| fs::read_to_string(path));
    text?.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fifo_for_a_pci_device_keeps_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("class");
        nix::unistd::mkfifo(&class, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let place = folder.path().display().to_string();
        let (told, answer) = mpsc::channel();
        std::thread::spawn(move || told.send(host_pci_reason(&place)));
        let reason = answer.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(reason.unwrap().contains("a PCI device of the host"));
        assert!(sysfs_text(Path::new("/sys/devices/system/cpu/possible")).is_some());
    }
}
