//! What a call of a program costs on this machine's own kernel, traced or not.
//!
//! A bench of microseconds on a busy machine: a call's time is the processor time of the fastest of many short batches,
//! and a phase counts only if no other process traces this kernel meanwhile (`others`). In the rest between two batches a
//! recorder takes what the first one left in its rings, so that each call is recorded.

mod others;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::interrupt;
use nestrace_rig::stack::HostFsKind;
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::getppid;
use xtask::progress::Progress;

use crate::figures::Spread;
use crate::processor;

/// Batches of a phase.
const BATCHES: usize = 24;
/// Longer than an agent sleeps.
const REST: Duration = Duration::from_millis(110);
/// Calls of a batch, whose events fit into the smallest ring; a sync is as long as hundreds of others.
const CALLS: u64 = 1000;
const SYNCS: u64 = 20;
const BLOCK: usize = 4096;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `pread` of a block that is in the page cache, of a file on the recorded disk.
    CachedRead,
    /// The same of a file on a disk that is not recorded.
    OtherMount,
    /// `getppid`, which has no file.
    NoFile,
    /// `pwrite` of a block and `fdatasync`, on the recorded disk. By the clock: others work for it.
    Sync,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::CachedRead => "pread, 4 KiB, cached, recorded disk",
            Self::OtherMount => "pread, 4 KiB, cached, another disk",
            Self::NoFile => "getppid",
            Self::Sync => "pwrite, 4 KiB, and fdatasync, recorded disk",
        }
    }

    const fn calls(self) -> u64 {
        match self {
            Self::Sync => SYNCS,
            _ => CALLS,
        }
    }

    const fn clock(self) -> ClockId {
        match self {
            Self::Sync => ClockId::CLOCK_MONOTONIC,
            _ => ClockId::CLOCK_THREAD_CPUTIME_ID,
        }
    }
}

/// Two file systems over memory, and a file on each. Only one is recorded.
pub struct Scene {
    recorded: HostFs,
    on_recorded: File,
    on_other: File,
    _other: HostFs,
}

impl Scene {
    /// Makes both.
    pub fn create() -> anyhow::Result<Self> {
        let fs = || {
            HostFs::create(&HostFsSpec {
                backing_folder: "/dev/shm".into(),
                size_bytes: 256 << 20,
                ..HostFsSpec::new(HostFsKind::Ext4)
            })
        };
        let (recorded, other) = (fs()?, fs()?);
        Ok(Self {
            on_recorded: filled(recorded.path())?,
            on_other: filled(other.path())?,
            recorded,
            _other: other,
        })
    }

    /// Name of the recorded disk in the kernel.
    pub fn device(&self) -> &str {
        self.recorded.device()
    }

    fn batch(&self, call: Call, block: &mut [u8; BLOCK]) -> anyhow::Result<f64> {
        let (file, n) = match call {
            Call::OtherMount => (&self.on_other, call.calls()),
            _ => (&self.on_recorded, call.calls()),
        };
        let look = || clock_gettime(call.clock()).context("read the clock");
        if call == Call::Sync {
            // By the clock, so one that no other program came in between counts.
            let mut fastest = f64::INFINITY;
            for _ in 0..n {
                let begin = look()?;
                file.write_all_at(block, 0)?;
                file.sync_data()?;
                fastest = fastest.min(Duration::from(look()? - begin).as_nanos() as f64);
            }
            return Ok(fastest);
        }
        let begin = look()?;
        for _ in 0..n {
            match call {
                Call::NoFile => drop(getppid()),
                _ => file.read_exact_at(block, 0)?,
            }
        }
        let took = look()? - begin;
        Ok(Duration::from(took).as_nanos() as f64 / n as f64)
    }
}

fn filled(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("block");
    fs::write(&path, [1; BLOCK]).context("write a file")?;
    let file = File::options().read(true).write(true).open(&path)?;
    file.sync_all().context("write a file")?;
    Ok(file)
}

/// Nanoseconds of each call of a [`Contest`].
type Phase = Vec<f64>;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Contest<'c> {
    /// Title of the table.
    pub title: &'c str,
    /// Who records.
    pub recorder: &'c str,
    /// Levels of detail.
    pub details: &'c [&'c str],
    /// The calls.
    pub calls: &'c [Call],
}

/// A recorder that runs: the leader of its process group, and how often each call was made before it ends.
pub type Measure<'m> = &'m dyn Fn(u32) -> anyhow::Result<Option<Phase>>;

