//! What every live scenario starts from: the programs, a kernel, a folder.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::initramfs::{self, Initramfs};
use nestrace_rig::kernel_image::{self, KernelImage};
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nestrace_rig::{disk_image, modelled_disk, packages, root};
use tempfile::TempDir;
use xtask::cargo_build::{self, Profile};
use xtask::guest_programs;
use xtask::progress::Progress;

use crate::long_cases::is_long;

/// A guest with an agent: its initramfs, and the rings of the probes.
const AGENT_MEMORY_MIB: u32 = 768;
/// A newer kernel ends the first programs in less: loading the agent's probes takes more there.
const NEWER_MEMORY_MIB: u32 = 1536;

/// Shared by all scenarios.
#[derive(Debug)]
pub struct LiveContext {
    /// The program under test, built with the dev profile unless one was given.
    pub nestrace: PathBuf,
    /// Kernel of the guests.
    pub kernel: KernelImage,
    /// User space of the guests.
    pub initramfs: Initramfs,
    /// Every combination instead of the covering set.
    pub full: bool,
    /// Says what is going on.
    pub progress: Progress,
    agent: OnceLock<PathBuf>,
    only: Vec<String>,
    keep: bool,
    folder: TempDir,
    backing_folder: PathBuf,
    /// Its number among the lanes of this process.
    lane: usize,
}

impl LiveContext {
    /// Installs, builds and downloads what is missing; `nestrace` is tested instead of a fresh build.
    pub fn prepare(
        nestrace: Option<PathBuf>,
        full: bool,
        progress: Progress,
    ) -> anyhow::Result<Self> {
        root::require()?;
        packages::install(|line| progress.say(line))?;
        let nestrace = match nestrace {
            Some(program) => program,
            // The lab and the modelled disks lie beside it.
            None => {
                let beside = ["nestrace-lab", "nestrace-disk"];
                cargo_build::build_with("nestrace", &beside, Profile::Dev)?
            }
        };
        let kernel = kernel_image::obtain("6.1")?;
        let initramfs = initramfs::obtain(&kernel)?;
        let folder = recordings()?;
        let backing_folder = std::env::temp_dir();
        Ok(Self {
            nestrace,
            kernel,
            initramfs,
            full,
            progress,
            agent: OnceLock::new(),
            only: Vec::new(),
            keep: false,
            folder,
            backing_folder,
            lane: 0,
        })
    }

    /// The same for scenarios that run beside these: names and a folder of their own.
    pub fn beside(&self, lane: usize) -> anyhow::Result<Self> {
        Ok(Self {
            nestrace: self.nestrace.clone(),
            kernel: self.kernel.clone(),
            initramfs: self.initramfs.clone(),
            full: self.full,
            progress: self.progress,
            agent: self.agent.clone(),
            only: self.only.clone(),
            keep: self.keep,
            folder: recordings()?,
            backing_folder: self.backing_folder.clone(),
            lane,
        })
    }

    /// Restricts the cases of stages to those with these prefixes (`stacks/xfs/raw`).
    pub fn only(mut self, prefixes: &[String]) -> Self {
        self.only = prefixes.to_vec();
        self
    }

    /// Uses this agent in guests instead of building one.
    pub fn with_agent(mut self, agent: Option<PathBuf>) -> anyhow::Result<Self> {
        // Some guests see this machine's files from their root.
        let agent = agent.map(std::path::absolute).transpose();
        let agent = agent.context("name the agent from the root")?;
        self.agent = agent.map_or_else(OnceLock::new, OnceLock::from);
        Ok(self)
    }

