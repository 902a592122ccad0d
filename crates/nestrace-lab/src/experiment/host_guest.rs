//! The host's role inside a guest: for host file systems that this machine's kernel lacks.
//!
//! A guest whose kernel has them sees this machine's files over 9p, with a layer of its own memory above, so
//! that nothing of them is changed. In it the same program runs the same plan as it would here: it makes loop
//! devices on a disk of its own, boots guests, records, and writes into the same folder of results. Where
//! virtualization cannot be nested all of it is translated twice, and a guest takes minutes to boot.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nestrace_rig::cache_dir;
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::guest::{Accel, DiskSpec, Guest, GuestError, GuestSpec};
use nestrace_rig::initramfs;
use nestrace_rig::interrupt;
use nestrace_rig::kernel_image;
use nestrace_rig::machine_root::{self, P9_OPTIONS, ROOT};
use nestrace_rig::modelled_disk::{ModelledDisk, ModelledDiskSpec};
use nestrace_rig::qemu_command::shared_folder;
use nestrace_rig::stack::DiskStack;

use super::base::{BaseError, knows_direct_io};
use super::failure::KILLED;
use super::guest_data::Wanted;
use super::ledger::Ledger;
use super::results_folder::PLAN;
use super::work_folder::WORK;
use super::{LabError, Options, Outcome, Progress, disks_outside, machine};
use crate::plan::{Estimate, GuestFs, Host, Plan};

