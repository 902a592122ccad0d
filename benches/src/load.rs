//! What the contestants watch: fio on a loop device.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, ensure};
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::loop_device::LoopDevice;
use nestrace_trace::device_number;
use serde_json::Value;
use tempfile::TempDir;
use xtask::cargo_build::workspace;

/// Size of the file under the loop device.
const BACKING_BYTES: usize = 512 << 20;

/// A load: a job file in `benches/record/` and a loop device that suits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// 50,000 reads a second from memory.
    Paced,
    /// As many reads as this machine's disk answers.
    Disk,
    /// As many reads as the processors can make.
    Memory,
}

impl Load {
    /// Every load, in the order of running.
    pub const ALL: [Self; 3] = [Self::Paced, Self::Disk, Self::Memory];

    /// Its name, which is that of its job file too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paced => "paced",
            Self::Disk => "disk",
            Self::Memory => "memory",
        }
    }

    /// What it is, for a heading.
    pub fn about(self) -> &'static str {
        match self {
            Self::Paced => "50,000 reads a second, loop device over memory",
            Self::Disk => "as fast as it goes, loop device with direct I/O over a file on disk",
            Self::Memory => "as fast as it goes, loop device over memory",
        }
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|load| load.name() == word);
        known.ok_or_else(|| "expected paced, disk or memory".to_owned())
    }
}

/// A loop device under a load; dropping it detaches the device and removes the file.
#[derive(Debug)]
pub struct LoadedDevice {
    load: Load,
    // In this order: detach, remove.
    device: LoopDevice,
    folder: TempDir,
}

/// What fio reports of a run.
#[derive(Clone, Copy, Debug)]
pub struct FioResult {
    /// Reads per second after the ramp.
    pub iops: f64,
    /// 99th percentile of the completion latency, microseconds.
    pub p99_us: f64,
}

impl LoadedDevice {
    /// Makes the device. Its file has data in every block: what a file system knows to be empty is
    /// answered without a device.
    pub fn create(load: Load) -> anyhow::Result<Self> {
        let place = match load {
            Load::Disk => std::env::temp_dir(),
            Load::Paced | Load::Memory => PathBuf::from("/dev/shm"),
        };
        let folder = tempfile::Builder::new()
            .prefix("nestrace-bench-")
            .tempdir_in(&place)
            .with_context(|| format!("make a folder in {}", place.display()))?;
        let backing = folder.path().join("backing");
        fill(&backing).with_context(|| format!("fill {}", backing.display()))?;
        let device = LoopDevice::attach(&backing, load == Load::Disk)?;
        Ok(Self {
            load,
            device,
            folder,
        })
    }

    /// The load.
    pub fn load(&self) -> Load {
        self.load
    }

    /// The kernel's name: `loop3`.
    pub fn name(&self) -> &str {
        self.device.name()
    }

    /// Its file: `/dev/loop3`.
    pub fn path(&self) -> PathBuf {
        self.device.path()
    }

    /// `MAJOR << 20 | MINOR`, as tracepoints have it.
    pub fn number(&self) -> anyhow::Result<u32> {
        let path = format!("/sys/block/{}/dev", self.name());
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        device_number::parse(&text).with_context(|| format!("understand {path}: {text}"))
    }

    /// I/Os that the kernel has counted on the device.
    pub fn completed(&self) -> anyhow::Result<u64> {
        Ok(BlockStat::read(self.name())?.operations())
    }

    /// Runs fio to its end.
    pub fn run_fio(&self, seconds: u32, ramp_ms: u32) -> anyhow::Result<FioResult> {
        let job = workspace().join(format!("benches/record/{}.fio", self.load));
        let report = self.folder.path().join("fio.json");
        let device = self.path();
        Tool::new("fio")
            .env("DEVICE", &device.to_string_lossy())
            .env("SECONDS", &seconds.to_string())
            .env("RAMP", &format!("{ramp_ms}ms"))
            .arg("--output-format=json")
            .arg(format!("--output={}", report.display()))
            .arg(&job)
            .run()?;
        let text = std::fs::read_to_string(&report).context("read fio's report")?;
        read_report(&text)
    }
}

/// Reads fio's JSON; fio may put a note before it.
pub fn read_report(text: &str) -> anyhow::Result<FioResult> {
    let json = text.find('{').map_or("", |start| &text[start..]);
    let report: Value = serde_json::from_str(json).context("understand fio's report")?;
    let read = &report["jobs"][0]["read"];
    let iops = read["iops"].as_f64().unwrap_or(0.0);
    ensure!(iops > 0.0, "find reads in fio's report");
    let p99_ns = read["clat_ns"]["percentile"]["99.000000"].as_f64();
    Ok(FioResult {
        iops,
        p99_us: p99_ns.unwrap_or(f64::NAN) / 1e3,
    })
}

fn fill(path: &Path) -> io::Result<()> {
    let block = vec![0xa5_u8; 1 << 20];
    let mut file = File::create_new(path)?;
    for _ in 0..BACKING_BYTES / block.len() {
        file.write_all(&block)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_and_one_without_reads_is_refused() {
        let report = |iops: f64| {
            format!(
                r#"note: both iodepth >= 1 and …
                {{"jobs": [{{"read": {{"iops": {iops}, "clat_ns": {{"percentile": {{"99.000000": 151000}}}}}}}}]}}"#
            )
        };
        let result = read_report(&report(1234.5)).unwrap();
        assert_eq!((result.iops, result.p99_us), (1234.5, 151.0));
        assert!(read_report(&report(0.0)).is_err());
        assert!(read_report("fio: no device").is_err());
    }
}
