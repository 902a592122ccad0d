//! Boots the guest of a batch. A disk that QEMU refuses is left out, so that the others' cells can run.

use std::path::PathBuf;

use nestrace_rig::external_tool::find_program;
use nestrace_rig::guest::{Accel, Guest, GuestError, GuestSpec};
use nestrace_rig::guest_channel::ChannelError;
use nestrace_rig::initramfs::{self, Initramfs, InitramfsError};
use nestrace_rig::kernel_image::KernelImage;
use nestrace_rig::qemu_command::shared_folder;

use super::LabError;
use super::base::{Attached, disk_id};
use super::guest_data::GuestData;
use crate::plan::{Plan, place_in_guest};

/// What guests are booted from.
#[derive(Debug)]
pub(super) struct BootParts {
    pub(super) kernel: KernelImage,
    pub(super) initramfs: Initramfs,
    /// The agent, where the plan wants one.
    pub(super) agent: Option<PathBuf>,
    pub(super) accel: Accel,
    /// How many times longer than usual everything may take.
    pub(super) patience: u32,
    /// What workloads find in them.
    pub(super) data: GuestData,
}

/// A guest that came up.
#[derive(Debug)]
pub(super) struct BootedGuest {
    pub(super) guest: Guest,
    /// `kvm` or `tcg`.
    pub(super) accelerator: &'static str,
    /// Numbers of the disks that it does not have, and why.
    pub(super) refused: Vec<(usize, LabError)>,
}

/// A guest with these disks and folders, as far as QEMU takes them. It boots without any, too: each cell then learns
/// why it has none.
///
/// # Errors
/// It does not come up, and no disk is the reason.
pub(super) fn boot(
    plan: &Plan,
    parts: &BootParts,
    mut disks: Vec<(usize, Attached)>,
) -> Result<BootedGuest, LabError> {
    let mut refused = Vec::new();
    let guest = boot_with(plan, parts, &mut disks, &mut refused)?;
    let answer = guest.qmp("query-kvm", serde_json::Value::Null);
    let is_kvm = answer.is_ok_and(|answer| answer["enabled"] == true);
    Ok(BootedGuest {
        guest,
        accelerator: if is_kvm { "kvm" } else { "tcg" },
        refused,
    })
}

/// Moves what QEMU does not take from `disks` to `refused`.
fn boot_with(
    plan: &Plan,
    parts: &BootParts,
    disks: &mut Vec<(usize, Attached)>,
    refused: &mut Vec<(usize, LabError)>,
) -> Result<Guest, LabError> {
    loop {
        let error = match Guest::boot(spec(plan, parts, disks)?) {
            Ok(guest) => return Ok(guest),
            Err(error) => error,
        };
        let mut numbers = disks.iter().map(|(number, _)| *number);
        let Some((number, said)) =
            numbers.find_map(|number| Some((number, refusal(&error, number)?)))
        else {
            return Err(error.into());
        };
        disks.retain(|(other, _)| *other != number);
        let disk = disk_id(number);
        refused.push((number, LabError::Refused { disk, said }));
    }
}

fn spec(
    plan: &Plan,
    parts: &BootParts,
    disks: &[(usize, Attached)],
) -> Result<GuestSpec, LabError> {
    let name = format!("nestrace-lab-{}", std::process::id());
    let mut spec = GuestSpec::new(name, &parts.kernel, &parts.initramfs);
    for (number, attached) in disks {
        match attached {
            Attached::Disk(disk) => spec.disks.push(disk.clone()),
            Attached::Folder(folder) => {
                let arguments = shared_folder(folder, &disk_id(*number), "");
                spec.extra_arguments.extend(arguments);
            }
        }
    }
    spec.disks.extend(parts.data.disk());
    spec.memory_mib = plan.guest.memory_mib;
    spec.vcpus = plan.guest.vcpus;
    spec.accel = parts.accel;
    spec.patience = parts.patience;
    spec.files = files(plan, parts)?;
    spec.agent.clone_from(&parts.agent);
    Ok(spec)
}

/// The agent's libraries, where it has any, sysbench and the plan's programs with theirs, the trees that workloads unpack.
fn files(plan: &Plan, parts: &BootParts) -> Result<Vec<(String, PathBuf)>, LabError> {
    let mut files = Vec::new();
    if let Some(agent) = &parts.agent {
        files.extend(initramfs::libraries_in_place(agent));
    }
    for name in plan.guest_programs() {
        let program =
            find_program(name).ok_or_else(|| InitramfsError::NoProgram(name.to_owned()))?;
        files.extend(initramfs::libraries_in_place(&program));
        let place = place_in_guest(name).to_string_lossy().into_owned();
        files.push((place, program));
    }
    files.extend(parts.data.files());
    Ok(files)
}

/// What QEMU says against a disk or folder, where it ended over that.
fn refusal(error: &GuestError, number: usize) -> Option<String> {
    let GuestError::Boot {
        qemu_log,
        source: ChannelError::Closed | ChannelError::Io(_),
        ..
    } = error
    else {
        return None;
    };
    let id = disk_id(number);
    let said = qemu_log.lines().find_map(|line| said_of(line, &id));
    said.map(str::to_owned)
}

