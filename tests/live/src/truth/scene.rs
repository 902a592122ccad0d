//! A guest with one disk whose requests QEMU logs, and a recording of it beside strace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_analyzer::Identified;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::stack::{DiskStack, HostFsKind, ImageFormat};
use nestrace_stamp::Write;
use nestrace_trace::{Event, Kind, Manifest, TimeOrdered};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use xtask::case::Case;
use xtask::guest_programs;

use super::flush_names;
use super::qemu_log;
use super::stories::{self, Story};
use super::system_calls::{self, WriteCall};
use crate::context::LiveContext;
use crate::direct_io_link::{host_events, stream_events};
use crate::measure::{Measured, Watched};
use crate::nameless_qemu;
use crate::stage::manifest;
use crate::with_agents::counts::DiskCounts;
use crate::with_agents::recording::{boot_with, device_in_guest, measure};

/// The disk.
pub const DISK: &str = "stamped";
/// Its size: every block of it is written.
pub const DISK_BYTES: u64 = 24 << 20;
const WRITER: &str = "/opt/stamp-writer";
const LOG_IN_GUEST: &str = "/tmp/stamps.csv";

/// The arguments of `stamp-writer`.
pub struct Writer {
    threads: u32,
    rewrites: u32,
    hot: u32,
    overlap: bool,
    flush_every: u32,
    /// What part of the writes has to be linked; without it, all that had no equal one beside them.
    pub linked: Option<f64>,
}

impl Writer {
    /// Every block once and some again and again, a block never twice at once.
    pub const REWRITES: Self = Self {
        threads: 6,
        rewrites: 3000,
        hot: 16,
        overlap: false,
        flush_every: 100,
        linked: Some(0.999),
    };
    /// The same few sectors again and again, also at once.
    pub const STORM: Self = Self {
        threads: 8,
        rewrites: 6000,
        hot: 2,
        overlap: true,
        flush_every: 50,
        linked: None,
    };
}

/// What records inside the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The probes: events name bios and requests.
    Ebpf,
    /// The kernel's own, which names neither.
    Blktrace,
}

impl Backend {
    const fn option(self) -> &'static str {
        match self {
            Self::Ebpf => "--backend ebpf",
            Self::Blktrace => "--backend blktrace",
        }
    }
}

/// Whether QEMU exports the functions that nestrace looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Functions {
    /// It does.
    Exported,
    /// It does not.
    None,
}

/// The guest and the file system of its image.
pub struct Scene<'a> {
    ctx: &'a LiveContext,
    functions: Functions,
    backend: Backend,
    guest: Guest,
    host: HostFs,
    device: String,
    folder: TempDir,
}

/// What one recording of the scene left.
pub struct Seen {
    /// Counts and analysis.
    pub measured: Measured<DiskCounts>,
    /// The recording's own facts.
    pub manifest: Manifest,
    /// Events of the host.
    pub host_events: Vec<Event>,
    /// Events of the guest's disk.
    pub guest_events: Vec<Event>,
    /// Every linked bio.
    pub stories: Vec<Story>,
    /// The requests that QEMU logged.
    pub log: Vec<qemu_log::Request>,
}

impl Seen {
    /// Flushes of both sides; blktrace's completions name no bio.
    pub fn flushes_end_by_name(&self, case: &mut Case, backend: Backend) {
        if backend == Backend::Ebpf {
            flush_names::hold(case, "guest", &self.guest_events);
        }
        flush_names::hold(case, "host", &self.host_events);
    }
}

impl<'a> Scene<'a> {
    /// Boots the guest, with these arguments of QEMU besides.
    pub fn boot(
        ctx: &'a LiveContext,
        backend: Backend,
        host_fs: HostFsKind,
        stack: DiskStack,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let functions = Functions::Exported;
        Self::boot_on(ctx, functions, backend, host_fs, stack, arguments)
    }

    /// The same on a QEMU with or without functions that it exports.
    pub fn boot_on(
        ctx: &'a LiveContext,
        functions: Functions,
        backend: Backend,
        host_fs: HostFsKind,
        stack: DiskStack,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-truth-")
            .tempdir()
            .context("make a folder for QEMU's log")?;
        let host = ctx.host_fs(host_fs, true, "")?;
        let preallocation = match stack.format {
            ImageFormat::Raw => "full",
            // Clusters are allocated by the first writes.
            ImageFormat::Qcow2 => "off",
        };
        let disk = ctx.disk(&host, DISK, stack, DISK_BYTES, preallocation)?;
        let writer = guest_programs::stamp_writer()?;
        let mut extra_arguments = qemu_log::arguments(&folder.path().join("qemu.log"));
        extra_arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let qemu = match functions {
            Functions::Exported => None,
            Functions::None => Some(nameless_qemu::copy(folder.path())?),
        };
        let guest = boot_with(ctx, "truth", |spec| GuestSpec {
            qemu: qemu.unwrap_or(spec.qemu),
            disks: vec![disk],
            files: vec![(WRITER.to_owned(), writer)],
            extra_arguments,
            ..spec
        })?;
        guest.start_agent(backend.option())?;
        let device = device_in_guest(&guest, DISK)?;
        Ok(Self {
            ctx,
            functions,
            backend,
            guest,
            host,
            device,
            folder,
        })
    }

