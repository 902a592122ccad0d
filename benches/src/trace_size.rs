//! What a contestant left on disk: events, losses, bytes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, bail};
use nestrace_trace::bundle::{MANIFEST, index_of};
use nestrace_trace::{Batch, Manifest, StreamReader};
use serde::Serialize;
use serde_json::Value;
use xtask::folder_size;

use super::perf_data;

/// A trace in numbers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TraceSize {
    /// Events that were kept.
    pub events: u64,
    /// Events that were lost, as the contestant itself counts them.
    pub lost: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Most events that one processor delivered, where the trace says which processor it was.
    pub busiest_cpu_events: Option<u64>,
}

/// A nestrace bundle, with the events of the host.
pub fn of_bundle(path: &Path) -> anyhow::Result<TraceSize> {
    of_side(path, "host")
}

/// A nestrace bundle, with the events of this side.
pub fn of_side(path: &Path, side: &str) -> anyhow::Result<TraceSize> {
    let text = std::fs::read(path.join(MANIFEST)).context("read the manifest")?;
    let (manifest, _) = Manifest::from_slice(&text).context("understand the manifest")?;
    let mut streams = manifest.streams.iter();
    let stream = streams.find(|stream| stream.side == side);
    let file = &stream
        .with_context(|| format!("find the stream of the {side}"))?
        .file;
    let open = |name: &str| File::open(path.join(name)).with_context(|| format!("open {name}"));
    let index = BufReader::new(open(&index_of(file))?);
    let stream = BufReader::new(open(file)?);
    let mut reader = StreamReader::new(stream, Some(index)).context("read the stream")?;
    let mut batch = Batch::default();
    let mut by_cpu: Vec<u64> = Vec::new();
    while reader.read_into(&mut batch) {
        for cpu in batch.columns().cpu {
            let cpu = usize::from(*cpu);
            if by_cpu.len() <= cpu {
                by_cpu.resize(cpu + 1, 0);
            }
            by_cpu[cpu] += 1;
        }
    }
    if !reader.diagnostics().is_empty() {
        bail!("read the stream: {}", reader.diagnostics()[0]);
    }
    Ok(TraceSize {
        events: by_cpu.iter().sum(),
        lost: manifest.losses.iter().map(|loss| loss.events).sum(),
        bytes: folder_size::bytes(path)?,
        busiest_cpu_events: by_cpu.into_iter().max(),
    })
}

/// Lines of `nestrace top --batch`: requests of the device that they count.
pub fn of_live_figures(path: &Path) -> anyhow::Result<TraceSize> {
    let text = std::fs::read_to_string(path).context("read the live figures")?;
    let mut size = TraceSize {
        bytes: text.len() as u64,
        ..TraceSize::default()
    };
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).context("understand the live figures")?;
        let rows = line["devices"].as_array().context("find devices[]")?;
        size.events += rows.iter().filter_map(|row| row["n"].as_u64()).sum::<u64>();
        size.lost += line["lost"].as_u64().context("find what was lost")?;
    }
    Ok(size)
}

/// What `biolatency.bt` printed: requests in its histogram.
pub fn of_histogram(path: &Path) -> anyhow::Result<TraceSize> {
    let text = std::fs::read_to_string(path).context("read the histogram")?;
    let count = text.lines().find_map(|line| line.strip_prefix("@n: "));
    let count = count.context("find the number of requests")?;
    Ok(TraceSize {
        events: count.trim().parse().context("read their number")?,
        bytes: text.len() as u64,
        ..TraceSize::default()
    })
}

/// A `perf.data`.
pub fn of_perf_data(path: &Path) -> anyhow::Result<TraceSize> {
    let file = File::open(path).context("open perf.data")?;
    let bytes = file.metadata()?.len();
    let counts = perf_data::count(file).context("count the samples of perf.data")?;
    Ok(TraceSize {
        events: counts.samples,
        lost: counts.lost,
        bytes,
        busiest_cpu_events: None,
    })
}

/// bpftrace's output: an event is a line that begins with blktrace's letter, and a loss a line
/// `Lost N events`, which stands there or on stderr.
pub fn of_bpftrace(path: &Path, stderr: &str) -> anyhow::Result<TraceSize> {
    let file = File::open(path).context("open bpftrace's output")?;
    let bytes = file.metadata()?.len();
    let mut size = TraceSize {
        bytes,
        ..TraceSize::default()
    };
    for line in BufReader::new(file).split(b'\n') {
        let line = line.context("read bpftrace's output")?;
        match line.as_slice() {
            [b'A'..=b'Z', b' ', ..] => size.events += 1,
            other => size.lost += lost_in(&String::from_utf8_lossy(other)),
        }
    }
    size.lost += stderr.lines().map(lost_in).sum::<u64>();
    Ok(size)
}

fn lost_in(line: &str) -> u64 {
    let count = |rest: &str| rest.split(' ').next()?.parse().ok();
    line.strip_prefix("Lost ").and_then(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_of_bpftrace_are_events_or_losses() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text = "Attaching 11 probes...\nlive\nQ 1 0 7 8\nLost 12 events\nC 2 0 7 8\n\n";
        file.write_all(text.as_bytes()).unwrap();
        let size = of_bpftrace(file.path(), "Lost 3 events\nother\n").unwrap();
        assert_eq!((size.events, size.lost), (2, 15));
    }
}
