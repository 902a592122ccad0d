//! The unit of `nestrace serve`, started by systemd itself with all that the package's file says: capabilities, filter of system
//! calls, file systems. The manager is one of its own, in a mount namespace, so no systemd has to run the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::packages;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xtask::case::Case;

use super::serving::{Address, Samples};
use super::slow_disk::{self, MAX_MISSED};
use super::{LiveContext, PATIENCE};
use crate::with_agents::counts::guest_stat;
use crate::with_agents::recording::device_in_guest;

const UNIT: &str = include_str!("../../../../packaging/nestrace-serve.service");
const SERVE: &str = "nestrace-serve";
/// The same unit with a shell in the server's place.
const SHELL: &str = "nestrace-shell";

const FAST: &str = "of-unit";
const SLOW: &str = "slow-of-unit";
const COUNT: &str = "nestrace_io_seconds_count";

/// Where the manager's program is.
const MANAGER: &str = "/lib/systemd/systemd";
/// Puts itself into groups of its own, since a manager moves all processes of its group; makes what systemd looks for to see that it
/// runs the machine, since a manager for users asks for that; and becomes the manager.
const START: &str = r#"
for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -f "$tree/cgroup.procs" ] && mkdir "$tree/$1" && echo $$ > "$tree/$1/cgroup.procs"
done
mkdir -p /run/systemd && mount --make-rprivate / && mount -t tmpfs none /run/systemd && mkdir /run/systemd/system &&
exec "$0" --user --unit=basic.target --log-target=console"#;

/// What a process of the unit tries, and what the shell has to see then.
const ATTEMPTS: [(&str, &str, Outcome); 15] = [
    ("own-folder", ": > $RUNTIME_DIRECTORY/file", Outcome::Works),
    ("read-shadow", ": < /etc/shadow", Outcome::Works),
    ("write-etc", ": > /etc/nestrace-proof", Outcome::Fails),
    ("write-tmp", ": > /tmp/nestrace-proof", Outcome::Fails),
    ("write-var", ": > /var/lib/nestrace-proof", Outcome::Fails),
    ("write-home", ": > /root/nestrace-proof", Outcome::Fails),
    ("chown", "chown 1:1 $RUNTIME_DIRECTORY/file", Outcome::Fails),
    (
        "device-file",
        "mknod $RUNTIME_DIRECTORY/disk b 7 0",
        Outcome::Fails,
    ),
    (
        "packet-socket",
        "perl -e 'exit(syscall(41, 17, 3, 0) < 0)'",
        Outcome::Fails,
    ),
    (
        "code-in-memory",
        "perl -e 'exit(syscall(9, 0, 4096, 7, 0x22, -1, 0) == -1)'",
        Outcome::Fails,
    ),
    (
        "mount",
        "perl -e 'syscall(165, 0, 0, 0, 0, 0)'",
        Outcome::Killed,
    ),
    (
        "set-clock",
        "perl -e 'syscall(227, -1, 0)'",
        Outcome::Killed,
    ),
    (
        "load-module",
        "perl -e 'syscall(175, 0, 0, 0)'",
        Outcome::Killed,
    ),
    ("swap", "perl -e 'syscall(168, 0)'", Outcome::Killed),
    // Without the numbers that it wants it would do nothing.
    (
        "reboot",
        "perl -e 'syscall(169, 0, 0, 0, 0)'",
        Outcome::Killed,
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Works,
    Fails,
    /// By the filter of system calls (SIGSYS).
    Killed,
}

impl Outcome {
    fn of(status: &str) -> Self {
        match status {
            "0" => Self::Works,
            "159" => Self::Killed,
            _ => Self::Fails,
        }
    }
}

/// A running systemd that knows the units of one folder. Dropping it ends it and what it started.
struct Manager {
    child: Child,
    folder: TempDir,
    /// The name of its groups of processes.
    group: String,
}

impl Manager {
    fn start() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-unit-")
            .tempdir()?;
        let units = folder.path().join("units");
        fs::create_dir_all(&units)?;
        fs::create_dir_all(folder.path().join("run"))?;
        for target in ["basic", "shutdown", "exit"] {
            fs::write(units.join(format!("{target}.target")), "[Unit]\n")?;
        }
        let group = format!("nestrace-unit-{}", std::process::id());
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", START, MANAGER, &group])
            .env("XDG_RUNTIME_DIR", folder.path().join("run"))
            .env("SYSTEMD_UNIT_PATH", &units)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("manager"))?);
        ends_with_us(&mut command, Signal::SIGKILL);
        let manager = Self {
            child: command.spawn().context("start systemd's manager")?,
            folder,
            group,
        };
        let deadline = Instant::now() + PATIENCE;
        while manager.control(&["is-active", "basic.target"]).is_err() {
            let said = || fs::read_to_string(manager.folder.path().join("manager"));
            ensure!(Instant::now() < deadline, "see it start: {:?}", said());
            thread::sleep(Duration::from_millis(200));
        }
        Ok(manager)
    }

    fn control(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Tool::new("systemctl")
            .arg("--user")
            .args(arguments)
            .env(
                "XDG_RUNTIME_DIR",
                &self.folder.path().join("run").to_string_lossy(),
            )
            .run()?;
        Ok(output)
    }

    /// Starts the package's unit with another command. What it says goes into a file.
    fn start_unit(&self, name: &str, command: &str, more: &str) -> anyhow::Result<()> {
        let units = self.folder.path().join("units");
        let said = self.said(name);
        let drop_in = units.join(format!("{name}.service.d"));
        fs::create_dir_all(&drop_in)?;
        fs::write(units.join(format!("{name}.service")), UNIT)?;
        fs::write(
            drop_in.join("test.conf"),
            format!(
                "[Service]\nExecStart=\nExecStart={command}\nRestart=no\nStandardError=truncate:{0}\n\
                 StandardOutput=truncate:{0}\n{more}",
                said.display()
            ),
        )?;
        self.control(&["daemon-reload"])?;
        self.control(&["restart", name])?;
        Ok(())
    }

    fn said(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.said"))
    }

    /// A started server's address.
    fn address(&self) -> anyhow::Result<Address> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = fs::read_to_string(self.said(SERVE))?;
            let address = said.split_once("serving ").and_then(|(_, rest)| {
                let line = rest.lines().next()?;
                Some(match line.strip_prefix("/metrics on ") {
                    Some(path) => Address::Unix(path.into()),
                    None => {
                        let address = line.strip_prefix("http://")?.split('/').next()?;
                        Address::Loopback(address.parse().ok()?)
                    }
                })
            });
            if let Some(address) = address {
                return Ok(address);
            }
            ensure!(Instant::now() < deadline, "see it serve: {said}");
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.control(&["stop", SERVE, SHELL]);
        let _ = self.child.kill();
        let _ = self.child.wait();
        let trees = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        let root = std::iter::once(PathBuf::from("/sys/fs/cgroup"));
        for tree in root.chain(trees.map(|tree| tree.path())) {
            remove_group(&tree.join(&self.group));
        }
    }
}

