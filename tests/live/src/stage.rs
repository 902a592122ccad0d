//! The guest that the cases share, and one recording of it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::recorder::{self, CommandEnd, Recorder, RecorderEnd};
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nestrace_trace::{Event, Manifest, StreamReader, bundle};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tempfile::TempDir;
use xtask::case::{Case, Report};

use crate::context::LiveContext;

/// The disk that is written to.
pub const DISK: &str = "disk-a";
/// The disk that is unplugged.
pub const SPARE_DISK: &str = "disk-b";
/// The contract: recording has begun within 3 s; a loaded machine gets more before we give up.
pub const LIVE: Duration = Duration::from_secs(20);
/// The contract: a recording is closed within 10 s.
pub const CLOSED: Duration = Duration::from_secs(10);
/// How long the device must have been at rest.
const QUIET: Duration = Duration::from_millis(500);

/// A guest with two disks on an XFS whose blocks are in memory: nothing but the guest's own I/O
/// reaches the loop device, not even the recording's.
pub struct Stage<'a> {
    /// Programs and folders.
    pub ctx: &'a LiveContext,
    /// The guest. It goes before its images.
    pub guest: Guest,
    /// Where its images are.
    pub host: HostFs,
    /// Files that QEMU needs while it runs, besides its images; removed last.
    pub _files: Option<TempDir>,
}

impl<'a> Stage<'a> {
    /// Boots the guest.
    pub fn boot(ctx: &'a LiveContext) -> anyhow::Result<Self> {
        Self::boot_as(ctx, "survival", |spec| spec)
    }

    /// Boots a guest of that purpose; `change` has the last word on what it is made of.
    pub fn boot_as(
        ctx: &'a LiveContext,
        purpose: &str,
        change: impl FnOnce(GuestSpec) -> GuestSpec,
    ) -> anyhow::Result<Self> {
        Self::boot_on(ctx, purpose, DiskStack::RAW, 400 << 20, change)
    }

    /// The same with disks of that kind on a file system of so many bytes.
    pub fn boot_on(
        ctx: &'a LiveContext,
        purpose: &str,
        stack: DiskStack,
        size_bytes: u64,
        change: impl FnOnce(GuestSpec) -> GuestSpec,
    ) -> anyhow::Result<Self> {
        let host = HostFs::create(&HostFsSpec {
            size_bytes,
            backing_folder: PathBuf::from("/dev/shm"),
            ..HostFsSpec::new(HostFsKind::Xfs)
        })?;
        let disks = vec![
            ctx.disk(&host, DISK, stack, 48 << 20, "full")?,
            ctx.disk(&host, SPARE_DISK, stack, 16 << 20, "full")?,
        ];
        let name = ctx.guest_name(purpose);
        let spec = GuestSpec {
            disks,
            // It writes for minutes. Of two processors that are translated in one thread an interrupt is lost once in
            // some million requests (`translation.rs` of the lab), and then nothing comes any more.
            vcpus: 1,
            allow_reboot: true,
            ..ctx.guest_spec(&name)
        };
        let guest = Guest::boot(change(spec))?;
        ctx.progress.say(&format!("guest {name} is up"));
        Ok(Self {
            ctx,
            guest,
            host,
            _files: None,
        })
    }

