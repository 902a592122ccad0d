//! What a recording says of a guest's sides.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_trace::manifest::GuestSide;
use nestrace_trace::{Manifest, StreamReader, bundle};
use serde_json::Value;
use xtask::case::Case;

use crate::analysis::entry;
use crate::direct_io_link::stream_events;
use crate::stage::{DISK, Recording, Stage, manifest};
use crate::with_agents::chains;

/// Where a recording begins and ends under load, or a guest stands still, a few bios are cut.
const LINKED: f64 = 0.98;
/// Bios of the load that can be in flight when a recording begins; or a hundredth of all, which the agent hears before the
/// host's probes are live where processors are busy.
const IN_FLIGHT: u64 = 64;
const HEARD_EARLIER: u64 = 100;

/// How long an agent's arrival or silence may take to be noticed on a loaded machine.
pub const NOTICED: Duration = Duration::from_secs(40);

/// Starts a recording and waits until the agent is live as well.
pub fn record(stage: &Stage<'_>) -> anyhow::Result<Recording> {
    let mut recording = stage.record(&[])?;
    wait_agent(stage, &mut recording)?;
    Ok(recording)
}

/// Waits until the recorder says that the agent is live.
pub fn wait_agent(stage: &Stage<'_>, recording: &mut Recording) -> anyhow::Result<()> {
    let words = [stage.guest.name(), "agent", "live"];
    Ok(recording.recorder.wait_for_line(&words, NOTICED)?)
}

/// Waits until the manifest of a running recording fulfils `fits`.
pub fn wait_manifest(
    bundle: &Path,
    what: &str,
    fits: impl Fn(&Manifest) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + NOTICED;
    while !manifest(bundle).is_ok_and(|manifest| fits(&manifest)) {
        if Instant::now() > deadline {
            bail!("see {what} in the manifest within {NOTICED:?}");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The sides of the guest in a closed recording, with their number of events.
pub fn sides(bundle: &Path) -> anyhow::Result<Vec<(GuestSide, usize)>> {
    let with_events = |side: GuestSide| {
        let n = stream_events(bundle, &side.file)?.len();
        Ok((side, n))
    };
    let sides = manifest(bundle)?.guest_sides.into_iter();
    sides.map(with_events).collect()
}

/// Guest events of a recording that still runs, as far as they can be read.
pub fn events_so_far(bundle: &Path) -> anyhow::Result<usize> {
    let mut n = 0;
    for side in manifest(bundle)?.guest_sides {
        let open = |name: &str| {
            let path = bundle.join(name);
            File::open(&path)
                .map(BufReader::new)
                .with_context(|| format!("open {}", path.display()))
        };
        let index = open(&bundle::index_of(&side.file))?;
        n += StreamReader::new(open(&side.file)?, Some(index))?
            .events()
            .count();
    }
    Ok(n)
}

/// What must hold for the chains of a guest whatever happened to it: nothing in an impossible
/// order, the parts sum to the whole, something was linked.
pub fn chains_hold(case: &mut Case, stage: &Stage<'_>, analysis: &Value) -> anyhow::Result<()> {
    let keys = [("guest", stage.guest.name()), ("disk", DISK)];
    let chain = entry(analysis, "chains", &keys)?;
    let count = |key: &str| chain[key].as_u64().unwrap_or(0);
    case.holds(
        "linked bios",
        count("linked") > 100,
        &chain["linked"].to_string(),
    );
    case.equal("wrong_order", count("wrong_order"), 0);
    // The load runs already when the recording begins: what is in flight then has no beginning on one side.
    let before = chain["unlinked"]["before_start"].as_u64().unwrap_or(0);
    case.holds(
        "bios from before the recording",
        before <= IN_FLIGHT.max(count("guest_bios") / HEARD_EARLIER),
        &before.to_string(),
    );
    let bios = count("guest_bios") - before;
    let figures = format!("{} of {bios}", count("linked"));
    let enough = count("linked") as f64 >= LINKED * bios as f64;
    let demand = format!("{:.0} % of the guest's bios are linked", LINKED * 100.0);
    case.holds(&demand, enough, &figures);
    chains::segments(case, chain)?;
    case.figure(format!(
        "{} of {} bios linked, not: {}",
        count("linked"),
        count("guest_bios"),
        chain["unlinked"]
    ));
    for clock in analysis["clocks"].as_array().into_iter().flatten() {
        case.holds(
            "clock violations",
            clock["violations"] == 0,
            &clock.to_string(),
        );
    }
    Ok(())
}