/// Removes a group of processes with those below it.
fn remove_group(group: &Path) {
    let inside = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in inside.filter(|entry| entry.path().is_dir()) {
        remove_group(&entry.path());
    }
    let _ = fs::remove_dir(group);
}

fn samples(address: &Address) -> anyhow::Result<Samples> {
    let answer = address.get("/metrics").context("scrape")?;
    ensure!(answer.status == 200, "be answered: {}", answer.head);
    Ok(Samples::parse(&answer.body))
}

fn wait_for(address: &Address, says: impl Fn(&Samples) -> bool) -> anyhow::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if says(&samples(address)?) {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(500));
    }
    Ok(false)
}

/// What the unit's server shows of a guest with an agent, and what a shell in its place cannot do.
pub fn unit(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let programs = [("systemctl", "systemd"), ("capsh", "libcap2-bin")];
    packages::install_programs(&programs, |line| ctx.progress.say(line))?;
    let guest = slow_disk::boot(ctx, host, "unit", (FAST, SLOW))?;
    let group_of_first = || fs::read_to_string("/proc/1/cgroup");
    let group_before = group_of_first()?;
    let manager = Manager::start()?;
    let serve = |listen: &str| {
        let program = ctx.nestrace.display();
        format!("{program} serve --listen {listen} --guest {}", guest.name())
    };
    manager.start_unit(SERVE, &serve("127.0.0.1:0"), "")?;
    let address = manager.address()?;
    let of = |samples: &Samples, layer: &str| {
        let labels = [("disk", FAST), ("op", "read"), ("layer", layer)];
        samples.sum(COUNT, &labels) as u64
    };
    let has_layer = |samples: &Samples| {
        let layers = samples.values(COUNT, "layer", &[("disk", FAST)]);
        layers.iter().any(|layer| layer == "guest")
    };
    let comes = wait_for(&address, has_layer)?;
    let said = fs::read_to_string(manager.said(SERVE))?;
    case.holds("the guest's layer comes", comes, &said);
    let before = samples(&address)?;
    let name = device_in_guest(&guest, FAST)?;
    let (in_guest, disk) = (guest_stat(&guest, &name)?, guest.disk_stats(FAST)?);
    guest.run_ok(&super::load(&guest.device_of(FAST)?), PATIENCE)?;
    let in_guest = guest_stat(&guest, &name)?.since(&in_guest).reads;
    let reads = guest.disk_stats(FAST)?.since(&disk).reads;
    let grown = |samples: &Samples, layer: &str| of(samples, layer) - of(&before, layer);
    let all_seen = wait_for(&address, |now| {
        let seen = grown(now, "guest");
        grown(now, "qemu") == reads && seen <= in_guest && in_guest - seen <= MAX_MISSED
    })?;
    let now = samples(&address)?;
    let seen = format!(
        "reads of QEMU {} of {reads}, of the guest {} of {in_guest}, of the image {}",
        grown(&now, "qemu"),
        grown(&now, "guest"),
        grown(&now, "file_io")
    );
    case.holds("counts under the unit", all_seen, &seen);
    case.figure(seen);
    of_device(case, &now, host);
    rights(case, &manager)?;
    attempts(case, &manager)?;
    // A socket where the unit gives it a folder.
    manager.start_unit(SERVE, &serve("unix:%t/nestrace/metrics"), "")?;
    let comes = wait_for(&manager.address()?, |now| {
        !now.values(COUNT, "disk", &[("disk", FAST)]).is_empty()
    })?;
    case.holds("it serves on a socket in its folder", comes, "it does not");
    manager.control(&["stop", SERVE])?;
    let result = manager.control(&["show", SERVE, "-p", "Result", "--value"])?;
    case.equal("it ends well", result.trim(), "success");
    case.equal("others' groups", group_of_first()?, group_before);
    Ok(())
}

