//! The questions, which are those of `sql/`, and what their answers become in the report.

use datafusion::error::Result;
use nestrace_report::fleet::chance::{FALSE_DISCOVERIES, LEAST_RATIO, false_discoveries, tail};
use nestrace_report::fleet::{
    Changes, DiskWait, FleetFinding, FleetReport, FleetSegment, Kind, KindWait, MAX_FINDINGS,
    MAX_ROWS, NoisyHost, Outlier, Slower,
};

use crate::data_set::DataSet;
use crate::engine::{Engine, Row};
use crate::gathered::{Gathered, left_out};

/// A question of the repository's `sql/`.
macro_rules! question {
    ($name:literal) => {
        include_str!(concat!("../../../sql/", $name, ".sql"))
    };
}

/// Candidates for outliers and changes; the report takes those that chance does not explain. A fleet can have as many
/// before anything was repaired.
const MAX_CANDIDATES: usize = 100_000;

/// Of fewer requests the slowest one alone would decide.
const LEAST_REQUESTS: u64 = 100;

/// Asks all of them.
///
/// # Errors
/// If memory or the disk is full.
pub async fn ask(data_set: &DataSet, gathered: &Gathered, memory: usize) -> Result<FleetReport> {
    let engine = Engine::new(gathered, memory).await?;
    let mut report = FleetReport::default();
    report.data_set = data_set.place().display().to_string();
    about(&engine, &mut report).await?;
    let order = "p99_ns DESC, host, guest, device, op";
    report.worst_disks = engine
        .ask_of_answer(question!("worst_disks"), with_enough(order), MAX_ROWS)
        .await?
        .rows(disk_wait)?;
    let order = "mean_ns DESC, host_kernel, qemu_version, host_fs, cache, bus, op";
    report.kinds = engine
        .ask_of_answer(question!("by_kind"), with_enough(order), MAX_ROWS)
        .await?
        .rows(kind_wait)?;
    report.segments = segments(&engine).await?;
    report.findings = findings(&engine, report.disks).await?;
    report.noisy_hosts = engine
        .ask(question!("noisy_hosts"), MAX_ROWS)
        .await?
        .rows(noisy_host)?;
    (report.outliers, report.compared) = outliers(&engine).await?;
    report.changes = changes(&engine).await?;
    (report.left_out, report.n_left_out) = left_out(data_set, MAX_ROWS);
    Ok(report)
}

/// Rows with so many requests that a 99th percentile says something, as outliers have.
fn with_enough(order: &str) -> impl FnOnce(&str) -> String {
    move |all| format!("SELECT * FROM ({all}) WHERE n >= {LEAST_REQUESTS} ORDER BY {order}")
}

async fn about(engine: &Engine, report: &mut FleetReport) -> Result<()> {
    let rows = engine.ask(question!("recordings"), 1).await?.rows(|row| {
        let mut report = FleetReport::default();
        report.recordings = row.count("recordings")?;
        report.hosts = row.count("hosts")?;
        report.disks = row.count("disks")?;
        report.first_unix_ns = row.whole_or_null("first_unix_ns")?;
        report.last_unix_ns = row.whole_or_null("last_unix_ns")?;
        report.duration_ns = row.count("duration_ns")?;
        report.lost = row.count("lost")?;
        report.recordings_with_losses = row.count("recordings_with_losses")?;
        Ok(report)
    })?;
    if let Some(about) = rows.into_iter().next() {
        let data_set = std::mem::take(&mut report.data_set);
        *report = about;
        report.data_set = data_set;
    }
    Ok(())
}

fn disk_wait(row: &Row<'_>) -> Result<DiskWait> {
    Ok(DiskWait {
        host: row.text("host")?,
        guest: row.text("guest")?,
        device: row.text("device")?,
        op: row.text("op")?,
        n: row.count("n")?,
        sum_ns: row.count("sum_ns")?,
        mean_ns: row.number("mean_ns")?,
        p50_ns: row.count("p50_ns")?,
        p90_ns: row.count("p90_ns")?,
        p99_ns: row.count("p99_ns")?,
        p999_ns: row.count("p999_ns")?,
    })
}

fn kind(row: &Row<'_>) -> Result<Kind> {
    Ok(Kind {
        host_kernel: row.text("host_kernel")?,
        qemu_version: row.text("qemu_version")?,
        host_fs: row.text("host_fs")?,
        cache: row.text("cache")?,
        bus: row.text("bus")?,
    })
}

fn kind_wait(row: &Row<'_>) -> Result<KindWait> {
    Ok(KindWait {
        kind: kind(row)?,
        op: row.text("op")?,
        disks: row.count("disks")?,
        n: row.count("n")?,
        sum_ns: row.count("sum_ns")?,
        mean_ns: row.number("mean_ns")?,
    })
}

