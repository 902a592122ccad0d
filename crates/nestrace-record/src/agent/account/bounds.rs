//! What of a side has no room in the manifest, and how that is reported.

use nestrace_trace::manifest::GuestSide;
use serde::Serialize;

/// Bytes of JSON that one side may have in the manifest without its clock samples.
pub(super) const MAX_SIDE_BYTES: usize = 64 << 10;

/// Shortens a list by a quarter and gives by how many entries, and how many bytes these had; 0 if nothing can go.
type Shorten = fn(&mut GuestSide) -> (usize, usize);

/// In the order in which they are cut, with what is said of it. Without a disk its events cannot be read.
const LISTS: [(&str, Shorten); 5] = [
    ("mount for which the manifest has no room", |side| {
        cut(&mut side.mounts)
    }),
    ("refused probe for which the manifest has no room", |side| {
        cut(&mut side.probes_refused)
    }),
    ("probe for which the manifest has no room", |side| {
        cut(&mut side.probes)
    }),
    (
        "gap for which the manifest has no room; the last gap covers it",
        cut_gaps,
    ),
    ("disk for which the manifest has no room", |side| {
        cut(&mut side.disks)
    }),
];

/// Shortens lists until the side fits its share of the manifest. Gives the number of entries cut from each list. What stays
/// is measured once where it fits, and what goes once more: a guest says when this is done.
pub(super) fn trim(side: &mut GuestSide) -> Vec<(&'static str, usize)> {
    let samples = std::mem::take(&mut side.clock_samples);
    let mut gone = [0; LISTS.len()];
    let mut over = bytes(side).saturating_sub(MAX_SIDE_BYTES);
    while over > 0 {
        let before: usize = gone.iter().sum();
        for ((_, shorten), gone) in LISTS.iter().zip(&mut gone) {
            while over > 0 {
                let (n, bytes) = shorten(side);
                if n == 0 {
                    break;
                }
                *gone += n;
                over = over.saturating_sub(bytes);
            }
        }
        if gone.iter().sum::<usize>() == before {
            break;
        }
        over = bytes(side).saturating_sub(MAX_SIDE_BYTES);
    }
    side.clock_samples = samples;
    let names = LISTS.iter().map(|(what, _)| *what);
    names.zip(gone).filter(|(_, n)| *n > 0).collect()
}

fn cut<T: Serialize>(list: &mut Vec<T>) -> (usize, usize) {
    let gone = list.split_off(list.len() - list.len().div_ceil(4));
    (gone.len(), bytes(&gone))
}

/// What is between the gaps that go counts as one with the last that stays: too much is missing, not too little.
fn cut_gaps(side: &mut GuestSide) -> (usize, usize) {
    let end_ns = side.gaps.iter().map(|gap| gap.to_host_ns).max();
    let gone = side.gaps.split_off(side.gaps.len() - side.gaps.len() / 4);
    if let (Some(last), Some(end_ns)) = (side.gaps.last_mut(), end_ns) {
        last.to_host_ns = end_ns;
    }
    (gone.len(), bytes(&gone))
}

/// Bytes of JSON.
fn bytes(value: &impl Serialize) -> usize {
    let n = serde_json::to_vec(value).map_or(0, |json| json.len());
    #[cfg(test)]
    MEASURED.set(MEASURED.get() + n);
    n
}

#[cfg(test)]
thread_local! {
    /// Bytes of JSON that were made to be measured, on this thread.
    pub(in crate::agent) static MEASURED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