/// How many times longer than usual everything in guests of this guest may take: a boot takes five minutes
/// where it is translated twice, instead of five seconds.
pub(super) const PATIENCE: u32 = 30;
const DISK: &str = "lab-work";
/// What the host's role needs of its kernel; a module that it lacks is passed over.
const MODULES: [&str; 9] = [
    "loop",
    "ext4",
    "xfs",
    "btrfs",
    "jfs",
    "reiserfs",
    "bfq",
    "kyber_iosched",
    "mq_deadline",
];
const RESULTS_TAG: &str = "results";
/// What the program says, its exit code once it ended, and who waits for it.
const SAID: &str = "/run/lab.said";
const STATUS: &str = "/run/lab.status";
const PID: &str = "/run/lab.pid";
/// The guest's processor is the program's first.
const MAX_FAILED_LOOKS: u32 = 5;
const SET_UP_PATIENCE: Duration = Duration::from_secs(300);
const LOOK_PATIENCE: Duration = Duration::from_secs(120);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// Runs a plan inside a guest, or goes on with it.
///
/// # Errors
/// Disk or memory will not do, the guest does not come up, the program in it fails, or Ctrl-C.
pub(super) fn run(
    plan: &Plan,
    options: &Options,
    mut ledger: Ledger,
    (work, modelled): (&Path, &ModelledDiskSpec),
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, LabError> {
    let estimate = plan
        .estimate()
        .without_recordings(plan, ledger.n_recorded());
    let steps = plan.schedule().steps;
    let wanted = Wanted::of(cache_dir::root()?, plan, &ledger.open_cells(&steps));
    machine::check_rooms(&estimate, work, Some(&wanted))?;
    let mut now = Progress {
        n_done: 0,
        n_all: steps.len(),
        seconds_left: estimate.seconds,
        what: String::new(),
    };
    // The program in the guest finds it in the cache, and says what cannot be made.
    wanted.obtain(&mut |what| {
        now.what = what;
        progress(&now);
    })?;
    now.what = String::from("a guest for the host's role");
    progress(&now);
    // Dropped after the guest.
    let disks = disks_outside::start(plan, modelled, work).map_err(BaseError::from)?;
    let guest = boot(plan, &estimate, (ledger.place(), work), &disks)?;
    guest.run_ok(&set_up_script(ledger.place()), SET_UP_PATIENCE)?;
    let start = start_script(plan, &options.lab, ledger.place())?;
    guest.run_ok(&start, LOOK_PATIENCE)?;
    let mut failed_looks = 0;
    loop {
        thread::sleep(BETWEEN_LOOKS);
        interrupt::check()?;
        let (status, said) = match look(&guest) {
            Ok(seen) => seen,
            Err(LabError::Guest(GuestError::Command { .. })) if failed_looks < MAX_FAILED_LOOKS => {
                failed_looks += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        failed_looks = 0;
        let what = doing(&said);
        if status.is_none() && (what == now.what || said.trim().is_empty()) {
            continue;
        }
        ledger.read_again(plan)?;
        if let Some(status) = status {
            let outcome = ledger.outcome();
            // 1 is what it ends with where every cell failed.
            if status == 0 || (status == 1 && outcome.is_failure()) {
                return Ok(outcome);
            }
            let said = last_lines(&said, 6);
            return Err(LabError::InGuest { status, said });
        }
        let open = || steps.iter().filter(|step| ledger.is_open(step));
        now = Progress {
            n_done: steps.len() - open().count(),
            seconds_left: open().map(|step| plan.step_seconds(step)).sum(),
            what,
            ..now
        };
        progress(&now);
    }
}

/// A guest with a disk for devices and images, this machine's files, and the folder of results.
fn boot(
    plan: &Plan,
    estimate: &Estimate,
    (results, work): (&Path, &Path),
    disks: &[ModelledDisk],
) -> Result<Guest, LabError> {
    let kernel = kernel_image::obtain(&plan.guest.kernel)?;
    super::check_guest_kernel(&kernel, file_systems(plan))?;
    let initramfs = initramfs::obtain(&kernel)?;
    let image = work.join("host.raw");
    File::create(&image)
        .and_then(|file| file.set_len(estimate.work_bytes))
        .map_err(|source| BaseError::File {
            path: image.clone(),
            source,
        })?;
    let name = format!("nestrace-lab-host-{}", std::process::id());
    let mut spec = GuestSpec::new(name, &kernel, &initramfs);
    spec.disks = vec![DiskSpec::new(DISK, image, disk_stack(work))];
    spec.disks.extend(disks_outside::attached(disks));
    spec.memory_mib = ((estimate.memory_bytes - plan.disks_outside_bytes()) >> 20) as u32;
    // Translation has one thread for all of them.
    spec.vcpus = if Path::new("/dev/kvm").exists() { 2 } else { 1 };
    spec.accel = Accel::KvmIfItBoots;
    let modules = machine_root::MODULES.into_iter().chain(MODULES);
    spec.modules = modules.map(str::to_owned).collect();
    spec.extra_arguments = [
        machine_root::arguments(),
        shared_folder(results, RESULTS_TAG, ""),
    ]
    .concat();
    Ok(Guest::boot(spec)?)
}

/// All that the guest's kernel mounts, and that of its guests, which is the same.
fn file_systems(plan: &Plan) -> impl Iterator<Item = GuestFs> {
    plan.cells.iter().flat_map(|cell| {
        let host = match cell.combination.host {
            // Every one of them is a guest's too.
            Host::Fs(fs) => fs.word().parse().ok(),
            Host::Bare => None,
        };
        [Some(cell.combination.guest_fs), host]
            .into_iter()
            .flatten()
    })
}

fn disk_stack(work: &Path) -> DiskStack {
    if knows_direct_io(work) {
        return DiskStack::RAW;
    }
    DiskStack::RAW_CACHED
}

/// Shell that makes the root in which the program runs.
fn set_up_script(results: &Path) -> String {
    let place = quoted(&format!("{ROOT}{}", results.display()));
    let work = quoted(&format!("{ROOT}{}", results.join(WORK).display()));
    let root = machine_root::mount_script();
    format!(
        "{root}\n\
         mkdir -p {place}\n\
         mount -t 9p -o {P9_OPTIONS} {RESULTS_TAG} {place}\n\
         mkdir -p {work}\n\
         dev=/dev/$(disk {DISK})\n\
         /usr/bin/mke2fs -q -F -t ext4 -E lazy_itable_init=0,lazy_journal_init=0 $dev\n\
         mount -t ext4 $dev {work}"
    )
}

/// Shell that starts the program, and comes back at once.
fn start_script(plan: &Plan, lab: &Path, results: &Path) -> Result<String, LabError> {
    // What is in the cache here is not fetched or built again.
    let cache = cache_dir::root()?;
    let cache = cache.parent().unwrap_or(&cache);
    let path = |path: &Path| quoted(&path.display().to_string());
    let program = path(lab);
    let only = plan.only.iter().filter_map(|cell| plan.cells.get(*cell));
    let only: String = only
        .map(|cell| format!(" --only {}", quoted(&cell.id)))
        .collect();
    Ok(format!(
        ": > {SAID}\n\
         cat > /run/lab.sh <<'END'\n\
         chroot {ROOT} /usr/bin/env -i HOME=/root XDG_CACHE_HOME={} \
         PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
         {program} run {} -o {}{only} --inside-guest > {SAID} 2>&1 < /dev/null\n\
         echo $? > {STATUS}.new\n\
         mv {STATUS}.new {STATUS}\n\
         END\n\
         setsid sh /run/lab.sh > /dev/null 2>&1 < /dev/null &\n\
         echo $! > {PID}",
        path(cache),
        path(&results.join(PLAN)),
        path(results)
    ))
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The program's exit code, if it ended, and the end of what it said.
fn look(guest: &Guest) -> Result<(Option<i32>, String), LabError> {
    let script = format!(
        "if [ -d /proc/$(cat {PID}) ]; then echo; else cat {STATUS} 2> /dev/null || echo {KILLED}; fi\n\
         echo @said; tail -n 12 {SAID} || true"
    );
    let output = guest.run_ok(&script, LOOK_PATIENCE)?;
    let (status, said) = output.stdout.split_once("@said\n").unwrap_or_default();
    Ok((status.trim().parse().ok(), said.to_owned()))
}

/// What the program says that it does: `3/24  5 min left  ext4-on-jfs, repetition 1`.
fn doing(said: &str) -> String {
    let line = said.lines().next_back().unwrap_or_default();
    let (_, what) = line.rsplit_once("  ").unwrap_or(("", line));
    format!("in a guest: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_inside_is_told_without_its_own_time() {
        let said = "6 cells with 2 repetitions\n3/24  5 min 02 s left  ext4-on-jfs, repetition 1\n";
        assert_eq!(doing(said), "in a guest: ext4-on-jfs, repetition 1");
        assert_eq!(doing(""), "in a guest: ");
    }

    #[test]
    fn a_kernel_without_a_host_file_system_is_refused_before_it_boots() {
        use nestrace_rig::kernel_image::KernelImage;
        use nestrace_rig::stack::HostFsKind;

        for fs in HostFsKind::ALL {
            assert!(fs.word().parse::<GuestFs>().is_ok(), "{fs}");
        }
        let folder = tempfile::tempdir().unwrap();
        let kernel = KernelImage {
            release: String::from("6.12.1"),
            vmlinuz: folder.path().join("vmlinuz"),
            modules: folder.path().to_owned(),
        };
        std::fs::write(
            folder.path().join("modules.dep"),
            "kernel/fs/ext4/ext4.ko:\n",
        )
        .unwrap();
        let check = |host: &str| {
            let text = format!(
                "name = 'p'\n[host]\nin_guest = true\n[axes]\nhost_fs = '{host}'\n[[workload]]\nname = 'randwrite'\n"
            );
            let plan = Plan::read(&text).unwrap();
            super::super::check_guest_kernel(&kernel, file_systems(&plan))
        };
        check("ext3").unwrap();
        let error = check("reiserfs").unwrap_err().to_string();
        assert!(
            error.contains("make reiserfs in guests: their kernel 6.12.1"),
            "{error}"
        );
    }

    #[test]
    fn paths_of_the_user_reach_shell_and_qemu_whole() {
        let results = Path::new("/home/o'neil/my results, 2");
        let script = set_up_script(results);
        assert!(
            script.contains(r"'/host/home/o'\''neil/my results, 2/work'"),
            "{script}"
        );
        let [_, argument] = shared_folder(results, "results", "");
        assert!(argument.contains("path=/home/o'neil/my results,, 2,mount_tag=results"));
    }
}
