//! Latency of one disk, by the part of the way and by operation.
//!
//! `cargo run -p nestrace-analyzer --example latency_of_one_disk -- slow.nest loop0`

mod recording;

use std::path::Path;

use nestrace_analyzer::{Analyzer, Dist, Options, units};
use recording::Failure;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bundle, disk] = args.as_slice() else {
        return Err("give a bundle and a disk: slow.nest loop0".into());
    };
    let bundle = Path::new(bundle);
    let manifest = recording::manifest(bundle)?;
    // Nothing else is in the result; the host's and the guests' devices are asked for in the same way.
    let options = Options {
        device: Some(disk.clone()),
        ..Options::default()
    };
    let mut analyzer = Analyzer::new(&manifest, options);
    recording::push(bundle, &manifest, &mut analyzer)?;
    let analysis = analyzer.finish();
    for device in &analysis.devices {
        let latency = &device.latency_ns;
        println!("{} ({}):", device.name, device.side);
        for (operation, parts) in [
            ("all", &latency.all),
            ("read", &latency.by_op.read),
            ("write", &latency.by_op.write),
        ] {
            // The two halves of Q2C: waiting in the kernel, and the device's own time.
            // Without a scheduler nothing is inserted.
            let queues = [parts.i2d, parts.g2d].into_iter().flatten();
            let in_queue = queues.max_by_key(|dist| dist.n);
            show(operation, "in the queue, until issued", in_queue);
            show(operation, "at the device", parts.d2c);
            show(operation, "in all", parts.q2c);
        }
    }
    if analysis.devices.is_empty() {
        return Err(format!("no I/O of {disk} was recorded").into());
    }
    Ok(())
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
