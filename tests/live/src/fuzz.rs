//! The stage `fuzz`: mutated inputs for the readers of everything that comes from elsewhere.
//!
//! The targets are those that `cargo fuzz` runs (`fuzz/targets`), and so are the seeds; here they run on
//! stable Rust without coverage, a fixed time each, so that every change meets some hundred thousand
//! damaged inputs. An input that fails is kept in `fuzz/artifacts`.

mod mutate;

#[path = "../../../fuzz/targets/blktrace.rs"]
mod blktrace;
#[path = "../../../fuzz/targets/bundle_stream.rs"]
mod bundle_stream;
#[path = "../../../fuzz/targets/guest_words.rs"]
mod guest_words;
#[path = "../../../fuzz/targets/manifest.rs"]
mod manifest;
#[path = "../../../fuzz/targets/process_files.rs"]
mod process_files;
#[path = "../../../fuzz/targets/programs.rs"]
mod programs;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nix::sys::resource::{UsageWho, getrusage};
use xtask::case::Report;

use mutate::Mutator;

/// Name of the stage.
pub const STAGE: &str = "fuzz";
/// What it does.
pub const ABOUT: &str =
    "damaged inputs for the readers of captures, bundles, manifests, /proc and what QEMUs say";

/// Time for a target.
const SECONDS: u64 = 5;
/// Time for a target with `--full`.
const SECONDS_FULL: u64 = 180;
/// An input that takes longer hangs.
const HANGS: Duration = Duration::from_secs(30);
/// What a target may come to hold, KiB; its inputs are at most 64 KiB.
const MAX_GROWTH_KIB: i64 = 256 << 10;

struct Target {
    name: &'static str,
    check: fn(&[u8]),
}

const TARGETS: [Target; 6] = [
    Target {
        name: "blktrace",
        check: blktrace::check,
    },
    Target {
        name: "bundle_stream",
        check: bundle_stream::check,
    },
    Target {
        name: "manifest",
        check: manifest::check,
    },
    Target {
        name: "process_files",
        check: process_files::check,
    },
    Target {
        name: "programs",
        check: programs::check,
    },
    Target {
        name: "guest_words",
        check: guest_words::check,
    },
];

/// Runs every target; `only` are the names that were asked for, as `fuzz` or `fuzz/TARGET`.
pub fn run(full: bool, only: &[String], report: &mut Report) -> anyhow::Result<()> {
    let (seconds, seed) = if full {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        (SECONDS_FULL, now.as_secs())
    } else {
        // The same inputs on every run, as far as the time goes.
        (SECONDS, 1)
    };
    for target in &TARGETS {
        let name = format!("{STAGE}/{}", target.name);
        let wanted = |only: &String| only == STAGE || name.starts_with(only.as_str());
        if !only.is_empty() && !only.iter().any(wanted) {
            continue;
        }
        report.case(&name, |case| {
            let before_kib = peak_kib()?;
            let n = fuzz(target, seed, Duration::from_secs(seconds))?;
            let growth_kib = peak_kib()? - before_kib;
            case.figure(format!(
                "{n} inputs, seed {seed}, {} MiB more memory",
                growth_kib >> 10
            ));
            case.holds(
                "memory",
                growth_kib < MAX_GROWTH_KIB,
                &format!("{growth_kib} KiB"),
            );
            case.holds("inputs", n > 100, &format!("{n}"));
            Ok(())
        })?;
    }
    Ok(())
}

fn peak_kib() -> anyhow::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.max_rss())
}

/// Feeds a target for some time; how many inputs it took.
fn fuzz(target: &Target, seed: u64, time: Duration) -> anyhow::Result<u64> {
    let root = root();
    let seeds = read_seeds(&root.join("fuzz/seeds").join(target.name))?;
    let current = Arc::new(Mutex::new(Vec::new()));
    let (done, result) = mpsc::channel();
    let (check, shared) = (target.check, Arc::clone(&current));
    let end = Instant::now() + time;
    // A thread of its own: one that hangs is left to end with the process.
    thread::spawn(move || {
        let _ = done.send(feed(check, &seeds, seed, end, &shared));
    });
    let n = match result.recv_timeout(time + HANGS) {
        Ok(Ok(n)) => return Ok(n),
        Ok(Err(n)) => Some(n),
        Err(_) => None,
    };
    let input = current
        .lock()
        .map(|input| input.clone())
        .unwrap_or_default();
    let kept = keep(&root, target.name, &input)?;
    let (what, number) = match n {
        Some(n) => ("fails", format!("input {n} of seed {seed}")),
        None => ("hangs", format!("an input of seed {seed}")),
    };
    anyhow::bail!(
        "pass: {} {what} on {number}, kept as {}",
        target.name,
        kept.display()
    );
}

/// `Err`: the number of the input that failed, which is the current one.
fn feed(
    check: fn(&[u8]),
    seeds: &[Vec<u8>],
    seed: u64,
    end: Instant,
    current: &Mutex<Vec<u8>>,
) -> Result<u64, u64> {
    let mut mutator = Mutator::new(seeds, seed);
    let mut n = 0;
    while Instant::now() < end {
        let input = match seeds.get(usize::try_from(n).unwrap_or(usize::MAX)) {
            Some(seed) => seed.clone(),
            None => mutator.next_input(),
        };
        if let Ok(mut current) = current.lock() {
            current.clone_from(&input);
        }
        catch_unwind(|| check(&input)).map_err(|_| n)?;
        n += 1;
    }
    Ok(n)
}

fn root() -> PathBuf {
    xtask::cargo_build::workspace().to_owned()
}

fn read_seeds(folder: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()?;
    paths.sort();
    let seeds = paths.iter().map(fs::read).collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!seeds.is_empty(), "find a seed in {}", folder.display());
    Ok(seeds)
}

fn keep(root: &Path, target: &str, input: &[u8]) -> anyhow::Result<PathBuf> {
    let folder = root.join("fuzz/artifacts").join(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("stage-{}", std::process::id()));
    fs::write(&path, input)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_passes_and_a_failure_is_found() {
        let root = root();
        for target in &TARGETS {
            let seeds = read_seeds(&root.join("fuzz/seeds").join(target.name)).unwrap();
            seeds.iter().for_each(|seed| (target.check)(seed));
        }
        let end = Instant::now() + Duration::from_secs(60);
        let fails = |input: &[u8]| assert!(!input.contains(&7));
        let failed = feed(fails, &[vec![1, 2, 3, 4]], 5, end, &Mutex::default());
        assert!(failed.is_err_and(|n| n > 0));
    }
}
