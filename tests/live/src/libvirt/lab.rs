//! `nestrace lab` with a guest of the user's: a domain that runs, gets disks and loses them again.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::agent::{LOG, wait_script};
use nestrace_rig::external_tool::find_program;
use nestrace_rig::packages;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;
use xtask::case::Case;
use xtask::progress::Progress;

use super::daemon::Libvirt;
use super::domain::Domain;
use crate::context::LiveContext;
use crate::lab::own_guest::{self, OwnGuest};

/// QEMU's guest agent, by which the lab runs commands in the domain.
const AGENT: &str = "qemu-ga";
const AGENT_PACKAGE: &str = "qemu-guest-agent";

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
    packages::install_programs(&[(AGENT, AGENT_PACKAGE)], |line| progress.say(line))?;
    Ok(())
}

/// Starts QEMU's guest agent in a domain, from this machine's files.
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

/// Starts nestrace's agent in it, and waits until its programs are loaded.
fn start_our_agent(domain: &Domain<'_>, ctx: &LiveContext) -> anyhow::Result<()> {
    let program = ctx.agent()?.canonicalize().context("find the agent")?;
    let script = format!(
        "setsid /machine{} > {LOG} 2>&1 < /dev/null &\n{}",
        program.display(),
        wait_script(Duration::from_secs(60))
    );
    domain.run_ok(&script, Duration::from_secs(90))?;
    Ok(())
}

/// The lab in this domain, commands by QEMU's guest agent.
pub fn run(
    case: &mut Case,
    ctx: &LiveContext,
    libvirt: &Libvirt,
    domain: &Domain<'_>,
    shared: &SharedFolder,
) -> anyhow::Result<()> {
    start_agent(domain)?;
    start_our_agent(domain, ctx)?;
    let disks = || libvirt.virsh(&["domblklist", domain.name()]);
    let own = OwnGuest {
        folder: shared.path(),
        section: format!("domain = '{}'", domain.name()),
        environment: vec![("LIBVIRT_DEFAULT_URI", libvirt.uri())],
        disks: &disks,
    };
    own_guest::run(case, ctx, &own)
}
