//! `cargo xtask bench agent`: what the agent costs the guest that it runs in, beside blktrace.
//!
//! Nothing is recorded on the host meanwhile: the other end of the agent's port is held by this
//! program, which takes every batch and throws it away, so that the guest's side alone is measured.

mod calls;
mod drain;
mod instructions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::stack::{DiskStack, HostFsKind, ImageFormat, Stack};
use nestrace_rig::{disk_image, initramfs, interrupt, kernel_image, root};
use xtask::agent;
use xtask::progress::Progress;

use super::figures::Spread;
use super::{load, machine};
use drain::Drain;

const DISK: &str = "disk-a";
/// A disk that is not read.
const OTHER_DISK: &str = "disk-b";
const PATIENCE: Duration = Duration::from_secs(60);
/// The load whose processor time is measured: so many reads at once, and a pause that no program spins away.
const AT_ONCE: u32 = 16;
const PAUSE: &str = "8ms";
/// Reads after which that load runs, and the fewest that say something.
const ENOUGH_READS: u64 = 500;
/// What a load gets to run evenly.
const SETTLE: Duration = Duration::from_secs(1);

/// Options of `bench agent`.
#[derive(clap::Args)]
pub struct AgentCostArgs {
    /// Seconds that are measured of each load in each phase
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Rounds, each of one phase for every contestant
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// Puts this static agent into the guest instead of building one
    #[arg(long, value_name = "PROGRAM")]
    agent: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_enum, default_value = "time")]
    by: Measure,
}

/// `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Measure {
    /// IOPS and processor time, which other work on this machine changes
    Time,
    /// Instructions that the guest executes
    Instructions,
    /// Time of a call of a program on this machine's own kernel
    Calls,
}

/// Who records in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contestant {
    Nobody,
    Blktrace,
    /// The agent with this backend and detail.
    Agent(&'static str, &'static str),
    /// The agent's probes while they record [`OTHER_DISK`]: each is called, looks whose event it is, and leaves.
    Bystander,
}

impl Contestant {
    /// In the order of a round.
    const ALL: [Self; 7] = [
        Self::Nobody,
        Self::Blktrace,
        Self::Agent("ebpf", "full"),
        Self::Agent("ebpf", "light"),
        Self::Agent("blktrace", "full"),
        Self::Agent("blktrace", "light"),
        Self::Bystander,
    ];

    fn name(self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Blktrace => "blktrace".to_owned(),
            Self::Agent(backend, "full") => format!("agent {backend}"),
            Self::Agent(backend, detail) => format!("agent {backend}, {detail}"),
            Self::Bystander => "agent ebpf, another disk".to_owned(),
        }
    }

    fn records(self) -> bool {
        !matches!(self, Self::Nobody | Self::Bystander)
    }
}

/// One run of fio in the guest.
#[derive(Clone, Copy, Debug)]
struct Phase {
    /// Reads per second, by the guest's fio.
    iops: f64,
    /// Processor time of QEMU, which is the guest's too, for a read, with pauses, µs.
    us_per_read: f64,
    /// Reads that QEMU counted in all.
    reads: u64,
    /// Time that the recorder's own process ran in the guest, by the guest's clock, µs for each of those reads.
    own_us_per_read: f64,
    trace: Trace,
}

/// What a contestant made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Events that arrived.
    pub events: u64,
    /// Events that were lost, by the contestant's own count.
    pub lost: u64,
    /// Bytes that left the guest, or lie in its memory.
    pub bytes: u64,
}