/// The sums over all disks of what the question says of each.
async fn segments(engine: &Engine) -> Result<Vec<FleetSegment>> {
    let sums = |of_each: &str| {
        format!(
            "SELECT segment, CAST(sum(ns) AS BIGINT) AS ns FROM ({of_each}) GROUP BY segment ORDER BY ns DESC, segment"
        )
    };
    let answer = engine
        .ask_of_answer(question!("segments"), sums, MAX_ROWS)
        .await?;
    let mut segments = answer.rows(|row| {
        Ok(FleetSegment {
            segment: row.text("segment")?,
            ns: row.count("ns")?,
            share: 0.0,
        })
    })?;
    let all_ns: u64 = segments.iter().map(|one| one.ns).sum();
    for one in &mut segments {
        one.share = nestrace_report::units::share(one.ns, all_ns);
    }
    Ok(segments)
}

async fn findings(engine: &Engine, disks: u64) -> Result<Vec<FleetFinding>> {
    engine
        .ask(question!("findings"), MAX_FINDINGS)
        .await?
        .rows(|row| {
            let with_it = row.count("disks")?;
            let advice = row.text_or_null("advice")?;
            let advice = advice.and_then(|advice| serde_json::from_str(&advice).ok());
            Ok(FleetFinding {
                id: row.text("id")?,
                severity: row.text("severity")?,
                recordings: row.count("recordings")?,
                disks: with_it,
                share: nestrace_report::units::share(with_it, disks.max(with_it)),
                time_share: row.number_or_null("mean_share")?,
                waited_ns: row.number_or_null("waited_ns")?,
                advice: advice.unwrap_or_default(),
            })
        })
}

fn noisy_host(row: &Row<'_>) -> Result<NoisyHost> {
    Ok(NoisyHost {
        host: row.text("host")?,
        disks: row.count("disks")?,
        n: row.count("n")?,
        sum_ns: row.count("sum_ns")?,
        host_ns: row.count("host_ns")?,
        host_share: row.number("host_share")?,
        amplification: row.number_or_null("amplification")?,
    })
}

/// Those that chance does not explain, and how many were compared.
async fn outliers(engine: &Engine) -> Result<(Vec<Outlier>, u64)> {
    let answer = engine.ask(question!("outliers"), MAX_CANDIDATES).await?;
    let candidates = answer.rows(|row| {
        let outlier = Outlier {
            host: row.text("host")?,
            guest: row.text("guest")?,
            device: row.text("device")?,
            op: row.text("op")?,
            kind: kind(row)?,
            n: row.count("n")?,
            mean_ns: row.number("mean_ns")?,
            peers_ns: row.number("peers_ns")?,
            peers: row.count("peers")?,
            z: row.number("z")?,
            q: 1.0,
        };
        Ok((outlier, row.count("compared")?))
    })?;
    let compared = match candidates.first() {
        Some((_, compared)) => *compared,
        None => 0,
    };
    let candidates = candidates
        .into_iter()
        .map(|(one, _)| (one.z, one.peers, one));
    let outliers = beyond_chance(candidates, compared)
        .filter(|(one, _)| one.mean_ns >= LEAST_RATIO * one.peers_ns)
        .map(|(one, q)| Outlier { q, ..one });
    Ok((outliers.take(MAX_ROWS).collect(), compared))
}

async fn changes(engine: &Engine) -> Result<Changes> {
    let answer = engine.ask(question!("regressions"), MAX_CANDIDATES).await?;
    let rows = answer.rows(|row| {
        let slower = Slower {
            host: row.text("host")?,
            guest: row.text("guest")?,
            device: row.text("device")?,
            op: row.text("op")?,
            n_before: row.count("n_before")?,
            n_last: row.count("n_last")?,
            mean_before_ns: row.number("mean_before_ns")?,
            mean_last_ns: row.number("mean_last_ns")?,
            ratio: row.number("ratio")?,
            z: row.number("z")?,
            q: 1.0,
        };
        let changes = Changes {
            until_unix_ns: row.whole_or_null("newest_ns")?,
            compared: row.count("compared")?,
            median_ratio: row.number_or_null("median_ratio")?,
            slower: Vec::new(),
        };
        Ok((slower, changes))
    })?;
    let mut changes = match rows.first() {
        Some((_, changes)) => changes.clone(),
        None => Changes::default(),
    };
    let compared = changes.compared;
    let candidates = rows.into_iter().map(|(one, _)| (one.z, compared, one));
    changes.slower = beyond_chance(candidates, compared)
        .filter(|(one, _)| one.ratio >= LEAST_RATIO)
        .map(|(one, q)| Slower { q, ..one })
        .take(MAX_ROWS)
        .collect();
    Ok(changes)
}

/// Of candidates, each with its z and the number of its peers, those that chance does not explain, with their q; the most
/// certain first.
fn beyond_chance<T>(
    candidates: impl Iterator<Item = (f64, u64, T)>,
    compared: u64,
) -> impl Iterator<Item = (T, f64)> {
    let candidates: Vec<_> = candidates.collect();
    let tails: Vec<f64> = candidates
        .iter()
        .map(|(z, peers, _)| tail(*z, *peers))
        .collect();
    let mut certain: Vec<_> = candidates
        .into_iter()
        .zip(false_discoveries(&tails, compared))
        .filter(|(_, q)| *q <= FALSE_DISCOVERIES)
        .collect();
    certain
        .sort_by(|((z_a, ..), q_a), ((z_b, ..), q_b)| q_a.total_cmp(q_b).then(z_b.total_cmp(z_a)));
    certain.into_iter().map(|((_, _, one), q)| (one, q))
}
