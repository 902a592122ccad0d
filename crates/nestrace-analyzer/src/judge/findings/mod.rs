//! Findings: rules that say what happened, why, what to do about it, and what that is worth.
//!
//! A rule looks at one disk of one guest, through [`Subject`]: what the layers counted, what [`clues`](crate::measure::clues)
//! gathered for it in the pass, and what the manifest says of the set-up. It fires, stays silent, or says that it cannot judge because something was
//! not recorded, lost or not certain; then it is in `findings_unjudged`. Limits stand in [`threshold`],
//! each with its reason. The rules and where they come from: `docs/findings.md`.

mod access_pattern;
mod backup;
mod bus;
mod cpu;
mod device;
mod guest_page_cache;
mod host_cache;
mod image;
mod latency;
mod limit;
mod metadata;
mod pressure;
mod program_syncs;
mod stack;
mod subject;
mod sync;
mod threshold;

use std::collections::BTreeMap;

use nestrace_trace::manifest::Manifest;

use crate::measure::clues::DiskClues;
use crate::result::analysis::{Analysis, Evidence, Finding, Severity, Unjudged};
use crate::result::verdict::LimitBottleneck;
use subject::Subject;

/// A rule: its id and how it judges a disk.
type Rule = (&'static str, fn(&Subject<'_>) -> Judgement);

/// All rules that look at one disk, in the order of `docs/findings.md`.
const RULES: [Rule; 45] = [
    ("host-readahead", host_cache::host_readahead),
    ("readahead-waste", host_cache::readahead_waste),
    ("queue-idle", latency::queue_idle),
    ("scheduler-ineffective", device::scheduler_ineffective),
    ("allocation-defeated", access_pattern::allocation_defeated),
    ("journal-on-journal", sync::journal_on_journal),
    ("repeated-log-writes", sync::repeated_log_writes),
    ("metadata-blind", metadata::metadata_blind),
    ("latency-overhead", latency::latency_overhead),
    ("flush-amplification", sync::flush_amplification),
    ("write-through-cache", host_cache::write_through_cache),
    ("qcow2-allocation", image::qcow2_allocation),
    ("qcow2-l2-misses", image::qcow2_l2_misses),
    ("emulated-bus", bus::emulated_bus),
    ("sparse-allocation", image::sparse_allocation),
    ("misaligned", access_pattern::misaligned),
    ("double-cache", host_cache::double_cache),
    ("atime-updates", metadata::atime_updates),
    (
        "unmerged-small-requests",
        access_pattern::unmerged_small_requests,
    ),
    ("writeback-burst", host_cache::writeback_burst),
    ("virtualization-share", latency::virtualization_share),
    ("thread-pool-wait", latency::thread_pool_wait),
    ("direct-io-fallback", host_cache::direct_io_fallback),
    ("cow-on-cow", image::cow_on_cow),
    ("backing-chain", image::backing_chain),
    ("host-throttled", limit::host_throttled),
    ("backup-holds-writes", backup::backup_holds_writes),
    ("noisy-neighbour", device::noisy_neighbour),
    ("tag-starvation", device::tag_starvation),
    ("raid-partial-stripe", stack::raid_partial_stripe),
    ("thin-allocation", stack::thin_allocation),
    ("crypt-queue", stack::crypt_queue),
    ("resync-beside", stack::resync_beside),
    ("stacked-journals", stack::stacked_journals),
    ("sync-drags-others", program_syncs::sync_drags_others),
    ("small-syncs", program_syncs::small_syncs),
    ("sync-of-metadata", program_syncs::sync_of_metadata),
    (
        "log-on-shared-journal",
        program_syncs::log_on_shared_journal,
    ),
    ("cold-reads", guest_page_cache::cold_reads),
    ("readahead-short", guest_page_cache::readahead_short),
    ("dirty-throttled", guest_page_cache::dirty_throttled),
    ("mmap-faults", guest_page_cache::mmap_faults),
    ("iothread-saturated", cpu::iothread_saturated),
    ("cpu-starved", cpu::cpu_starved),
    ("vcpu-not-running", cpu::vcpu_not_running),
];

/// The rule that looks at a guest, whatever its disks do.
const OF_GUEST: &str = "pressure-without-io";

/// Ids of all rules, and of what is said where none finds anything to act on.
#[cfg(feature = "schema")]
pub(crate) fn ids() -> Vec<&'static str> {
    let rules = RULES.iter().map(|(id, _)| *id);
    rules.chain([OF_GUEST, "nothing-to-gain"]).collect()
}

