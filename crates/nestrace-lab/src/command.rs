//! `nestrace lab`: plans of experiments, shown, run and reported.

mod named_devices;
mod plan_text;
mod report;
mod results_folder;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use nestrace_lab::experiment::{
    self, BaseError, FolderError, LabError, Options, OwnGuestError, Progress, ScriptError,
};
use nestrace_lab::plan::{Plan, shipped};
use nestrace_lab::{other_lab, plan};
use nestrace_rig::external_tool::find_program;
use nestrace_rig::initramfs::InitramfsError;
use nestrace_rig::interrupt;
use nestrace_rig::kernel_image::KernelImageError;
use nestrace_rig::modelled_disk::{self, ModelledDiskError};
use nestrace_rig::named_device::DeviceError;
use nestrace_rig::packages::{self, PackagesError};
use nestrace_rig::qmp::QmpError;
use nestrace_rig::real_time;
use nestrace_trace::printable;

use nestrace_cli::exit::{DONE, FAILURE, Failure, INPUT, MISSING, print, say};
use nestrace_cli::lab::{LabCommand, LabPlanArgs, LabRunArgs};

use results_folder::give_to_user;

/// Plans, runs or reports.
pub fn run(command: &LabCommand) -> Result<u8, Failure> {
    match command {
        LabCommand::Plan(args) => show_plan(args),
        LabCommand::Run(args) => run_plan(args),
        LabCommand::Report(args) => report::write(&args.folder),
    }
}

fn show_plan(args: &LabPlanArgs) -> Result<u8, Failure> {
    let (plan, text) = read_plan(&args.plan)?;
    let standing = match &args.output {
        Some(folder) => {
            let standing = experiment::standing(&plan, &text, folder);
            Some(standing.map_err(|error| folder_failure(&error))?)
        }
        None => None,
    };
    let folder = args.output.as_deref().zip(standing.as_ref());
    print(&plan_text::render(&plan, folder))?;
    if args.install {
        install_missing(&plan, true)?;
    }
    Ok(DONE)
}

/// Installs what running a plan needs, or says how to.
fn install_missing(plan: &Plan, may_install: bool) -> Result<(), Failure> {
    let missing = packages::to_install(experiment::missing_packages(plan), may_install);
    let missing = missing.map_err(packages_failure)?;
    packages::install_named(missing, |line| say(format_args!("nestrace: {line}")))
        .map_err(packages_failure)
}

/// The text of a plan: a file's, or that of a plan that comes with the program.
fn read_plan(name: &Path) -> Result<(Plan, String), Failure> {
    let shipped = name.to_str().and_then(shipped::text);
    let text = match (std::fs::read_to_string(name), shipped) {
        (Ok(text), _) => text,
        (Err(_), Some(text)) => text.to_owned(),
        (Err(error), None) => {
            let names: Vec<&str> = shipped::PLANS.iter().map(|(name, _)| *name).collect();
            let message = format!("read the plan {}: {error}", name.display());
            return Err(Failure::new(INPUT, message).hint(format!(
                "plans that come with nestrace: {}",
                names.join(", ")
            )));
        }
    };
    let plan = Plan::read(&text).map_err(|error: plan::PlanError| {
        Failure::new(INPUT, format!("{}: {error}", name.display()))
            .hint("docs/lab.md describes plans")
    })?;
    let plan = plan.with_models(|program| find_program(program).is_some());
    experiment::check_scripts(&plan).map_err(|error| match error {
        ScriptError::Refused { .. } => Failure::new(INPUT, format!("{}: {error}", name.display())),
        _ => Failure::caused(MISSING, &error),
    })?;
    Ok((plan, text))
}

