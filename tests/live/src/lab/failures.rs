//! What goes wrong in a lab: it is stopped, it is killed, and cells fail each for themselves.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::external_tool::{Tool, last_lines};
use nestrace_rig::{guest_folder, interrupt};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::case::Case;

use super::{name, read};

/// Until a cell has its first result, or a lab that was stopped has cleaned up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Mount options that no file system knows, a workload that fails, one that crashes its guest, one that hangs, and one
/// that cannot be killed because its file system is frozen. By this seed two cells with results come among the first
/// three: what fails runs again each time that the lab is started.
const PLAN: &str = "name = 'failures'
repetitions = 1
seed = 4
record = false
image_size = '128M'
data_size = '4M'

[axes]
host_fs = ['ext4', 'bd']
host_mount_options = ['', 'bogus']

[[workload]]
name = 'works'
command = 'dd if=/dev/zero of=a bs=64k count=16 conv=fsync'

[[workload]]
name = 'fails'
command = 'echo no such luck >&2; exit 3'

[[workload]]
name = 'panics'
command = 'echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger; sleep 60'

[[workload]]
name = 'hangs'
command = 'echo begun; sleep 1000 & sleep 1000'
seconds = 1
most_seconds = 8

[[workload]]
name = 'stuck'
command = 'fsfreeze --freeze .; echo frozen; echo more > file'
seconds = 1
most_seconds = 8

[[exclude]]
host_fs = 'ext4'
workload = ['fails', 'panics', 'hangs', 'stuck']
";
/// Cells, and what their failure says; those without one have a result.
const CELLS: [(&str, &[&str]); 7] = [
    ("ext4-on-bd-works", &[]),
    ("ext4-on-ext4-works", &[]),
    ("ext4-on-ext4-host-bogus-works", &["bogus"]),
    ("ext4-on-bd-fails", &["status 3: no such luck"]),
    (
        "ext4-on-bd-panics",
        &["Kernel panic - not syncing: sysrq triggered crash"],
    ),
    ("ext4-on-bd-hangs", &["it took too long", "begun"]),
    ("ext4-on-bd-stuck", &["it took too long", "frozen"]),
];

/// A lab, its program and where it works.
struct Lab<'a> {
    program: &'a Path,
    plan: String,
    results: String,
    /// Its folder of temporary files, which no other program uses.
    temporary: &'a Path,
}

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let plan = folder.join("failures.toml");
    std::fs::write(&plan, PLAN).context("write a plan")?;
    let results = folder.join("failures");
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).context("make a folder of temporary files")?;
    let lab = Lab {
        program,
        temporary: &temporary,
        plan: name(&plan)?.to_owned(),
        results: name(&results)?.to_owned(),
    };
    let start = Instant::now();
    let said = lab.stopped(Signal::SIGINT)?;
    case.holds("Ctrl-C", said.contains("finished runs are kept"), &said);
    lab.nothing_is_left(case, "Ctrl-C")?;
    lab.stopped(Signal::SIGKILL)?;
    let output = lab.command().output().context("start nestrace lab run")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    case.equal("exit", output.status.code().unwrap_or(-1), 0);
    case.holds("told", stderr.contains("cells failed"), &stderr);
    lab.nothing_is_left(case, "the end")?;
    for (id, says) in CELLS {
        one(case, &results, id, says)?;
    }
    case.figure(format!("{:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// A cell failed as it had to, or has its results.
fn one(case: &mut Case, results: &Path, id: &str, says: &[&str]) -> anyhow::Result<()> {
    let cell = read(&results.join(format!("{id}.json")))?;
    let runs = cell["runs"].as_array().map_or(0, Vec::len);
    let failures = cell["failures"].to_string();
    if says.is_empty() {
        case.equal(id, failures.as_str(), "[]");
    }
    for word in says {
        case.holds(id, failures.contains(word), &failures);
    }
    case.equal(id, runs, if says.is_empty() { 1 } else { 0 });
    Ok(())
}

impl Lab<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(["lab", "run", &self.plan, "-o", &self.results])
            .env("TMPDIR", self.temporary)
            .stdin(Stdio::null());
        command
    }

    /// Results so far.
    fn n_results(&self) -> usize {
        let ids = CELLS.iter().map(|(id, _)| id);
        let cells =
            ids.filter_map(|id| read(&Path::new(&self.results).join(format!("{id}.json"))).ok());
        cells
            .filter_map(|cell: Value| Some(cell["runs"].as_array()?.len()))
            .sum()
    }

    /// Starts it, waits for one more result, sends a signal, and gives what it says.
    fn stopped(&self, signal: Signal) -> anyhow::Result<String> {
        let before = self.n_results();
        let mut child = self
            .command()
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start nestrace lab run")?;
        let got_one = wait_for(&mut child, || self.n_results() > before);
        let _ = kill(Pid::from_raw(child.id() as i32), signal);
        let output = child.wait_with_output().context("wait for the lab")?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if !got_one? {
            bail!("see a result of the lab: {}", last_lines(&stderr, 8));
        }
        Ok(stderr)
    }

    /// No device, mount, guest, working folder or folder of a guest.
    fn nothing_is_left(&self, case: &mut Case, when: &str) -> anyhow::Result<()> {
        let loops = Tool::new("losetup")
            .args(["--list", "--noheadings"])
            .run()?;
        case.holds(when, !loops.contains(&self.results), &loops);
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
        case.holds(when, !mounts.contains(&self.results), &mounts);
        let guests = Tool::new("ps").args(["-eo", "args"]).run()?;
        let own: Vec<&str> = guests
            .lines()
            .filter(|line| line.contains("qemu-system") && line.contains(&self.results))
            .collect();
        case.holds(when, own.is_empty(), &own.join("\n"));
        let work = Path::new(&self.results).join("work");
        case.holds(when, !work.exists(), "the folder of devices");
        let entries = self.temporary.read_dir().context("list temporary files")?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let names: Vec<String> = names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with(guest_folder::PREFIX))
            .collect();
        case.holds(when, names.is_empty(), &names.join(" "));
        Ok(())
    }
}

/// Whether it is so before the program ends, or too long after.
pub(super) fn wait_for(child: &mut Child, fits: impl Fn() -> bool) -> anyhow::Result<bool> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && child.try_wait()?.is_none() {
        interrupt::check()?;
        if fits() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(fits())
}