/// Rules that find nothing to act on.
const TO_KNOW: [&str; 2] = ["host-readahead", "metadata-blind"];

/// Rules on what the guest's programs wait for above its block layer. That one of them cannot judge says nothing of the
/// nesting, which `nothing-to-gain` is about.
const OF_PROGRAMS: [&str; 8] = [
    "sync-drags-others",
    "small-syncs",
    "sync-of-metadata",
    "log-on-shared-journal",
    "cold-reads",
    "readahead-short",
    "dirty-throttled",
    "mmap-faults",
];

/// Why it cannot be known.
type Missing = &'static str;

/// What a rule says of a disk: `None` where it has nothing to say.
type Judgement = Result<Option<Case>, Missing>;

/// What a rule found.
#[derive(Debug)]
struct Case {
    title: String,
    explanation: String,
    advice: Vec<String>,
    evidence: BTreeMap<&'static str, Evidence>,
    /// Part of the guest's latency, bytes or requests that is at stake, 0 to 1.
    share: f64,
    /// Nothing has to be done about it.
    information: bool,
}

impl Case {
    fn fires(self) -> Judgement {
        Ok(Some(self))
    }
}

/// Judges every disk of an analysis that is complete but for its findings.
pub(crate) fn judge(
    analysis: &mut Analysis,
    manifest: &Manifest,
    clues: &[DiskClues],
    takes_guest: impl Fn(&str) -> bool,
) {
    let mut findings = Vec::new();
    let mut unjudged = Vec::new();
    let mut bottlenecks: Vec<(String, String, LimitBottleneck)> = Vec::new();
    for subject in Subject::all(analysis, manifest, clues) {
        let (before, open) = (findings.len(), unjudged.len());
        for (id, rule) in RULES {
            match rule(&subject) {
                Ok(case) => findings.extend(
                    case.map(|case| finding(id, subject.guest_name(), subject.disk_name(), case)),
                ),
                Err(missing) => unjudged.push(Unjudged {
                    id,
                    guest: subject.guest_name().to_owned(),
                    disk: subject.disk_name().to_owned(),
                    missing,
                }),
            }
        }
        if let Some(limit) = limit::bottleneck(&subject) {
            let (guest, disk) = (subject.guest_name(), subject.disk_name());
            bottlenecks.push((guest.to_owned(), disk.to_owned(), limit));
        }
        let at_stake = findings[before..].iter().any(Finding::is_worth_acting_on);
        if !at_stake && let Ok(Some(case)) = latency::nothing_to_gain(&subject) {
            let id = "nothing-to-gain";
            let could_act =
                |rule: &Unjudged| !TO_KNOW.contains(&rule.id) && !OF_PROGRAMS.contains(&rule.id);
            if unjudged[open..].iter().any(could_act) {
                unjudged.push(Unjudged {
                    id,
                    guest: subject.guest_name().to_owned(),
                    disk: subject.disk_name().to_owned(),
                    missing: "other rules could not judge",
                });
            } else {
                let (guest, disk) = (subject.guest_name(), subject.disk_name());
                findings.push(finding(id, guest, disk, case));
            }
        }
    }
    let guests = manifest.topology.guests.iter();
    for guest in guests.filter(|guest| takes_guest(&guest.name)) {
        match pressure::pressure_without_io(analysis, manifest, guest, clues) {
            Ok(case) => findings.extend(case.map(|case| finding(OF_GUEST, &guest.name, "", case))),
            Err(missing) => unjudged.push(Unjudged {
                id: OF_GUEST,
                guest: guest.name.clone(),
                disk: String::new(),
                missing,
            }),
        }
    }
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then(b.share.total_cmp(&a.share))
    });
    for disk in &mut analysis.verdict.disks {
        let own = bottlenecks
            .iter()
            .find(|(guest, name, _)| disk.guest == *guest && disk.disk == *name);
        disk.limit_is_the_bottleneck = own.map(|(.., limit)| limit.clone());
    }
    analysis.findings = findings;
    analysis.findings_unjudged = unjudged;
}

fn finding(id: &'static str, guest: &str, disk: &str, case: Case) -> Finding {
    let severity = match case.share {
        _ if case.information => Severity::Info,
        share if share >= threshold::HIGH => Severity::High,
        share if share >= threshold::MEDIUM => Severity::Medium,
        _ => Severity::Low,
    };
    Finding {
        id,
        guest: guest.to_owned(),
        disk: disk.to_owned(),
        severity,
        title: case.title,
        explanation: case.explanation,
        evidence: case.evidence,
        advice: case.advice,
        share: case.share,
    }
}
