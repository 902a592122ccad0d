//! The first sentence of the answer: what costs most without need, why, what to do first, and what that may save.
//!
//! It rests on the findings. A finding that only describes (the device is idle, the latency is elsewhere) leads where no
//! finding names a cause. A gain is an upper bound; where a recording holds none, the sentence claims none.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Chains, Evidence, Finding, Segment};
use nestrace_analyzer::verdict::DiskVerdict;

use super::disk_name;
use crate::units::{count, of, size, time};

/// Rules that describe and name no cause.
const SYMPTOMS: [&str; 2] = ["latency-overhead", "queue-idle"];
/// Rules that decide about reads, and about writes.
const OF_READS: [&str; 9] = [
    "readahead-waste",
    "qcow2-l2-misses",
    "double-cache",
    "atime-updates",
    "writeback-burst",
    "backing-chain",
    "cold-reads",
    "readahead-short",
    "mmap-faults",
];
const OF_WRITES: [&str; 7] = [
    "backup-holds-writes",
    "write-through-cache",
    "qcow2-allocation",
    "sparse-allocation",
    "cow-on-cow",
    "misaligned",
    "repeated-log-writes",
];
/// Rules with a share of the latency of data bios, as their segments have it.
const OF_LATENCY: [&str; 6] = [
    "thread-pool-wait",
    "virtualization-share",
    "emulated-bus",
    "cpu-starved",
    "vcpu-not-running",
    "iothread-saturated",
];
/// Rules with a share of the latency in QEMU.
const OF_QEMU: [&str; 2] = ["host-throttled", "writeback-burst"];
/// Rules with a share of a device's time from Q to C.
const OF_DEVICE: [&str; 2] = ["scheduler-ineffective", "tag-starvation"];
/// Rules about syncs of the guest's programs that say how long each waits in vain.
const OF_SYNCS: [&str; 3] = [
    "sync-drags-others",
    "sync-of-metadata",
    "log-on-shared-journal",
];
/// Rules about the guest's programs: what bios take on average is not what they are about.
const OF_PROGRAMS: [&str; 4] = [
    "sync-drags-others",
    "small-syncs",
    "sync-of-metadata",
    "log-on-shared-journal",
];
/// Bytes that need not be moved, by rule: the evidence, and what moves them.
const BYTES: [(&str, &str, &str); 7] = [
    ("qcow2-allocation", "image_metadata_bytes", "writes"),
    ("sparse-allocation", "host_metadata_bytes", "writes"),
    ("cow-on-cow", "host_metadata_bytes", "writes"),
    ("journal-on-journal", "host_journal_bytes", "writes"),
    ("misaligned", "read_for_writes_bytes", "reads"),
    ("readahead-waste", "unused_bytes", "reads"),
    ("qcow2-l2-misses", "table_read_bytes", "reads"),
];
/// What a write does not wait for when a cache holds it.
const UNTIL_WRITTEN: [&str; 7] = [
    "host_queue",
    "device",
    "device_flush",
    "remote",
    "host_fs_between",
    "host_fs_complete",
    "qemu_between",
];
/// What a sync after a write takes.
const SYNC: [&str; 3] = ["device_flush", "host_fs_between", "qemu_between"];

/// The disk that the answer is about, with what was measured of it.
#[derive(Clone, Copy)]
pub(super) struct Disk<'a> {
    pub guest: &'a str,
    pub disk: &'a str,
    /// Where it was followed.
    pub chains: Option<&'a Chains>,
    /// Where QEMU's requests were recorded.
    pub verdict: Option<&'a DiskVerdict>,
}

/// What leads: the costliest finding of the disk. `None` where no rule found anything to act on.
pub(super) fn sentence(analysis: &Analysis, disk: Disk<'_>) -> Option<String> {
    let finding = costliest(analysis, disk)?;
    let takes = takes(finding.id, disk);
    let device = disk.chains.map(|chains| chains.guest_device.as_str());
    Some(in_words(&Words {
        disk: named(disk, device),
        takes: takes.map(|(operations, ns)| format!("{operations} take {} on average", time(ns))),
        cause: finding.title.clone(),
        action: finding.advice.first().map(|advice| first_of(advice)),
        gain: gain(analysis, disk, finding),
    }))
}

