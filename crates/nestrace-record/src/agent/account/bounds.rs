//! What of a side has no room in the manifest, and how that is told.

use nestrace_trace::manifest::GuestSide;

/// Bytes of JSON that one side may have in the manifest without its clock samples.
pub(super) const MAX_SIDE_BYTES: usize = 64 << 10;

/// Shortens a list by a quarter and gives by how many entries; 0 if nothing can go.
type Shorten = fn(&mut GuestSide) -> usize;

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
        "gap for which the manifest has no room; the last one reaches over it",
        cut_gaps,
    ),
    ("disk for which the manifest has no room", |side| {
        cut(&mut side.disks)
    }),
];

/// Shortens lists until the side fits its share of the manifest. Gives how many entries of which list went.
pub(super) fn trim(side: &mut GuestSide) -> Vec<(&'static str, usize)> {
    let bytes = |side: &GuestSide| serde_json::to_vec(side).map_or(0, |json| json.len());
    let samples = std::mem::take(&mut side.clock_samples);
    let mut gone = Vec::new();
    for (what, shorten) in LISTS {
        let mut n = 0;
        while bytes(side) > MAX_SIDE_BYTES {
            match shorten(side) {
                0 => break,
                cut => n += cut,
            }
        }
        if n > 0 {
            gone.push((what, n));
        }
    }
    side.clock_samples = samples;
    gone
}

fn cut<T>(list: &mut Vec<T>) -> usize {
    let n = list.len().div_ceil(4);
    list.truncate(list.len() - n);
    n
}

/// What is between the gaps that go counts as one with the last that stays: too much is missing, not too little.
fn cut_gaps(side: &mut GuestSide) -> usize {
    let end_ns = side.gaps.iter().map(|gap| gap.to_host_ns).max();
    let n = side.gaps.len() / 4;
    side.gaps.truncate(side.gaps.len() - n);
    if let (Some(last), Some(end_ns)) = (side.gaps.last_mut(), end_ns) {
        last.to_host_ns = end_ns;
    }
    n
}
