//! A running guest of the user's. It is not booted: it gets the disks of a batch, and loses them again.

mod domain_xml;
mod hotplug;
mod libvirt;
mod qemu_monitor;
mod shell;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_rig::external_tool::ToolError;
use nestrace_rig::guest::DiskSpec;
use nestrace_rig::interrupt::Interrupted;
use nestrace_rig::qmp::QmpError;
use nix::fcntl::{Flock, FlockArg};
use serde_json::Value;

use self::hotplug::Hotplug;
use crate::plan::workload::Action;
use crate::plan::{GuestFs, OwnGuest, Plan, sysbench};

/// A guest lets go of a disk when it likes.
const DETACH_PATIENCE: Duration = Duration::from_secs(60);
/// Until one that still has it is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const LOOK_PATIENCE: Duration = Duration::from_secs(60);

/// The guest cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnGuestError {
    /// virsh or ssh failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// What libvirt says of its domain cannot be read.
    #[error("read the XML of a domain")]
    Xml(#[from] roxmltree::Error),
    /// QEMU's monitor does not answer, or refuses.
    #[error(transparent)]
    Monitor(#[from] QmpError),
    /// It does not run.
    #[error("use the guest {guest}: it is {state}, not running")]
    NotRunning {
        /// Its name.
        guest: String,
        /// libvirt's or QEMU's word.
        state: String,
    },
    /// QEMU has no name for it.
    #[error("find the name of a guest: QEMU was started without -name")]
    Nameless,
    /// Programs are missing in it.
    #[error("find in the guest {guest}: {}", programs.join(", "))]
    NoPrograms {
        /// Its name.
        guest: String,
        /// Their names.
        programs: Vec<String>,
    },
    /// It has a disk at each place of the bus.
    #[error("give the guest {0} another disk: it has no free slot")]
    Full(String),
    /// It keeps a disk.
    #[error("take the disk {disk} away from the guest {guest}: the guest does not release it")]
    Kept {
        /// Its name.
        guest: String,
        /// libvirt's target (`vdb`), or QEMU's id.
        disk: String,
        /// What takes it away by hand.
        by_hand: String,
    },
    /// libvirt does not know it.
    #[error("find the domain {domain}: {said}")]
    NoDomain {
        /// As in the plan.
        domain: String,
        /// virsh's words.
        said: String,
    },
    /// No command runs in it.
    #[error("run a command in the guest {guest}: {said}")]
    Unreachable {
        /// Its name.
        guest: String,
        /// What virsh, ssh or the guest said.
        said: String,
    },
    /// A disk of the user's has a serial number of the lab's.
    #[error(
        "give the guest {guest} disks: its {disk} has a serial number of the lab's, nestrace-lab-N"
    )]
    Alike {
        /// Its name.
        guest: String,
        /// `vdb`.
        disk: String,
    },
    /// Another run has it.
    #[error("use the guest {0}: another run of the lab uses it")]
    Busy(String),
    /// A script failed in it.
    #[error("run a script in the guest: status {status}: {said}")]
    Command {
        /// Its exit status.
        status: i64,
        /// The end of what it said.
        said: String,
        /// All of it.
        script: String,
    },
    /// A file for virsh or ssh.
    #[error("write a file for virsh or ssh")]
    Script(#[source] io::Error),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Takes a running guest for a run of the lab, as long as what it gives is held, and takes away the disks that a
/// lab which was killed left it.
pub(super) fn claim(guest: &OwnGuest) -> Result<Flock<File>, OwnGuestError> {
    let hotplug = hotplug::of(guest);
    let state = hotplug.state()?;
    let name = hotplug.name()?;
    // A name may be anything but a path.
    let word = name.replace('%', "%25").replace('/', "%2F");
    let place = Path::new("/run").join(format!("nestrace-lab-{word}.lock"));
    let file = File::create(&place).map_err(OwnGuestError::Script)?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| OwnGuestError::Busy(name.clone()))?;
    if state != "running" {
        return Err(OwnGuestError::NotRunning { guest: name, state });
    }
    detach(guest, hotplug.as_ref())?;
    Ok(lock)
}

