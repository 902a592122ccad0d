//! What a bundle gives away of the memory of kernels and processes: nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_trace::address::{Column, columns};
use nestrace_trace::manifest::Addresses;
use nestrace_trace::{Batch, Event, StreamReader};
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::{Stage, manifest};

/// No kernel of a supported architecture has addresses below.
const LOWEST_KERNEL: u64 = 0xff00_0000_0000_0000;
/// Error pointers are none.
const HIGHEST_KERNEL: u64 = u64::MAX - 4096;
/// No process has addresses below (`vm.mmap_min_addr`), nor above with five levels of page tables.
const PROCESS: std::ops::Range<u64> = 1 << 16..1 << 57;

/// A recording with an agent: no address of a kernel or a process in either stream or the manifest, and what rests on
/// addresses still holds.
pub fn hidden(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.guest.start_agent("")?;
    stage.guest.wait_for_agent(Duration::from_secs(90))?;
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_secs(2));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.rest()?;
    stage.guest.kill_agent("KILL")?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    case.holds("two streams", manifest.streams.len() == 2, "not two");
    for stream in &manifest.streams {
        let marked = stream.addresses == Addresses::Shifted;
        case.holds(
            "the manifest says that they are shifted",
            marked,
            &stream.file,
        );
        let found = Found::of(&ended.bundle.join(&stream.file))?;
        let Found {
            kernels,
            processes,
            given,
        } = found;
        case.equal(
            &format!("{}: addresses of kernels", stream.file),
            kernels,
            0,
        );
        case.equal(
            &format!("{}: addresses of processes", stream.file),
            processes,
            0,
        );
        case.holds("there are identities", given > 1000, &given.to_string());
        case.figure(format!("{}: {given} identities", stream.file));
    }
    for guest in &manifest.topology.guests {
        case.holds(
            "a disk's backend was found",
            !guest.backends.is_empty(),
            "none",
        );
        let mut backends = guest.backends.iter();
        let hidden = backends.all(|backend| !PROCESS.contains(&backend.address));
        case.holds("backends are hidden", hidden, "one is not");
    }
    let linked = analysis["chains"][0]["fraction"].as_f64().unwrap_or(0.0);
    case.holds("bios are followed", linked > 0.9, &format!("{linked}"));
    let mode = |path: &Path| -> anyhow::Result<u32> { Ok(fs::metadata(path)?.mode() & 0o777) };
    case.equal("mode of the bundle", mode(&ended.bundle)?, 0o700);
    for entry in fs::read_dir(&ended.bundle)? {
        let path = entry?.path();
        case.equal(&format!("mode of {}", path.display()), mode(&path)?, 0o600);
    }
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// What the columns of a stream hold that can be addresses.
#[derive(Default)]
struct Found {
    kernels: u64,
    processes: u64,
    /// Values that are neither null nor small.
    given: u64,
}

impl Found {
    fn of(stream: &Path) -> anyhow::Result<Self> {
        let file = fs::File::open(stream).with_context(|| format!("open {}", stream.display()))?;
        let mut reader = StreamReader::new(file, None::<&[u8]>)?;
        let (mut batch, mut found) = (Batch::default(), Self::default());
        while reader.read_into(&mut batch) {
            batch.events().for_each(|event| found.look(&event));
        }
        Ok(found)
    }

    fn look(&mut self, event: &Event) {
        // As the case that showed it: any column that may hold one, of every kind.
        for column in [
            Column::Object,
            Column::Related,
            Column::Iocb,
            Column::Origin,
        ] {
            let value = column.of(event);
            self.kernels += u64::from((LOWEST_KERNEL..HIGHEST_KERNEL).contains(&value));
        }
        for column in event.kind().map_or(&[][..], columns) {
            let value = column.of(event);
            self.given += u64::from(value >= PROCESS.start);
            self.processes += u64::from(PROCESS.contains(&value));
        }
    }
}
