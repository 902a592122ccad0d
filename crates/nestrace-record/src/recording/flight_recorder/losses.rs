//! What a flight recorder lost.

use std::collections::BTreeMap;

use nestrace_trace::manifest::{GuestSide, Loss};

use crate::flight::copy::Sums;

/// What was lost since then.
pub(super) fn since(mut losses: Vec<Loss>, before: &[Loss]) -> Vec<Loss> {
    for loss in &mut losses {
        let same = |other: &&Loss| (&other.source, &other.guest) == (&loss.source, &loss.guest);
        let events = before.iter().find(same).map_or(0, |loss| loss.events);
        loss.events = loss.events.saturating_sub(events);
    }
    losses
}

/// What the copy could not write, of each guest and of the host (`sides`: all, with those whose stream is not there).
pub(super) fn not_written(sums: &Sums, sides: &[GuestSide]) -> Vec<Loss> {
    let mut lost: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for (file, events) in sums.rows_lost.iter().filter(|(_, events)| **events > 0) {
        let side = sides.iter().find(|side| side.file == *file);
        let of_side = lost
            .entry(side.map(|side| side.guest.as_str()))
            .or_default();
        *of_side = of_side.saturating_add(*events);
    }
    let loss = |(guest, events): (Option<&str>, u64)| Loss {
        source: match &sums.failed {
            Some(_) => "disk_full",
            None => "guest_stream",
        }
        .to_owned(),
        guest: guest.map(str::to_owned),
        events,
    };
    lost.into_iter().map(loss).collect()
}
