//! One phase: fio runs once, and one contestant, or nobody, records it.

use std::path::Path;

use serde::Serialize;

use super::contestant::{Contestant, Recorded, Running};
use super::load::LoadedDevice;
use super::machine;

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
    /// Processor time of the whole machine in that time, seconds.
    pub busy_s: f64,
    /// Processor time of the recorder's process in that time, seconds.
    pub own_s: f64,
    /// The load average before the phase: above the bench's own, somebody else was at work.
    pub load_average: f64,
    /// What the recorder left.
    pub recorded: Option<Recorded>,
}

impl Phase {
    /// Processor time of the machine for each I/O, microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.busy_s * 1e6 / self.ios as f64
    }

    /// Processor time of the recorder's process for each I/O, microseconds.
    pub fn own_us(&self) -> f64 {
        self.own_s * 1e6 / self.ios as f64
    }
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
    let start = std::time::Instant::now();
    let before = (device.completed()?, machine::busy_s()?, own(&recorder)?);
    let fio = device.run_fio(length.seconds, length.ramp_ms)?;
    let after = (device.completed()?, machine::busy_s()?, own(&recorder)?);
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
        busy_s: after.1 - before.1,
        own_s: after.2 - before.2,
        load_average,
        recorded,
    })
}