    /// Whether QEMU exports what nestrace looks for.
    pub fn functions(&self) -> Functions {
        self.functions
    }

    /// What records in it.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The guest.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The guest's name of the disk: `vda`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The disk as it was made.
    pub fn stack(&self) -> anyhow::Result<DiskStack> {
        Ok(self
            .guest
            .spec()
            .disks
            .first()
            .context("find the disk")?
            .stack)
    }

    /// Its image.
    pub fn image(&self) -> anyhow::Result<&Path> {
        Ok(&self
            .guest
            .spec()
            .disks
            .first()
            .context("find the disk")?
            .image)
    }

    /// Has the guest write stamps, and strace watch.
    pub fn write_stamps(
        &self,
        writer: &Writer,
    ) -> anyhow::Result<(Seen, Vec<Write>, Vec<WriteCall>)> {
        let command = format!(
            "{WRITER} device=/dev/{} log={LOG_IN_GUEST} bytes={DISK_BYTES} threads={} rewrites={} \
             hot={} overlap={} flush-every={}",
            self.device,
            writer.threads,
            writer.rewrites,
            writer.hot,
            u32::from(writer.overlap),
            writer.flush_every
        );
        let calls = self.folder.path().join("strace");
        let seen = self.record(|| {
            let strace = Strace::attach(self.guest.pid(), &calls)?;
            self.guest.run_ok(&command, Duration::from_secs(180))?;
            strace.detach()
        })?;
        let log = self.folder.path().join("stamps.csv");
        self.guest.get_file(LOG_IN_GUEST, &log)?;
        let text = fs::read_to_string(&log).context("read stamp-writer's log")?;
        let writes = text.lines().map(str::parse).collect::<Result<_, _>>()?;
        let calls = fs::read_to_string(&calls).context("read strace's file")?;
        Ok((seen, writes, system_calls::parse(&calls)?))
    }

    /// Records the guest during `work`, and reads everything that the recording has.
    pub fn record(&self, work: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<Seen> {
        let watched = [Watched {
            guest: &self.guest,
            disk: DISK,
            host: &self.host,
        }];
        let log = self.folder.path().join("qemu.log");
        let begin = std::cell::Cell::new(0);
        let measured = measure(self.ctx, &watched, || {
            begin.set(fs::metadata(&log).map_or(0, |log| log.len()) as usize);
            work()
        })?;
        let text = fs::read_to_string(&log).context("read QEMU's log")?;
        let manifest = manifest(&measured.bundle)?;
        let side = manifest
            .guest_sides
            .first()
            .context("find the guest's side in the manifest")?;
        let disk = side.disks.iter().find(|disk| disk.name == self.device);
        let dev = disk.context("find the guest's disk in the manifest")?.dev;
        let mut guest_events = stream_events(&measured.bundle, &side.file)?;
        guest_events.retain(|event| event.dev == dev);
        if self.backend == Backend::Blktrace {
            // Each event gets the identity that the analysis gives it.
            let ordered = TimeOrdered::new(guest_events.into_iter());
            guest_events = Identified::new(ordered).collect();
        }
        let host_events = host_events(&measured.bundle)?;
        let pushes = host_events
            .iter()
            .filter(|event| event.kind() == Some(Kind::VirtqueuePush));
        let mut log = qemu_log::parse(text.get(begin.get()..).unwrap_or_default())?;
        if self.functions == Functions::Exported {
            qemu_log::shift_to(&mut log, &pushes.map(|event| event.object).collect())?;
        }
        Ok(Seen {
            host_events,
            stories: stories::all(&self.ctx.nestrace, &measured.bundle)?,
            guest_events,
            log,
            manifest,
            measured,
        })
    }
}

/// strace on a running QEMU; detached when dropped.
struct Strace(Child);

impl Strace {
    fn attach(pid: u32, output: &PathBuf) -> anyhow::Result<Self> {
        let child = Command::new("strace")
            .args(system_calls::arguments())
            .arg("-o")
            .arg(output)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start strace")?;
        let strace = Self(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !all_traced(pid)? {
            if Instant::now() > deadline {
                bail!("see strace take hold of QEMU");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(strace)
    }

    fn detach(mut self) -> anyhow::Result<()> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).context("end strace")?;
        self.0.wait().context("wait for strace")?;
        Ok(())
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // SIGKILL would leave QEMU stopped for a moment only: the kernel detaches.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether every thread of a process has a tracer.
fn all_traced(pid: u32) -> anyhow::Result<bool> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("look at QEMU's threads")?;
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        if status.lines().any(|line| line == "TracerPid:\t0") {
            return Ok(false);
        }
    }
    Ok(true)
}