/// The guest with the disks of a batch; dropping it takes them away.
#[derive(Debug)]
pub(super) struct OwnGuestWithDisks {
    guest: OwnGuest,
    name: String,
    hotplug: Box<dyn Hotplug>,
}

impl OwnGuestWithDisks {
    /// A running guest, without disks of the lab's yet.
    pub(super) fn of(guest: &OwnGuest) -> Result<Self, OwnGuestError> {
        let hotplug = hotplug::of(guest);
        Ok(Self {
            guest: guest.clone(),
            name: hotplug.name()?,
            hotplug,
        })
    }

    /// Gives it a disk.
    pub(super) fn attach(&mut self, disk: &DiskSpec) -> Result<(), OwnGuestError> {
        self.hotplug.attach(disk)
    }

    /// Its name, as `nestrace guests` has it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a script that has to succeed, and gives its stdout.
    pub(super) fn run_ok(&self, script: &str, patience: Duration) -> Result<String, OwnGuestError> {
        shell::run_ok(&self.guest, script, patience)
    }
}

impl Drop for OwnGuestWithDisks {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.guest, self.hotplug.as_ref()) {
            eprintln!("nestrace-lab: {error}");
        }
    }
}

/// Takes away every disk that the lab gave it, and waits until it let go of them; Ctrl-C does not stop this.
fn detach(guest: &OwnGuest, hotplug: &dyn Hotplug) -> Result<(), OwnGuestError> {
    let disks = hotplug.attached()?;
    if disks.is_empty() {
        return Ok(());
    }
    // The disks are taken away even if the guest does not stop.
    let stopped = shell::stop(guest);
    let mut failed = None;
    let mut ask = |disks: &[String]| {
        for disk in disks {
            if let Err(error) = hotplug.detach(disk) {
                failed.get_or_insert(error);
            }
        }
    };
    ask(&disks);
    let begin = Instant::now();
    let mut asked = begin;
    loop {
        let left = hotplug.attached();
        match &left {
            Ok(disks) if disks.is_empty() => return stopped,
            // A guest that did not listen, or a drive that outlived its device.
            Ok(disks) if asked.elapsed() > ASK_AGAIN => {
                ask(disks);
                asked = Instant::now();
            }
            // A hypervisor that is busy answers later.
            _ => {}
        }
        if begin.elapsed() > DETACH_PATIENCE {
            let disk = left?.into_iter().next().unwrap_or_default();
            return Err(match failed {
                Some(error) => error,
                None => OwnGuestError::Kept {
                    guest: hotplug.name()?,
                    by_hand: hotplug.detach_by_hand(&disk),
                    disk,
                },
            });
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The name of the disk with this image in a recording. A disk that was attached is on no command line, and where
/// neither QEMU nor libvirt tells of it the recorder knows it by its image alone.
pub(super) fn recorded_disk(bundle: &Path, image: &Path) -> Option<String> {
    let text = std::fs::read_to_string(bundle.join("manifest.json")).ok()?;
    let manifest: Value = serde_json::from_str(&text).ok()?;
    let guests = manifest["topology"]["guests"].as_array()?.iter();
    let mut disks = guests
        .filter_map(|guest| guest["disks"].as_array())
        .flatten();
    let found = disks.find(|disk| disk["images"][0]["path"].as_str() == image.to_str())?;
    found["name"].as_str().map(str::to_owned)
}

/// What the header of a run says of the guest: its kernel, its fio, and `kvm` or `tcg`.
pub(super) fn about(guest: &OwnGuest) -> Result<(String, String, &'static str), OwnGuestError> {
    let said = shell::run_ok(guest, "uname -r; fio --version || true", LOOK_PATIENCE)?;
    let mut lines = said.lines().map(str::to_owned);
    let (kernel, fio) = (
        lines.next().unwrap_or_default(),
        lines.next().unwrap_or_default(),
    );
    Ok((kernel, fio, accelerator(guest)?))
}

/// `kvm` or `tcg`.
pub(super) fn accelerator(guest: &OwnGuest) -> Result<&'static str, OwnGuestError> {
    let is_kvm = hotplug::of(guest).is_kvm()?;
    Ok(if is_kvm { "kvm" } else { "tcg" })
}

/// Whether commands run in the guest, and it has what the plan runs in it.
pub(super) fn check_programs(guest: &OwnGuest, plan: &Plan) -> Result<(), OwnGuestError> {
    let script = format!(
        "for program in {}; do command -v $program > /dev/null || echo $program; done",
        programs(plan).into_iter().collect::<Vec<_>>().join(" ")
    );
    let name = hotplug::of(guest).name()?;
    let missing = shell::run_ok(guest, &script, LOOK_PATIENCE);
    let missing = missing.map_err(|error| OwnGuestError::Unreachable {
        guest: name.clone(),
        said: error.to_string(),
    })?;
    if missing.trim().is_empty() {
        return Ok(());
    }
    Err(OwnGuestError::NoPrograms {
        guest: name,
        programs: missing.lines().map(str::to_owned).collect(),
    })
}

/// Programs that a plan runs in a guest, besides those that every system has.
fn programs(plan: &Plan) -> BTreeSet<String> {
    let mut programs = BTreeSet::from(["timeout", "setsid", "blkdiscard"].map(str::to_owned));
    for cell in &plan.cells {
        let mut commands: Vec<String> = Vec::new();
        if let GuestFs::Fs(fs) = cell.combination.guest_fs {
            commands.push(fs.mkfs_command_in("", ""));
            if matches!(&cell.workload.action, Action::Script(script) if script.measure.contains("$fsck"))
            {
                commands.push(fs.fsck_command("", ""));
            }
        }
        if cell.workload.upgrade.is_some() {
            commands.extend(["tune2fs", "e2fsck"].map(str::to_owned));
        }
        match &cell.workload.action {
            Action::Fio(_) => commands.push(String::from("fio")),
            Action::FileIo(_) => commands.push(sysbench::PROGRAM.to_owned()),
            Action::Script(_) | Action::Oltp(_) | Action::RealTool(_) => {}
        }
        let first = |command: String| command.split(' ').next().map(str::to_owned);
        programs.extend(commands.into_iter().filter_map(first));
    }
    programs
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_disk_is_found_by_its_image() {
        let folder = TempDir::new().unwrap();
        let text = r#"{"topology":{"guests":[{"disks":[
            {"name":"virtio-disk0","images":[{"path":"/a.raw"}]},
            {"name":"disk1","images":[{"path":"/b.raw"},{"path":"/a.raw"}]}]}]}}"#;
        std::fs::write(folder.path().join("manifest.json"), text).unwrap();
        let of = |image: &str| recorded_disk(folder.path(), Path::new(image));
        assert_eq!(of("/b.raw").as_deref(), Some("disk1"));
        assert_eq!(of("/c.raw"), None);
        assert_eq!(
            recorded_disk(Path::new("/nowhere"), Path::new("/b.raw")),
            None
        );
    }

    #[test]
    fn every_program_of_a_plan_is_looked_for() {
        let plan = |axes: &str, workload: &str| {
            let text = format!("name = 'p'\n[axes]\n{axes}\n[[workload]]\n{workload}\n");
            programs(&Plan::read(&text).unwrap())
        };
        let found = plan("guest_fs = ['xfs', 'reiserfs']", "name = 'fsck-files'");
        for program in ["mkfs.xfs", "mkreiserfs", "xfs_repair", "reiserfsck"] {
            assert!(found.contains(program), "{found:?}");
        }
        assert!(!found.contains("fio"));
        let found = plan("guest_fs = 'ext3'", "name = 'iozone-read'\nupgrade = 'old'");
        for program in ["mkfs.ext3", "tune2fs", "e2fsck", "fio"] {
            assert!(found.contains(program), "{found:?}");
        }
    }
}
