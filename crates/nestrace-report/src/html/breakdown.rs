//! Segments in numbers, disk by disk.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Chains, Segment};

use super::MOST_LINES;
use super::page::{Page, bar, escape};
use crate::plots::{Hue, segment_hue};
use crate::text::chains::{followed, remarks, without_disk};
use crate::units::{count, of, percent, time};

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let used = analysis
        .chains
        .iter()
        .filter(|chains| chains.guest_bios > 0);
    for chains in used.take(MOST_LINES) {
        disk(chains, page);
    }
}

fn disk(chains: &Chains, page: &mut Page) {
    page.raw("<details>");
    let disk = if chains.disk.is_empty() {
        "unknown disk"
    } else {
        &chains.disk
    };
    let name = format!(
        "{}/{disk} ({}): segments in numbers",
        chains.guest, chains.guest_device
    );
    page.element("summary", &name);
    if chains.disk.is_empty() {
        page.element("p", &without_disk(chains));
    }
    page.element("p", &followed(chains));
    let latency = &chains.latency_ns;
    for (operation, segments, latency) in [
        ("reads", &chains.by_op.read, latency.read),
        ("writes", &chains.by_op.write, latency.write),
        ("discards", &chains.by_op.discard, latency.discard),
        ("flushes", &chains.by_op.flush, latency.flush),
    ] {
        if latency.n > 0 {
            let mean = latency.mean.map_or_else(|| String::from("–"), time);
            page.element(
                "h3",
                &format!(
                    "{}, {mean} on average",
                    of(latency.n, operation.trim_end_matches('s'), operation)
                ),
            );
            table(segments, page);
        }
    }
    let remarks = remarks(chains);
    remarks.iter().for_each(|remark| page.element("p", remark));
    page.raw("</details>");
}

fn table(segments: &[Segment], page: &mut Page) {
    page.raw("<div class=scroll><table><thead><tr><th>segment</th><th>n</th><th>mean</th><th>p50</th><th>p99</th><th>share</th><th class=bars></th></tr></thead><tbody>");
    let cell = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    for segment in segments.iter().filter(|segment| segment.n > 0) {
        let cells = [
            segment.name.to_owned(),
            count(segment.n),
            time(segment.mean_ns.round() as u64),
            cell(segment.p50_ns),
            cell(segment.p99_ns),
            percent(segment.share),
        ];
        let cells: String = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", escape(cell)))
            .collect();
        let hue: Hue = segment_hue(segment.name);
        page.raw(&format!(
            "<tr>{cells}<td>{}</td></tr>",
            bar(segment.share, hue)
        ));
    }
    page.raw("</tbody></table></div>");
}
