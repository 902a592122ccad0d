//! `kill -9` of the recorder.

use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::{LIVE, Stage, events_so_far, manifest, monotonic_ns};

/// At most this much is missing at the end.
const MISSING_NS: u64 = 500_000_000;

/// At several moments of a recording: what is in the bundle reaches to half a second before the kill.
pub fn while_recording(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    for after_ms in [0, 120, 300, 700, 1500] {
        let recording = stage.record(&[])?;
        thread::sleep(Duration::from_millis(after_ms));
        let killed_ns = monotonic_ns()?;
        let ended = recording.stop(Signal::SIGKILL)?;
        // Where nothing has been written yet, nothing older than the start may be missing.
        let live_ns = manifest(&ended.bundle)?.live_mono_ns;
        let events = events_so_far(&ended.bundle)?;
        let last_ns = events.iter().map(|event| event.ts_ns).max();
        let missing_ns = killed_ns.saturating_sub(last_ns.unwrap_or(live_ns));
        case.holds(
            &format!("at most half a second is missing when killed after {after_ms} ms"),
            missing_ns <= MISSING_NS,
            &format!("{} ms", missing_ns / 1_000_000),
        );
        case.figure(format!(
            "after {after_ms} ms: {} events, {} ms missing",
            events.len(),
            missing_ns / 1_000_000
        ));
        says_it_was_cut(stage, case, &ended.bundle)?;
        stage.ctx.discard(&ended.bundle);
    }
    Ok(())
}

/// While the bundle comes into being: it is readable as soon as it is there.
pub fn while_starting(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    for delay_us in [0, 50, 200, 1000, 5000] {
        let bundle = stage.ctx.bundle("killed-early");
        let recording = stage.start(&[], &bundle, &[])?;
        let deadline = Instant::now() + LIVE;
        while !bundle.exists() && Instant::now() < deadline {
            std::hint::spin_loop();
        }
        thread::sleep(Duration::from_micros(delay_us));
        recording.stop(Signal::SIGKILL)?;
        case.holds("the bundle is there", bundle.exists(), "it is not");
        says_it_was_cut(stage, case, &bundle)?;
        stage.ctx.discard(&bundle);
    }
    case.figure("0 to 5 ms after the bundle came");
    Ok(())
}

fn says_it_was_cut(
    stage: &Stage<'_>,
    case: &mut Case,
    bundle: &std::path::Path,
) -> anyhow::Result<()> {
    let analysis = stage.analysis(bundle)?;
    case.holds(
        "trace.truncated is true",
        analysis["trace"]["truncated"] == true,
        "false",
    );
    let text = stage.text(bundle)?;
    case.holds("the text says so", text.contains("was not closed"), &text);
    Ok(())
}