/// What is said of a disk where nothing leads: that nothing was found on it, and what was found on another disk.
pub(super) fn nothing_found(analysis: &Analysis, disk: Disk<'_>) -> String {
    let nothing = nothing_found_on(analysis, disk);
    // All of them are other disks'.
    let mut others = analysis.findings.iter();
    match others.find(|finding| finding.is_worth_acting_on()) {
        Some(other) => {
            let name = disk_name(&other.guest, Some(&other.disk));
            format!("{nothing} {name}: {}.", other.title)
        }
        None => nothing,
    }
}

fn nothing_found_on(analysis: &Analysis, disk: Disk<'_>) -> String {
    let is_its = |guest: &str, name: &str| guest == disk.guest && name == disk.disk;
    let its = |finding: &&Finding| is_its(&finding.guest, &finding.disk);
    if let Some(nothing) = analysis
        .findings
        .iter()
        .filter(its)
        .find(|it| it.id == "nothing-to-gain")
    {
        let advice = nothing.advice.first().map_or("", String::as_str);
        return format!("No avoidable cost was found. {advice}")
            .trim_end()
            .to_owned();
    }
    let unjudged = analysis.findings_unjudged.iter();
    let n = unjudged
        .filter(|rule| is_its(&rule.guest, &rule.disk))
        .count() as u64;
    match n {
        0 => String::from("No avoidable cost was found."),
        n => format!(
            "{} could not judge (see \"What was found\"); the others found no avoidable cost.",
            of(n, "rule", "rules")
        ),
    }
}

/// Causes before symptoms, then most at stake first, as the findings are sorted.
fn costliest<'a>(analysis: &'a Analysis, disk: Disk<'_>) -> Option<&'a Finding> {
    let its = |finding: &&Finding| {
        finding.guest == disk.guest && finding.disk == disk.disk && finding.is_worth_acting_on()
    };
    let is_cause = |finding: &&Finding| !SYMPTOMS.contains(&finding.id);
    let its = || analysis.findings.iter().filter(its);
    its().find(is_cause).or_else(|| its().next())
}

/// The operations that a rule is about, and what they take on average.
fn takes(id: &str, disk: Disk<'_>) -> Option<(String, u64)> {
    if OF_PROGRAMS.contains(&id) {
        return None;
    }
    let of_qemu = || {
        let verdict = disk.verdict.filter(|verdict| verdict.requests > 0)?;
        Some((
            String::from("requests in QEMU"),
            verdict.qemu_ns / verdict.requests,
        ))
    };
    let Some(chains) = disk.chains else {
        return of_qemu();
    };
    let latency = chains.latency_ns;
    let one = match id {
        id if OF_READS.contains(&id) => Some(("reads", latency.read)),
        id if OF_WRITES.contains(&id) => Some(("writes", latency.write)),
        _ => None,
    };
    if let Some((operations, mean)) = one.and_then(|(word, dist)| Some((word, dist.mean?))) {
        return Some((operations.to_owned(), mean));
    }
    let (mut operations, dist) = data(chains);
    let with_flushes = dist.n.saturating_add(latency.flush.n);
    let all = || {
        dist.sum
            .saturating_add(latency.flush.sum)
            .checked_div(with_flushes)
    };
    match (dist.mean, latency.flush.n) {
        (Some(_), n) if n > 0 && id == "flush-amplification" => {
            operations.push("flushes");
            Some((listed(&operations), all()?))
        }
        (Some(mean), _) => Some((listed(&operations), mean)),
        (None, _) => Some((String::from("flushes"), latency.flush.mean?)),
    }
}

/// What the guest's bios with data are, and what they took.
fn data(chains: &Chains) -> (Vec<&'static str>, nestrace_analyzer::Dist) {
    let latency = chains.latency_ns;
    let operations = [
        ("reads", latency.read),
        ("writes", latency.write),
        ("discards", latency.discard),
    ];
    let words = operations
        .into_iter()
        .filter(|(_, dist)| dist.n > 0)
        .map(|(word, _)| word)
        .collect();
    (words, latency.data)
}

/// `reads, writes and flushes`.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., before, last] => {
            let first: String = first.iter().map(|word| format!("{word}, ")).collect();
            format!("{first}{before} and {last}")
        }
        words => words.concat(),
    }
}