impl Contest<'_> {
    /// Alternates between untraced phases and those of `record`, which runs a recorder with a level of detail around
    /// what it is passed, and gives Markdown.
    pub fn run(
        self,
        rounds: u32,
        progress: &Progress,
        record: impl Fn(&Scene, &str, Measure<'_>) -> anyhow::Result<Option<Phase>>,
    ) -> anyhow::Result<String> {
        let scene = Scene::create()?;
        let mut untraced = Vec::new();
        let mut traced = vec![Vec::new(); self.details.len()];
        for round in 1..=rounds {
            let say = |phase: &Phase, who: &str| {
                let times: Vec<String> = phase.iter().map(|ns| format!("{ns:.0}")).collect();
                progress.say(&format!(
                    "round {round}: {} ns a call, {who}",
                    times.join(", ")
                ));
            };
            let phase = alone(|| self.measure(&scene, None))?;
            say(&phase, "untraced");
            untraced.push(phase);
            for (detail, phases) in self.details.iter().zip(&mut traced) {
                let measure = |pid| self.measure(&scene, Some(pid));
                let phase = alone(|| record(&scene, detail, &measure))?;
                say(&phase, detail);
                phases.push(phase);
            }
        }
        Ok(self.table(&untraced, &traced))
    }

    /// Calls of a kind in a phase.
    #[must_use]
    pub const fn calls_of(call: Call) -> u64 {
        BATCHES as u64 * call.calls()
    }

    /// Measures while `recorder`, the leader of its process group, is the only one who traces; without one, while
    /// there is no tracing. `None`: another process traced.
    fn measure(self, scene: &Scene, recorder: Option<u32>) -> anyhow::Result<Option<Phase>> {
        let measured = || {
            // A call on a descriptor that threads share takes a reference to its file, which is 40 ns more. Who reads
            // what a recorder says is such a thread.
            unshare(CloneFlags::CLONE_FILES).context("have descriptors of its own")?;
            processor::on_one(|| self.batches(scene, recorder))
        };
        let thread = thread::scope(|scope| scope.spawn(measured).join());
        thread.unwrap_or_else(|_| bail!("measure calls"))
    }

    fn batches(self, scene: &Scene, recorder: Option<u32>) -> anyhow::Result<Option<Phase>> {
        let mut phase = Vec::new();
        for call in self.calls {
            let mut block = [0; BLOCK];
            let mut fastest = f64::INFINITY;
            for _ in 0..BATCHES {
                interrupt::check()?;
                fastest = fastest.min(scene.batch(*call, &mut block)?);
                thread::sleep(REST);
                if !others::trace(recorder)?.is_empty() {
                    return Ok(None);
                }
            }
            phase.push(fastest);
        }
        Ok(Some(phase))
    }

    fn table(self, untraced: &[Phase], traced: &[Vec<Phase>]) -> String {
        let mut text = format!("\n### {}\n\n| call | untraced ns |", self.title);
        for detail in self.details {
            text += &format!(" {}, {detail}: added ns |", self.recorder);
        }
        text += &format!("\n|---|---|{}\n", "---|".repeat(self.details.len()));
        for (number, call) in self.calls.iter().enumerate() {
            let of = |phase: &Phase| phase.get(number).copied().unwrap_or(f64::NAN);
            text += &format!("| {} |", call.name());
            if let Some(Spread { median, min, max }) = Spread::of(untraced.iter().map(of)) {
                text += &format!(" {median:.0} ({min:.0} … {max:.0}) |");
            }
            for phases in traced {
                let pairs = phases.iter().zip(untraced);
                let added = Spread::of(pairs.map(|(with, without)| of(with) - of(without)));
                if let Some(Spread { median, min, max }) = added {
                    text += &format!(" **{median:.0}** ({min:.0} … {max:.0}) |");
                }
            }
            text.push('\n');
        }
        text
    }
}

/// How long is waited for a machine that no other process traces, and how often a phase is tried.
const PATIENCE: Duration = Duration::from_secs(300);
const TRIES: usize = 40;

/// A phase in which no other process traced this kernel.
fn alone(phase: impl Fn() -> anyhow::Result<Option<Phase>>) -> anyhow::Result<Phase> {
    for _ in 0..TRIES {
        wait_until_alone()?;
        if let Some(phase) = phase()? {
            return Ok(phase);
        }
    }
    bail!("measure calls while no other process traces this kernel: not in {TRIES} tries")
}

fn wait_until_alone() -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let others = others::trace(None)?;
        if others.is_empty() {
            return Ok(());
        }
        interrupt::check()?;
        ensure!(
            Instant::now() < deadline,
            "measure calls: the processes {others:?} trace this kernel"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_of_the_same_round() {
        let contest = Contest {
            title: "calls",
            recorder: "agent",
            details: &["io", "full"],
            calls: &[Call::CachedRead, Call::NoFile],
        };
        let untraced = [vec![500.0, 100.0], vec![600.0, 100.0], vec![510.0, 101.0]];
        let io = vec![vec![500.0, 100.0], vec![601.0, 100.0], vec![512.0, 101.0]];
        let full = vec![vec![900.0, 200.0], vec![990.0, 210.0], vec![920.0, 205.0]];
        let text = contest.table(&untraced, &[io, full]);
        let rows: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            rows,
            [
                "| call | untraced ns | agent, io: added ns | agent, full: added ns |",
                "|---|---|---|---|",
                "| pread, 4 KiB, cached, recorded disk | 510 (500 … 600) | **1** (0 … 2) | **400** (390 … 410) |",
                "| getppid | 100 (100 … 101) | **0** (0 … 0) | **104** (100 … 110) |",
            ]
        );
    }
}