fn run_plan(args: &LabRunArgs) -> Result<u8, Failure> {
    let (mut plan, text) = read_plan(&args.plan)?;
    plan.run_only(&args.only).map_err(|error| {
        Failure::new(INPUT, format!("{}: {error}", args.plan.display())).hint(format!(
            "nestrace lab plan {} lists its cells",
            args.plan.display()
        ))
    })?;
    named_devices::check(&plan, args)?;
    if !plan.host_in_guest || args.inside_guest {
        experiment::check_kernel(&plan).map_err(|error| lab_failure(&error, &plan, args, false))?;
    }
    install_missing(&plan, args.install)?;
    plan.check_programs(|program| find_program(program).is_some())
        .map_err(|error| Failure::new(MISSING, format!("{}: {error}", args.plan.display())))?;
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::new(
            MISSING,
            "the lab makes loop devices, mounts and probes: this needs root",
        )
        .hint(named_devices::whole_line(&plan, args)));
    }
    interrupt::catch_signals()
        .map_err(|error| Failure::new(FAILURE, format!("catch signals: {error}")))?;
    let folder = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("lab-{}", plan.name)));
    let lab = std::env::current_exe()
        .map_err(|error| Failure::new(FAILURE, format!("find the program itself: {error}")))?;
    let options = Options {
        agent: lab.with_file_name("nestrace-agent"),
        disk: disk_of(&lab),
        nestrace: recorder_of(&lab, &plan)?,
        lab,
        folder: folder.clone(),
        is_inside: args.inside_guest,
    };
    let mut heading = plan_text::takes(&plan);
    let announced = other_lab::announce(Path::new(other_lab::PLACE));
    if announced.as_ref().is_ok_and(|one| !one.is_alone) {
        heading.push(String::from(OTHER_LAB));
    }
    if !plan.modelled_disks().is_empty()
        && let Err(error) = real_time::is_allowed()
    {
        heading.push(format!("{LATE_DISK} ({error}): {ALLOW}"));
    }
    let mut shown = ProgressLine::new(heading);
    let outcome = experiment::run(&plan, &text, &options, &mut |now| shown.show(now));
    shown.clear();
    give_to_user(&folder);
    let outcome =
        outcome.map_err(|error| lab_failure(&error, &plan, args, interrupt::is_interrupted()))?;
    if outcome.n_failed > 0 {
        say(format_args!(
            "{} of {} cells failed: their logs are in {}/CELL.json; run the same line again to try them again",
            outcome.n_failed,
            outcome.n_cells,
            folder.display()
        ));
    }
    if args.inside_guest {
        // The lab outside reports it.
        return Ok(if outcome.is_failure() { FAILURE } else { DONE });
    }
    let code = report::write(&folder);
    give_to_user(&folder);
    let code = code?;
    Ok(if outcome.is_failure() { FAILURE } else { code })
}

/// The recorder: the nestrace that lies beside the lab, or else the one in the `PATH`.
fn recorder_of(lab: &Path, plan: &Plan) -> Result<PathBuf, Failure> {
    let beside = lab.with_file_name("nestrace");
    if beside.is_file() {
        return Ok(beside);
    }
    match find_program("nestrace") {
        Some(program) => Ok(program),
        // Nothing is recorded, so it is not started.
        None if plan.record_seconds == 0 => Ok(beside),
        None => {
            let message = format!(
                "the lab records with nestrace, which is neither {} nor in the PATH",
                beside.display()
            );
            Err(Failure::new(MISSING, message).hint(
                "cargo build --release -p nestrace -p nestrace-lab puts both into one folder; or set record = false in the plan",
            ))
        }
    }
}

/// What serves modelled disks: the program that lies beside the lab, or else the one in the `PATH`.
fn disk_of(lab: &Path) -> PathBuf {
    let beside = lab.with_file_name(modelled_disk::PROGRAM);
    let found = (!beside.is_file()).then(|| find_program(modelled_disk::PROGRAM));
    found.flatten().unwrap_or(beside)
}

/// What is said where two measure at the same time.
const OTHER_LAB: &str =
    "note: another lab runs on this machine: each disturbs the times that the other measures";

/// A note where modelled disks run at an ordinary priority, and what helps.
const LATE_DISK: &str = "note: modelled disks are late when the processors are busy, because the kernel gives them no real-time priority";
const ALLOW: &str =
    "start the lab as root in the root control group, or give its group cpu.rt_runtime_us";

/// One line on a terminal, a line for each run elsewhere.
struct ProgressLine {
    /// Said when the run really begins: a refusal stands first on stderr.
    heading: Vec<String>,
    bar: indicatif::ProgressBar,
    is_terminal: bool,
}

