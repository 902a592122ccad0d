//! Light detail of both backends side by side in one guest: the same requests. The one that sends is blktrace's, out of
//! whose D and C the recorder makes them; the other's probes make them in the guest, into a bundle.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_trace::{Event, Kind};
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::sides;
use crate::direct_io_link::stream_events;
use crate::stage::{DISK, Stage};

/// Between the two stamps of an event a translated guest may have been held up.
const APART_NS: u64 = 20_000_000;
/// Where one of the two begins or ends, requests are cut.
const EDGE_NS: u64 = 300_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// The only case.
pub fn same_requests(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let device = stage.guest.device_of(DISK)?;
    let name = device.trim_start_matches("/dev/");
    stage.load()?;
    stage.guest.kill_agent("TERM")?;
    stage.guest.start_agent("--backend blktrace")?;
    let mut recording = stage.record(&["--detail", "light"])?;
    sides::wait_agent(stage, &mut recording)?;
    let beside = format!(
        "setsid /usr/bin/nestrace-agent --backend ebpf --detail light --device {name} --output /tmp/light.nest \
         > /run/second.log 2>&1 < /dev/null & second=$!\n\
         for n in $(seq 300); do [ -s /tmp/light.nest/manifest.json ] && break; sleep 0.1; done\n\
         sleep 1\n\
         for n in $(seq 10); do dd if=/dev/zero of={device} bs=8k count=1 seek=$n conv=fsync,notrunc; done 2> /dev/null\n\
         sleep 1; kill -INT $second; wait $second; cat /run/second.log >&2\n\
         tar -cf /tmp/light.tar -C /tmp light.nest && rm -r /tmp/light.nest"
    );
    stage.guest.run_ok(&beside, PATIENCE)?;
    thread::sleep(Duration::from_millis(500));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let copied = stage
        .ctx
        .fetch_archive(&stage.guest, "light", "/tmp/light.tar")?;
    let other = copied.join("light.nest");
    let (sent, written) = (sides::sides(&ended.bundle)?, sides::sides(&other)?);
    let (sent, _) = sent.first().context("find the side of blktrace")?;
    let (written, _) = written.first().context("find the side of the probes")?;
    case.equal("backend of the one", sent.backend.as_str(), "blktrace");
    case.equal("backend of the other", written.backend.as_str(), "ebpf");
    let from_ns = sent.live_mono_ns.max(written.live_mono_ns) + EDGE_NS;
    let to_ns = sent.end_mono_ns.min(written.end_mono_ns) - EDGE_NS;
    let [sent, written] = [(&ended.bundle, sent), (&other, written)].map(|(bundle, side)| {
        let disk = side.disks.iter().find(|disk| disk.name == name);
        let dev = disk.map_or(0, |disk| disk.dev);
        stream_events(bundle, &side.file).map(|events| requests(&events, dev))
    });
    let (sent, written) = (sent?, written?);
    let within = |request: &&Request| (from_ns..to_ns).contains(&request.completed_ns);
    let alone = |these: &[Request], those: &[Request]| {
        let mut others = by_place(those);
        let mut alone = Vec::new();
        for request in these.iter().filter(within) {
            let same = others.entry(request.place).or_default();
            let alike = same
                .iter()
                .enumerate()
                .filter(|(_, other)| request.is(other));
            match alike.min_by_key(|(_, other)| request.apart_ns(other)) {
                Some((found, _)) => drop(same.swap_remove(found)),
                None => alone.push(*request),
            }
        }
        alone
    };
    for (who, alone) in [
        ("blktrace", alone(&sent, &written)),
        ("ebpf", alone(&written, &sent)),
    ] {
        case.equal(&format!("requests that only {who} has"), alone.len(), 0);
        if let Some(request) = alone.first() {
            case.holds("that", false, &format!("{request:?}"));
        }
    }
    let n = sent.iter().filter(within).count();
    case.holds("requests", n > 200, &n.to_string());
    let n_flushes = sent.iter().filter(|request| request.place.1 == 0).count();
    case.holds("flushes", n_flushes >= 10, &n_flushes.to_string());
    case.figure(format!("{n} requests alike, {n_flushes} without data"));
    stage.ctx.discard(&ended.bundle);
    stage.ctx.discard(&copied);
    stage.guest.kill_agent("TERM")?;
    stage.guest.start_agent("--backend ebpf")?;
    Ok(stage.guest.wait_for_agent(PATIENCE)?)
}

/// Offset, length and operation. What has no data has no place, and is a flush whatever it was asked with.
type Place = (u64, u64, u32);

#[derive(Clone, Copy, Debug)]
struct Request {
    place: Place,
    /// 0: not known.
    issued_ns: u64,
    completed_ns: u64,
}

impl Request {
    fn is(&self, other: &Self) -> bool {
        self.apart_ns(other) < APART_NS
    }

    fn apart_ns(&self, other: &Self) -> u64 {
        let begins = self.issued_ns.abs_diff(other.issued_ns);
        begins.max(self.completed_ns.abs_diff(other.completed_ns))
    }
}

fn requests(events: &[Event], dev: u32) -> Vec<Request> {
    let done = events
        .iter()
        .filter(|event| event.kind() == Some(Kind::RequestDone));
    let of_disk = done.filter(|event| event.dev == dev);
    of_disk
        .map(|event| Request {
            place: match event.bytes {
                0 => (0, 0, 0),
                bytes => (event.offset, bytes, event.op()),
            },
            issued_ns: event.related,
            completed_ns: event.ts_ns,
        })
        .collect()
}

fn by_place(requests: &[Request]) -> HashMap<Place, Vec<Request>> {
    let mut places: HashMap<Place, Vec<Request>> = HashMap::new();
    for request in requests {
        places.entry(request.place).or_default().push(*request);
    }
    places
}
