//! A guest that lies: the recorder's memory stays bounded, the host's trace is untouched, and the
//! report says what was refused.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_trace::bundle;
use nix::sys::signal::Signal;
use xtask::case::Case;
use xtask::guest_programs;

use super::HOSTILE;
use crate::direct_io_link::host_events;
use crate::stage::{Ended, Recording, Stage, manifest};

/// What a recorder may use more under attack than without: buffers of one guest, and what its
/// manifest holds.
const MAX_MORE_KIB: u64 = 128 << 10;
const ATTACK_S: u64 = 6;
/// As much as fits through a guest's port in this time: some 1 GiB, and no less than this on a loaded
/// machine.
const FLOOD_S: u64 = 25;
const LEAST_FLOOD_BYTES: u64 = 256 << 20;
/// The whole flood takes 36 s at the rate that the recorder lets a guest have.
const WHOLE_FLOOD_S: u64 = 100;
/// What a recorder has to have taken in by then.
const FLOOD_BYTES: u64 = 2 << 30;

/// Bytes of no meaning.
pub fn garbage(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "garbage", Expected::Refused)
}

/// Frames with impossible lengths, versions and checksums.
pub fn lengths(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "lengths", Expected::Refused)
}

/// Well-formed batches and texts, as many as the port takes.
pub fn gigabytes(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "gigabytes", Expected::Refused)
}

/// The same from a program on the host in the agent's place, which is faster than any guest's port.
pub fn flood(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the socket")?;
    let socket = format!("unix:{}", folder.path().join("port").display());
    let agent = Command::new(guest_programs::hostile_agent()?)
        .args([&socket, "gigabytes", &WHOLE_FLOOD_S.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start the hostile agent")?;
    stage.load()?;
    let recording = stage.record(&["--agent", &socket])?;
    let attacked = Attacked::begin(recording)?;
    let start = Instant::now();
    let output = agent.wait_with_output().context("wait for the flood")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let sent: u64 = said.trim().parse().unwrap_or(0);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    let rate = (sent >> 20) as f64 / start.elapsed().as_secs_f64();
    case.figure(format!("{rate:.0} MiB/s"));
    case.holds(
        "2 GiB are taken in",
        sent >= FLOOD_BYTES,
        &format!("{sent} bytes, {complaint}"),
    );
    attacked.end(stage, case, sent, Expected::Refused)
}

/// Events of all times, devices and kinds.
pub fn time_travel(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "time-travel", Expected::Refused)
}

/// Paths with `..`, other guests' names, control characters.
pub fn names(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "names", Expected::Bounded)
}

/// Bytes of a kernel's buffers that are none, of thousands of them, and times that never come.
pub fn buffers(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    attack(stage, case, "buffers", Expected::Refused)
}

/// What the report has to say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Something was refused.
    Refused,
    /// Nothing need be refused: it was bounded.
    Bounded,
}

fn attack(
    stage: &Stage<'_>,
    case: &mut Case,
    mode: &str,
    expected: Expected,
) -> anyhow::Result<()> {
    stage.load()?;
    let attacked = Attacked::begin(stage.record(&[])?)?;
    let (seconds, least) = match mode {
        "gigabytes" => (FLOOD_S, LEAST_FLOOD_BYTES),
        _ => (ATTACK_S, 1000),
    };
    let script = format!("{HOSTILE} $(port org.nestrace.agent.0) {mode} {seconds}");
    let output = stage.guest.run(&script, Duration::from_secs(120))?;
    let sent: u64 = output.stdout.trim().parse().unwrap_or(0);
    let figures = format!("{sent}, expected {least} at least; {}", output.stderr);
    case.holds("bytes of the attack", sent > least, &figures);
    attacked.end(stage, case, sent, expected)
}

/// A recorder under attack.
struct Attacked {
    recording: Recording,
    quiet_kib: u64,
}

impl Attacked {
    fn begin(recording: Recording) -> anyhow::Result<Self> {
        let quiet_kib = peak_kib(recording.recorder.pid())?;
        Ok(Self {
            recording,
            quiet_kib,
        })
    }

    /// Its memory, its bundle and its report after `sent` bytes.
    fn end(
        self,
        stage: &Stage<'_>,
        case: &mut Case,
        sent: u64,
        expected: Expected,
    ) -> anyhow::Result<()> {
        let Self {
            recording,
            quiet_kib,
        } = self;
        let attacked_kib = peak_kib(recording.recorder.pid())?;
        let ended = recording.stop(Signal::SIGINT)?;
        stage.ended_well(case, &ended, "interrupted")?;
        case.holds(
            "the recorder's memory",
            attacked_kib < quiet_kib + MAX_MORE_KIB,
            &format!("{quiet_kib} KiB before, {attacked_kib} KiB at most"),
        );
        case.figure(format!(
            "{} KiB sent, {} KiB more memory",
            sent >> 10,
            attacked_kib.saturating_sub(quiet_kib)
        ));
        only_our_files(case, stage, &ended.bundle)?;
        bundle_and_report(stage, case, &ended, expected)
    }
}

/// The host's part of the recording is right, and refused data is reported.
fn bundle_and_report(
    stage: &Stage<'_>,
    case: &mut Case,
    ended: &Ended,
    expected: Expected,
) -> anyhow::Result<()> {
    let host = host_events(&ended.bundle)?;
    case.holds(
        "the host's events",
        host.len() > 1000,
        &host.len().to_string(),
    );
    let manifest = manifest(&ended.bundle)?;
    let sides = manifest.guest_sides.iter().flat_map(|side| &side.refused);
    let refused: u64 = sides.map(|refused| refused.times).sum();
    let told = manifest
        .notices
        .iter()
        .any(|notice| notice.what == "agent_refused");
    let text = stage.text(&ended.bundle)?;
    if expected == Expected::Refused {
        case.holds(
            "what was refused is in the manifest",
            refused > 0 || told,
            "nothing",
        );
        case.holds("the report tells of it", text.contains("refused"), &text);
    }
    let strange = |c: char| c.is_control() && c != '\n';
    case.holds(
        "no control characters in the report",
        !text.contains(strange),
        &text,
    );
    case.figure(format!("{refused} refused"));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The most memory that the process has had, KiB.
fn peak_kib(pid: u32) -> anyhow::Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).context("look at the recorder")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .context("find the recorder's memory")?
        .parse()
        .context("read the recorder's memory")
}

/// The bundle has the files that it should, and there are none where the attack wanted them.
fn only_our_files(case: &mut Case, stage: &Stage<'_>, recording: &Path) -> anyhow::Result<()> {
    let stream = bundle::guest_stream(stage.guest.name());
    let known = |name: &str| {
        let sessions = stream.trim_end_matches(".arrows");
        [bundle::MANIFEST, bundle::HOST_STREAM, bundle::IMAGE_MAPS].contains(&name)
            || name == bundle::index_of(bundle::HOST_STREAM)
            || name.starts_with(sessions)
    };
    for file in fs::read_dir(recording).context("look into the recording")? {
        let name = file?.file_name().to_string_lossy().into_owned();
        case.holds("a file of the recording", known(&name), &name);
    }
    for folder in ["/tmp", "/"] {
        let stray = Path::new(folder).join("nestrace-hostile");
        case.holds(
            "no file elsewhere",
            !stray.exists(),
            &stray.display().to_string(),
        );
    }
    Ok(())
}
