//! `nestrace-agent`: the guest's side of a recording.
//!
//! It stands by with its probes loaded and nothing attached, until a recorder asks over a port of the
//! hypervisor; then it sends what the guest's block layer does, and what the guest's programs ask of
//! the file systems on the recorded disks. Or it writes a bundle by itself (`--output`).
//!
//! - `guest/`: what the guest has: machine, disks, mounts; and the kernel's file systems it needs.
//! - `backend/`: where events come from: nestrace's own probes, or the kernel's blktrace.
//! - `names/`: names of the files that events are about.
//! - `transport/`: the port or socket, and what waits to be sent.
//! - `session`: the talk with one recorder; `bundle`: a recording into a folder.
//!
//! One thread does it all and never waits for the port: what the port does not take in time is lost,
//! and counted. Only names of files are looked for by another one.

mod backend;
mod bundle;
mod capture;
mod guest;
mod names;
mod session;
mod signals;
mod transport;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser, ValueEnum};
use nestrace_kernel::plan::Detail;

use backend::{Backends, Choice};
use signals::Signals;
use transport::Listener;

/// Records a guest's I/O from inside, for nestrace on its host.
///
/// Without --port, --vsock and --output it serves the virtio-serial port org.nestrace.agent.0, and waits
/// for it where there is none yet.
#[derive(Parser)]
#[command(name = "nestrace-agent", version, group(ArgGroup::new("where").args(["port", "vsock", "output"])))]
struct Args {
    /// Serve this character device instead of the port org.nestrace.agent.0
    #[arg(long, value_name = "PATH")]
    port: Option<PathBuf>,
    /// Listen on this vsock port (the recorder looks at 28275)
    #[arg(long, value_name = "PORT")]
    vsock: Option<u32>,
    /// With --vsock: also accept connections from this machine, not only from the host
    #[arg(long, requires = "vsock")]
    allow_local: bool,
    /// Record into a bundle, until a signal or --duration
    #[arg(long, value_name = "FILE.nest")]
    output: Option<PathBuf>,
    /// With --output: stop after this time
    #[arg(long, value_name = "SECONDS", requires = "output", value_parser = seconds)]
    duration: Option<Duration>,
    /// With --output: replace an existing bundle
    #[arg(long, requires = "output")]
    force: bool,
    /// With --output: record every step of a request and the programs' calls (full), the same without calls
    /// (io), or completed requests only (light)
    #[arg(long, value_enum, default_value_t = DetailArg::Full)]
    detail: DetailArg,
    /// With --output: leave out the names of files
    #[arg(long, requires = "output")]
    no_paths: bool,
    /// With --output: whether to record when the threads that carry I/O have a processor; only with --detail full
    #[arg(long, value_enum, default_value_t = CpuArg::Auto, requires = "output")]
    cpu: CpuArg,
    /// Where events come from; auto uses BPF where it works
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    backend: Choice,
    /// Record only this disk, such as vda; may be repeated [default: all disks]
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
}

/// `OOM_SCORE_ADJ_MAX` of `linux/oom.h`.
const DIES_FIRST: &str = "1000";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DetailArg {
    Full,
    Io,
    Light,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CpuArg {
    Auto,
    Off,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// What kept the agent from its work, by exit code.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    #[error("{0}")]
    Input(String),
    #[error("{0}")]
    Lacking(String),
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nestrace-agent: {error:#}");
            match error.downcast_ref() {
                Some(Obstacle::Input(_)) => ExitCode::from(3),
                Some(Obstacle::Lacking(_)) => ExitCode::from(4),
                None => ExitCode::FAILURE,
            }
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Obstacle::Lacking("it must run as root".to_owned()).into());
    }
    guest::filesystems::provide()?;
    // Where memory runs out, the guest's own programs live on. A kernel without the file does without.
    let _ = std::fs::write("/proc/self/oom_score_adj", DIES_FIRST);
    let mut signals = Signals::catch()?;
    let devices: Vec<String> = args.device.iter().map(|name| kernel_name(name)).collect();
    let mut backends = Backends::prepare(args.backend);
    backends.report();
    if let Some(path) = &args.output {
        let wanted = bundle::Wanted {
            path,
            force: args.force,
            duration: args.duration,
            devices,
            detail: match args.detail {
                DetailArg::Full => Detail::Full,
                DetailArg::Io => Detail::Io,
                DetailArg::Light => Detail::Light,
            },
            // They are for calls.
            paths: !args.no_paths && !matches!(args.detail, DetailArg::Io),
            cpu: matches!(args.cpu, CpuArg::Auto),
        };
        return bundle::record(&wanted, &mut backends, &mut signals);
    }
    let mut listener = match args.vsock {
        Some(port) => Listener::vsock(port, args.allow_local)?,
        None => Listener::port(args.port.clone()),
    };
    while let Some(connection) = listener.next_connection(&mut signals)? {
        session::serve(&connection, &mut backends, &devices, &mut signals);
        if signals.arrived() {
            break;
        }
    }
    Ok(())
}

/// `/dev/vda` and `vda` are the same disk.
fn kernel_name(name: &str) -> String {
    name.strip_prefix("/dev/").unwrap_or(name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parses(line: &str) -> bool {
        Args::try_parse_from(line.split_whitespace()).is_ok()
    }

    #[test]
    fn the_command_line_is_the_contracts() {
        for (line, expected) in [
            ("nestrace-agent", true),
            ("nestrace-agent --port /dev/vport1p1 --backend auto", true),
            (
                "nestrace-agent --vsock 28275 --backend ebpf --device vda",
                true,
            ),
            ("nestrace-agent --vsock 28275 --allow-local", true),
            (
                "nestrace-agent --output a.nest --backend blktrace --device vda --device vdb",
                true,
            ),
            (
                "nestrace-agent --output a.nest --duration 1.5 --force",
                true,
            ),
            ("nestrace-agent --output a.nest --detail io", true),
            ("nestrace-agent --output a.nest --detail calls", false),
            ("nestrace-agent --port /dev/vport1p1 --vsock 28275", false),
            ("nestrace-agent --output a.nest --vsock 28275", false),
            ("nestrace-agent --backend perf", false),
            ("nestrace-agent --output a.nest --no-paths", true),
            ("nestrace-agent --duration 5", false),
            ("nestrace-agent --no-paths", false),
            ("nestrace-agent --output a.nest --duration -5", false),
        ] {
            assert_eq!(parses(line), expected, "{line}");
        }
        assert_eq!(kernel_name("/dev/vda"), kernel_name("vda"));
    }
}
