//! A guest with the disks of a batch, and one run of a workload in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nestrace_report::lab::CellRun;

use super::LabError;
use super::base::{Attached, Base, BaseError, disk_id};
use super::counters::{SHELL, Snapshot};
use super::database;
use super::failure::{self, FailedScript, KILLED};
use super::fio_result::FioResult;
use super::lab_guest::LabGuest;
use super::own_guest::{self, OwnGuestWithDisks};
use super::recorder::Recorder;
use super::sysbench_result::SysbenchResult;
use super::tree;
use crate::external_tool::{find_program, last_lines};
use crate::guest::{Accel, Guest, GuestSpec};
use crate::guest_fs::PROGRAM_FOLDER;
use crate::initramfs::{self, Initramfs, InitramfsError};
use crate::interrupt;
use crate::kernel_image::KernelImage;
use crate::named_device::NamedDevice;
use crate::plan::workload::{self, Action, FOLDER, OUTPUT, RESULT, Workload};
use crate::plan::{
    Batch, Combination, GuestFs, OwnGuest, PASS_THROUGH, Plan, PlannedCell, Scheduler,
};
use crate::plan::{oltp, sysbench};
use crate::qemu_command::shared_folder;

/// mkfs and mount under translation, on a loaded machine, besides what the workload's layout takes.
const PREPARE_PATIENCE: Duration = Duration::from_secs(420);
/// A look at what a script has said.
const LOOK_PATIENCE: Duration = Duration::from_secs(20);
/// fio opens all files of a personality at once.
const OPEN_FILES: u32 = 65_536;
/// How guests mount a folder of the host's.
pub(super) const P9_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=262144";

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
}

/// What stages are made from.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) guests: Guests,
    /// Whether recordings are made inside guests too.
    pub(super) has_agent: bool,
    /// Devices that the user named; empty where each is a loop device.
    pub(super) devices: Vec<Arc<NamedDevice>>,
}

/// Where guests come from.
#[derive(Debug)]
pub(super) enum Guests {
    /// The lab boots them.
    Booted(BootParts),
    /// One of the user's runs.
    Own(OwnGuest),
}

/// A guest and what lies under its disks.
#[derive(Debug)]
pub(super) struct Stage {
    // The guest goes first, then its disks.
    guest: LabGuest,
    accelerator: &'static str,
    /// The images of a guest of the user's.
    images: BTreeMap<usize, PathBuf>,
    bases: Vec<Base>,
    /// What could not be made, with the disks that would lie on it.
    broken: Vec<(Vec<usize>, Arc<BaseError>)>,
    agent_runs: bool,
    has_agent: bool,
}

impl Stage {
    /// Makes the disks of a batch and boots a guest with them.
    pub(super) fn build(
        plan: &Plan,
        batch: &Batch,
        parts: &Parts,
        work: &Path,
    ) -> Result<Self, LabError> {
        let needs = batch.bases(plan.image_bytes);
        let mut bases = Vec::new();
        let mut broken = Vec::new();
        let mut disks = Vec::new();
        for (place, need) in needs.iter().enumerate() {
            let made = Base::create(need, parts.devices.get(place), work)
                .and_then(|base| Ok((base.disks(batch, plan.image_bytes)?, base)));
            match made {
                Ok((on_it, base)) => {
                    disks.extend(on_it);
                    bases.push(base);
                }
                Err(error) => {
                    interrupt::check()?;
                    broken.push((need.disks.clone(), Arc::new(error)));
                }
            }
        }
        if let (true, Some((_, error))) = (bases.is_empty(), broken.first()) {
            return Err(Arc::clone(error).into());
        }
        disks.sort_by_key(|(number, _)| *number);
        let mut images = BTreeMap::new();
        let (guest, accelerator) = match &parts.guests {
            Guests::Booted(boot_parts) => boot(plan, boot_parts, disks, work)?,
            Guests::Own(own) => {
                let mut specs = Vec::new();
                for (number, attached) in disks {
                    if let Attached::Disk(disk) = attached {
                        images.insert(number, disk.image.clone());
                        specs.push(disk);
                    }
                }
                let guest = OwnGuestWithDisks::attach(own, &specs)?;
                (LabGuest::Own(guest), own_guest::accelerator(own)?)
            }
        };
        Ok(Self {
            guest,
            accelerator,
            images,
            bases,
            broken,
            agent_runs: false,
            has_agent: parts.has_agent,
        })
    }

