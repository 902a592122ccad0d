//! What is missing: losses, refused probes, events without a partner; and what to type next.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Check, RefusedProbe, TraceSource, UnlinkedReason};

use super::{Page, device_name};
use crate::units::{count, of};

/// Sentences about refused probes.
const MAX_REFUSED: usize = 8;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let gaps = lines(analysis);
    if !gaps.is_empty() {
        page.section("What is missing");
        gaps.iter()
            .for_each(|gap| page.paragraph(&format!("{gap}.")));
    }
    next(analysis, page);
}

/// What is missing, a sentence each, without its full stop.
pub(crate) fn lines(analysis: &Analysis) -> Vec<String> {
    let mut gaps = losses(analysis);
    gaps.extend(unlinked(analysis));
    gaps.extend(
        analysis
            .trace
            .notices
            .iter()
            .map(|notice| format!("Note: {}", notice.trim_end_matches('.'))),
    );
    gaps.extend(refused(&analysis.trace.refused));
    gaps
}

/// Probes of one reason and one cost are one sentence.
fn refused(probes: &[RefusedProbe]) -> Vec<String> {
    let mut alike: Vec<Vec<&RefusedProbe>> = Vec::new();
    for probe in probes {
        let is_alike = |it: &RefusedProbe| {
            (&it.guest, &it.reason, &it.cost) == (&probe.guest, &probe.reason, &probe.cost)
        };
        match alike.iter_mut().find(|group| is_alike(group[0])) {
            Some(group) => group.push(probe),
            None => alike.push(vec![probe]),
        }
    }
    let mut gaps = Vec::new();
    for group in alike.iter().take(MAX_REFUSED) {
        let names: Vec<&str> = group.iter().map(|probe| probe.name.as_str()).collect();
        let first = group[0];
        let guest = first.guest.as_ref();
        let guest = guest.map_or_else(String::new, |guest| format!(" of {guest}"));
        gaps.push(format!(
            "Not attached: {}{guest} ({}). Without {}: {}",
            names.join(", "),
            first.reason,
            if group.len() == 1 { "it" } else { "them" },
            first.cost.trim_end_matches('.')
        ));
    }
    let more: usize = alike.iter().skip(MAX_REFUSED).map(Vec::len).sum();
    if more > 0 {
        gaps.push(format!(
            "{more} more probes were not attached; `nestrace doctor` lists them"
        ));
    }
    gaps
}

fn losses(analysis: &Analysis) -> Vec<String> {
    let trace = &analysis.trace;
    let mut lines = Vec::new();
    for loss in &trace.losses {
        let cost = match loss.source.as_str() {
            "block" => {
                "counts and bytes of the devices are too low, and some requests have no latency"
            }
            "file" => "file I/O on the images and the split of QEMU's time are incomplete",
            "qemu" => "QEMU's requests are incomplete",
            "host_fs" => {
                "read-ahead, journal and write-back are incomplete; devices and images are not affected"
            }
            "meta" => "some threads have no name",
            "walk" => "they had more bios than the probe follows, so some bios have no end",
            "damaged" => "no number includes them",
            "left_out" => "no number includes these devices",
            _ => "the recording ends there",
        };
        let events = of(loss.events, "event", "events");
        let what = match loss.source.as_str() {
            "walk" => format!(
                "{} too long to follow",
                of(loss.events, "request was", "requests were")
            ),
            "damaged" => format!("{events} lost in a damaged file"),
            "left_out" => format!("{events} left out: there are more devices than the limit"),
            source => format!("{events} of source {source} lost"),
        };
        let inside = loss
            .guest
            .as_ref()
            .map_or_else(String::new, |guest| format!(" inside {guest}"));
        lines.push(format!("{what}{inside}: {cost}"));
    }
    if trace.truncated {
        lines.push(match trace.closed {
            None => String::from("There is no manifest that can be read: the start of the recording is unknown, and so is whether it was closed"),
            Some(false) => String::from(
                "The recording was not closed (the recorder was killed, or still runs): up to half a second at the end may be missing",
            ),
            Some(true) => match &trace.end_reason {
                None => String::from("A file of the recording is cut or damaged"),
                Some(reason) => format!(
                    "The recording was closed ({reason}), but one of its files is cut or damaged"
                ),
            },
        });
    }
    if trace.unknown_events > 0 {
        lines.push(format!(
            "{} of a kind that this release does not know",
            of(trace.unknown_events, "event", "events")
        ));
    }
    lines
}

