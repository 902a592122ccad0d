//! What a comparison says, in sentences: for the text and for the page.

use nestrace_analyzer::compare::{
    CallPair, Comparison, DeviceName, DevicePair, DiskName, DiskPair, ExplainedBy, Explanation,
    FindingPair, FoundIn, IoOperation, Matched, Metric, MetricLayer, Part, Recording, Unmatched,
    Which,
};

use super::value::{Shown, range, ratio, shown, value};
use crate::call_file::file_name;
use crate::operation::many;
use crate::table::shorten;
use crate::text::{answer::place_of, detail_fact, none_or};
use crate::units::{count, of, percent, time};

/// Disks and devices with a sentence; the tables hold all.
const MOST: usize = 4;
/// What is within this part of each other in any case is alike.
const ALIKE: f64 = 0.1;

/// What is to be known of a recording.
pub(crate) fn facts(recording: &Recording) -> String {
    let mut facts = vec![
        time(recording.duration_ns),
        of(recording.events, "event", "events"),
    ];
    facts.extend(none_or(&recording.missing));
    facts.extend(detail_fact(recording.detail.as_deref()));
    facts.join(" · ")
}

/// The answer.
pub(crate) fn answer(comparison: &Comparison) -> Vec<String> {
    let mut sentences: Vec<String> = comparison.disks.iter().take(MOST).map(of_disk).collect();
    if sentences.is_empty() {
        let devices = comparison.devices.iter().take(MOST);
        sentences.extend(
            devices.map(|pair| of_pair(&device_title(pair), &pair.metrics, &pair.explanations)),
        );
    }
    sentences.extend(of_calls(comparison));
    if sentences.is_empty() {
        sentences.push(String::from(
            "The recordings have nothing in common that can be compared.",
        ));
    }
    sentences
}

fn of_disk(pair: &DiskPair) -> String {
    let name = |of: &DiskName| format!("{}/{}", of.guest, of.disk);
    let name = arrow(name(&pair.names.a), name(&pair.names.b));
    let mut text = of_pair(&name, &pair.metrics, &pair.explanations);
    let strongest = pair.findings.iter().find(|it| it.kind.is_only());
    if let Some(finding) = strongest.filter(|it| it.unjudged.is_none()) {
        let which = if finding.kind == FoundIn::OnlyA {
            "A"
        } else {
            "B"
        };
        text.push_str(&format!(
            " Only in {which}: {}.",
            finding.title.trim_end_matches('.')
        ));
    }
    text
}

/// The headline of each operation: what differs, then what does not, then what cannot be said.
fn of_pair(name: &str, metrics: &[Metric], explanations: &[Explanation]) -> String {
    let mut said = Vec::new();
    let mut unsaid: Vec<(&str, Vec<String>)> = Vec::new();
    for operation in [
        IoOperation::Read,
        IoOperation::Write,
        IoOperation::Discard,
        IoOperation::Flush,
    ] {
        let Some(mean) = followed(explanations, operation).or_else(|| headline(metrics, operation))
        else {
            continue;
        };
        if mean.a.is_none() || mean.b.is_none() {
            said.push(of_one_side(operation, mean));
        } else if mean.verdict.is_judged() {
            // What was followed may be others than those of the headline.
            let agrees =
                |it: &&Explanation| it.operation == operation && it.latency.verdict == mean.verdict;
            let explanation = explanations.iter().find(agrees);
            let why = explanation.and_then(of_explanation);
            said.push(of_latency(many(operation), mean, why));
        } else {
            let why = mean.why.as_deref().unwrap_or("too little was recorded");
            let (a, b) = (value(mean.unit, mean.a), value(mean.unit, mean.b));
            let which = format!("{} ({a} and {b})", many(operation));
            match unsaid.iter_mut().find(|(known, _)| *known == why) {
                Some((_, others)) => others.push(which),
                None => unsaid.push((why, vec![which])),
            }
        }
        let rate = rate_beside(metrics, mean).filter(|rate| rate.verdict.differs());
        said.extend(rate.map(|rate| of_rate(operation, rate)));
    }
    said.extend(
        unsaid
            .into_iter()
            .map(|(why, which)| format!("no statement about {}: {why}", which.join(" and "))),
    );
    if said.is_empty() {
        said.push(String::from("the recordings share no latency"));
    }
    format!("{name}: {}.", said.join("; "))
}