    /// Why a disk is not there, if it is not.
    pub(super) fn objection(&self, disk: usize) -> Option<LabError> {
        let mut broken = self.broken.iter();
        let (_, error) = broken.find(|(disks, _)| disks.contains(&disk))?;
        Some(Arc::clone(error).into())
    }

    /// `kvm` or `tcg`.
    pub(super) fn accelerator(&self) -> &'static str {
        self.accelerator
    }

    /// One run: a new file system, the workload, its counters; with a recorder, recorded for `seconds`.
    pub(super) fn run(
        &mut self,
        cell: &PlannedCell,
        disk: usize,
        recording: Option<(&Path, &Path, u32)>,
    ) -> Result<CellRun, LabError> {
        let recorded_seconds = recording.map_or(0, |(.., seconds)| seconds);
        let most_seconds = cell.workload.most_seconds() + recorded_seconds * 2;
        let patience = Duration::from_secs(u64::from(most_seconds));
        self.guest
            .run_ok(&prepare_script(cell, disk), PREPARE_PATIENCE + patience)?;
        if recording.is_some() && self.has_agent && !self.agent_runs {
            self.guest.start_agent()?;
            self.agent_runs = true;
        }
        let base = self.bases.iter().find(|base| base.carries(disk));
        settle(base);
        let recorder = match recording {
            Some((nestrace, bundle, _)) => {
                let name = self.guest.name();
                let patience = self.guest.patience();
                Some(Recorder::start(
                    nestrace,
                    name,
                    bundle,
                    self.has_agent,
                    patience,
                )?)
            }
            None => None,
        };
        let device = base.map_or("", Base::device);
        let before = Snapshot::of_host(device);
        let seconds = recording.map(|(.., seconds)| seconds);
        let stdout = self
            .guest
            .run_ok(&measure_script(cell, disk, seconds), patience)
            .map_err(|error| self.with_last_words(error))?;
        let after = Snapshot::of_host(device);
        if let Some(recorder) = recorder {
            recorder.stop()?;
        }
        self.guest.run_ok(&unmount_script(), PREPARE_PATIENCE)?;
        let mut run = result(&cell.workload, &stdout)?;
        run.host = after.since(&before);
        run.disk = recording
            .zip(self.images.get(&disk))
            .and_then(|((_, bundle, _), image)| own_guest::recorded_disk(bundle, image));
        Ok(run)
    }

    /// Of a script that was stopped: what the workload had said until then.
    fn with_last_words(&self, error: LabError) -> LabError {
        let killed = failure::script_of(&error).filter(FailedScript::was_killed);
        let Some(said) = killed.map(|script| script.said.to_owned()) else {
            return error;
        };
        let look = self
            .guest
            .run_ok(&format!("tail -n 20 {OUTPUT}"), LOOK_PATIENCE);
        let log = format!("{said}\n{}", look.unwrap_or_default());
        failure::with_log(error, log)
    }
}