/// Boots a guest, alternates, and prints Markdown.
pub fn run(args: &AgentCostArgs) -> anyhow::Result<ExitCode> {
    root::require()?;
    let progress = Progress::start();
    let agent = match &args.agent {
        Some(program) => program.clone(),
        None => agent::build()?,
    };
    println!("Machine: {}.", machine::describe());
    let by = match args.by {
        Measure::Time => None,
        Measure::Instructions => Some(instructions::run(&agent, args.rounds, &progress)?),
        Measure::Calls => Some(calls::run(&agent, args.rounds, &progress)?),
    };
    if let Some(text) = by {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{} rounds of {} s for each contestant; load average at the start {:.1}.",
        args.rounds,
        args.seconds,
        machine::load_average()
    );
    progress.say("booting a guest");
    let host = HostFs::create(&HostFsSpec {
        backing_folder: "/dev/shm".into(),
        ..HostFsSpec::new(HostFsKind::Xfs)
    })?;
    let stack = DiskStack::default();
    let guest = boot(&host, stack, &agent)?;
    guest.start_agent("")?;
    // Loading the programs takes a translated guest some ten seconds, in which it reads little.
    guest.wait_for_agent(PATIENCE)?;
    let devices = [guest.device_of(DISK)?, guest.device_of(OTHER_DISK)?];
    let mut results: [Vec<Phase>; Contestant::ALL.len()] = Default::default();
    for round in 0..args.rounds {
        for (contestant, results) in Contestant::ALL.into_iter().zip(&mut results) {
            interrupt::check()?;
            let phase = measure(&guest, &devices, contestant, args.seconds)?;
            progress.say(&format!(
                "round {}: {:.2} k IOPS, {:.1} µs of QEMU per read, {}",
                round + 1,
                phase.iops / 1e3,
                phase.us_per_read,
                contestant.name()
            ));
            results.push(phase);
        }
    }
    let host_fs = host.kind();
    print!(
        "{}",
        table(
            &results,
            &Stack {
                host_fs,
                disk: stack
            }
            .to_string()
        )
    );
    Ok(ExitCode::SUCCESS)
}

fn boot(host: &HostFs, stack: DiskStack, agent: &Path) -> anyhow::Result<Guest> {
    let kernel = kernel_image::obtain("6.1")?;
    let initramfs = initramfs::obtain(&kernel)?;
    let image = host.path().join(format!("disk.{}", stack.format));
    disk_image::create(&image, stack.format, 512 << 20, "full")?;
    let name = format!("nestrace-bench-{}", std::process::id());
    let mut spec = GuestSpec::new(&name, &kernel, &initramfs);
    let other = host.path().join("other.raw");
    disk_image::create(&other, ImageFormat::Raw, 64 << 20, "off")?;
    let raw = DiskStack {
        format: ImageFormat::Raw,
        ..stack
    };
    spec.disks = vec![
        DiskSpec::new(DISK, image, stack),
        DiskSpec::new(OTHER_DISK, other, raw),
    ];
    spec.agent = Some(agent.to_owned());
    spec.memory_mib = 1024;
    // With more than one, a translated guest loses an interrupt in every tenth run, and fio waits for ever.
    spec.vcpus = 1;
    Ok(Guest::boot(spec)?)
}

/// Lets a contestant begin to record a disk, or in one case the other.
fn begin(
    guest: &Guest,
    [device, other]: [&str; 2],
    contestant: Contestant,
) -> anyhow::Result<Option<Drain>> {
    let drain = |device, backend, detail| {
        Drain::start(&guest.agent_socket(), device, backend, detail).map(Some)
    };
    match contestant {
        Contestant::Nobody => Ok(None),
        Contestant::Bystander => drain(other, "ebpf", "full"),
        Contestant::Blktrace => {
            guest.run_ok(&begin_blktrace(device), PATIENCE)?;
            Ok(None)
        }
        Contestant::Agent(backend, detail) => drain(device, backend, detail),
    }
}

/// Ends what [`begin`] began; gives what was recorded.
fn end(
    guest: &Guest,
    device: &str,
    contestant: Contestant,
    drain: Option<Drain>,
) -> anyhow::Result<Trace> {
    match (contestant, drain) {
        (Contestant::Blktrace, _) => {
            let said = guest.run_ok(&end_blktrace(device), PATIENCE)?;
            of_blktrace(&said.stdout)
        }
        (_, Some(drain)) => drain.stop(),
        _ => Ok(Trace::default()),
    }
}

