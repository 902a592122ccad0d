//! `nestrace serve` for weeks, in minutes: a thousand guests that come and go, and three hundred at a time. They are QEMUs
//! without a kernel, paused, with a disk each that QEMU itself reads.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::interrupt;
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::LiveContext;
use super::serving::{ANY_PORT, Samples, Serving};

const N_BATCH: usize = 50;
const N_BATCHES: usize = 20;
/// After so many the server has what it needs.
const WARM_BATCHES: usize = 2;
const N_CROWD: usize = 300;
/// A scrape of the crowd.
const SOON: Duration = Duration::from_secs(2);
/// Until all of a batch are there, or gone, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const IMAGE_BYTES: u64 = 1 << 20;
const N_READS: usize = 3;
const READ_BYTES: usize = 4096;
const MAX_ROUNDS: usize = 8;
const LOST: &str = "nestrace_events_lost_total";
const COUNT: &str = "nestrace_io_seconds_count";
const BYTES: &str = "nestrace_io_bytes_total";

/// A QEMU that runs nothing. Dropping it ends it.
struct Tiny {
    name: String,
    child: Child,
    /// Requests that it was asked for.
    n_read: usize,
}

impl Tiny {
    fn start(name: String, folder: &Path) -> anyhow::Result<Self> {
        let image = folder.join(format!("{name}.raw"));
        fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
        let drive = format!("if=none,id=vda,format=raw,file={}", image.display());
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-name", &name, "-drive", &drive])
            .args("-M microvm -accel tcg,tb-size=1 -m 2 -nodefaults -display none -S".split(' '))
            .args([
                "-device",
                "virtio-blk-device,drive=vda",
                "-monitor",
                "stdio",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command.spawn().context("start a QEMU without a kernel")?;
        Ok(Self {
            name,
            child,
            n_read: 0,
        })
    }

    /// QEMU reads its disk by itself, and accounts that.
    fn read(&mut self) -> anyhow::Result<()> {
        let mut monitor = self.child.stdin.as_ref().context("have a monitor")?;
        for i in 0..N_READS {
            writeln!(
                monitor,
                "qemu-io vda \"aio_read {} {READ_BYTES}\"",
                i * READ_BYTES
            )?;
        }
        self.n_read += N_READS;
        Ok(())
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends all at once, as a host that is switched off would; then waits for each.
fn end(all: Vec<Tiny>) {
    let mut all = all;
    for tiny in &mut all {
        let _ = tiny.child.kill();
    }
    drop(all);
}

/// What a server holds on to: its memory in KiB, and its descriptors by kind.
#[derive(Clone, Debug)]
struct Held {
    rss_kib: u64,
    descriptors: BTreeMap<String, usize>,
}

impl Held {
    fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            if let Ok(link) = fs::read_link(entry.path()) {
                let link = link.to_string_lossy().into_owned();
                // socket:[123] → socket
                let kind = link.split(":[").next().unwrap_or(&link).to_owned();
                *descriptors.entry(kind).or_default() += 1;
            }
        }
        Ok(Self {
            rss_kib: rss.context("see its memory")?,
            descriptors,
        })
    }

    /// Between two looks at the machine, which open files, and when links of guests that are gone are closed.
    fn at_rest(pid: u32) -> anyhow::Result<Self> {
        let mut least = Self::of(pid)?;
        for _ in 0..80 {
            thread::sleep(Duration::from_millis(100));
            let now = Self::of(pid)?;
            if now.n_descriptors() < least.n_descriptors() {
                least = now;
            }
        }
        Ok(least)
    }

    fn n_descriptors(&self) -> usize {
        self.descriptors.values().sum()
    }

    fn n_of(&self, kind: &str) -> usize {
        let of = |(name, n): (&String, &usize)| name.contains(kind).then_some(*n);
        self.descriptors.iter().filter_map(of).sum()
    }

    fn told(&self) -> String {
        format!(
            "{} MiB, {} descriptors ({} maps, {} programs)",
            self.rss_kib >> 10,
            self.n_descriptors(),
            self.n_of("bpf-map"),
            self.n_of("bpf-prog")
        )
    }
}

/// How many guests with this in their names have disks.
fn n_guests(samples: &Samples, part: &str) -> usize {
    let guests = samples.values(BYTES, "guest", &[("op", "read")]);
    guests.iter().filter(|guest| guest.contains(part)).count()
}

/// Reads in a layer, by guest, of those with this in their names.
fn in_layer(samples: &Samples, part: &str, layer: &str) -> BTreeMap<String, f64> {
    let guests = samples.values(BYTES, "guest", &[("op", "read")]);
    let of = |guest: String| {
        let labels = [("guest", guest.as_str()), ("op", "read"), ("layer", layer)];
        let n = samples.sum(COUNT, &labels);
        (guest, n)
    };
    let ours = guests.into_iter().filter(|guest| guest.contains(part));
    ours.map(of).collect()
}

/// Waits until a scrape says so; the slowest one.
fn wait_until(
    serving: &Serving,
    what: &str,
    slowest: &mut Duration,
    mut says: impl FnMut(&Samples) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        interrupt::check()?;
        let (text, took) = serving.scrape()?;
        *slowest = took.max(*slowest);
        if says(&Samples::parse(&text)) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "see {what}: {}", serving.said());
        thread::sleep(Duration::from_millis(300));
    }
}