/// A guest with these disks and folders, and what executes it.
fn boot(
    plan: &Plan,
    parts: &BootParts,
    disks: Vec<(usize, Attached)>,
    work: &Path,
) -> Result<(LabGuest, &'static str), LabError> {
    let name = format!("nestrace-lab-{}", std::process::id());
    let mut spec = GuestSpec::new(name, &parts.kernel, &parts.initramfs);
    for (number, attached) in disks {
        match attached {
            Attached::Disk(disk) => spec.disks.push(disk),
            Attached::Folder(folder) => {
                let arguments = shared_folder(&folder, &disk_id(number), "");
                spec.extra_arguments.extend(arguments);
            }
        }
    }
    spec.disks.extend(database::disk(plan, work)?);
    spec.memory_mib = plan.guest.memory_mib;
    spec.vcpus = plan.guest.vcpus;
    spec.accel = parts.accel;
    spec.patience = parts.patience;
    spec.files = files(plan, parts, work)?;
    spec.agent.clone_from(&parts.agent);
    let guest = Guest::boot(spec)?;
    let answer = guest.qmp("query-kvm", serde_json::Value::Null);
    let is_kvm = answer.is_ok_and(|answer| answer["enabled"] == true);
    Ok((
        LabGuest::Booted(Box::new(guest)),
        if is_kvm { "kvm" } else { "tcg" },
    ))
}

/// The agent's libraries, where it has any, sysbench with its own, and the trees that workloads unpack.
fn files(plan: &Plan, parts: &BootParts, work: &Path) -> Result<Vec<(String, PathBuf)>, LabError> {
    let mut files = Vec::new();
    if let Some(agent) = &parts.agent {
        files.extend(initramfs::libraries_in_place(agent));
    }
    if plan.has_file_io() {
        let program = find_program(sysbench::PROGRAM)
            .ok_or_else(|| InitramfsError::NoProgram(sysbench::PROGRAM.to_owned()))?;
        files.extend(initramfs::libraries_in_place(&program));
        files.push((format!("/usr/bin/{}", sysbench::PROGRAM), program));
    }
    for entries in plan.trees() {
        files.push((workload::tree(entries), tree::archive(work, entries)?));
    }
    Ok(files)
}

/// Nothing of the preparation is left to be written, or in the host's page cache.
fn settle(base: Option<&Base>) {
    if let Some(base) = base {
        // What cannot be written back fails the measurement itself.
        let _ = base.sync();
    }
    let _ = std::fs::write("/proc/sys/vm/drop_caches", "3");
}

/// Shell that unmounts the file system, where the workload did not, and before that ends what uses it.
fn unmount_script() -> String {
    format!(
        "{}\ngrep -q ' {FOLDER} ' /proc/mounts || exit 0\numount {FOLDER}",
        oltp::stop_script()
    )
}

/// What scripts of workloads find: the device, the file system's name, and the command that checks it.
fn variables(cell: &PlannedCell, disk: usize) -> String {
    let id = disk_id(disk);
    match cell.combination.guest_fs {
        GuestFs::Fs(fs) => format!(
            "bin=${{bin-{PROGRAM_FOLDER}}}\nname=$(disk {id})\ndev=/dev/$name\nfs={fs}\nfsck=\"{}\"\n",
            fs.fsck_command("${bin}", "").trim_end()
        ),
        GuestFs::PassThrough => format!("dev={id}\nfs={PASS_THROUGH}\n"),
    }
}