/// The mean latency of a guest's bios as its chains have it, to the end of the flush after their data: what the
/// bars and the parts of a difference are of. Where too few were followed it says nothing.
fn followed(explanations: &[Explanation], operation: IoOperation) -> Option<&Metric> {
    let own = |it: &&Explanation| it.method == ExplainedBy::Segments && it.operation == operation;
    let latency = &explanations.iter().find(own)?.latency;
    latency.verdict.is_judged().then_some(latency)
}

/// What the values of a guest's disk leave out that its sentences and parts have, if they do.
pub(crate) fn ends_with_data(pair: &DiskPair) -> Option<&'static str> {
    let differs = |latency: &Metric| {
        let mut means = pair
            .metrics
            .iter()
            .filter(|it| it.layer == MetricLayer::Guest);
        let mean = means.find(|it| it.operation == latency.operation && it.name == "q2c_mean");
        let sides = |of: fn(&Metric) -> Option<f64>| mean.and_then(of).zip(of(latency));
        let longer = |(mean, latency): (f64, f64)| latency > mean * (1.0 + ROUNDING);
        [sides(|it| it.a), sides(|it| it.b)]
            .into_iter()
            .flatten()
            .any(longer)
    };
    let mut followed = pair.explanations.iter();
    let any = followed.any(|it| it.method == ExplainedBy::Segments && differs(&it.latency));
    any.then_some(
        "In this table, mean, median and 99 % end with the data. The sentences at the top, the bars and the parts of a \
         difference include the flush after it.",
    )
}

/// Means that are no further apart are of the same bios.
const ROUNDING: f64 = 0.001;

/// The mean latency as far up as it was recorded in both.
fn headline(metrics: &[Metric], operation: IoOperation) -> Option<&Metric> {
    let named = |name: &str| {
        let mut own = metrics.iter().filter(|it| it.operation == Some(operation));
        own.find(|it| it.name == name)
    };
    let names = ["q2c_mean", "latency_mean", "d2c_mean"];
    let in_both = |metric: &&Metric| metric.a.is_some() && metric.b.is_some();
    let both = names.iter().filter_map(|name| named(name)).find(in_both);
    both.or_else(|| names.iter().find_map(|name| named(name)))
}

/// The rate of the layer that the latency is of: another layer counts other things (merged requests, for example), and a
/// reader looks for this number in the table.
fn rate_beside<'a>(metrics: &'a [Metric], mean: &Metric) -> Option<&'a Metric> {
    let mut rows = shown(metrics, Shown::Text).into_iter();
    // The chains are of the guest's bios.
    let layer = match mean.layer {
        MetricLayer::Segment => MetricLayer::Guest,
        layer => layer,
    };
    let own = (layer, mean.operation, "per_second");
    rows.find(|it| (it.layer, it.operation, it.name) == own)
}

fn of_one_side(operation: IoOperation, mean: &Metric) -> String {
    let (which, of) = match mean.a {
        Some(_) => ("A", mean.a),
        None => ("B", mean.b),
    };
    let (operations, of) = (many(operation), value(mean.unit, of));
    format!("only {which} has {operations}, {of} on average")
}

fn of_rate(operation: IoOperation, rate: &Metric) -> String {
    let (a, b) = (value(rate.unit, rate.a), value(rate.unit, rate.b));
    let whose = if rate.layer == MetricLayer::Qemu {
        "QEMU "
    } else {
        ""
    };
    format!(
        "B does {b} {whose}{} per second instead of {a} (B ÷ A between {})",
        many(operation),
        range(rate)
    )
}

