//! The slowest calls and bios to scale, layer by layer, from the program down to the host's device.

mod lanes;
mod rows;

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{CallStory, Story};

use super::subject::shown;
use super::{Chart, Hue, Plot, Unit};
use crate::call_file::file_name;
use crate::units::time;

/// Pictures of calls.
const MAX_CALLS: usize = 5;
/// Pictures of bios where no call was recorded, and beside calls.
const MAX_BIOS: usize = 5;
const MAX_BIOS_BESIDE_CALLS: usize = 2;
/// What began before the call, and what ends after it, is drawn for at most these shares of its latency.
const BEFORE: f64 = 0.1;
const AFTER: f64 = 0.3;

/// The layers of one call or bio. All times are nanoseconds after its begin.
#[derive(Clone, Debug, PartialEq)]
pub struct Waterfall {
    /// Below the axis.
    pub title: String,
    /// Where the axis begins: 0, or a little before.
    pub from: f64,
    /// Where the axis ends.
    pub to: f64,
    /// The end of the call or bio; what is drawn beyond it was not waited for.
    pub end: f64,
    /// Stands at the end.
    pub end_label: String,
    /// From above.
    pub lanes: Vec<Lane>,
}

/// The work of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// The layer.
    pub label: String,
    /// The part of the latency that is charged to it.
    pub detail: String,
    /// Its colour.
    pub hue: Hue,
    /// Rows that its bars need.
    pub n_rows: usize,
    /// In ascending order of their begin.
    pub bars: Vec<Bar>,
}

/// A piece of work; bars of one row do not overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What was done: `write`, `flush`.
    pub what: String,
    /// How much, and where.
    pub detail: String,
    /// Its begin.
    pub from: f64,
    /// Its end.
    pub to: f64,
    /// When the layer itself worked, in ascending order; in between it waited for the layer below.
    pub own: Vec<(f64, f64)>,
    /// Of its layer, from above.
    pub row: usize,
    /// Its colour: the layer's, but for flushes.
    pub hue: Hue,
    /// Others waited for it too.
    pub is_shared: bool,
    /// It stands for so many pieces of work; 1 for a bar of its own.
    pub n_merged: usize,
}

impl Waterfall {
    pub(super) fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.lanes.iter().flat_map(|lane| &lane.bars)
    }
}

/// The calls, then the bios; the first says how all are read.
pub(super) fn plots(analysis: &Analysis) -> Vec<Plot> {
    let calls = analysis.call_stories.iter().take(MAX_CALLS);
    let mut plots: Vec<Plot> = (1..).zip(calls).map(|(n, call)| of_call(n, call)).collect();
    let n_bios = match plots.is_empty() {
        true => MAX_BIOS,
        false => MAX_BIOS_BESIDE_CALLS,
    };
    let bios = analysis.stories.iter().take(n_bios);
    plots.extend((1..).zip(bios).map(|(n, bio)| of_bio(n, bio)));
    if let Some(first) = plots.first_mut() {
        first.note = format!("{HOW_TO_READ} {}", first.note);
    }
    plots
}

/// Said once.
const HOW_TO_READ: &str = "From the top layer down to the host's device, to scale. A strong colour is time that the layer itself takes; where it is pale, it waits for the layer below. The times beside the layers add up to the whole. A time alone on a bar is that of the part it stands on.";

fn of_call(n: usize, call: &CallStory) -> Plot {
    let (process, file) = (shown(&call.process), shown(&file_name(&call.file)));
    let took = time(call.latency_ns);
    let lanes = lanes::of(&call.tree, &call.segments, &format!("{} {file}", call.op));
    let mut notes = remarks(&lanes, call.clock_bound_ns, call.linked);
    notes.push(format!(
        "`--call {}` prints this call of guest {} step by step.",
        call.call,
        shown(&call.guest)
    ));
    let end_label = format!("{} ends after {took}", call.op);
    Plot {
        id: format!("call-{n}"),
        subject: String::new(),
        question: format!(
            "Where did the {took} of {process}'s {} of {file} go?",
            call.op
        ),
        note: notes.join(" "),
        chart: chart(lanes, call.latency_ns, "call", &end_label),
    }
}

fn of_bio(n: usize, bio: &Story) -> Plot {
    let took = time(bio.q2c_ns);
    let what = match bio.tree.bytes {
        0 => bio.tree.what.to_string(),
        bytes => format!("{} {}", Unit::Bytes.text(bytes as f64), bio.tree.what),
    };
    let (guest, device) = (shown(&bio.guest), shown(&bio.guest_device));
    let lanes = lanes::of(&bio.tree, &bio.segments, "");
    let mut notes = remarks(&lanes, bio.clock_bound_ns, bio.unlinked.is_none());
    if bio.io > 0 {
        notes.push(format!(
            "`--io {}` prints this bio of guest {guest}'s {device} step by step.",
            bio.io
        ));
    }
    Plot {
        id: format!("bio-{n}"),
        subject: String::new(),
        question: format!("Where did the {took} of a {what} of {guest}'s {device} go?"),
        note: notes.join(" "),
        chart: chart(lanes, bio.q2c_ns, "bio", &format!("completed after {took}")),
    }
}

/// What its numbers rest on.
fn remarks(lanes: &[Lane], bound_ns: u64, is_linked: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if is_linked {
        let bound = time(bound_ns).replace(' ', "\u{a0}");
        notes.push(format!(
            "Times between guest and host are exact to ±{bound}."
        ));
    } else {
        notes.push(String::from(
            "Not all of it was linked to the host, so no time is charged to the layers.",
        ));
    }
    let mut bars = lanes.iter().flat_map(|lane| &lane.bars);
    if bars.any(|bar| bar.n_merged > 1) {
        notes.push(String::from(
            "Where a layer does more at once than fits, its last row stands for the rest.",
        ));
    }
    notes
}

fn chart(lanes: Vec<Lane>, whole_ns: u64, of_what: &str, end_label: &str) -> Chart {
    let end = whole_ns as f64;
    let bars = || lanes.iter().flat_map(|lane| &lane.bars);
    let first = bars().map(|bar| bar.from).fold(0.0, f64::min);
    let last = bars().map(|bar| bar.to).fold(end, f64::max);
    Chart::Waterfall(Waterfall {
        title: format!("time since the {of_what} began"),
        from: first.max(-BEFORE * end),
        to: last.min((1.0 + AFTER) * end).max(1.0),
        end,
        end_label: end_label.to_owned(),
        lanes,
    })
}