/// Shell that makes the file system anew on a disk that is as it was at first.
fn prepare_script(cell: &PlannedCell, disk: usize) -> String {
    let Combination {
        guest_fs,
        guest_scheduler,
        guest_mount_options,
        guest_read_ahead_kib,
        ..
    } = &cell.combination;
    let mut script = format!(
        "set -e\nulimit -n {OPEN_FILES}\numount {FOLDER} 2> /dev/null || true\n{}",
        variables(cell, disk)
    );
    if *guest_scheduler != Scheduler::Default {
        script.push_str(&format!(
            "load bfq mq_deadline kyber_iosched\necho {guest_scheduler} > /sys/block/$name/queue/scheduler\n"
        ));
    }
    if let Some(kib) = guest_read_ahead_kib {
        script.push_str(&format!(
            "echo {kib} > /sys/block/$name/queue/read_ahead_kb\n"
        ));
    }
    if cell.combination.is_thin() {
        script.push_str("blkdiscard $dev\n");
    }
    let options = if guest_mount_options.is_empty() {
        "rw"
    } else {
        guest_mount_options
    };
    let (make, kept, empty) = match guest_fs {
        GuestFs::Fs(fs) => {
            let make = format!(
                "load {}\n{}",
                fs.module(),
                fs.mkfs_command_in("${bin}", "$dev")
            );
            (make, String::new(), String::new())
        }
        // The host's file system stays; what an earlier run left in it goes.
        GuestFs::PassThrough => (
            String::from("load 9pnet_virtio 9p"),
            format!("{P9_OPTIONS},"),
            format!("rm -rf {FOLDER}/* {FOLDER}/.[!.]*"),
        ),
    };
    script.push_str(&format!(
        "{make}\nmkdir -p {FOLDER}\noptions={kept}{options}\nmount -t $fs -o $options $dev {FOLDER}\n{empty}\n{}\nsync\n",
        cell.workload.prepare_script()
    ));
    if !cell.workload.is_warm() {
        script.push_str("echo 3 > /proc/sys/vm/drop_caches\n");
    }
    script
}

/// Shell that runs the workload between two looks at the counters.
fn measure_script(cell: &PlannedCell, disk: usize, seconds: Option<u32>) -> String {
    format!(
        "ulimit -n {OPEN_FILES}; rm -f {RESULT}\n{}echo @before; {SHELL}\n\
         (\n{}\n) > {OUTPUT} 2>&1; status=$?\n\
         [ $status != {KILLED} ] || {{ echo 'it was killed' >> {OUTPUT}; status=1; }}\n\
         echo @after; {SHELL}\n\
         [ $status = 0 ] || {{ tail -n 20 {OUTPUT} >&2; exit $status; }}\n\
         echo @result; cat {RESULT} 2> /dev/null || true",
        variables(cell, disk),
        cell.workload.measure_script(seconds)
    )
}

