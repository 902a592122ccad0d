//! Latency of one disk, by the part of the way and by operation.
//!
//! `cargo run -p nestrace-bundle --example latency_of_one_disk -- slow.nest loop0`

use std::error::Error;

use nestrace_analyzer::{Dist, units};
use nestrace_bundle::Options;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, disk] = args.as_slice() else {
        return Err("give a bundle and a disk: slow.nest loop0".into());
    };
    // Nothing else is in the result; the host's and the guests' devices are asked for in the same way.
    let mut options = Options::default();
    options.device = Some(disk.clone());
    let analysis = nestrace_bundle::analyze(bundle, &options)?;
    for device in &analysis.devices {
        let latency = &device.latency_ns;
        println!("{} ({}):", device.name, device.side);
        for (operation, parts) in [
            ("all", &latency.all),
            ("read", &latency.by_op.read),
            ("write", &latency.by_op.write),
        ] {
            // The two halves of Q2C: waiting in the kernel (for a request, in the plug, in the scheduler), which
            // is Q2D and distinguished by operation as a mean only, and the device's own time.
            let q2d = device.stats.as_ref().map(|stats| stats.q2d.ns);
            show(
                operation,
                "in the queue, until issued",
                q2d.filter(|_| operation == "all"),
            );
            show(operation, "at the device", parts.d2c);
            show(operation, "in all", parts.q2c);
            // Sums are exact, so the means of the halves add up.
            if let (Some(d2c), Some(q2c)) = (parts.d2c, parts.q2c) {
                halves(operation, d2c, q2c);
            }
        }
    }
    if analysis.devices.is_empty() {
        return Err(format!("no I/O of {disk} was recorded").into());
    }
    Ok(())
}

/// How a mean Q2C is divided. A bio without a beginning has a D2C and no Q2C: then nothing adds up.
fn halves(operation: &str, d2c: Dist, q2c: Dist) {
    if q2c.n == 0 || d2c.n != q2c.n {
        return;
    }
    let mean = |sum: u64| units::time(sum / q2c.n);
    println!(
        "  {operation:6} a mean of {} = {} until issued + {} at the device",
        mean(q2c.sum),
        mean(q2c.sum.saturating_sub(d2c.sum)),
        mean(d2c.sum),
    );
}

/// `None`: not recorded. A light recording knows D to C alone.
fn show(operation: &str, part: &str, dist: Option<Dist>) {
    let Some(dist) = dist.filter(|dist| dist.n > 0) else {
        return;
    };
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), units::time);
    println!(
        "  {operation:6} {part:28} {:>9} I/Os  median {:>9}  99 % {:>9}  at most {:>9}",
        dist.n,
        time(dist.p50),
        time(dist.p99),
        time(dist.max),
    );
}
