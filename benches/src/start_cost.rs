//! `cargo xtask bench start`: how long a recording takes to be live, beside an older nestrace's.
//!
//! A guest with one disk runs and is idle. Each round starts every program once, in turn: `record --guest` until it
//! says what is live, and `guests`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::host_fs::{HostFs, HostFsSpec};
use nestrace_rig::stack::{DiskStack, HostFsKind};
use nestrace_rig::{interrupt, root};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::cargo_build::{self, Profile};
use xtask::progress::Progress;

use super::figures::Spread;
use super::{guest_cost, machine};

/// Options of `bench start`.
#[derive(clap::Args)]
pub struct StartCostArgs {
    /// Starts of each program
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Measures this nestrace instead of building one for release
    #[arg(long, value_name = "PROGRAM")]
    nestrace: Option<PathBuf>,
    /// Another nestrace beside it, as one of an older commit
    #[arg(long, value_name = "PROGRAM")]
    against: Option<PathBuf>,
}

/// Starts each program, and prints Markdown.
pub fn run(args: &StartCostArgs) -> anyhow::Result<ExitCode> {
    root::require()?;
    let progress = Progress::start();
    let nestrace = match &args.nestrace {
        Some(program) => program.clone(),
        None => cargo_build::build("nestrace", Profile::Release)?,
    };
    progress.say("booting a guest");
    let host = HostFs::create(&HostFsSpec {
        backing_folder: "/dev/shm".into(),
        ..HostFsSpec::new(HostFsKind::Xfs)
    })?;
    let guest = guest_cost::boot(&host, DiskStack::default())?;
    let folder = tempfile::Builder::new()
        .prefix("nestrace-bench-")
        .tempdir_in("/dev/shm")
        .context("make a folder for the recordings")?;
    let programs: Vec<&Path> = [Some(&nestrace), args.against.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut live = vec![Vec::new(); programs.len()];
    let mut listed = vec![Vec::new(); programs.len()];
    // The first round warms the caches.
    for round in 0..=args.rounds {
        for (index, program) in programs.iter().enumerate() {
            interrupt::check()?;
            let bundle = folder.path().join(format!("{round}-{index}.nest"));
            let to_live = until_live(program, guest.name(), &bundle)?;
            let to_list = until_listed(program, guest.name())?;
            if round > 0 {
                live[index].push(to_live.as_secs_f64() * 1e3);
                listed[index].push(to_list.as_secs_f64() * 1e3);
            }
        }
    }
    println!("Machine: {}.\n", machine::describe());
    println!("| nestrace | live after, ms | `guests`, ms |\n|---|---|---|");
    for (index, program) in programs.iter().enumerate() {
        let shown = |values: &[f64]| {
            Spread::of(values.iter().copied()).map_or_else(String::new, |spread| {
                let Spread { median, min, max } = spread;
                format!("{median:.0} ({min:.0} … {max:.0})")
            })
        };
        println!(
            "| {} | {} | {} |",
            program.display(),
            shown(&live[index]),
            shown(&listed[index])
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// From the start of `record` to the line that names the live sources.
fn until_live(nestrace: &Path, guest: &str, bundle: &Path) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let mut child = Command::new(nestrace)
        .args(["record", "--guest", guest, "--agent", "off", "-o"])
        .arg(bundle)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start nestrace record")?;
    let said = child.stderr.take().context("hear nestrace record")?;
    let mut heard = String::new();
    let mut lines = BufReader::new(said).lines().map_while(Result::ok);
    let is_live = lines.any(|line| {
        heard.push_str(&line);
        line.contains("live: ")
    });
    let took = begin.elapsed();
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    // One that has failed is gone.
    let _ = kill(pid, Signal::SIGINT);
    lines.for_each(|line| heard.push_str(&line));
    let status = child.wait().context("wait for nestrace record")?;
    ensure!(
        is_live && status.success(),
        "record {guest}: {status}: {heard}"
    );
    Ok(took)
}

fn until_listed(nestrace: &Path, guest: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let output = Command::new(nestrace)
        .arg("guests")
        .output()
        .context("start nestrace guests")?;
    let took = begin.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(said.contains(guest), "find {guest} in the list: {said}");
    Ok(took)
}