fn of_device(case: &mut Case, now: &Samples, host: &HostFs) {
    for layer in ["host_queue", "device"] {
        let labels = [("device", host.device()), ("op", "write"), ("layer", layer)];
        let n = now.sum(COUNT, &labels);
        case.holds(&format!("layer {layer}"), n > 0.0, "it has no requests");
    }
}

/// The server's process has what the unit says.
fn rights(case: &mut Case, manager: &Manager) -> anyhow::Result<()> {
    let show = |property: &str| {
        let shown = manager.control(&["show", SERVE, "-p", property, "--value"])?;
        Ok::<_, anyhow::Error>(shown.trim().to_owned())
    };
    let pid = show("MainPID")?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of_status = |name: &str| {
        let mut lines = status.lines();
        let rest = lines.find_map(|line| line.strip_prefix(name));
        rest.map_or("", |rest| rest.trim_start_matches(':').trim())
            .to_owned()
    };
    let wanted = UNIT
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .context("see the unit's capabilities")?;
    // Where this test has less than root, so has the manager.
    let ours = bounding_set(&fs::read_to_string("/proc/self/status")?)?;
    let wanted = wanted.split(' ').map(str::to_lowercase);
    let wanted: BTreeSet<String> = wanted.filter(|name| ours.contains(name)).collect();
    let joined = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
    let has = bounding_set(&status)?;
    case.equal("its bounding set", joined(has), joined(wanted));
    let effective = of_status("CapEff");
    case.equal("its capabilities", effective, of_status("CapBnd"));
    case.equal("no new privileges", of_status("NoNewPrivs"), "1".to_owned());
    case.equal(
        "a filter of system calls",
        of_status("Seccomp"),
        "2".to_owned(),
    );
    Ok(())
}

/// The names in a process' bounding set, of its `/proc/PID/status`.
fn bounding_set(status: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut lines = status.lines();
    let set = lines.find_map(|line| line.strip_prefix("CapBnd:"));
    let set = set.context("see the bounding set")?.trim();
    let names = Tool::new("capsh").arg(format!("--decode={set}")).run()?;
    let names = names.trim().split_once('=').map_or("", |(_, names)| names);
    Ok(names.split(',').map(str::to_owned).collect())
}

/// A shell with the same rights.
fn attempts(case: &mut Case, manager: &Manager) -> anyhow::Result<()> {
    let script = manager.folder.path().join("attempts");
    let lines = ATTEMPTS.map(|(name, command, _)| format!("({command}) 2>&-; echo {name} $?\n"));
    fs::write(&script, lines.concat())?;
    let command = format!("/bin/sh {}", script.display());
    manager.start_unit(SHELL, &command, "Type=oneshot\n")?;
    let said = fs::read_to_string(manager.said(SHELL))?;
    for (name, _, outcome) in ATTEMPTS {
        let mut lines = said.lines();
        let status = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let seen = status.map(Outcome::of);
        let what = format!("{name}: {outcome:?}");
        case.holds(
            &what,
            seen == Some(outcome),
            &format!("{status:?} in {said}"),
        );
    }
    let proof = ["/etc", "/tmp", "/var/lib", "/root"];
    let left = proof.map(|folder| Path::new(folder).join("nestrace-proof"));
    let n_left = left.iter().filter(|file| file.exists()).count();
    case.equal("files that it left", n_left, 0);
    Ok(())
}
