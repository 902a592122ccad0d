//! Since when a thread sleeps, and where in the kernel.
//!
//! `/proc/TID/sched` has the time at which a thread ran last (`se.exec_start`, milliseconds of its processor's task clock,
//! set when it leaves the processor). That clock leaves interrupts out and so differs from one processor to another; the time
//! now is read from a thread of ours on the same processor. A kernel before 6.15 without `CONFIG_SCHED_DEBUG` has no such
//! file: then it is only known that a thread did not run between the samples.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io;
use std::thread;

use nestrace_probes::proc_file;
use nestrace_stuck::facts::{Facts, ThreadFacts};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// `sched`.
const MAX_SCHED: usize = 64 << 10;
/// Frames of a stack that are kept.
const MAX_FRAMES: usize = 64;

/// Adds stacks and times to the threads of the facts.
pub fn add(facts: &mut Facts) {
    let guests = facts.guests.iter_mut().flat_map(|guest| &mut guest.threads);
    let threads = guests.chain(&mut facts.host.kernel_threads);
    let mut all: Vec<&mut ThreadFacts> = threads.collect();
    let mut is_refused = false;
    for thread in &mut all {
        match stack(thread) {
            Ok(frames) => thread.stack = frames,
            Err(error) => is_refused |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    let wanted: Vec<Place> = all.iter().filter_map(|thread| place(thread)).collect();
    let found = thread::spawn(move || times(wanted)).join();
    for (tid, asleep_ns) in found.unwrap_or_default() {
        if let Some(thread) = all.iter_mut().find(|thread| thread.tid == tid) {
            thread.asleep_ns = Some(asleep_ns);
        }
    }
    if is_refused {
        facts.notes.push(
            "kernel stacks cannot be read without root (CAP_SYS_ADMIN): threads are judged by the function they wait in"
                .to_owned(),
        );
    }
}

fn folder(thread: &ThreadFacts) -> String {
    format!("/proc/{}/task/{}", thread.pid, thread.tid)
}

fn stack(thread: &ThreadFacts) -> io::Result<Vec<String>> {
    let text = proc_file::read(format!("{}/stack", folder(thread)), proc_file::MAX_FDINFO)?;
    Ok(parse_stack(&text.text()))
}

/// `[<0>] schedule+0x31/0xd0`: names of functions; parts that a compiler has split off count as the whole.
#[must_use]
pub fn parse_stack(text: &str) -> Vec<String> {
    let frames = text.lines().filter_map(|line| {
        let (_, frame) = line.split_once("] ")?;
        let name = frame.split(['+', ' ']).next()?;
        let name = name.split('.').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    });
    frames.take(MAX_FRAMES).collect()
}

/// Where and when a thread ran last.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    tid: u32,
    processor: usize,
    ran_ms: f64,
}

fn place(thread: &ThreadFacts) -> Option<Place> {
    let folder = folder(thread);
    let stat = proc_file::read(format!("{folder}/stat"), proc_file::MAX_STAT).ok()?;
    Some(Place {
        tid: thread.tid,
        processor: parse_processor(&stat.text())?,
        ran_ms: ran_ms(&folder)?,
    })
}

/// Field 39 of proc(5).
fn parse_processor(stat: &str) -> Option<usize> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(36)?.parse().ok()
}

fn ran_ms(folder: &str) -> Option<f64> {
    let text = proc_file::read(format!("{folder}/sched"), MAX_SCHED).ok()?;
    parse_ran(&text.text())
}

fn parse_ran(sched: &str) -> Option<f64> {
    let line = sched
        .lines()
        .find_map(|line| line.strip_prefix("se.exec_start"))?;
    let (_, ms) = line.split_once(':')?;
    ms.trim().parse().ok().filter(|ms: &f64| ms.is_finite())
}

/// Nanoseconds since each ran, by this thread, which goes from processor to processor.
fn times(mut wanted: Vec<Place>) -> Vec<(u32, u64)> {
    wanted.sort_by_key(|place| place.processor);
    let mut on = None;
    let mut times = Vec::new();
    for place in wanted {
        if on != Some(place.processor) {
            let mut set = CpuSet::new();
            let moved = set
                .set(place.processor)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
            on = moved.is_ok().then_some(place.processor);
        }
        if on.is_some()
            && let Some(now_ms) = ran_ms("/proc/thread-self")
        {
            let ms = (now_ms - place.ran_ms).max(0.0);
            // Rounds towards zero; no wait takes 500 years.
            times.push((place.tid, (ms * 1e6) as u64));
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stacks() {
        let text =
            "[<0>] io_schedule+0x46/0x80\n[<0>] do_iter_write.part.0+0x1/0x2\n[<0>] x [ext4]\n\n";
        assert_eq!(parse_stack(text), ["io_schedule", "do_iter_write", "x"]);
    }

    #[test]
    fn times_of_the_scheduler() {
        let text = "q (1, #threads: 1)\n---\nse.exec_start                 :      43236817.440414\nse.vruntime : 1\n";
        assert_eq!(parse_ran(text), Some(43_236_817.440_414));
        assert_eq!(parse_ran("se.exec_start : x"), None);
        let stat = format!(
            "1 (a) S {}",
            (0..48).map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
        );
        assert_eq!(parse_processor(&stat), Some(35));
    }

    #[test]
    fn a_thread_that_sleeps_for_a_known_time() {
        let sleeper = thread::spawn(|| thread::sleep(Duration::from_millis(700)));
        thread::sleep(Duration::from_millis(400));
        let pid = std::process::id();
        let (threads, _) = super::super::threads::all(pid).unwrap();
        let places: Vec<Place> = threads
            .keys()
            .filter_map(|&tid| {
                place(&ThreadFacts {
                    pid,
                    tid,
                    ..ThreadFacts::default()
                })
            })
            .collect();
        // A kernel without the file says nothing.
        if std::path::Path::new("/proc/self/sched").exists() {
            let times = thread::spawn(move || times(places)).join().unwrap();
            let is_near = |ns: u64| (350_000_000..690_000_000).contains(&ns);
            assert!(times.iter().any(|(_, ns)| is_near(*ns)), "{times:?}");
        }
        sleeper.join().unwrap();
    }
}