/// What following the advice may save, at most.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Gain {
    /// Nanoseconds, of each operation of a kind.
    Time(u64, &'static str),
    /// Bytes, of reads or writes.
    Bytes(u64, &'static str),
    /// Writes, of all that there were.
    Writes(u64, u64),
}

fn gain(analysis: &Analysis, disk: Disk<'_>, finding: &Finding) -> Option<Gain> {
    let id = finding.id;
    let whole = |name: &str| match finding.evidence.get(name) {
        Some(Evidence::Whole(n)) => Some(*n),
        _ => None,
    };
    let word = |name: &str| match finding.evidence.get(name) {
        Some(Evidence::Word(word)) => Some(word.as_str()),
        _ => None,
    };
    if let Some((_, name, done)) = BYTES.iter().find(|(rule, ..)| *rule == id) {
        return whole(name)
            .filter(|bytes| *bytes > 0)
            .map(|bytes| Gain::Bytes(bytes, done));
    }
    let part = |ns: u64, operation| {
        Some(Gain::Time(
            (ns as f64 * finding.share).round() as u64,
            operation,
        ))
    };
    match id {
        "write-through-cache" => {
            let saved = if word("cache") == Some("writethrough") {
                UNTIL_WRITTEN.as_slice()
            } else {
                SYNC.as_slice()
            };
            let ns = mean_of(&disk.chains?.by_op.write, saved);
            (ns > 0).then_some(Gain::Time(ns, "write"))
        }
        "backup-holds-writes" => {
            let ns = mean_of(&disk.chains?.by_op.write, &["qemu_job"]);
            (ns > 0).then_some(Gain::Time(ns, "write"))
        }
        "repeated-log-writes" => Some(Gain::Writes(whole("rewrites")?, whole("writes")?)),
        id if OF_SYNCS.contains(&id) => {
            let each = whole("at_stake_ns")?.checked_div(whole("syncs")?)?;
            Some(Gain::Time(each, "sync"))
        }
        "flush-amplification" => part(takes(id, disk)?.1, "request"),
        id if OF_LATENCY.contains(&id) => part(takes(id, disk)?.1, one_of(disk.chains?)),
        id if OF_QEMU.contains(&id) => {
            let verdict = disk.verdict.filter(|verdict| verdict.requests > 0)?;
            part(verdict.qemu_ns / verdict.requests, "request")
        }
        id if OF_DEVICE.contains(&id) => {
            let in_guest = disk.chains.map(|chains| chains.guest_device.as_str());
            // The guest's scheduler is in the guest; a queue of tags has a name.
            let name = word("device").or(in_guest)?;
            let of_guest = |guest: &Option<String>| match in_guest == Some(name) {
                true => guest.as_deref() == Some(disk.guest),
                false => guest.is_none(),
            };
            let mut devices = analysis.devices.iter();
            let device = devices.find(|it| it.name == name && of_guest(&it.guest))?;
            part(device.latency_ns.all.q2c?.mean?, "request")
        }
        _ => None,
    }
}

/// What one of the bios with data is called.
fn one_of(chains: &Chains) -> &'static str {
    match data(chains).0.as_slice() {
        ["reads"] => "read",
        ["writes"] => "write",
        ["discards"] => "discard",
        _ => "request",
    }
}

/// Time that an operation spends in some segments, on average.
fn mean_of(segments: &[Segment], names: &[&str]) -> u64 {
    let named = segments
        .iter()
        .filter(|segment| names.contains(&segment.name));
    named.map(|segment| segment.mean_ns).sum::<f64>().round() as u64
}

fn named(disk: Disk<'_>, device: Option<&str>) -> String {
    let name = disk_name(disk.guest, Some(disk.disk));
    match device {
        Some(device) if !device.is_empty() => format!("{name} ({device})"),
        _ => name,
    }
}

/// What the sentence says.
struct Words {
    disk: String,
    /// `writes take 4.20 ms on average`
    takes: Option<String>,
    cause: String,
    /// Begins with a verb, without a full stop.
    action: Option<String>,
    gain: Option<Gain>,
}

