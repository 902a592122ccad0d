//! `nestrace record`: finds, starts, shows, stops.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nestrace_kernel::plan::Detail;
use nestrace_probes::{ProbeError, kernel_facts};
use nestrace_record::{
    agent::State,
    agent_address::Choice,
    recording::{Counters, End, Options, RecordError, Recorder, Summary},
};
use nestrace_trace::{Manifest, manifest::Topology};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

mod command;
mod debug_symbols;
mod default_output;
mod flight;

use command::{check_command, command_ended, launch, stop_command, wait_for_command};
use debug_symbols::{HINT, open_debug_file};
pub use default_output::default_output;

use crate::{
    cli::{CpuArg, DetailArg, QemuArg, RecordArgs},
    exit::{DONE, FAILURE, Failure, INPUT, LOST, MISSING, USAGE, say},
    guests::{self, Selected},
    new_bundle, output_place,
    stop::Stop,
};

/// How often the rings are drained.
const TICK: Duration = Duration::from_millis(50);
/// How often the live line changes.
const LIVE_LINE: Duration = Duration::from_millis(500);

/// Records until the duration, the command's end, or a signal.
pub fn run(args: RecordArgs) -> Result<u8, Failure> {
    if let Some(output) = &args.output {
        if !args.force && output.exists() {
            return Err(new_bundle::exists(output));
        }
        output_place::check(output)?;
    }
    let (facts, layout) = kernel_facts::gather();
    if !facts.may_trace() {
        return Err(not_permitted());
    }
    if !facts.btf {
        return Err(failure(ProbeError::NoBtf.into()));
    }
    if (!args.guest.is_empty() || args.device.is_empty()) && !facts.may_follow_processes() {
        return Err(failure(ProbeError::OtherPidNamespace.into()));
    }
    check_command(&args.command)?;
    let Selected {
        topology,
        open_files,
        start_ticks,
        programs,
        notes,
    } = match args.guest.is_empty() && args.device.is_empty() {
        true => guests::select(&[guests::only_one()?], &[])?,
        false => guests::select(&args.guest, &args.device)?,
    };
    if matches!(args.agent, Choice::At(_)) && topology.guests.len() != 1 {
        return Err(
            Failure::new(USAGE, "--agent with an address is for a single --guest")
                .hint("--agent auto finds the channel of each guest"),
        );
    }
    let output = match &args.output {
        Some(output) => output.clone(),
        None => default_output(&topology),
    };
    let flight = flight::options(&args, &output)?;
    let options = Options {
        output,
        force: args.force,
        detail: match args.detail {
            DetailArg::Full => Detail::Full,
            DetailArg::Io => Detail::Io,
            DetailArg::Light => Detail::Light,
        },
        cpu: args.cpu == CpuArg::Auto,
        qemu: args.qemu == QemuArg::Auto,
        qemu_debug: args
            .qemu_debug
            .as_deref()
            .map(open_debug_file)
            .transpose()?,
        max_bytes: args.max_size,
        flight,
        ring_bytes: args.ring_size,
        topology,
        open_files,
        start_ticks,
        programs,
        agent: args.agent.clone(),
        // They are for calls.
        paths: !args.no_paths && args.detail != DetailArg::Io,
        command: args.command.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Handlers first: from here on a signal closes the bundle instead of killing the recorder.
        let stop = Stop::listen()?;
        let write = args
            .flight
            .flight
            .map(|_| signal(SignalKind::user_defined1()));
        let write = write.transpose()?;
        let output = options.output.clone();
        let mut recorder = Recorder::start(options, &facts, &layout).map_err(failure)?;
        for note in notes {
            say(format_args!("note: {note}"));
        }
        if args.output.is_none() && args.flight.flight.is_none() {
            say(format_args!("writing {}", output.display()));
        }
        say_live(recorder.manifest());
        say_agents(&mut recorder);
        record(recorder, &args, stop, write).await
    })
}

fn not_permitted() -> Failure {
    Failure::new(MISSING, "recording needs root (CAP_BPF and CAP_PERFMON)")
        .hint("sudo nestrace record …; nestrace doctor shows what this user may do")
}