fn measure(
    guest: &Guest,
    [device, other]: &[String; 2],
    contestant: Contestant,
    seconds: u64,
) -> anyhow::Result<Phase> {
    let drain = begin(guest, [device, other], contestant)?;
    let n_before = guest.disk_stats(DISK)?.reads;
    let own_before_ns = own_time_ns(guest, contestant)?;
    let iops = as_fast_as_it_goes(guest, device, seconds)?;
    let us_per_read = paced(guest, device, seconds)?;
    let reads = guest.disk_stats(DISK)?.reads - n_before;
    let own_ns = own_time_ns(guest, contestant)? - own_before_ns;
    let trace = end(guest, device, contestant, drain)?;
    let name = contestant.name();
    let recorded = !contestant.records() || trace.events >= reads;
    ensure!(
        recorded,
        "record every read with {name}: {trace:?}, {reads} reads"
    );
    Ok(Phase {
        iops,
        us_per_read,
        reads,
        own_us_per_read: own_ns as f64 / 1e3 / reads as f64,
        trace,
    })
}

/// Time that the recorder's process has run in the guest, ns.
fn own_time_ns(guest: &Guest, contestant: Contestant) -> anyhow::Result<u64> {
    let program = match contestant {
        Contestant::Nobody => return Ok(0),
        Contestant::Blktrace => "blktrace",
        Contestant::Agent(..) | Contestant::Bystander => "nestrace-agent",
    };
    let look = format!("cat /proc/$(pidof {program})/task/*/schedstat");
    let said = guest.run_ok(&look, PATIENCE)?.stdout;
    let of_threads = said.lines().map(|line| {
        let time = line.split(' ').next().unwrap_or_default();
        time.parse::<u64>()
    });
    let times = of_threads.collect::<Result<Vec<u64>, _>>();
    let times = times.with_context(|| format!("read how long {program} ran: {said}"))?;
    Ok(times.iter().sum())
}

fn fio(device: &str, seconds: u64, more: &str) -> String {
    format!(
        "fio --name=read --filename={device} --rw=randread --bs=4k --ioengine=libaio --direct=1 --iodepth=32 \
         --randrepeat=0 --time_based --runtime={seconds} {more} --output-format=json"
    )
}

fn as_fast_as_it_goes(guest: &Guest, device: &str, seconds: u64) -> anyhow::Result<f64> {
    let fio = fio(device, seconds, "--ramp_time=1s");
    let output = guest.run_ok(&fio, Duration::from_secs(seconds) + PATIENCE)?;
    Ok(load::read_report(&output.stdout)?.iops)
}

