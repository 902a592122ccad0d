//! What the guest's system did beside each test of E3, as that study printed it: processors apart, the disk's transfers
//! and bytes, pages, context switches.

use maud::{Markup, html};

use super::text;
use crate::html::page::{note, section};
use crate::lab::{Comparison, Counters};
use crate::units;

/// The experiment whose figures these are.
const EXPERIMENT: &str = "E3";

/// A column's name, and what it says of a cell's counters and their seconds.
type Column = (&'static str, fn(&Counters, f64) -> String);

const COLUMNS: [Column; 12] = [
    ("user", |c, _| units::percent(c.cpu_user)),
    ("system", |c, _| units::percent(c.cpu_system)),
    ("iowait", |c, _| units::percent(c.cpu_iowait)),
    ("transfers", |c, s| rate(c.disk_reads + c.disk_writes, s)),
    ("reads", |c, s| rate(c.disk_reads, s)),
    ("writes", |c, s| rate(c.disk_writes, s)),
    ("bytes read", |c, s| bytes(c.disk_read_bytes, s)),
    ("bytes written", |c, s| bytes(c.disk_write_bytes, s)),
    ("KiB paged in", |c, s| rate(c.paged_in_kib, s)),
    ("KiB paged out", |c, s| rate(c.paged_out_kib, s)),
    ("switches", |c, s| rate(c.context_switches, s)),
    ("disk busy", |c, _| units::percent(c.disk_utilisation)),
];

/// The table, in reports of that experiment alone: other pages have what they need in the table of all numbers.
pub(super) fn counters(comparison: &Comparison) -> Markup {
    if comparison.run.experiment.as_deref() != Some(EXPERIMENT) {
        return Markup::default();
    }
    let body = html! {
        div class="scroll" {
            table class="numbers" {
                thead {
                    tr {
                        th { "cell" } th { "value" }
                        @for (name, _) in COLUMNS { th { (name) } }
                    }
                }
                tbody {
                    @for row in &comparison.rows {
                        @let seconds = row.guest.seconds.unwrap_or_default();
                        tr {
                            td { (row.id) }
                            td { (text::value(row.metric, row.value)) }
                            @for (_, tell) in COLUMNS { td { (tell(&row.guest, seconds)) } }
                        }
                    }
                }
            }
        }
        (note("The guest's counters in the median repetition, from the workload's start to its end, with its warm-up: shares of the time of all its processors, its own disk, and counts per second."))
    };
    section("system", "What the guest's system did", &body)
}

/// A count for each second; results that do not say their time have none.
fn rate(count: u64, seconds: f64) -> String {
    per_second(count, seconds)
        .map_or_else(|| String::from("–"), |n| format!("{}/s", units::count(n)))
}

fn bytes(count: u64, seconds: f64) -> String {
    per_second(count, seconds)
        .map_or_else(|| String::from("–"), |n| format!("{}/s", units::size(n)))
}

fn per_second(count: u64, seconds: f64) -> Option<u64> {
    (seconds > 0.0).then(|| (count as f64 / seconds).round() as u64)
}