impl ProgressLine {
    fn new(heading: Vec<String>) -> Self {
        let style = indicatif::ProgressStyle::with_template("{bar:20} {pos}/{len}  {wide_msg}");
        let bar = indicatif::ProgressBar::new(0);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            heading,
            bar,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, now: &Progress) {
        if now.n_all == 0 {
            // A refusal may follow, which stands first.
            self.bar.set_message(now.what.clone());
            return;
        }
        self.heading.drain(..).for_each(say);
        let left = plan_text::duration(now.seconds_left);
        if self.is_terminal {
            self.bar.set_length(now.n_all as u64);
            self.bar.set_position(now.n_done as u64);
            let what = printable(&now.what);
            self.bar.set_message(format!("{left} left  {what}"));
            if now.what.contains(" failed: ") {
                self.bar.suspend(|| say(&now.what));
            }
        } else {
            say(format_args!(
                "{}/{}  {left} left  {}",
                now.n_done + 1,
                now.n_all,
                now.what
            ));
        }
    }

    fn clear(&self) {
        if self.is_terminal {
            self.bar.finish_and_clear();
        }
    }
}

fn packages_failure(error: PackagesError) -> Failure {
    match &error {
        PackagesError::Missing { packages } => Failure::new(
            MISSING,
            format!("the lab needs the Debian packages {}", packages.join(" ")),
        )
        .hint(format!(
            "{}, or --install as root",
            packages::install_line(packages)
        )),
        _ => Failure::caused(MISSING, &error),
    }
}

fn folder_failure(error: &FolderError) -> Failure {
    match error {
        FolderError::OtherPlan { .. }
        | FolderError::OtherProgram { .. }
        | FolderError::OtherMachine { .. }
        | FolderError::NoPlan { .. }
        | FolderError::NotOurs(_) => {
            Failure::caused(INPUT, error).hint("name another folder with -o")
        }
        FolderError::ForeignWork(_) => {
            Failure::caused(INPUT, error).hint("remove it, or name another folder with -o")
        }
        FolderError::File { source, .. } if is_no_folder(source) => {
            Failure::caused(INPUT, error).hint("-o names a folder")
        }
        FolderError::Content { path, .. } | FolderError::OtherCell { path, .. } => {
            Failure::caused(INPUT, error).hint(format!(
                "without {} its runs are made again",
                path.display()
            ))
        }
        _ => Failure::caused(FAILURE, error),
    }
}

/// What stands where the folder should be, or above it, is something else.
fn is_no_folder(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, NotADirectory};
    [AlreadyExists, NotADirectory].contains(&error.kind())
}