fn unlinked(analysis: &Analysis) -> Vec<String> {
    let mut lines = Vec::new();
    for device in &analysis.devices {
        let is_light = analysis.trace.detail.as_deref() == Some("light");
        let is_queue_recorded = is_light || device.counts.queued.unwrap_or(0) > 0;
        let reasons: Vec<String> = device
            .unlinked
            .iter()
            .map(|(reason, n)| {
                let words = match *reason {
                    UnlinkedReason::BeforeStart | UnlinkedReason::NoMatch if !is_queue_recorded => {
                        "no Q was recorded for any bio"
                    }
                    UnlinkedReason::BeforeStart => "in flight when the recording began",
                    UnlinkedReason::LostEvents => "its events were lost",
                    other => other.name(),
                };
                format!("{} ({words})", count(*n))
            })
            .collect();
        if !reasons.is_empty() {
            lines.push(format!(
                "{}: events without a start: {}",
                device_name(device, None),
                reasons.join(", ")
            ));
        }
        lines.extend(
            device
                .check
                .and_then(|check| missing_ends(&device_name(device, None), &check)),
        );
    }
    lines
}

/// Bios and requests without a recorded end, and what that does to the numbers.
fn missing_ends(device: &str, check: &Check) -> Option<String> {
    let bios = check.reused_while_live + check.ended_twice;
    if bios + check.completions_missed == 0 {
        return None;
    }
    Some(format!(
        "{device}: {} of requests and the ends of {} were not recorded, so completed I/Os, bytes, latencies, depth and busy time are too low",
        of(check.completions_missed, "completion", "completions"),
        of(bios, "bio", "bios"),
    ))
}

fn next(analysis: &Analysis, page: &mut Page) {
    let path = if analysis.trace.path.is_empty() {
        "INPUT"
    } else {
        analysis.trace.path.as_str()
    };
    page.section("Next");
    let followed = analysis.chains.iter().any(|chains| chains.linked > 0);
    if followed && analysis.stories.is_empty() && analysis.call_stories.is_empty() {
        command(
            &format!("nestrace analyze {path} --slowest 5"),
            "single requests, step by step",
            page,
        );
    }
    command(
        &format!("nestrace analyze {path} --format json"),
        "every number, for scripts",
        page,
    );
    if !analysis.trace.refused.is_empty() {
        command(
            "nestrace doctor",
            "what this machine allows, and how to get the rest",
            page,
        );
    }
    if lost_while_recording(analysis) && is_capture(analysis) {
        command(
            "blktrace -b 4096 -n 16 …",
            "larger and more buffers, because events were lost",
            page,
        );
    } else if lost_while_recording(analysis) {
        command(
            "nestrace record --detail light …",
            "fewer events, because some were lost",
            page,
        );
    } else if analysis.trace.detail.as_deref() == Some("light") {
        command(
            "nestrace record --detail full …",
            "every bio, file I/O and QEMU request",
            page,
        );
    } else if analysis.trace.detail.as_deref() == Some("io") {
        command(
            "nestrace record --detail full …",
            "the calls of the guest's programs, too",
            page,
        );
    }
}

/// A command to type and what it does, on two lines where the page is too narrow for one.
fn command(command: &str, what: &str, page: &mut Page) {
    let line = format!("  {command}    {what}");
    if line.chars().count() <= page.options.width {
        page.line(&line);
    } else {
        page.line(&format!("  {command}"));
        page.line(&format!("      {what}"));
    }
}

/// Whether blktrace alone recorded it.
fn is_capture(analysis: &Analysis) -> bool {
    let sources = &analysis.trace.sources;
    let of_blktrace = |source: &TraceSource| source.backend.as_deref() == Some("blktrace");
    !sources.is_empty() && sources.iter().all(of_blktrace)
}

/// Whether the recorder had too little room, which fewer events help; damage of a file they do not.
fn lost_while_recording(analysis: &Analysis) -> bool {
    let mut losses = analysis.trace.losses.iter();
    losses.any(|loss| loss.events > 0 && !["damaged", "left_out"].contains(&loss.source.as_str()))
}
