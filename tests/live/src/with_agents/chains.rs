//! Chains and clocks of an analysis: how much was linked, and whether the parts add up.

use anyhow::Context;
use nestrace_rig::guest::Guest;
use serde_json::Value;
use xtask::case::Case;

use super::counts::DiskCounts;
use crate::analysis::{entry, number};
use crate::ground_truth;

/// Of the guest's bios, at least this part is followed.
pub const LINKED: f64 = 0.999;
/// Of the exchanges, at most this part contradicts the clock's band.
const REJECTED: f64 = 0.001;
/// `residual_share` is 0 to three decimals.
const RESIDUAL: f64 = 0.0005;

/// One disk of a guest, as the analysis and the guest name it.
pub struct Subject<'a> {
    /// The guest.
    pub guest: &'a Guest,
    /// The disk's id.
    pub disk: &'a str,
    /// The guest's name of it.
    pub device: &'a str,
    /// What part of its bios has to be linked: [`LINKED`], but for loads that are ambiguous by design.
    pub linked: f64,
}

/// Everything that has to hold for a disk of a guest with an agent.
pub fn disk(
    case: &mut Case,
    analysis: &Value,
    subject: &Subject<'_>,
    counts: &DiskCounts,
) -> anyhow::Result<()> {
    let keys = [("guest", subject.guest.name()), ("disk", subject.disk)];
    let chains = entry(analysis, "chains", &keys)?;
    linked(case, chains, subject.linked)?;
    case.equal(
        "chains.guest_device",
        chains["guest_device"].as_str().unwrap_or("none"),
        subject.device,
    );
    case.equal(
        "chains.guest_requests against QEMU's count",
        number(chains, "/guest_requests")?,
        counts.requests(),
    );
    segments(case, chains)?;
    let keys = [
        ("side", "guest"),
        ("guest", subject.guest.name()),
        ("name", subject.device),
    ];
    let device = entry(analysis, "devices", &keys)?;
    ground_truth::device_entry(case, device, &counts.guest)?;
    let bios = number(device, "/counts/queued")? + number(device, "/counts/flushes")?;
    case.equal(
        "chains.guest_bios against the guest's device",
        number(chains, "/guest_bios")?,
        bios,
    );
    ground_truth::qemu(
        case,
        analysis,
        subject.guest.name(),
        subject.disk,
        &counts.host.disk,
    )
}

/// Nearly every bio is linked, none in an impossible order.
pub fn linked(case: &mut Case, chains: &Value, least: f64) -> anyhow::Result<()> {
    let bios = number(chains, "/guest_bios")?;
    let linked = number(chains, "/linked")?;
    let figures = format!("{linked} of {bios} guest bios, not: {}", chains["unlinked"]);
    case.holds("guest bios", bios > 0, "none");
    case.holds(
        &format!("{} % of the guest's bios are linked", least * 100.0),
        linked as f64 >= least * bios as f64,
        &figures,
    );
    let reasons = chains["unlinked"].as_object().context("find unlinked")?;
    let unlinked: u64 = reasons.values().filter_map(Value::as_u64).sum();
    case.equal("linked + unlinked", linked + unlinked, bios);
    case.equal("wrong_order", number(chains, "/wrong_order")?, 0);
    let check = |key: &str| number(chains, &format!("/memory_check/{key}"));
    let (agreed, unknown) = (check("agreed")?, check("unknown")?);
    case.equal(
        "links that the memory contradicts",
        check("contradicted")?,
        0,
    );
    case.figure(format!("memory: {agreed} agree, {unknown} unknown"));
    case.figure(format!("{linked} of {bios} bios linked"));
    Ok(())
}

/// The segments sum to the whole, and no layer is folded away.
pub fn segments(case: &mut Case, chains: &Value) -> anyhow::Result<()> {
    sums(case, chains)?;
    let folded = chains["folded"].as_array().context("find folded")?;
    let folded: Vec<&str> = folded.iter().filter_map(Value::as_str).collect();
    case.holds("no layer is folded", folded.is_empty(), &folded.join(", "));
    Ok(())
}

/// The segments sum to the whole.
pub fn sums(case: &mut Case, chains: &Value) -> anyhow::Result<()> {
    let float = |entry: &Value, key: &str| {
        let value = entry[key].as_f64();
        value.with_context(|| format!("find {key} in {entry}"))
    };
    let mean = float(chains, "q2c_mean_ns")?;
    let segments = chains["segments"].as_array().context("find the segments")?;
    let mut sum = 0.0;
    for segment in segments {
        sum += float(segment, "mean_ns")?;
    }
    let apart = (sum - mean).abs();
    case.holds(
        "means of the segments sum to q2c_mean_ns",
        mean > 0.0 && apart <= 0.5 + mean * 1e-9,
        &format!("{sum} against {mean}"),
    );
    let residual = float(chains, "residual_share")?;
    case.holds("residual_share", residual < RESIDUAL, &residual.to_string());
    Ok(())
}

/// The clock of a guest: nothing impossible, next to nothing rejected.
pub fn clock(case: &mut Case, analysis: &Value, guest: &str) -> anyhow::Result<()> {
    let clock = entry(analysis, "clocks", &[("guest", guest)])?;
    let pairs = number(clock, "/pairs")?;
    let rejected = number(clock, "/rejected")?;
    let bound = number(clock, "/error_bound_ns/p50")?;
    case.holds("the clock's pairs", pairs > 0, "none");
    case.holds(
        "at most 0.1 % of the pairs are rejected",
        rejected as f64 <= REJECTED * pairs as f64,
        &format!("{rejected} of {pairs}"),
    );
    case.equal("clock violations", number(clock, "/violations")?, 0);
    case.equal("clock pieces", number(clock, "/pieces")?, 1);
    case.figure(format!(
        "clock: {pairs} pairs, {rejected} rejected, ±{} µs",
        bound / 1000
    ));
    Ok(())
}
