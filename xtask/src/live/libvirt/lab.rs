//! `nestrace lab` with a guest of the user's: a domain that runs, gets disks and loses them again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_lab::external_tool::{Tool, find_program, last_lines};
use nestrace_lab::{interrupt, packages};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use super::daemon::Libvirt;
use super::domain::Domain;
use crate::live::case::Case;
use crate::live::lab::read;
use crate::live::rig::LiveContext;
use crate::progress::Progress;
use crate::recorder::analyze;

/// QEMU's guest agent, by which the lab runs commands in the domain.
const AGENT: &str = "qemu-ga";
const AGENT_PACKAGE: &str = "qemu-guest-agent";
/// Until a lab has measured its devices and given a domain its first disk.
const ATTACH_PATIENCE: Duration = Duration::from_secs(90);
const CELLS: [&str; 2] = ["ext4-on-bd", "ext4-on-ext4"];

/// A folder whose mounts are seen by a libvirtd that was started later, as they would be without a namespace.
#[derive(Debug)]
pub struct SharedFolder {
    folder: TempDir,
}

impl SharedFolder {
    pub fn make() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-shared-")
            .tempdir()
            .context("make a folder")?;
        let none = None::<&str>;
        mount(
            Some(folder.path()),
            folder.path(),
            none,
            MsFlags::MS_BIND,
            none,
        )
        .context("bind a folder to itself")?;
        let this = Self { folder };
        mount(none, this.path(), none, MsFlags::MS_SHARED, none).context("share its mounts")?;
        Ok(this)
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SharedFolder {
    fn drop(&mut self) {
        let _ = umount2(self.folder.path(), MntFlags::MNT_DETACH);
    }
}

/// Installs the guest agent's package.
pub fn install_agent(progress: &Progress) -> anyhow::Result<()> {
    if find_program(AGENT).is_none() {
        packages::install_named(vec![AGENT_PACKAGE.to_owned()], |line| progress.say(line))?;
    }
    Ok(())
}

/// Starts the guest agent in a domain, from this machine's files.
fn start_agent(domain: &Domain<'_>) -> anyhow::Result<()> {
    let program = find_program(AGENT).context("find the guest agent")?;
    let folders: Vec<String> = ["lib", "usr/lib"]
        .iter()
        .map(|folder| format!("/machine/{folder}/x86_64-linux-gnu"))
        .collect();
    let script = format!(
        "set -e\nload 9pnet_virtio 9p ext4\nmkdir -p /machine\n\
         mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose machine /machine\n\
         LD_LIBRARY_PATH={} setsid /machine{} -m virtio-serial -p $(port org.qemu.guest_agent.0) -t /run \
         > /run/qemu-ga.log 2>&1 < /dev/null &\n\
         sleep 1; kill -0 $! || {{ cat /run/qemu-ga.log >&2; exit 1; }}",
        folders.join(":"),
        program.display()
    );
    domain.run_ok(&script, Duration::from_secs(60))?;
    Ok(())
}

pub fn run(
    case: &mut Case,
    ctx: &LiveContext,
    libvirt: &Libvirt,
    domain: &Domain<'_>,
    shared: &SharedFolder,
) -> anyhow::Result<()> {
    start_agent(domain)?;
    let before = disks(libvirt, domain)?;
    let plan = shared.path().join("plan.toml");
    let results = shared.path().join("results");
    let text = format!(
        "name = 'own'\nrepetitions = 1\nseconds = 2\nwarm_up_seconds = 0\nrecord_seconds = 1\n\
         image_size = '128M'\ndata_size = '4M'\nagent = false\n\
         [guest]\ndomain = '{}'\n[axes]\nhost_fs = 'ext4'\n[[workload]]\nname = 'randwrite'\n",
        domain.name()
    );
    std::fs::write(&plan, text).context("write a plan")?;
    let start = Instant::now();
    let lab = || {
        let mut command = Command::new(&ctx.nestrace);
        command
            .args(["lab", "run"])
            .arg(&plan)
            .arg("-o")
            .arg(&results)
            .env("LIBVIRT_DEFAULT_URI", libvirt.uri())
            .stdin(Stdio::null());
        command
    };
    kill_with_disks_attached(&mut lab(), || Ok(disks(libvirt, domain)? != before))?;
    // Takes away what the first one left, and goes on.
    let output = lab().output().context("start nestrace lab run")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("nestrace lab run: {}", last_lines(&stderr, 12));
    }
    for id in CELLS {
        let cell = read(&results.join(format!("{id}.json")))?;
        case.equal(id, cell["failures"].to_string().as_str(), "[]");
        let value = cell["runs"][0]["value"].as_f64().unwrap_or(0.0);
        case.holds(id, value > 0.0, "no value");
        // The recording has QEMU's requests of this very disk.
        let analysis = analyze(&ctx.nestrace, &results.join(format!("{id}.nest")))?;
        let disk = cell["disk"].as_str().unwrap_or_default();
        let counted = analysis["qemu"].as_array().into_iter().flatten();
        let counted = counted.filter(|one| one["disk"] == disk).count();
        let what = format!("the recording does not have {disk}");
        case.holds(id, counted > 0, &what);
    }
    case.equal("disks afterwards", disks(libvirt, domain)?, before);
    let left = Tool::new("losetup")
        .args(["--list", "--noheadings"])
        .run()?;
    let own = shared.path().display().to_string();
    case.holds("loop devices", !left.contains(&own), &left);
    case.figure(format!("{:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// Kills a lab as soon as the domain has more disks than it had.
fn kill_with_disks_attached(
    lab: &mut Command,
    has_more: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut child = lab
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start nestrace lab run")?;
    let begin = Instant::now();
    let mut has_attached = false;
    while !has_attached && begin.elapsed() < ATTACH_PATIENCE && child.try_wait()?.is_none() {
        interrupt::check()?;
        thread::sleep(Duration::from_millis(100));
        has_attached = has_more()?;
    }
    let _ = child.kill();
    let status = child.wait().context("wait for nestrace lab run")?;
    if !has_attached {
        bail!("nestrace lab run gave the domain no disk ({status})");
    }
    Ok(())
}

fn disks(libvirt: &Libvirt, domain: &Domain<'_>) -> anyhow::Result<String> {
    libvirt.virsh(&["domblklist", domain.name()])
}