    /// Lets the guest write to its disk until [`Stage::rest`]; comes back when it does.
    pub fn load(&self) -> anyhow::Result<()> {
        let device = self.guest.device_of(DISK)?;
        let script = format!(
            "pidof fio > /dev/null || setsid fio --name=load --filename={device} --rw=randwrite \
             --bs=4k --direct=1 --ioengine=libaio --iodepth=8 --time_based --runtime=3600 \
             > /dev/null 2>&1 &"
        );
        let writes = || -> anyhow::Result<u64> { Ok(self.guest.disk_stats(DISK)?.writes) };
        let before = writes()?;
        // An agent that has just been started has its programs verified meanwhile.
        let deadline = Instant::now() + 4 * LIVE;
        while writes()? < before + 20 {
            if Instant::now() > deadline {
                anyhow::bail!("see the guest write; it says: {}", self.guest_at_work());
            }
            // Once more: the load that was there may have been about to end.
            self.guest.run_ok(&script, Duration::from_secs(20))?;
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// What the guest's processes wait for, and the end of its console, for an error.
    fn guest_at_work(&self) -> String {
        let script = "cd /sys/kernel/debug 2> /dev/null; [ -d block ] || mount -t debugfs none /sys/kernel/debug; \
                      cd /sys/kernel/debug/block/vda; grep -H . /sys/block/vd*/inflight state hctx0/state hctx0/tags \
                      hctx0/busy hctx0/dispatch hctx0/cpu0/*_rq_list requeue_list /proc/sys/fs/aio-nr; \
                      grep -E 'virtio|ata' /proc/interrupts; ps -o pid,stat,args | grep -v '\\[' | tail -n 12; \
                      for pid in $(pidof fio); do head -n 4 /proc/$pid/status; grep -E 'Sig|Shd' /proc/$pid/status; \
                      cat /proc/$pid/syscall /proc/$pid/stack; a=$(grep aio /proc/$pid/maps | cut -d- -f1); \
                      dd if=/proc/$pid/mem bs=4096 skip=$((0x$a/4096)) count=1 2> /dev/null | hexdump -C | head -n 4; done; \
                      echo run > state; sleep 1; grep -H . /sys/block/vda/stat; sleep 1; grep -H . /sys/block/vda/stat; \
                      free -m; df /tmp /dev/shm; dmesg | tail -n 20";
        let said = self.guest.run(script, Duration::from_secs(10));
        let said = said.map_or_else(|error| error.to_string(), |output| output.stdout);
        let queues = self.queues();
        format!(
            "QEMU: {queues:?}; {said}; the console: {}",
            self.guest.console()
        )
    }

    /// What QEMU says of the queue of each virtio disk.
    fn queues(&self) -> anyhow::Result<Vec<Value>> {
        let devices = self.guest.qmp("x-query-virtio", json!({}))?;
        let devices = devices.as_array().context("list the virtio devices")?;
        let disks = devices.iter().filter(|it| it["name"] == "virtio-blk");
        disks
            .map(|disk| {
                let of = json!({ "path": disk["path"], "queue": 0 });
                Ok(self.guest.qmp("x-query-virtio-queue-status", of)?)
            })
            .collect()
    }

    /// Whether the load waits for seconds although QEMU has none of its requests: the emulated machine has lost something
    /// (`docs/emulation.md`).
    fn stands_still(&self) -> anyhow::Result<bool> {
        let done = || {
            let script = "pidof fio > /dev/null && cat /sys/block/vda/stat";
            self.guest.run_ok(script, Duration::from_secs(10))
        };
        let before = done()?.stdout;
        for _ in 0..6 {
            thread::sleep(Duration::from_secs(1));
            let queues = self.queues()?;
            let has_none = queues.iter().all(|queue| queue["inuse"] == 0);
            if !has_none || done()?.stdout != before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends the load and waits until it is gone.
    pub fn rest(&self) -> anyhow::Result<()> {
        let script = "killall fio 2> /dev/null; while pidof fio > /dev/null; do sleep 0.1; done";
        let ended = self.guest.run_ok(script, Duration::from_secs(30));
        ended.with_context(|| format!("see fio end; {}", self.guest_at_work()))?;
        Ok(())
    }

    /// Writes back and waits until the device has been at rest for a while.
    pub fn settle(&self) -> anyhow::Result<()> {
        self.host
            .sync()
            .context("write back the host file system")?;
        let deadline = Instant::now() + Duration::from_secs(20);
        let count = || BlockStat::read(self.host.device());
        let mut last = count()?;
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            anyhow::ensure!(Instant::now() < deadline, "see the device come to rest");
            thread::sleep(Duration::from_millis(50));
            let now = count()?;
            if now != last {
                last = now;
                since = Instant::now();
            }
        }
        Ok(())
    }

    /// `nestrace record --guest … -o … MORE` on a bundle of its own, with the command line in front
    /// that `through` gives; waits until it is live.
    pub fn record_through(&self, through: &[&str], more: &[&str]) -> anyhow::Result<Recording> {
        let mut recording = self.start(through, &self.ctx.bundle("survival"), more)?;
        recording.recorder.wait_live(LIVE)?;
        Ok(recording)
    }

    /// The same without anything in front.
    pub fn record(&self, more: &[&str]) -> anyhow::Result<Recording> {
        self.record_through(&[], more)
    }

    /// Starts a recording and does not wait.
    pub fn start(
        &self,
        through: &[&str],
        bundle: &Path,
        more: &[&str],
    ) -> anyhow::Result<Recording> {
        let nestrace = self.ctx.nestrace.as_os_str();
        let words: Vec<&OsStr> = through.iter().map(OsStr::new).chain([nestrace]).collect();
        let (program, rest) = words.split_first().context("name the recorder")?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .args(["record", "--guest", self.guest.name(), "-o"])
            .arg(bundle)
            .args(more);
        Ok(Recording {
            recorder: Recorder::spawn(command, false)?,
            bundle: bundle.to_owned(),
        })
    }

    /// Runs `nestrace` to its end with these arguments.
    pub fn nestrace(&self, args: &[&str]) -> anyhow::Result<CommandEnd> {
        recorder::nestrace(&self.ctx.nestrace, args).context("start nestrace")
    }

    /// The text of `analyze`.
    pub fn text(&self, bundle: &Path) -> anyhow::Result<String> {
        let path = bundle.to_str().context("name the recording")?;
        let end = self.nestrace(&["analyze", path])?;
        anyhow::ensure!(end.code == Some(0), "analyze {path}: {}", end.stderr);
        Ok(end.stdout)
    }

    /// The JSON of `analyze`.
    pub fn analysis(&self, bundle: &Path) -> anyhow::Result<Value> {
        Ok(recorder::analyze(&self.ctx.nestrace, bundle)?)
    }

    /// A recording that ended by itself or was asked to: exit 0 within 10 s, closed, readable, with
    /// events, and with this reason. Gives the analysis.
    pub fn ended_well(
        &self,
        case: &mut Case,
        ended: &Ended,
        reason: &str,
    ) -> anyhow::Result<Value> {
        let Ended { end, bundle } = ended;
        case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
        let took = end.took.as_secs_f64();
        case.holds(
            "ends within 10 s",
            end.took < CLOSED,
            &format!("{took:.1} s"),
        );
        let manifest = manifest(bundle)?;
        case.equal("end_reason", manifest.end_reason.as_str(), reason);
        let analysis = self.analysis(bundle)?;
        case.holds(
            "trace.truncated is false",
            analysis["trace"]["truncated"] == false,
            "true",
        );
        let events = analysis["trace"]["events"].as_u64().unwrap_or(0);
        case.holds("events were recorded", events > 0, "none");
        let closed = if end.took.is_zero() {
            String::new()
        } else {
            format!(", closed in {took:.2} s")
        };
        case.figure(format!("{events} events{closed}"));
        Ok(analysis)
    }
}

/// A recorder and its bundle.
pub struct Recording {
    /// The process.
    pub recorder: Recorder,
    /// Its bundle.
    pub bundle: PathBuf,
}

/// A recording whose recorder has ended.
pub struct Ended {
    /// How.
    pub end: RecorderEnd,
    /// The bundle.
    pub bundle: PathBuf,
}

impl Recording {
    /// Sends a signal and waits for the end.
    pub fn stop(self, signal: Signal) -> anyhow::Result<Ended> {
        let end = self.recorder.stop(signal, 2 * CLOSED)?;
        Ok(Ended {
            end,
            bundle: self.bundle,
        })
    }

    /// Waits for its end by itself. How long that takes is the case's own matter.
    pub fn wait(mut self, patience: Duration) -> anyhow::Result<Ended> {
        let mut end = self.recorder.wait(patience)?;
        end.took = Duration::ZERO;
        Ok(Ended {
            end,
            bundle: self.bundle,
        })
    }
}

/// A bundle's manifest.
pub fn manifest(bundle: &Path) -> anyhow::Result<Manifest> {
    let path = bundle.join(bundle::MANIFEST);
    let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(Manifest::from_slice(&bytes)?.0)
}

/// Every event of a bundle that may have been cut, as far as it can be read.
pub fn events_so_far(bundle: &Path) -> anyhow::Result<Vec<Event>> {
    let open = |name: &str| {
        let path = bundle.join(name);
        File::open(&path)
            .map(BufReader::new)
            .with_context(|| format!("open {}", path.display()))
    };
    let index = open(&bundle::index_of(bundle::HOST_STREAM))?;
    let mut reader = StreamReader::new(open(bundle::HOST_STREAM)?, Some(index))?;
    Ok(reader.events().collect())
}

/// `CLOCK_MONOTONIC`, as in events.
pub fn monotonic_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the clock")?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// Whether a notice of this kind stands in the manifest.
pub fn has_notice(manifest: &Manifest, what: &str) -> bool {
    manifest.notices.iter().any(|notice| notice.what == what)
}

/// A case on a guest.
pub type Body = fn(&Stage<'_>, &mut Case) -> anyhow::Result<()>;

/// Runs the wanted ones of a scenario's cases on one guest, which is booted only if there are any. A case that failed while
/// the guest's load stood still runs once more, and those after it, on a new guest.
pub fn run_cases<'a>(
    ctx: &'a LiveContext,
    report: &mut Report,
    (scenario, cases): (&str, &[(&str, Body)]),
    boot: impl Fn(&'a LiveContext) -> anyhow::Result<Stage<'a>>,
) -> anyhow::Result<()> {
    let wanted: Vec<(String, Body)> = cases
        .iter()
        .map(|(name, body)| (format!("{scenario}/{name}"), *body))
        .filter(|(name, _)| ctx.wants(name))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let mut stage = Some(boot(ctx)?);
    for (name, body) in wanted {
        report.case(&name, |case| {
            let on = stage.as_ref().context("boot a guest")?;
            let ended = body(on, case);
            let is_good = ended.is_ok() && case.is_good();
            if is_good || !on.stands_still().unwrap_or(false) {
                return ended;
            }
            println!(
                "{name}: the guest's load stands still: {}",
                on.guest_at_work()
            );
            *case = Case::default();
            case.figure("once more: the guest's load had stood still");
            // The old one goes first: both have the same name.
            stage = None;
            body(stage.insert(boot(ctx)?), case)
        })?;
    }
    Ok(())
}
