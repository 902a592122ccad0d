//! Segments in numbers, disk by disk.

use maud::{Markup, html};
use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Chains, Segment};

use super::MAX_LINES;
use super::page::{bar, details, paragraph, paragraphs, prose};
use crate::plots::segment_hue;
use crate::text::chains::{followed, remarks, without_disk};
use crate::units::{count, of, percent, time};

pub(super) fn disks(analysis: &Analysis) -> Markup {
    let used = analysis
        .chains
        .iter()
        .filter(|chains| chains.guest_bios > 0);
    html! { @for chains in used.take(MAX_LINES) { (disk(chains)) } }
}

fn disk(chains: &Chains) -> Markup {
    let disk = if chains.disk.is_empty() {
        "unknown disk"
    } else {
        &chains.disk
    };
    let name = format!(
        "{}/{disk} ({}): segments in numbers",
        chains.guest, chains.guest_device
    );
    let latency = &chains.latency_ns;
    let operations = [
        ("read", "reads", &chains.by_op.read, latency.read),
        ("write", "writes", &chains.by_op.write, latency.write),
        (
            "discard",
            "discards",
            &chains.by_op.discard,
            latency.discard,
        ),
        ("flush", "flushes", &chains.by_op.flush, latency.flush),
    ];
    let body = html! {
        @if chains.disk.is_empty() { (paragraph(&without_disk(chains))) }
        (paragraph(&followed(chains)))
        @for (one, many, segments, latency) in operations {
            @if latency.n > 0 {
                @let mean = latency.mean.map_or_else(|| String::from("–"), time);
                h3 { (prose(&format!("{}, {mean} on average", of(latency.n, one, many)))) }
                (table(segments))
            }
        }
        (paragraphs(remarks(chains)))
    };
    details(&name, &body)
}

fn table(segments: &[Segment]) -> Markup {
    let value = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    html! {
        div class="scroll" {
            table {
                thead {
                    tr {
                        th { "segment" } th { "n" } th { "mean" } th { "p50" } th { "p99" } th { "share" }
                        th class="bars" {}
                    }
                }
                tbody {
                    @for segment in segments.iter().filter(|segment| segment.n > 0) {
                        tr {
                            td { (segment.name) }
                            td { (count(segment.n)) }
                            td { (time(segment.mean_ns.round() as u64)) }
                            td { (value(segment.p50_ns)) }
                            td { (value(segment.p99_ns)) }
                            td { (percent(segment.share)) }
                            td { (bar(segment.share, segment_hue(segment.name))) }
                        }
                    }
                }
            }
        }
    }
}
