//! A recording that is not whole is never called whole.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use xtask::case::Case;

use crate::stage::Stage;

/// The exit code of `--strict`.
const INCOMPLETE: Option<i32> = Some(5);
const FORMATS: [&str; 3] = ["text", "json", "btt"];

/// Killed recordings of a guest under load: each is refused by `--strict`, in each format.
pub fn killed(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    for after_ms in [700, 900, 1200, 1600] {
        let recording = stage.record(&["--agent", "off"])?;
        thread::sleep(Duration::from_millis(after_ms));
        let ended = recording.stop(Signal::SIGKILL)?;
        let path = ended.bundle.to_str().context("name the bundle")?;
        for format in FORMATS {
            let end = stage.nestrace(&["analyze", path, "--strict", "--format", format])?;
            case.holds(
                &format!("--format {format} is incomplete"),
                end.code == INCOMPLETE,
                &format!("{:?}: {}", end.code, end.stderr),
            );
        }
        let text = stage.text(&ended.bundle)?;
        let head = text.lines().nth(1).unwrap_or_default();
        case.holds(
            "the head line says it",
            head.contains("not closed: up to 0.5 s at the end are missing")
                && !head.contains("none lost"),
            head,
        );
        let end = stage.nestrace(&["compare", path, path, "--strict"])?;
        case.holds("compare too", end.code == INCOMPLETE, &end.stderr);
        stage.ctx.discard(&ended.bundle);
    }
    case.figure("4 kills, 3 formats");
    Ok(())
}

/// A recording that was closed passes.
pub fn closed(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&["--agent", "off"])?;
    thread::sleep(Duration::from_millis(700));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let text = stage.text(&ended.bundle)?;
    let head = text.lines().nth(1).unwrap_or_default();
    case.holds("the head line says so", head.contains("none lost"), head);
    stage.rest()?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}