fn lab_failure(error: &LabError, plan: &Plan, args: &LabRunArgs, is_interrupted: bool) -> Failure {
    if is_interrupted {
        let again = named_devices::whole_line(plan, args);
        return Failure::new(FAILURE, "interrupted; finished runs are kept")
            .hint(format!("to go on: {again}"));
    }
    match error {
        LabError::Base(BaseError::Device(
            DeviceError::Look { .. } | DeviceError::Refused { .. } | DeviceError::Twice { .. },
        )) => Failure::caused(INPUT, error).hint("the plan names it under [host]"),
        LabError::Folder(error) => folder_failure(error),
        LabError::NoSpace { .. } => Failure::caused(MISSING, error)
            .hint("-o names a folder on another disk; image_size and data_size are in the plan"),
        LabError::NoCacheSpace { .. } => Failure::caused(MISSING, error)
            .hint("XDG_CACHE_HOME names another folder; what lies in it may be deleted"),
        LabError::NoTemporarySpace { .. } => {
            Failure::caused(MISSING, error).hint("TMPDIR names another folder")
        }
        LabError::NoMemory { .. } => Failure::caused(MISSING, error)
            .hint("memory in the plan is that of a guest; or end other programs"),
        LabError::NoAgent(_) => Failure::caused(MISSING, error)
            .hint("cargo build --release -p nestrace-lab -p nestrace-agent puts both into one folder; or set agent = false in the plan"),
        LabError::NoDisk(_) => Failure::caused(MISSING, error)
            .hint("cargo build --release -p nestrace-lab -p nestrace-disk puts both into one folder"),
        LabError::Base(BaseError::Modelled(
            ModelledDiskError::Parameters { .. } | ModelledDiskError::File { .. },
        )) => Failure::caused(INPUT, error).hint("the plan names it under [host]"),
        LabError::OwnGuest(own) => own_guest_failure(own),
        LabError::InGuest {
            status: status @ (3 | 4),
            ..
        } => Failure::caused(*status as u8, error),
        LabError::NoHostFs { .. } => Failure::caused(MISSING, error)
            .hint("in_guest = true under [host] in the plan gives the host's role to a guest whose kernel has it"),
        LabError::NoHostScheduler { .. } => Failure::caused(MISSING, error)
            .hint("cat /sys/block/*/queue/scheduler shows those that this machine has"),
        LabError::NoGuestFs { .. } => Failure::caused(MISSING, error)
            .hint("kernel in the plan names another series of Debian's: \"6.1\" has all of them"),
        LabError::NoIoUring => Failure::caused(MISSING, error)
            .hint("sudo sysctl kernel.io_uring_disabled=0, or native or threads for aio in the plan"),
        LabError::Kernel(KernelImageError::Tool { .. }) => Failure::caused(MISSING, error)
            .hint("the first run downloads it by apt, and needs a network for that"),
        LabError::Kernel(KernelImageError::Unknown { .. })
        | LabError::Initramfs(InitramfsError::NoProgram(_)) => Failure::caused(MISSING, error),
        _ => Failure::caused(FAILURE, error),
    }
}

fn own_guest_failure(error: &OwnGuestError) -> Failure {
    let failure = |code| Failure::caused(code, error);
    match error {
        OwnGuestError::NoDomain { .. } => failure(INPUT).hint("virsh list --all shows them"),
        OwnGuestError::Monitor(QmpError::Io { .. }) => failure(INPUT).hint(
            "QEMU makes one more with -qmp unix:PATH,server=on,wait=off; each serves one program at a time",
        ),
        OwnGuestError::Nameless => failure(INPUT).hint("QEMU's -name guest=vm1 gives it one"),
        OwnGuestError::NotRunning { .. } | OwnGuestError::NoPrograms { .. } => {
            failure(MISSING).hint("docs/lab.md says what a guest of yours needs")
        }
        OwnGuestError::Unreachable { .. } => failure(MISSING).hint(
            "qemu-guest-agent in the guest and its channel in the domain, or ssh under [guest] in the plan",
        ),
        OwnGuestError::Kept { by_hand, .. } => failure(FAILURE).hint(by_hand),
        _ => failure(FAILURE),
    }
}

#[cfg(test)]
mod tests {
    use nestrace_rig::named_device::Objection;

    use super::*;

    #[test]
    fn a_plan_is_a_file_or_has_a_name() {
        let (plan, _) = read_plan(Path::new("quick")).unwrap();
        assert_eq!(plan.name, "quick");
        assert!(read_plan(Path::new("no-such-plan")).is_err());
    }