    /// Keeps the recordings of the cases too.
    pub fn keeping(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Leaves the folder with the recordings behind, where they are kept.
    pub fn keep_folder(self) -> Option<PathBuf> {
        self.keep.then(|| self.folder.keep())
    }

    /// Whether a case is wanted; `case` begins with its stage. A long one has to be asked for by its name or by
    /// `--full`.
    pub fn wants(&self, case: &str) -> bool {
        let stage = case.split('/').next().unwrap_or(case);
        let about_this = |only: &&String| only.split('/').next() == Some(stage);
        let mut prefixes = self.only.iter().filter(about_this).peekable();
        let fits = |prefix: &String| {
            case.starts_with(prefix.as_str()) && (prefix.contains('/') || self.runs_unnamed(case))
        };
        match prefixes.peek() {
            None => self.runs_unnamed(case),
            Some(_) => prefixes.any(fits),
        }
    }

    fn runs_unnamed(&self, case: &str) -> bool {
        self.full || !is_long(case)
    }

    /// Copies an archive out of a guest and unpacks it in a folder of its own, which
    /// [`Self::discard`] removes.
    pub fn fetch_archive(
        &self,
        guest: &Guest,
        name: &str,
        archive: &str,
    ) -> anyhow::Result<PathBuf> {
        let folder = self.bundle(name);
        std::fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let copy = folder.join("fetched.tar");
        guest.get_file(archive, &copy)?;
        Tool::new("tar")
            .arg("-xf")
            .arg(&copy)
            .arg("-C")
            .arg(&folder)
            .run()?;
        Ok(folder)
    }

    /// A path for a recording that does not exist yet; the folder is removed at the end.
    pub fn bundle(&self, name: &str) -> PathBuf {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let free = |n: &u32| !self.folder.path().join(format!("{name}-{n}.nest")).exists();
        let n = (0..).find(free).unwrap_or_default();
        self.folder.path().join(format!("{name}-{n}.nest"))
    }

    /// Removes a recording that is not needed any more, unless recordings are kept.
    pub fn discard(&self, bundle: &Path) {
        if !self.keep {
            let _ = std::fs::remove_dir_all(bundle);
        }
    }

    /// A name for a guest that no other run uses, and no other lane of this one.
    pub fn guest_name(&self, purpose: &str) -> String {
        format!("nestrace-{purpose}-{}-{}", std::process::id(), self.lane)
    }

    /// A guest without disks yet.
    pub fn guest_spec(&self, name: &str) -> GuestSpec {
        GuestSpec::new(name, &self.kernel, &self.initramfs)
    }

    /// A guest with the agent, which is built when it is first asked for.
    pub fn agent_guest_spec(&self, name: &str) -> anyhow::Result<GuestSpec> {
        Ok(GuestSpec {
            agent: Some(self.agent()?.to_owned()),
            memory_mib: AGENT_MEMORY_MIB,
            ..self.guest_spec(name)
        })
    }

    /// The same with the newest kernel of a series.
    pub fn agent_guest_spec_of(&self, name: &str, series: &str) -> anyhow::Result<GuestSpec> {
        let kernel = kernel_image::obtain(series)?;
        Ok(GuestSpec {
            initramfs: initramfs::obtain(&kernel)?,
            kernel,
            memory_mib: NEWER_MEMORY_MIB,
            ..self.agent_guest_spec(name)?
        })
    }

    /// What serves modelled disks: it lies beside the program under test.
    pub fn disk_program(&self) -> PathBuf {
        self.nestrace.with_file_name(modelled_disk::PROGRAM)
    }

    /// The agent for guests.
    pub fn agent(&self) -> anyhow::Result<&Path> {
        if let Some(agent) = self.agent.get() {
            return Ok(agent);
        }
        self.progress.say("building the agent for guests");
        let agent = guest_programs::agent()?;
        Ok(self.agent.get_or_init(|| agent))
    }

    /// Builds what scenarios copy into guests.
    pub fn build_guest_programs(&self) -> anyhow::Result<()> {
        self.agent()?;
        guest_programs::stamp_writer()?;
        guest_programs::call_writer()?;
        guest_programs::hostile_agent()?;
        Ok(())
    }

    /// Boots a guest with these disks.
    pub fn boot(&self, name: &str, disks: Vec<DiskSpec>) -> anyhow::Result<Guest> {
        let spec = GuestSpec {
            disks,
            ..self.guest_spec(name)
        };
        Ok(Guest::boot(spec)?)
    }

    /// A host file system over a file on disk; with `direct_io` the loop device uses O_DIRECT.
    pub fn host_fs(
        &self,
        kind: HostFsKind,
        direct_io: bool,
        options: &str,
    ) -> anyhow::Result<HostFs> {
        let spec = HostFsSpec {
            direct_io,
            backing_folder: self.backing_folder.clone(),
            mount_options: options.to_owned(),
            ..HostFsSpec::new(kind)
        };
        Ok(HostFs::create(&spec)?)
    }

    /// A disk whose image lies on `host`.
    pub fn disk(
        &self,
        host: &HostFs,
        id: &str,
        stack: DiskStack,
        size_bytes: u64,
        preallocation: &str,
    ) -> anyhow::Result<DiskSpec> {
        let image = host.path().join(format!("{id}.{}", stack.format));
        disk_image::create(&image, stack.format, size_bytes, preallocation)?;
        Ok(DiskSpec::new(id, image, stack))
    }
}

fn recordings() -> anyhow::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("nestrace-test-")
        .tempdir()
        .context("make a folder for recordings")
}
