//! `nestrace-disk`: a modelled disk as a file, for a loop device with direct I/O.
//!
//! `serve` mounts a FUSE file system with one file, `disk`, and completes each request on it when the model says so. The
//! data is in memory, or in a file without a name. A socket takes commands: see
//! [`nestrace_modelled_disk::troubles::Command`]. `figures` prints what a workload measures on a model.
//!
//! It is a program of its own, so that the lab, the demo and tests can start it, and can kill it too. When it ends, every
//! request in flight fails, and so does the loop device.

mod control;
mod figures;
mod file_system;
mod leftovers;
mod pacer;
mod priority;
mod store;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, Subcommand};
use nestrace_modelled_disk::disk::Disk;
use nestrace_modelled_disk::parameters::Parameters;
use nix::sys::signal::{SigSet, Signal};

use crate::file_system::DiskFs;
use crate::pacer::Pacer;
use crate::store::Store;

/// Serve a modelled disk as a file for a loop device.
#[derive(Debug, Parser)]
#[command(name = "nestrace-disk", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve a disk until SIGTERM, SIGINT or SIGHUP
    Serve(ServeArgs),
    /// Print what workloads measure on a disk
    Figures {
        /// hdd-7200, hdd-5400, hdd-sw-raid10, sata-ssd, nvme, or a TOML file
        model: String,
        /// Size of the disk, bytes
        #[arg(long, default_value_t = 4 << 30)]
        size: u64,
    },
}

#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// hdd-7200, hdd-5400, hdd-sw-raid10, sata-ssd, nvme, or a TOML file
    #[arg(long)]
    model: String,
    /// Size of the disk, bytes: a multiple of 4096
    #[arg(long)]
    size: u64,
    /// Folder to make: mnt/disk is the file, control the socket. It is removed at the end
    #[arg(long)]
    folder: PathBuf,
    /// Folder of a file for the data; without it, memory
    #[arg(long)]
    data: Option<PathBuf>,
    /// Where platters stand at the start
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let done = match Cli::parse().what {
        What::Serve(args) => serve(&args),
        What::Figures { model, size } => {
            parameters(&model).and_then(|parameters| figures::print(&parameters, size))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nestrace-disk: failed to {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A built-in model, or a file's.
fn parameters(model: &str) -> anyhow::Result<Parameters> {
    if model.ends_with(".toml") {
        let text = std::fs::read_to_string(model).with_context(|| format!("read {model}"))?;
        return Parameters::read(&text).with_context(|| format!("use {model}"));
    }
    Ok(Parameters::built_in(model)?)
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.size > 0 && args.size.is_multiple_of(4096),
        "serve a disk of {} bytes: its size is a multiple of 4096",
        args.size
    );
    let disk = Disk::new(&parameters(&args.model)?, args.size, args.seed)?;
    let store = Store::create(args.data.as_deref(), args.size)?;
    // Threads that are started from here inherit both.
    let signals = block_signals()?;
    priority::raise();
    let served = serve_in(&args.folder, disk, store, args.size, &signals);
    leftovers::remove(&args.folder);
    served
}

fn block_signals() -> anyhow::Result<SigSet> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("block signals")?;
    Ok(signals)
}

fn serve_in(
    folder: &Path,
    disk: Disk,
    store: Store,
    size: u64,
    signals: &SigSet,
) -> anyhow::Result<()> {
    let mount_point = leftovers::mount_point(folder);
    std::fs::create_dir_all(&mount_point)
        .with_context(|| format!("make {}", mount_point.display()))?;
    let pacer = Arc::new(Pacer::new(disk));
    let file_system = DiskFs::new(Arc::clone(&pacer), store, size);
    let session = file_system::mount(file_system, &mount_point)?;
    let pacing = pacer::start(Arc::clone(&pacer))?;
    control::start(&leftovers::socket(folder), Arc::clone(&pacer))?;
    println!("ready");
    let _ = signals.wait();
    // What is in flight fails.
    pacer.end();
    let _ = pacing.join();
    leftovers::remove(folder);
    drop(session);
    Ok(())
}