/// QEMU's processor time for a read, µs, while the guest reads [`AT_ONCE`] times and pauses. As fast as it goes, a guest
/// that is slower lets more reads share a notification and an interrupt, and what a recorder costs is hidden so.
fn paced(guest: &Guest, device: &str, seconds: u64) -> anyhow::Result<f64> {
    let n_before = guest.disk_stats(DISK)?.reads;
    let fio = fio(
        device,
        seconds + 2 * SETTLE.as_secs() + 1,
        &format!("--thinktime={PAUSE} --thinktime_blocks={AT_ONCE}"),
    );
    let running = guest.start(&fio, Duration::from_secs(seconds) + PATIENCE)?;
    while guest.disk_stats(DISK)?.reads < n_before + ENOUGH_READS {
        interrupt::check()?;
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(SETTLE);
    let look = || {
        anyhow::Ok((
            guest.disk_stats(DISK)?.reads,
            machine::process_s(guest.pid())?,
        ))
    };
    let (reads, busy_s) = look()?;
    thread::sleep(Duration::from_secs(seconds));
    let (reads_after, busy_after_s) = look()?;
    let output = running.wait()?;
    ensure!(output.status == 0, "read at a pace: {}", output.stderr);
    let n_reads = reads_after.saturating_sub(reads);
    ensure!(
        n_reads >= ENOUGH_READS,
        "read {AT_ONCE} times and pause, for {seconds} s: {n_reads} reads"
    );
    Ok((busy_after_s - busy_s) * 1e6 / n_reads as f64)
}

/// blktrace writes to memory, as the agent does to its port.
fn begin_blktrace(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    format!(
        "mkdir -p /run/blktrace && cd /run/blktrace && \
         (blktrace -d {device} -b 512 -n 8 > /run/blktrace.log 2>&1 < /dev/null & echo $! > /run/blktrace.pid)\n\
         until [ -e /sys/kernel/debug/block/{name}/trace0 ]; do sleep 0.05; done"
    )
}

/// Prints the losses, and every file's bytes. A record is 48 bytes; its payload, which few have, is
/// left out of account.
fn end_blktrace(device: &str) -> String {
    let name = device.trim_start_matches("/dev/");
    format!(
        "cat /sys/kernel/debug/block/{name}/dropped; kill -INT $(cat /run/blktrace.pid); \
         while kill -0 $(cat /run/blktrace.pid) 2> /dev/null; do sleep 0.05; done; \
         stat -c %s /run/blktrace/*; rm -r /run/blktrace"
    )
}

fn of_blktrace(said: &str) -> anyhow::Result<Trace> {
    let numbers = said
        .lines()
        .map(|line| line.trim().parse::<u64>())
        .collect::<Result<Vec<_>, _>>();
    let numbers = numbers.with_context(|| format!("read blktrace's counts: {said}"))?;
    let (lost, files) = numbers.split_first().context("find blktrace's counts")?;
    let bytes = files.iter().sum();
    Ok(Trace {
        events: bytes / 48,
        lost: *lost,
        bytes,
    })
}

fn table(results: &[Vec<Phase>; Contestant::ALL.len()], stack: &str) -> String {
    let mut text = format!(
        "\n### agent: 4 KiB random reads at depth 32 in a guest, {stack}, loop device over memory\n\n\
         | records in the guest | guest IOPS | IOPS lost | QEMU's CPU µs per read, with pauses | added | its own process | events/read | lost | bytes/event |\n\
         |---|---|---|---|---|---|---|---|---|\n"
    );
    let [nobody, ..] = results;
    for (contestant, phases) in Contestant::ALL.into_iter().zip(results) {
        let pairs = || phases.iter().zip(nobody);
        let iops = Spread::of(phases.iter().map(|phase| phase.iops));
        let cpu = Spread::of(phases.iter().map(|phase| phase.us_per_read));
        let lost = Spread::of(pairs().map(|(with, without)| 1.0 - with.iops / without.iops));
        let added =
            Spread::of(pairs().map(|(with, without)| with.us_per_read - without.us_per_read));
        let (Some(iops), Some(cpu), Some(lost), Some(added)) = (iops, cpu, lost, added) else {
            continue;
        };
        let own = Spread::of(phases.iter().map(|phase| phase.own_us_per_read));
        let own = own.map_or(0.0, |own| own.median);
        let name = contestant.name();
        let (iops, cpu) = (iops.median / 1e3, cpu.median);
        let lost_and_added = format!(
            "**{:.1} %** ({:.1} … {:.1}) | {cpu:.1} | **{:.1}** ({:.1} … {:.1})",
            lost.median * 100.0,
            lost.min * 100.0,
            lost.max * 100.0,
            added.median,
            added.min,
            added.max,
        );
        if !contestant.records() {
            let costs = match contestant {
                Contestant::Nobody => format!("| {cpu:.1} | |"),
                _ => format!("{lost_and_added} | {own:.1}"),
            };
            text += &format!("| {name} | {iops:.2} k | {costs} | | | |\n");
            continue;
        }
        let sum = |part: fn(&Phase) -> u64| phases.iter().map(part).sum::<u64>();
        let events = sum(|phase| phase.trace.events);
        text += &format!(
            "| {name} | {iops:.2} k | {lost_and_added} | {own:.1} | {:.1} | {} | {:.1} |\n",
            events as f64 / sum(|phase| phase.reads) as f64,
            sum(|phase| phase.trace.lost),
            sum(|phase| phase.trace.bytes) as f64 / events as f64,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blktraces_counts() {
        let trace = of_blktrace("3\n4800\n9600\n").unwrap();
        assert_eq!((trace.events, trace.lost, trace.bytes), (300, 3, 14_400));
        assert!(of_blktrace("").is_err());
        assert!(of_blktrace("0\ncat: no such file\n").is_err());
    }
}