    #[test]
    fn a_plan_whose_command_is_no_shell_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        let text = "name = 'p'\n[[workload]]\nname = 'x'\ncommand = \"echo 'a\"\n";
        std::fs::write(&file, text).unwrap();
        let failure = read_plan(&file).unwrap_err();
        assert_eq!(failure.code(), INPUT);
        let said = failure.message();
        assert!(
            said.contains("mine.toml: line 4, column 11: read command of the workload \"x\""),
            "{said}"
        );
    }

    /// What is said of an error, with its code.
    fn told(error: &LabError, is_interrupted: bool) -> (u8, String) {
        let (plan, _) = read_plan(Path::new("quick")).unwrap();
        let failure = lab_failure(error, &plan, &named_devices::args_of(&[]), is_interrupted);
        (failure.code(), failure.message().to_owned())
    }

    #[test]
    fn refusals_have_the_codes_of_the_contract() {
        let folder = || PathBuf::from("results");
        let content = serde_json::from_str::<u8>("{").unwrap_err();
        for (error, code) in [
            (LabError::NoAgent(folder()), MISSING),
            (
                LabError::NoSpace {
                    folder: folder(),
                    needed_mib: 2,
                    available_mib: 1,
                },
                MISSING,
            ),
            (
                LabError::NoCacheSpace {
                    folder: folder(),
                    needed_mib: 2,
                    available_mib: 1,
                },
                MISSING,
            ),
            (
                LabError::NoTemporarySpace {
                    folder: folder(),
                    needed_mib: 2,
                    available_mib: 1,
                },
                MISSING,
            ),
            (
                LabError::NoMemory {
                    needed_mib: 2,
                    available_mib: 1,
                },
                MISSING,
            ),
            (
                BaseError::Device(DeviceError::Refused {
                    path: folder(),
                    objection: Objection::Busy,
                })
                .into(),
                INPUT,
            ),
            (
                LabError::NoHostFs {
                    fs: nestrace_rig::stack::HostFsKind::Jfs,
                },
                MISSING,
            ),
            (
                LabError::NoHostScheduler {
                    scheduler: plan::Scheduler::Bfq,
                },
                MISSING,
            ),
            (FolderError::NotOurs(folder()).into(), INPUT),
            (FolderError::ForeignWork(folder()).into(), INPUT),
            (
                FolderError::NoPlan {
                    folder: folder(),
                    source: std::io::ErrorKind::NotFound.into(),
                }
                .into(),
                INPUT,
            ),
            (
                FolderError::OtherPlan {
                    folder: folder(),
                    line: 3,
                }
                .into(),
                INPUT,
            ),
            (
                FolderError::Content {
                    path: folder(),
                    source: content,
                }
                .into(),
                INPUT,
            ),
            (FolderError::Busy(folder()).into(), FAILURE),
            (
                FolderError::File {
                    path: folder(),
                    source: std::io::ErrorKind::AlreadyExists.into(),
                }
                .into(),
                INPUT,
            ),
            (
                FolderError::File {
                    path: folder(),
                    source: std::io::ErrorKind::PermissionDenied.into(),
                }
                .into(),
                FAILURE,
            ),
            (
                InitramfsError::NoProgram(String::from("btrfs")).into(),
                MISSING,
            ),
        ] {
            assert_eq!(told(&error, false).0, code, "{error}");
        }
        let stopped = LabError::Interrupted(interrupt::Interrupted);
        let (code, message) = told(&stopped, true);
        assert_eq!(
            (code, message.as_str()),
            (FAILURE, "interrupted; finished runs are kept")
        );
    }

    #[test]
    fn too_little_memory_is_not_helped_by_another_disk() {
        let (plan, _) = read_plan(Path::new("quick")).unwrap();
        let error = LabError::NoMemory {
            needed_mib: 2,
            available_mib: 1,
        };
        let failure = lab_failure(&error, &plan, &named_devices::args_of(&[]), false);
        let hint = failure.hint_text().unwrap_or_default();
        assert!(
            hint.contains("memory in the plan") && !hint.contains("-o"),
            "{hint}"
        );
    }

    #[test]
    fn missing_packages_are_told_with_apts_line() {
        let missing = vec![String::from("fio"), String::from("xfsprogs")];
        let failure = packages_failure(packages::to_install(missing, false).unwrap_err());
        assert_eq!(failure.code(), MISSING);
        assert_eq!(
            failure.message(),
            "the lab needs the Debian packages fio xfsprogs"
        );
    }

    #[test]
    fn install_is_a_flag_of_its_own() {
        use clap::Parser;
        let read = |words: &[&str]| {
            let words = ["nestrace-lab", "run", "quick"].iter().chain(words);
            crate::Cli::try_parse_from(words)
        };
        let install = |words: &[&str]| match read(words).unwrap().command {
            LabCommand::Run(args) => args.install,
            other => panic!("{other:?}"),
        };
        assert!(install(&["--install", "-o", "x"]) && !install(&[]));
        assert!(read(&["--install=yes"]).is_err());
    }
}