fn of_latency(operations: &str, mean: &Metric, why: Option<String>) -> String {
    let (a, b) = (value(mean.unit, mean.a), value(mean.unit, mean.b));
    let between = range(mean);
    if mean.verdict.differs() {
        let long = times(mean.ratio);
        let why = why.map_or_else(String::new, |why| format!(", {why}"));
        return format!(
            "{operations} take {long} in B, {b} on average instead of {a} (B ÷ A between {between}){why}"
        );
    }
    let limits = mean.interval.and_then(|interval| interval.ratio);
    if limits.is_some_and(|[low, high]| low > 1.0 - ALIKE && high < 1.0 + ALIKE) {
        return format!(
            "{operations} take equally long in both, {a} and {b} (B ÷ A between {between})"
        );
    }
    format!(
        "{operations} vary too much to show a difference, {a} and {b} (B ÷ A between {between})"
    )
}

/// `2.1 times as long`, `35 % longer`, `20 % shorter`.
fn times(of: Option<f64>) -> String {
    match of {
        Some(of) if of >= 1.995 => format!("{} times as long", ratio(Some(of))),
        Some(of) if of >= 1.0 => format!("{} longer", percent(of - 1.0)),
        Some(of) => format!("{} less time", percent(1.0 - of)),
        None => String::from("longer"),
    }
}

/// Which part of the latency it is: the layer with the most of the difference, all of its segments together.
fn of_explanation(explanation: &Explanation) -> Option<String> {
    // Where no part changed beyond its spread, none is named.
    explanation.largest?;
    of_parts(&explanation.parts)
}

fn of_parts(parts: &[Part]) -> Option<String> {
    let mut places: Vec<(&str, f64, bool)> = Vec::new();
    for part in parts {
        let Some((place, share)) = place_of_part(part.mean.name).zip(part.share_of_difference)
        else {
            continue;
        };
        let changed = part.mean.verdict.differs();
        match places.iter_mut().find(|(known, ..)| *known == place) {
            Some((_, sum, any_changed)) => {
                *sum += share;
                *any_changed |= changed;
            }
            None => places.push((place, share, changed)),
        }
    }
    let (place, share, changed) = places.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if !changed || share <= 0.0 {
        return None;
    }
    if share > 1.0 {
        return Some(format!(
            "more than all of the difference {place} ({})",
            percent(share)
        ));
    }
    Some(format!("{} of the difference {place}", percent(share)))
}

/// Where the time of a part passes, in words.
fn place_of_part(name: &str) -> Option<&'static str> {
    match name {
        "q2d_mean" => Some("in the queue"),
        "d2c_mean" => Some("at the device"),
        segment => place_of(segment),
    }
}

/// One finding, where it is and how strong.
pub(crate) fn of_finding(finding: &FindingPair) -> String {
    let share = |share: Option<f64>| percent(share.unwrap_or(0.0));
    let (a, b) = (share(finding.a), share(finding.b));
    let title = finding.title.trim_end_matches('.');
    let text = match finding.kind {
        FoundIn::OnlyA => format!("Only in A: {title} ({}, {a} at stake)", finding.id),
        FoundIn::OnlyB => format!("Only in B: {title} ({}, {b} at stake)", finding.id),
        FoundIn::StrongerA => format!(
            "Stronger in A: {title} ({}, {a} at stake, {b} in B)",
            finding.id
        ),
        FoundIn::StrongerB => format!(
            "Stronger in B: {title} ({}, {b} at stake, {a} in A)",
            finding.id
        ),
    };
    match finding.unjudged {
        Some(missing) => format!("{text}; the other could not be judged: {missing}."),
        None => format!("{text}."),
    }
}

/// The call with the most time whose mean differs.
fn of_calls(comparison: &Comparison) -> Option<String> {
    let pairs = comparison.calls.as_ref()?;
    let mean = |pair: &&CallPair| {
        let mean = pair.metrics.first();
        mean.is_some_and(|mean| mean.verdict.differs())
    };
    let pair = pairs.iter().find(mean)?;
    let mean = pair.metrics.first()?;
    let why = pair
        .explanation
        .as_ref()
        .filter(|it| it.latency.verdict == mean.verdict && it.largest.is_some())
        .and_then(|it| of_parts(&it.parts));
    let calls = format!("calls of {}", call_name(pair));
    Some(format!("Programs: {}.", of_latency(&calls, mean, why)))
}

