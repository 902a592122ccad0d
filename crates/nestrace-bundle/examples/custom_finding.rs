//! A rule of one's own: a house that has promised its guests a 99th percentile says which disk breaks the promise,
//! what part of the time is to blame, and what nestrace's own rules say of that disk.
//!
//! `cargo run -p nestrace-bundle --example custom_finding -- slow.nest 20`

use std::error::Error;

use nestrace_analyzer::analysis::{Analysis, Chains};
use nestrace_analyzer::units;
use nestrace_bundle::Options;

/// A promise that was broken.
struct Broken<'a> {
    disk: &'a Chains,
    p99_ns: u64,
    /// The part with the largest share of the summed latency.
    segment: &'static str,
    share: f64,
}

/// The rule: a pure function of a finished analysis, like every one of nestrace's.
fn judge(analysis: &Analysis, promised_ns: u64) -> Vec<Broken<'_>> {
    let broken = analysis.chains.iter().filter_map(|disk| {
        // Without a chain nothing is known, which is not the same as a promise that was kept.
        let p99_ns = disk.latency_ns.data.p99.filter(|ns| *ns > promised_ns)?;
        let largest = disk
            .segments
            .iter()
            .max_by(|a, b| a.share.total_cmp(&b.share))?;
        Some(Broken {
            disk,
            p99_ns,
            segment: largest.name,
            share: largest.share,
        })
    });
    broken.collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, milliseconds] = args.as_slice() else {
        return Err("give a bundle and a promise in milliseconds: slow.nest 20".into());
    };
    let promised_ns = (milliseconds.parse::<f64>()? * 1e6) as u64;
    let analysis = nestrace_bundle::analyze(bundle, &Options::default())?;
    for broken in judge(&analysis, promised_ns) {
        let Broken { disk, p99_ns, .. } = broken;
        println!(
            "{} {}: 99 % within {}, promised {}; {} of the time is {}",
            disk.guest,
            disk.guest_device,
            units::time(p99_ns),
            units::time(promised_ns),
            units::percent(broken.share),
            broken.segment,
        );
        let same_disk = |guest: &str, name: &str| guest == disk.guest && name == disk.disk;
        for finding in &analysis.findings {
            if finding.is_worth_acting_on() && same_disk(&finding.guest, &finding.disk) {
                println!("  {}: {}", finding.id, finding.title);
            }
        }
    }
    Ok(())
}