fn result(workload: &Workload, stdout: &str) -> Result<CellRun, LabError> {
    let garbled = || LabError::NoResult {
        workload: workload.name.clone(),
        said: last_lines(stdout, 6),
    };
    let (_, rest) = stdout.split_once("@before").ok_or_else(garbled)?;
    let (before, rest) = rest.split_once("@after").ok_or_else(garbled)?;
    let (after, result) = rest.split_once("@result").ok_or_else(garbled)?;
    let (before, after) = (Snapshot::parse(before), Snapshot::parse(after));
    let mut run = CellRun {
        guest: after.since(&before),
        elapsed_s: after.uptime_s - before.uptime_s,
        ..CellRun::default()
    };
    match &workload.action {
        Action::Fio(_) => {
            let fio = FioResult::parse(result).ok_or_else(garbled)?;
            run.value = fio.value(workload.metric);
            run.elapsed_s = fio.elapsed_s;
            run.latency = fio.latency;
        }
        Action::FileIo(_) | Action::Oltp(_) => {
            let sysbench = SysbenchResult::parse(result).ok_or_else(garbled)?;
            run.value = sysbench.per_second;
            run.elapsed_s = sysbench.elapsed_s;
            run.latency = BTreeMap::from([(sysbench.what.to_owned(), sysbench.latency)]);
        }
        Action::Script(script) if script.operations > 0 => {
            run.value = script.operations as f64 / run.elapsed_s.max(0.01);
        }
        Action::Script(_) => run.value = run.elapsed_s.max(0.01),
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> PlannedCell {
        let plan = Plan::read(text).unwrap();
        plan.cells.last().unwrap().clone()
    }

    #[test]
    fn the_disk_is_made_anew_where_it_is_thin() {
        let sparse = cell("name='a'\n[[workload]]\nname='randread'");
        let script = prepare_script(&sparse, 3);
        assert!(script.contains("disk nestrace-lab-3") && script.contains("blkdiscard $dev"));
        let written = cell(
            "name='a'\n[axes]\nplacement='fragmented'\nguest_scheduler='bfq'\nguest_read_ahead_kib=0\nguest_mount_options='noatime'\n[[workload]]\nname='iozone-reread'",
        );
        let script = prepare_script(&written, 0);
        assert!(!script.contains("blkdiscard"));
        assert!(script.contains("echo bfq > ") && script.contains("echo 0 > "));
        assert!(script.contains("options=noatime\n") && script.contains("-o $options"));
        // A reread finds what the layout left.
        assert!(!script.contains("drop_caches"));
    }

    #[test]
    fn a_check_finds_its_command_and_the_file_system_unmounted() {
        for (fs, fsck) in [("ext3", "e2fsck -f -n"), ("xfs", "xfs_repair -n")] {
            let cell = cell(&format!(
                "name='a'\n[axes]\nguest_fs='{fs}'\n[[workload]]\nname='fsck-files'"
            ));
            let prepare = prepare_script(&cell, 1);
            let (mount, unmount) = (
                prepare.find("mount -t $fs").unwrap(),
                prepare.rfind("umount /mnt/nestrace-lab").unwrap(),
            );
            assert!(mount < unmount, "{prepare}");
            let script = measure_script(&cell, 1, Some(2));
            assert!(
                script.contains(&format!("fsck=\"${{bin}}{fsck}\"")),
                "{script}"
            );
            assert!(script.contains("$fsck $dev"), "{script}");
        }
    }

    #[test]
    fn an_ext3_is_upgraded_before_or_after_its_files_are_laid_out() {
        for (when, old) in [("old", true), ("new", false)] {
            let cell = cell(&format!(
                "name='a'\n[axes]\nguest_fs='ext3'\nguest_mount_options='noatime'\n\
                 [[workload]]\nname='iozone-reread'\nupgrade='{when}'"
            ));
            let script = prepare_script(&cell, 0);
            let place = |what: &str| script.find(what).unwrap_or_else(|| panic!("{script}"));
            let order = [
                place("mkfs.ext3"),
                place("mount -t $fs -o $options"),
                place("tune2fs -O extents,uninit_bg,dir_index,flex_bg $dev"),
                place("e2fsck -fyD $dev"),
                place("mount -t ext4 -o $options $dev"),
            ];
            assert!(order.is_sorted(), "{script}");
            assert_eq!(place("--create_only=1") < order[2], old, "{script}");
            // A reread finds in the page cache what the upgrade's unmounting took out of it.
            assert_eq!(script.contains("cat /mnt/nestrace-lab/*"), old, "{script}");
        }
    }

    #[test]
    fn a_folder_of_the_hosts_is_emptied_and_not_formatted() {
        let cell = cell(
            "name='a'\n[axes]\nguest_fs='9p'\nguest_mount_options='noatime'\n[[workload]]\nname='randwrite'",
        );
        let script = prepare_script(&cell, 3);
        for there in [
            "dev=nestrace-lab-3\nfs=9p\n",
            "version=9p2000.L,msize=262144,noatime\nmount -t $fs -o $options $dev",
            "rm -rf /mnt/nestrace-lab/* /mnt/nestrace-lab/.[!.]*",
        ] {
            assert!(script.contains(there), "{script}");
        }
        for not_there in ["mkfs", "blkdiscard", "$(disk"] {
            assert!(!script.contains(not_there), "{script}");
        }
        assert!(!cell.can_be_recorded());
    }

    #[test]
    fn a_command_is_measured_by_the_guests_clock() {
        let workload = cell("name='a'\n[[workload]]\nname='x'\ncommand='true'").workload;
        let stdout = "@before\nuptime 10.00 1\nctxt 1\n@after\nuptime 12.50 1\nctxt 5\n@result\n";
        let run = result(&workload, stdout).unwrap();
        assert_eq!((run.value, run.guest.context_switches), (2.5, 4));
        assert!(result(&workload, "@before").is_err());
    }
}
