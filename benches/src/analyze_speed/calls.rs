//! How fast a recording with a guest's calls is analyzed, beside the same one without them.

use std::path::Path;

use anyhow::{Context, ensure};
use xtask::progress::Progress;

use crate::link_speed::repeated::Original;
use crate::link_speed::{Reading, read};
use crate::processor;

/// How often each is read, by turns; the fastest counts.
const ROUNDS: usize = 3;

/// Repeats the recording until it has so many events, and gives Markdown.
pub fn run(
    nestrace: &Path,
    recording: &Path,
    n_events: u64,
    folder: &Path,
    progress: &Progress,
) -> anyhow::Result<String> {
    let folder = tempfile::Builder::new()
        .prefix("nestrace-bench-")
        .tempdir_in(folder)
        .with_context(|| format!("make a folder in {}", folder.display()))?;
    let once = read(nestrace, recording)?;
    ensure!(
        once.calls > 0,
        "find calls in {}: none was recorded",
        recording.display()
    );
    let original = Original::read(recording)?;
    let bare = original.without_calls();
    let long = folder.path().join("calls.nest");
    let repetitions = original.write_repeated(&long, n_events)?;
    let long_bare = folder.path().join("bare.nest");
    bare.write_repeated(&long_bare, repetitions * bare.events())?;
    progress.say(&format!("{repetitions} repetitions"));
    let mut fastest: [Option<Reading>; 2] = [None, None];
    for _ in 0..ROUNDS {
        for (bundle, fastest) in [&long, &long_bare].into_iter().zip(&mut fastest) {
            let reading = processor::on_one(|| read(nestrace, bundle))?;
            let is_faster = fastest.is_none_or(|before| reading.took.busy_s < before.took.busy_s);
            if is_faster {
                *fastest = Some(reading);
            }
        }
    }
    let [Some(with), Some(without)] = fastest else {
        anyhow::bail!("analyze the recordings");
    };
    // One that goes over a seam of two repetitions may be given up.
    let expected = once.calls * repetitions;
    ensure!(
        with.calls <= expected && with.calls + expected / 1000 >= expected,
        "count the calls of every repetition: {} of {expected}",
        with.calls
    );
    ensure!(
        without.calls == 0 && without.bios == with.bios,
        "leave out calls alone: {without:?}, {with:?}"
    );
    Ok(table(&with, &without))
}

fn table(with: &Reading, without: &Reading) -> String {
    let mut text = String::from(
        "\n### analyze: `nestrace analyze` on a recording of host and guest, on one processor\n\n\
         | recording | events | calls | CPU s | events per CPU second | memory |\n|---|---|---|---|---|---|\n",
    );
    for (name, reading) in [("with calls", with), ("the same without", without)] {
        let events = reading.events as f64 / 1e6;
        text += &format!(
            "| {name} | {events:.2} M | {:.2} M | {:.2} | **{:.2} M** | {:.0} MiB |\n",
            reading.calls as f64 / 1e6,
            reading.took.busy_s,
            events / reading.took.busy_s,
            reading.took.peak_bytes as f64 / f64::from(1 << 20)
        );
    }
    text
}
