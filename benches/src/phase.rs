//! One phase: fio runs once, and at most one contestant records it.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::contestant::{Contestant, Recorded, Running};
use super::load::LoadedDevice;
use super::machine::{self, KernelThreads};
use super::probe_time::{Measuring, ProbeTime};

/// What a phase showed.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// Who recorded.
    pub contestant: Contestant,
    /// The load's name.
    pub load: &'static str,
    /// The round, from 0.
    pub round: u32,
    /// Reads per second, by fio.
    pub iops: f64,
    /// 99th percentile of fio's completion latency, microseconds.
    pub p99_us: f64,
    /// I/Os that the kernel counted from fio's start to its end, its ramp included.
    pub ios: u64,
    /// From fio's start to its end, seconds.
    pub seconds: f64,
    /// Processor time of fio, seconds.
    pub fio_s: f64,
    /// Processor time of the kernel's threads in that time, seconds.
    pub kernel_s: f64,
    /// Processor time of the recorder's process in that time, seconds.
    pub own_s: f64,
    /// The load average before the phase: above the bench's own, somebody else was at work.
    pub load_average: f64,
    /// What the recorder left.
    pub recorded: Option<Recorded>,
}

impl Phase {
    /// Processor time for each I/O, microseconds: fio's, the kernel's threads' and the recorder's.
    /// What else runs on the machine does not enter.
    pub fn cpu_us(&self) -> f64 {
        (self.fio_s + self.kernel_s + self.own_s) * 1e6 / self.ios as f64
    }

    /// Processor time of the recorder's process for each I/O, microseconds.
    pub fn own_us(&self) -> f64 {
        self.own_s * 1e6 / self.ios as f64
    }
}

/// Microseconds that a contestant's BPF programs take for each I/O, and their runs for each I/O.
#[derive(Clone, Copy, Debug)]
pub struct ProbeCost {
    /// Who.
    pub contestant: Contestant,
    /// Time in the programs.
    pub us_per_io: f64,
    /// Runs.
    pub runs_per_io: f64,
}

/// One phase in which the kernel measures the programs, which makes them a little slower.
pub fn measure_probes(
    contestant: Contestant,
    nestrace: &Path,
    device: &LoadedDevice,
    length: Length,
) -> anyhow::Result<ProbeCost> {
    let recorder = Running::start(contestant, nestrace, device)?;
    let _measuring = Measuring::start()?;
    let before = (device.completed()?, ProbeTime::of(recorder.pid())?);
    device.run_fio(length.seconds, length.ramp_ms)?;
    let ios = (device.completed()? - before.0) as f64;
    let time = ProbeTime::of(recorder.pid())?.since(before.1);
    recorder.stop(|_| Ok(()))?;
    Ok(ProbeCost {
        contestant,
        us_per_io: time.run_time_ns as f64 / 1e3 / ios,
        runs_per_io: time.n_runs as f64 / ios,
    })
}

/// How long fio runs.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Measured seconds.
    pub seconds: u32,
    /// Milliseconds before them.
    pub ramp_ms: u32,
}

/// Runs a phase. `look` sees the finished bundle of a nestrace, and how many I/Os the kernel counted
/// while it recorded.
pub fn run(
    contestant: Contestant,
    nestrace: &Path,
    device: &LoadedDevice,
    length: Length,
    look: impl FnOnce(&Path, u64) -> anyhow::Result<()>,
) -> anyhow::Result<Phase> {
    let load_average = machine::load_average();
    let recorder = match contestant {
        Contestant::Untraced => None,
        _ => Some(Running::start(contestant, nestrace, device)?),
    };
    let own = |recorder: &Option<Running>| match recorder {
        Some(recorder) => machine::process_s(recorder.pid()),
        None => Ok(0.0),
    };
    let start = Instant::now();
    let own_before = own(&recorder)?;
    let before = (
        device.completed()?,
        KernelThreads::look()?,
        machine::ended_children_s()?,
    );
    let fio = device.run_fio(length.seconds, length.ramp_ms)?;
    let after = (
        device.completed()?,
        KernelThreads::look()?,
        machine::ended_children_s()?,
    );
    let own_s = own(&recorder)? - own_before;
    let seconds = start.elapsed().as_secs_f64();
    let ios = after.0 - before.0;
    let recorded = match recorder {
        Some(recorder) => Some(recorder.stop(|bundle| look(bundle, ios))?),
        None => None,
    };
    Ok(Phase {
        contestant,
        load: device.load().name(),
        round: 0,
        iops: fio.iops,
        p99_us: fio.p99_us,
        ios,
        seconds,
        fio_s: after.2 - before.2,
        kernel_s: after.1.seconds_since(&before.1),
        own_s,
        load_average,
        recorded,
    })
}