/// `fio: fsync of /mnt/data`.
pub(crate) fn call_name(pair: &CallPair) -> String {
    let guest = match pair.guests.a == pair.guests.b {
        true => String::new(),
        false => format!(
            "{} → {} ",
            shorten(&pair.guests.a, NAME),
            shorten(&pair.guests.b, NAME)
        ),
    };
    let process = shorten(&pair.process, NAME);
    let file = file_name(&pair.files.a);
    format!("{guest}{process}: {} of {}", pair.op, shorten(&file, FILE))
}

/// Columns for a program's and for a file's name.
const NAME: usize = 12;
const FILE: usize = 28;

/// Why calls are not compared, where one of the recordings has some.
pub(crate) fn why_no_calls(comparison: &Comparison) -> Option<String> {
    let left = comparison.calls_left;
    let why = comparison.calls_why_none.as_ref()?;
    (left.a + left.b > 0).then(|| format!("Calls of the guests' programs are not compared: {why}."))
}

/// What a table of so many pairs leaves out.
pub(crate) fn calls_left(comparison: &Comparison, shown: usize) -> Vec<String> {
    let compared = comparison.calls.as_ref().map_or(0, Vec::len);
    let more = compared.saturating_sub(shown);
    let left = comparison.calls_left;
    let mut lines = Vec::new();
    if more > 0 {
        let more = of(
            more as u64,
            "pair with less time is",
            "pairs with less time are",
        );
        lines.push(format!("{more} in the JSON."));
    }
    if left.a + left.b > 0 {
        lines.push(format!(
            "{} of A and {} of B are in no pair: only one recording has them, or they took less time.",
            of(left.a, "row of calls", "rows of calls"),
            count(left.b)
        ));
    }
    lines
}

/// Both names, where they differ.
pub(crate) fn disk_title(pair: &DiskPair) -> String {
    let name = |of: &DiskName| match &of.guest_device {
        Some(device) => format!("{}/{} ({device})", of.guest, of.disk),
        None => format!("{}/{}", of.guest, of.disk),
    };
    arrow(name(&pair.names.a), name(&pair.names.b))
}

/// What each lies on: `raw on ext3 → raw on ext4`.
pub(crate) fn disk_image(pair: &DiskPair) -> Option<String> {
    let (a, b) = (&pair.names.a.image, &pair.names.b.image);
    let unknown = || String::from("unknown");
    (a.is_some() || b.is_some()).then(|| {
        arrow(
            a.clone().unwrap_or_else(unknown),
            b.clone().unwrap_or_else(unknown),
        )
    })
}

fn arrow(a: String, b: String) -> String {
    if a == b { a } else { format!("{a} → {b}") }
}

/// Both names, where they differ.
pub(crate) fn device_title(pair: &DevicePair) -> String {
    let beneath = match pair.matched {
        Matched::Disk => ", under the disk",
        _ => "",
    };
    let names = arrow(device(&pair.names.a), device(&pair.names.b));
    format!("{names}{beneath}")
}

fn device(name: &DeviceName) -> String {
    let scheduler = match &name.scheduler {
        Some(scheduler) => format!(" ({scheduler})"),
        None => String::new(),
    };
    match &name.guest {
        Some(guest) => format!("{guest}:{}{scheduler}", name.name),
        None => format!("{}{scheduler}", name.name),
    }
}

/// What has no counterpart, and why.
pub(crate) fn of_unmatched(one: &Unmatched) -> String {
    let which = if one.only_in == Which::A { "A" } else { "B" };
    format!(
        "Only in {which}: {} {} ({}).",
        one.kind.word(),
        one.name,
        one.reason
    )
}

/// What the intervals are, and what they are not.
pub(crate) fn rest(comparison: &Comparison) -> Vec<String> {
    let method = &comparison.method;
    let mut lines = vec![format!(
        "\"Between\" is where B ÷ A lies with {} confidence, by a bootstrap over blocks of time of each recording. It holds what varies within the recordings; what varies from run to run (placement, caches before the start) takes more recordings.",
        percent(method.confidence)
    )];
    if method.judged > 0 {
        lines.push(format!(
            "{} judged; if nothing differed, about {} would seem to by chance.",
            of(method.judged as u64, "value was", "values were"),
            method.by_chance.ceil()
        ));
    }
    lines
}