fn in_words(words: &Words) -> String {
    let mut text = format!("{}: ", words.disk);
    if let Some(takes) = &words.takes {
        text.push_str(&format!("{takes}; "));
    }
    text.push_str(&format!("{}.", words.cause));
    let saves = words.gain.as_ref().map(|gain| match gain {
        Gain::Time(ns, operation) => format!("up to {} a {operation}", time(*ns)),
        Gain::Bytes(bytes, done) => format!("up to {} of {done}", size(*bytes)),
        Gain::Writes(n, all) => format!("up to {} of {}", count(*n), of(*all, "write", "writes")),
    });
    if let Some(action) = &words.action {
        text.push_str(&format!(" First: {action}"));
        match saves {
            Some(saves) => text.push_str(&format!("; may save {saves}.")),
            None => text.push('.'),
        }
    }
    text
}

/// The first sentence of an advice, as it goes on after a colon.
fn first_of(advice: &str) -> String {
    let first = advice.split_once(". ").map_or(advice, |(first, _)| first);
    let first = first.trim_end_matches('.');
    let mut letters = first.chars();
    match letters.next() {
        Some(letter)
            if letters
                .as_str()
                .starts_with(|next: char| next.is_lowercase()) =>
        {
            format!("{}{}", letter.to_lowercase(), letters.as_str())
        }
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advice_goes_on_after_a_colon() {
        for (advice, expected) in [
            ("Use cache=none. Risk: some.", "use cache=none"),
            (
                "Use virtio-blk or virtio-scsi.",
                "use virtio-blk or virtio-scsi",
            ),
            ("Keep it", "keep it"),
            ("NOCOW helps. Not always.", "NOCOW helps"),
            ("`echo none > f`. A rule.", "`echo none > f`"),
            ("", ""),
        ] {
            assert_eq!(first_of(advice), expected);
        }
    }

    #[test]
    fn the_sentence_claims_what_is_known() {
        let words = |takes: Option<&str>, action: Option<&str>, gain| Words {
            disk: String::from("vm1/a (vda)"),
            takes: takes.map(str::to_owned),
            cause: String::from("every write waits until the device has it"),
            action: action.map(str::to_owned),
            gain,
        };
        let writes = Some("writes take 4.20 ms on average");
        let none = Some("use cache=none");
        for (words, expected) in [
            (
                words(writes, none, Some(Gain::Time(2_600_000, "write"))),
                "vm1/a (vda): writes take 4.20 ms on average; every write waits until the device has it. First: use \
                 cache=none; may save up to 2.60 ms a write.",
            ),
            (
                words(writes, none, Some(Gain::Bytes(2 << 20, "writes"))),
                "vm1/a (vda): writes take 4.20 ms on average; every write waits until the device has it. First: use \
                 cache=none; may save up to 2.00 MiB of writes.",
            ),
            (
                words(writes, none, Some(Gain::Writes(1, 1000))),
                "vm1/a (vda): writes take 4.20 ms on average; every write waits until the device has it. First: use \
                 cache=none; may save up to 1 of 1,000 writes.",
            ),
            (
                words(None, none, None),
                "vm1/a (vda): every write waits until the device has it. First: use cache=none.",
            ),
            (
                words(None, None, Some(Gain::Bytes(1, "reads"))),
                "vm1/a (vda): every write waits until the device has it.",
            ),
        ] {
            assert_eq!(in_words(&words), expected);
        }
    }

    #[test]
    fn operations_are_listed() {
        for (words, expected) in [
            (&[][..], ""),
            (&["reads"], "reads"),
            (&["reads", "writes"], "reads and writes"),
            (&["reads", "writes", "flushes"], "reads, writes and flushes"),
        ] {
            assert_eq!(listed(words), expected);
        }
    }

    #[test]
    fn segments_of_a_gain_add_up() {
        let segment = |name, mean_ns| {
            let mut segment = Segment::default();
            (segment.name, segment.mean_ns) = (name, mean_ns);
            segment
        };
        let segments = [
            segment("device", 40.4),
            segment("device_flush", 18.3),
            segment("qemu_between", 63.8),
        ];
        for (names, expected) in [
            (SYNC.as_slice(), 82),
            (UNTIL_WRITTEN.as_slice(), 123),
            (&[], 0),
        ] {
            assert_eq!(mean_of(&segments, names), expected);
        }
    }
}
