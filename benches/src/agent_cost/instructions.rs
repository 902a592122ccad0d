//! What the agent costs in instructions that the guest executes: no other work of this machine changes them, and no
//! translation makes some dearer than others.
//!
//! The guest's clock counts instructions, and its disks are `null_blk`: it is never idle, so the time that it takes for a
//! read is what it executed for it, the kernel's, fio's and the recorder's instructions together.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use nestrace_rig::guest::{Accel, Guest, GuestSpec};
use nestrace_rig::{initramfs, interrupt, kernel_image};
use xtask::progress::Progress;

use super::{Contestant, PATIENCE, Trace, begin, end, own_time_ns};
use crate::figures::Spread;
use crate::load;

/// Recorded disks, each with its I/O scheduler: what Debian's kernel gives a disk with several queues, and one with one.
const DISKS: [(&str, &str); 2] = [("/dev/nullb0", "none"), ("/dev/nullb1", "mq-deadline")];
/// A disk that is not read.
const OTHER_DISK: &str = "/dev/nullb2";
const READS: u64 = 100_000;
/// A guest that counts is slower than others.
const SLOWER: u32 = 4;

/// One run of fio.
#[derive(Clone, Copy, Debug)]
struct Phase {
    /// Instructions for a read.
    per_read: f64,
    /// Those of them that the recorder's own process executed, in the kernel too.
    own_per_read: f64,
    trace: Trace,
}

/// By disk and contestant.
type Results = [[Vec<Phase>; Contestant::ALL.len()]; DISKS.len()];

/// Boots a guest, alternates, and gives Markdown.
pub fn run(agent: &Path, rounds: u32, progress: &Progress) -> anyhow::Result<String> {
    let guest = boot(agent)?;
    let mut results: Results = Default::default();
    for round in 0..rounds {
        for ((disk, scheduler), results) in DISKS.into_iter().zip(&mut results) {
            for (contestant, results) in Contestant::ALL.into_iter().zip(results) {
                interrupt::check()?;
                let phase = measure(&guest, disk, contestant)?;
                let (n, name) = (phase.per_read, contestant.name());
                let round = round + 1;
                progress.say(&format!(
                    "round {round}: {n:.0} instructions per read, {scheduler}, {name}"
                ));
                results.push(phase);
            }
        }
    }
    Ok(table(&results))
}

fn boot(agent: &Path) -> anyhow::Result<Guest> {
    let kernel = kernel_image::obtain("6.1")?;
    let initramfs = initramfs::obtain(&kernel)?;
    let name = format!("nestrace-bench-{}", std::process::id());
    let guest = Guest::boot(GuestSpec {
        agent: Some(agent.to_owned()),
        memory_mib: 1024,
        vcpus: 1,
        accel: Accel::Counted,
        patience: SLOWER,
        modules: vec!["mq_deadline".to_owned()],
        ..GuestSpec::new(&name, &kernel, &initramfs)
    })?;
    // Once without parameters, for what it depends on.
    let mut script = "load null_blk; rmmod null_blk\n\
         insmod $(find /lib -name null_blk.ko | head -n 1) nr_devices=3 queue_mode=2 irqmode=1 submit_queues=1"
        .to_owned();
    for (disk, scheduler) in DISKS {
        let name = disk.trim_start_matches("/dev/");
        script += &format!("\necho {scheduler} > /sys/block/{name}/queue/scheduler || exit 1");
    }
    guest.run_ok(&script, PATIENCE)?;
    guest.start_agent("")?;
    guest.wait_for_agent(PATIENCE)?;
    Ok(guest)
}

fn measure(guest: &Guest, disk: &str, contestant: Contestant) -> anyhow::Result<Phase> {
    let drain = begin(guest, [disk, OTHER_DISK], contestant)?;
    let own_before_ns = own_time_ns(guest, contestant)?;
    let fio = format!(
        "fio --name=read --filename={disk} --rw=randread --bs=4k --size=1g --ioengine=libaio --direct=1 --iodepth=32 \
         --randrepeat=0 --norandommap --number_ios={READS} --output-format=json"
    );
    let output = guest.run_ok(&fio, Duration::from_secs(120))?;
    let iops = load::read_report(&output.stdout)?.iops;
    let own_ns = own_time_ns(guest, contestant)? - own_before_ns;
    let trace = end(guest, disk, contestant, drain)?;
    ensure!(
        !contestant.records() || trace.events >= READS && trace.lost == 0,
        "record every read with {}: {trace:?}, {READS} reads",
        contestant.name()
    );
    Ok(Phase {
        per_read: 1e9 / iops,
        own_per_read: own_ns as f64 / READS as f64,
        trace,
    })
}

fn table(results: &Results) -> String {
    let mut text = "\n### agent: instructions that the guest executes for a 4 KiB random read at depth 32, null_blk\n\n\
         | scheduler | records in the guest | instructions per read | added | of blktrace's | its own process | events/read |\n\
         |---|---|---|---|---|---|---|\n"
        .to_owned();
    for ((_, scheduler), results) in DISKS.into_iter().zip(results) {
        let of = |part: fn(&Phase) -> f64, place: usize| {
            let phases = results.get(place).into_iter().flatten();
            Spread::of(phases.map(part)).map_or(0.0, |spread| spread.median)
        };
        let base = of(|phase| phase.per_read, 0);
        let blktrace = of(|phase| phase.per_read, 1) - base;
        for (place, contestant) in Contestant::ALL.into_iter().enumerate() {
            let (name, per_read) = (contestant.name(), of(|phase| phase.per_read, place));
            text += &format!("| {scheduler} | {name} | {per_read:.0} |");
            if contestant == Contestant::Nobody {
                text += " | | | |\n";
                continue;
            }
            let added = per_read - base;
            let own = of(|phase| phase.own_per_read, place);
            let events = of(|phase| phase.trace.events as f64, place) / READS as f64;
            let share = added / blktrace * 100.0;
            text += &format!(" **{added:.0}** | {share:.0} % | {own:.0} | {events:.1} |\n");
        }
    }
    text
}