fn start_all(name: &str, n: usize, host: &HostFs) -> anyhow::Result<Vec<Tiny>> {
    let start = |i| {
        interrupt::check()?;
        Tiny::start(format!("{name}-{i}"), host.path())
    };
    (0..n).map(start).collect()
}

/// Has each read its disk, all at once, until QEMU's requests of all are summed. Requests of disks that find no room in the probes
/// are counted as lost, and none is missing.
fn read_all(
    serving: &Serving,
    all: &mut [Tiny],
    slowest: &mut Duration,
    part: &str,
) -> anyhow::Result<()> {
    let lost = |samples: &Samples| samples.sum(LOST, &[("source", "qemu")]);
    let before = serving.samples()?;
    let lost_before = lost(&before);
    // A QEMU that was found while it opened its image has read of it.
    let opened = in_layer(&before, part, "file_io");
    for _ in 0..MAX_ROUNDS {
        let known = in_layer(&serving.samples()?, part, "qemu");
        let is_known = |tiny: &Tiny| known.get(&tiny.name).is_some_and(|n| *n > 0.0);
        let mut unknown: Vec<&mut Tiny> = all.iter_mut().filter(|it| !is_known(it)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        for tiny in &mut unknown {
            tiny.read()
                .with_context(|| format!("have {} read", tiny.name))?;
        }
        let mut off: Vec<String> = Vec::new();
        let n_lost_files = || {
            let samples = serving.samples();
            samples.map_or(-1.0, |samples| samples.sum(LOST, &[("source", "file")]))
        };
        wait_until(serving, "reads of the images", slowest, |samples| {
            let read = in_layer(samples, part, "file_io");
            let of = |name: &str| read.get(name).copied().unwrap_or(0.0);
            let is_all = |tiny: &Tiny| {
                let opened = opened.get(&tiny.name).copied().unwrap_or(0.0);
                of(&tiny.name) - opened == tiny.n_read as f64
            };
            off = all
                .iter()
                .filter(|tiny| !is_all(tiny))
                .map(|tiny| format!("{}: {} of {}", tiny.name, of(&tiny.name), tiny.n_read))
                .collect();
            off.is_empty()
        })
        .with_context(|| format!("{}; files lost: {}", off.join(", "), n_lost_files()))?;
        let n_read: usize = all.iter().map(|tiny| tiny.n_read).sum();
        wait_until(serving, "reads of QEMUs", slowest, |samples| {
            let read: f64 = in_layer(samples, part, "qemu").values().sum();
            let lost = lost(samples) - lost_before;
            read <= n_read as f64 && read + lost >= n_read as f64
        })?;
    }
    anyhow::bail!("see requests of each QEMU: {}", serving.said())
}

/// How many requests of disks found no room.
fn first_requests(case: &mut Case, samples: &Samples) {
    let lost = samples.sum(LOST, &[("source", "qemu")]);
    case.figure(format!("{lost} first requests lost"));
}

/// A thousand guests come and go.
pub fn soak(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let serving = Serving::start(ctx, ANY_PORT, &[])?;
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut warm = None;
    let mut most_kib = 0;
    for batch in 0..N_BATCHES {
        let part = format!("{}-", ctx.guest_name(&format!("soak-{batch}")));
        let mut all = start_all(part.trim_end_matches('-'), N_BATCH, host)?;
        wait_until(&serving, "a batch", &mut slowest, |samples| {
            n_guests(samples, &part) == N_BATCH
        })?;
        read_all(&serving, &mut all, &mut slowest, &part)?;
        end(all);
        wait_until(&serving, "a batch end", &mut slowest, |samples| {
            n_guests(samples, &part) == 0
        })?;
        let held = Held::of(serving.pid())?;
        most_kib = held.rss_kib.max(most_kib);
        println!(
            "top/soak: {} guests in {:.0} s: {}",
            (batch + 1) * N_BATCH,
            start.elapsed().as_secs_f64(),
            held.told()
        );
        if batch + 1 == WARM_BATCHES {
            warm = Some(Held::at_rest(serving.pid())?);
        }
    }
    let warm = warm.context("see the server after the first guests")?;
    let held = Held::at_rest(serving.pid())?;
    case.figure(format!("after {}: {}", WARM_BATCHES * N_BATCH, warm.told()));
    case.figure(format!("after {}: {}", N_BATCHES * N_BATCH, held.told()));
    case.figure(format!(
        "at most {} MiB; the slowest scrape {:.0} ms; {:.0} s",
        most_kib >> 10,
        slowest.as_secs_f64() * 1e3,
        start.elapsed().as_secs_f64()
    ));
    // A guest of another test may have been there at the first look; what leaks does so for each of hundreds of guests.
    case.holds(
        "no more descriptors than after the first guests",
        held.n_descriptors() <= warm.n_descriptors(),
        &format!("{:?}, before {:?}", held.descriptors, warm.descriptors),
    );
    case.holds("it has maps", held.n_of("bpf-map") > 0, &held.told());
    case.holds(
        "memory is flat",
        held.rss_kib <= warm.rss_kib + warm.rss_kib / 10,
        &format!("{} KiB, then {} KiB", warm.rss_kib, held.rss_kib),
    );
    case.holds(
        "guests that come and go hold up no scrape",
        slowest < SOON,
        &format!("{slowest:?}"),
    );
    first_requests(case, &serving.samples()?);
    serving.stop(case)
}

/// Three hundred guests at a time.
pub fn crowd(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let part = format!("{}-", ctx.guest_name("crowd"));
    let mut all = start_all(part.trim_end_matches('-'), N_CROWD, host)?;
    let begin = Instant::now();
    let serving = Serving::start_with_few_files(ctx)?;
    let started = begin.elapsed();
    let mut slowest = Duration::ZERO;
    wait_until(&serving, "all guests", &mut slowest, |samples| {
        n_guests(samples, &part) == N_CROWD
    })?;
    let came = begin.elapsed();
    let mut first_slowest = Duration::ZERO;
    read_all(&serving, &mut all, &mut first_slowest, &part)?;
    let (mut text, mut took) = (String::new(), Duration::ZERO);
    for _ in 0..5 {
        // So that each is made anew.
        thread::sleep(Duration::from_millis(1100));
        let scrape = serving.scrape()?;
        text = scrape.0;
        took = took.max(scrape.1);
    }
    let samples = Samples::parse(&text);
    case.figure(format!(
        "{N_CROWD} guests: served after {:.1} s, all there after {:.1} s; {} KiB, {} series; the slowest of 5 scrapes {:.0} ms",
        started.as_secs_f64(),
        came.as_secs_f64(),
        text.len() >> 10,
        samples.len(),
        took.as_secs_f64() * 1e3
    ));
    case.figure(Held::at_rest(serving.pid())?.told());
    first_requests(case, &samples);
    case.equal("guests", n_guests(&samples, &part), N_CROWD);
    case.holds("a scrape is soon there", took < SOON, &format!("{took:?}"));
    // An operation of a disk: two layers with 32 series each, bytes, in flight, the oldest.
    let n_of_crowd = text.lines().filter(|line| line.contains(&part)).count();
    let most = N_CROWD * 3 * (2 * 32 + 3);
    case.holds(
        "series are bounded",
        n_of_crowd <= most,
        &format!("{n_of_crowd} of {most}"),
    );
    end(all);
    let mut slowest = Duration::ZERO;
    wait_until(&serving, "all end", &mut slowest, |samples| {
        n_guests(samples, &part) == 0
    })?;
    case.figure(format!(
        "the slowest while all end {:.0} ms",
        slowest.as_secs_f64() * 1e3
    ));
    case.holds(
        "guests that end hold up no scrape",
        slowest < SOON,
        &format!("{slowest:?}"),
    );
    serving.stop(case)
}
