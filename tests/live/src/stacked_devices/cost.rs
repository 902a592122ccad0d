//! iocost on a disk below an image: what it lets bios wait is named with the cgroup's weight, and is what the kernel counts.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::json;
use xtask::case::Case;

use crate::analysis::{entry, number};
use crate::context::LiveContext;
use crate::ground_truth;
use crate::kernels::machine::Machine;

/// QEMU and its libraries are read over 9p by a translated guest.
const PATIENCE: Duration = Duration::from_secs(200);
/// What `cost.sh` reads, at 20 requests a second; the kernel lets a part of its first period through at once.
const READS: u64 = 80;
const LEAST_NS: f64 = 1e9;
/// How far the kernel's count may be off: it has the waits alone, and a translated processor takes its time from Q to them.
const APART: f64 = 0.02;
const OF_A_BIO_NS: f64 = 0.5e6;

pub fn check(case: &mut Case, ctx: &LiveContext, machine: &Machine) -> anyhow::Result<()> {
    machine.run_script("cost.sh", PATIENCE)?;
    let folder = machine.fetch(ctx, "/tmp/recorded.tar")?;
    let analysis = recorder::analyze(&ctx.nestrace, &folder.join("cost.nest"))?;
    ground_truth::nothing_lost(case, &analysis)?;
    let name = &machine.device("halves")?.kernel_name;
    let device = entry(&analysis, "devices", &[("name", name.as_str())])?;
    let got = number(device, "/latency_ns/q2g/n")?;
    case.equal("bios that got a tag", got, READS);
    let waited_ns = number(device, "/stats/path_ns/q2g")? as f64;
    let counted = std::fs::read_to_string(folder.join("waited.txt")).context("read the count")?;
    let counted = counted.trim().trim_start_matches("cost.wait=");
    let counted_ns = counted.parse::<f64>().context("read the count")? * 1e3;
    let figures = format!("{waited_ns:.0} ns from Q to G, {counted_ns:.0} by the kernel's count");
    let apart = APART * counted_ns + OF_A_BIO_NS * READS as f64;
    let is_equal = (waited_ns - counted_ns).abs() <= apart;
    case.holds("the waits", is_equal && counted_ns > LEAST_NS, &figures);
    case.figure(figures);
    let keys = [("id", "host-throttled"), ("disk", "weighed")];
    let finding = entry(&analysis, "findings", &keys)?;
    let shown = finding.to_string();
    let evidence = &finding["evidence"];
    case.holds("weight", evidence["limit_value"] == json!(37), &shown);
    case.holds("device", evidence["device"] == json!(name), &shown);
    let place = format!("io.weight of the cgroup /guests for {name}");
    case.holds("place", evidence["limit_set_in"] == json!(place), &shown);
    case.figure(finding["title"].as_str().unwrap_or_default());
    ctx.discard(&folder);
    Ok(())
}
