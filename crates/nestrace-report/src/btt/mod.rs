//! The block layer as `btt -A` prints it: the same sections, columns and units, so that whoever reads btt's
//! output (or has a script that does) can go on.
//!
//! Where btt's own number is wrong, the right one stands in its place; `docs/btt.md` lists these cases. What
//! btt does not have at all follows in sections of its own ("not in btt").

mod activity;
mod beyond;
mod devices;
mod latency;
mod listing;
mod overhead;
mod seeks;

use nestrace_analyzer::analysis::{BlockAnalysis, BlockDevice, BlockProcess};
use nestrace_trace::printable;

pub use listing::{IoListing, IostatTable};

/// The whole output of `btt -A`.
#[must_use]
pub fn render(blocks: &BlockAnalysis) -> String {
    let mut out = String::new();
    latency::per_process(&mut out, blocks);
    latency::per_device(&mut out, blocks);
    latency::all_devices(&mut out, blocks);
    overhead::overhead(&mut out, blocks);
    devices::merges(&mut out, blocks);
    seeks::seeks(&mut out, blocks, seeks::At::Queue);
    seeks::seeks(&mut out, blocks, seeks::At::Issue);
    devices::plugs(&mut out, blocks);
    devices::at_queue(&mut out, blocks);
    devices::active_periods(&mut out, blocks);
    devices::q2d(&mut out, blocks);
    beyond::parts(&mut out, blocks);
    beyond::percentiles(&mut out, blocks);
    activity::stretches(&mut out, blocks);
    out
}

/// `==================== TITLE ====================` and an empty line.
fn section(out: &mut String, title: &str) {
    out.push_str(&format!(
        "==================== {title} ====================\n\n"
    ));
}

/// A device as btt names it.
fn name(device: &BlockDevice) -> String {
    let (major, minor) = device.number;
    format!("({major:3},{minor:3})")
}

/// A process gives itself its name.
fn process_name(process: &BlockProcess) -> String {
    printable(&process.name)
}

/// Nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
