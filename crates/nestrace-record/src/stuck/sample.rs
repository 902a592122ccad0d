//! Two samples of everything, in the finder.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nestrace_stuck::facts::Facts;

use super::guest_sample::{self, GuestSample, Target};
use super::{devices, kernel_threads};
use crate::cgroup::Hierarchies;
use crate::guest::{DiscoverError, Discovery, Selection, discover_within, not_examined};
use crate::side_by_side::side_by_side;

/// How long finding a guest's disks may take: 0.9 s for a monitor that greets and answers no more, and 0.3 s for each further
/// one.
const MAX_DISCOVERY: Duration = Duration::from_secs(2);
/// How long a look at one guest may take: its monitor has 0.9 s.
const MAX_LOOK: Duration = Duration::from_millis(1200);
/// Threads that look: nearly all of the time they wait for a monitor.
const LOOKING: usize = 32;

/// Finds the chosen guests and takes both samples.
///
/// # Errors
///
/// As [`crate::guest::discover`].
pub(crate) fn sample(selection: &Selection, interval: Duration) -> Result<Facts, DiscoverError> {
    let found = discover_within(selection, MAX_DISCOVERY)?;
    let targets = targets(&found);
    let below = found.topology.devices.clone();
    let mut notes = notes(&found);

    // What a guest waits for at both of its samples has reached its devices at both of theirs, which lie between.
    let before = side_by_side(targets.clone(), LOOKING, MAX_LOOK, GuestSample::take);
    let begin = Instant::now();
    let devices_before = devices::sample(&below);
    let workers_before = kernel_threads::blocked();
    thread::sleep((begin + interval).saturating_duration_since(Instant::now()));
    let elapsed = begin.elapsed();
    let taken = SystemTime::now().duration_since(UNIX_EPOCH);
    let devices_now = devices::sample(&below);
    let mut facts = Facts {
        taken_unix_ns: taken.map_or(0, nanoseconds),
        interval_ns: nanoseconds(elapsed),
        devices: devices::facts(&below, &devices_before, &devices_now),
        host: kernel_threads::facts(&workers_before),
        ..Facts::default()
    };
    let hierarchies = Arc::new(Hierarchies::read());
    let below = Arc::new(below);
    let names: Vec<String> = targets.iter().map(|it| it.guest.name.clone()).collect();
    let both: Vec<(Target, Option<GuestSample>)> = targets
        .into_iter()
        .zip(before.into_iter().map(Option::flatten))
        .collect();
    let looks = side_by_side(both, LOOKING, MAX_LOOK, move |(target, before)| {
        guest_sample::facts(target, before.as_ref()?, &hierarchies, &below)
    });
    for (name, look) in names.into_iter().zip(looks) {
        match look.flatten() {
            Some(guest) => facts.guests.push(guest),
            None => notes.push(format!(
                "guest {name}: exited, or could not be examined within {} ms",
                MAX_LOOK.as_millis()
            )),
        }
    }
    facts.notes = notes;
    Ok(facts)
}

fn targets(found: &Discovery) -> Vec<Target> {
    let guests = found.topology.guests.iter().zip(&found.start_ticks);
    let examined = guests.map(|(guest, &start_ticks)| Target {
        guest: guest.clone(),
        start_ticks,
    });
    let others = found.unexamined.iter().map(|known| Target {
        guest: known.guest.clone(),
        start_ticks: known.start_ticks,
    });
    examined.chain(others).collect()
}

fn notes(found: &Discovery) -> Vec<String> {
    let without_files = found.unexamined.iter().map(|known| {
        format!(
            "guest {}: {}: judged without looking at its files",
            known.guest.name,
            not_examined(MAX_DISCOVERY)
        )
    });
    let notes = found.diagnostics.iter().map(ToString::to_string);
    notes.chain(without_files).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