/// Of `qemu-system-x86_64: -drive file=…,id=ID,…: …` what follows the options (`loc_print` of QEMU's
/// `util/error-report.c` puts them first).
fn said_of<'l>(line: &'l str, id: &str) -> Option<&'l str> {
    let (_, options) = line.split_once(": -")?;
    let mut keys = ["id", "drive", "mount_tag"].into_iter();
    let place = keys.find_map(|key| options.find(&format!(",{key}={id},")))?;
    let (_, said) = options.get(place..)?.split_once(": ")?;
    (!said.starts_with("warning: ")).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use nestrace_rig::guest::DiskSpec;
    use nestrace_rig::stack::{Bus, DiskStack};

    #[test]
    fn qemu_says_which_disk_it_refuses() {
        // As QEMU 7.2 said it.
        let drive = "qemu-system-x86_64: -drive file=/r/work/disk2.qcow2,if=none,id=nestrace-lab-2,format=qcow2,cache=none,aio=native,discard=unmap: Image is not in qcow2 format";
        let device = "qemu-system-x86_64: -device ide-hd,bus=ide.0,unit=5,drive=nestrace-lab-2,id=nestrace-lab-2,serial=nestrace-lab-2: Can't create IDE unit 5, bus supports only 2 units";
        let folder = "qemu-system-x86_64: -virtfs local,path=/none,mount_tag=nestrace-lab-2,security_model=none,multidevs=remap: cannot initialize fsdev 'nestrace-lab-2': failed to open '/none': No such file or directory";
        for (line, expected) in [
            (drive, "Image is not in qcow2 format"),
            (device, "Can't create IDE unit 5, bus supports only 2 units"),
            (
                folder,
                "cannot initialize fsdev 'nestrace-lab-2': failed to open '/none': No such file or directory",
            ),
        ] {
            assert_eq!(said_of(line, "nestrace-lab-2"), Some(expected));
            for other in ["nestrace-lab-1", "nestrace-lab-22", "nestrace-lab"] {
                assert_eq!(said_of(line, other), None, "{line}");
            }
        }
        let warned = drive.replace("Image", "warning: Image");
        assert_eq!(said_of(&warned, "nestrace-lab-2"), None);
        let other =
            "qemu-system-x86_64: -accel kvm: failed to initialize kvm: No such file or directory";
        assert_eq!(said_of(other, "nestrace-lab-2"), None);
    }

    /// What the QEMU of this machine says: it looks at its disks before it looks for a kernel.
    #[test]
    fn a_guest_loses_the_disks_that_its_qemu_refuses_and_no_other() {
        if find_program("qemu-system-x86_64").is_none() {
            eprintln!("skipped: qemu-system-x86_64 is not on this machine");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let text = "name = 'p'\n[[workload]]\nname = 'randwrite'\n";
        let mut plan = Plan::read(text).unwrap();
        plan.guest.memory_mib = 64;
        let parts = BootParts {
            kernel: KernelImage {
                release: String::from("6.1.0"),
                vmlinuz: folder.path().join("no-vmlinuz"),
                modules: folder.path().to_owned(),
            },
            initramfs: Initramfs {
                path: folder.path().join("no-initramfs"),
            },
            agent: None,
            accel: Accel::Tcg,
            patience: 1,
            data: GuestData::default(),
        };
        let image = folder.path().join("good.raw");
        std::fs::write(&image, vec![0; 1 << 20]).unwrap();
        let disk = |number: usize, image: PathBuf, stack: DiskStack| {
            let disk = DiskSpec::new(disk_id(number), image, stack);
            (number, Attached::Disk(disk))
        };
        let ide = DiskStack {
            bus: Bus::Ide,
            ..DiskStack::RAW_CACHED
        };
        let mut disks = vec![
            disk(0, image, DiskStack::RAW_CACHED),
            disk(1, folder.path().join("none.raw"), DiskStack::RAW_CACHED),
            disk(4, folder.path().join("none.raw"), ide),
        ];
        let mut refused = Vec::new();
        let kernel = boot_with(&plan, &parts, &mut disks, &mut refused).unwrap_err();
        let said = format!(
            "Could not open '{}': No such file or directory",
            folder.path().join("none.raw").display()
        );
        let told: Vec<(usize, String)> = refused
            .iter()
            .map(|(number, error)| (*number, error.to_string()))
            .collect();
        let of_disk = |number: usize| {
            let disk = disk_id(number);
            let text = format!("give the guest its disk {disk}: QEMU refuses it: {said}");
            (number, text)
        };
        assert_eq!(told, [of_disk(1), of_disk(4)]);
        assert_eq!(disks.len(), 1);
        // What is in the way then is no disk's.
        assert!(kernel.to_string().contains("no-vmlinuz"), "{kernel}");
    }
}