fn failure(error: RecordError) -> Failure {
    match &error {
        RecordError::Probe(ProbeError::NoPrivilege) => not_permitted(),
        RecordError::Probe(ProbeError::OtherPidNamespace) => Failure::caused(MISSING, &error).hint(
            "docker run --pid=host … or podman run --pid=host …, or nestrace on the host itself; \
             record --device NAME alone works here too",
        ),
        RecordError::Probe(_) => {
            Failure::caused(MISSING, &error).hint("nestrace doctor shows what this kernel allows")
        }
        RecordError::QemuDebug { .. } => Failure::caused(INPUT, &error).hint(HINT),
        RecordError::Bundle(error) => new_bundle::failure(error),
        error @ RecordError::UntilFile { .. } => Failure::caused(INPUT, error),
        RecordError::Command { program, source } => {
            Failure::new(INPUT, format!("cannot start {program}: {source}"))
        }
        _ => Failure::caused(FAILURE, &error),
    }
}

/// Says on stderr which source is live and what is missing.
fn say_live(manifest: &Manifest) {
    let count = |source: &str| {
        manifest
            .probes
            .iter()
            .filter(|probe| probe.source == source)
            .count()
    };
    let mut parts = vec![format!("block layer ({} probes)", count("block"))];
    for (source, name) in [
        ("file", "file I/O"),
        ("host_fs", "host file system"),
        ("qemu", "QEMU"),
    ] {
        if count(source) > 0 {
            parts.push(format!("{name} ({})", count(source)));
        }
    }
    say(format_args!("recording {}", subject(&manifest.topology)));
    say(format_args!("live: {}", parts.join(", ")));
    if !manifest.refused.is_empty() {
        say(format_args!(
            "without: {} (nestrace doctor says why)",
            refused_names(manifest)
        ));
    }
}

/// Says which agents are live, and what a user can do about those that are not.
fn say_agents(recorder: &mut Recorder) {
    for line in recorder.news() {
        say(line);
    }
    let (mut silent, mut without) = (Vec::new(), Vec::new());
    for agent in recorder.agents() {
        match agent.state {
            None => without.push(agent.guest),
            Some(State::NotConnected | State::NoAnswer) => silent.push(agent.guest),
            Some(State::Attaching) => say(format_args!(
                "guest {}: its agent has answered and is attaching its probes",
                agent.guest
            )),
            Some(_) => {}
        }
    }
    if !silent.is_empty() {
        say(format_args!(
            "guest {}: no agent has answered; the host's side is recorded, and an agent that comes later joins",
            silent.join(", ")
        ));
    }
    if !without.is_empty() {
        say(format_args!(
            "guest {}: no channel to an agent; only the host's side is recorded",
            without.join(", ")
        ));
        say("hint: nestrace guests --how shows how to add one");
    }
}

fn refused_names(manifest: &Manifest) -> String {
    let mut names: Vec<&str> = manifest
        .refused
        .iter()
        .map(|probe| probe.name.as_str())
        .collect();
    names.dedup();
    names.join(", ")
}

fn subject(topology: &Topology) -> String {
    let disks = |n: usize| {
        if n == 1 {
            "1 disk".to_owned()
        } else {
            format!("{n} disks")
        }
    };
    let guests: Vec<String> = topology
        .guests
        .iter()
        .map(|guest| format!("guest {} ({})", guest.name, disks(guest.disks.len())))
        .collect();
    let devices: Vec<&str> = topology
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    match (guests.is_empty(), devices.is_empty()) {
        (true, _) => format!("devices {}", devices.join(", ")),
        (false, true) => guests.join(", "),
        (false, false) => format!("{} on {}", guests.join(", "), devices.join(", ")),
    }
}

/// `write`: the signal at which a flight recorder writes what it has kept.
async fn record(
    mut recorder: Recorder,
    args: &RecordArgs,
    mut stop: Stop,
    mut write: Option<Signal>,
) -> Result<u8, Failure> {
    let mut command = match launch(&mut recorder) {
        Ok(command) => command,
        Err(error) => {
            recorder.abandon();
            return Err(failure(error));
        }
    };
    let deadline = args
        .duration
        .map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
    let live = LiveLine::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reason = loop {
        tokio::select! {
            biased;
            reason = stop.next() => break reason.to_owned(),
            () = flight::asked(write.as_mut()) => recorder.write_flight(),
            status = wait_for_command(&mut command), if command.is_some() => break command_ended(status),
            () = until(deadline), if deadline.is_some() => break "duration".to_owned(),
            _ = tick.tick() => {
                let end = recorder.tick();
                for line in recorder.news() {
                    live.say(&line);
                }
                live.show(recorder.counters());
                if let Some(end) = end {
                    break end_reason(end).to_owned();
                }
            }
        }
    };
    live.clear();
    let finished = recorder.finish(&reason);
    // However the recording ends, the command ends with it.
    stop_command(command).await;
    let summary = finished.map_err(failure)?;
    if let Some(flown) = &summary.flown {
        flight::report(&summary, flown)?;
    } else {
        report(&summary);
    }
    // What an analysis of this recording would exit with.
    let lost_some = summary.losses.iter().any(|loss| loss.events > 0);
    Ok(if args.strict && (lost_some || summary.counters.lost > 0) {
        LOST
    } else {
        DONE
    })
}

async fn until(deadline: Option<Instant>) {
    if let Some(deadline) = deadline {
        sleep_until(deadline).await;
    }
}

fn end_reason(end: End) -> &'static str {
    match end {
        End::MaxSize => "max_size",
        End::DiskFull => "disk_full",
        End::GuestsGone => "guest_exited",
        End::Flown => "flight",
    }
}

fn report(summary: &Summary) {
    for notice in &summary.notices {
        say(format_args!("note: {}", notice.message));
    }
    let Counters {
        events,
        ios,
        lost,
        bytes,
        guest_events,
        ..
    } = summary.counters;
    let from_guests = if guest_events > 0 {
        format!(" and {} from guests", HumanCount(guest_events))
    } else {
        String::new()
    };
    say(format_args!(
        "recorded {:.1} s: {} events{from_guests}, {} I/Os, {} lost, {} in {} (ended: {})",
        summary.duration.as_secs_f64(),
        HumanCount(events),
        HumanCount(ios),
        HumanCount(lost),
        HumanBytes(bytes),
        summary.path.display(),
        summary.end_reason,
    ));
    say(format_args!(
        "next: nestrace analyze {}",
        summary.path.display()
    ));
}

/// Counters on a terminal; nothing where stderr is not one.
struct LiveLine {
    bar: ProgressBar,
    shown: std::cell::Cell<Option<(Instant, Counters)>>,
}

impl LiveLine {
    fn new() -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{elapsed:>4}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        Self {
            bar,
            shown: std::cell::Cell::new(None),
        }
    }

    fn show(&self, now: Counters) {
        let time = Instant::now();
        let (since, before) = self.shown.get().unwrap_or((time, now));
        let elapsed = time.duration_since(since);
        if self.shown.get().is_some() && elapsed < LIVE_LINE {
            return;
        }
        let rate = |now: u64, before: u64| {
            let seconds = elapsed.as_secs_f64();
            if seconds > 0.0 {
                HumanCount((now.saturating_sub(before) as f64 / seconds) as u64)
            } else {
                HumanCount(0)
            }
        };
        let guests = if now.agents > 0 || now.guest_events > 0 {
            format!(
                "{} agents: {} events/s  ",
                now.agents,
                rate(now.guest_events, before.guest_events)
            )
        } else {
            String::new()
        };
        self.bar.set_message(format!(
            "{} events/s  {} I/O/s  {guests}{} lost  {}",
            rate(now.events, before.events),
            rate(now.ios, before.ios),
            HumanCount(now.lost),
            HumanBytes(now.bytes),
        ));
        self.bar.tick();
        self.shown.set(Some((time, now)));
    }

    /// A line above the live one.
    fn say(&self, line: &str) {
        self.bar.suspend(|| say(line));
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use nestrace_output::bundle_dir::BundleError;

    use super::*;

    #[test]
    fn a_full_disk_is_no_bad_input() {
        let error = RecordError::Bundle(BundleError::Io {
            action: "write",
            path: "out.nest".into(),
            source: io::ErrorKind::StorageFull.into(),
        });
        assert_eq!(failure(error).code(), FAILURE);
    }

    #[test]
    fn a_container_s_process_ids_are_a_lack_with_a_way_out() {
        let failure = failure(ProbeError::OtherPidNamespace.into());
        assert_eq!(failure.code(), MISSING);
        assert!(failure.message().contains("PID namespace"));
        assert!(
            failure
                .hint_text()
                .is_some_and(|hint| hint.contains("--pid=host"))
        );
    }
}
