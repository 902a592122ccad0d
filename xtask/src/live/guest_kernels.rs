//! Guests of other kernels: every bio is followed, and both backends of the agent see the same events.

use nestrace_lab::guest::GuestSpec;
use nestrace_lab::{initramfs, kernel_image};

use super::Scenario;
use super::case::Report;
use super::guest_side::backends::{self, Backends};
use super::rig::LiveContext;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "guest-kernels",
    about: "guests with Debian's kernels 5.10, 6.12, 7.1 and 7.3, followed from guest bio to host device",
    run,
    alone: false,
};

/// Debian 12's own, 6.1, is every other scenario's.
const KERNELS: [(&str, Backends); 4] = [
    ("5.10", Backends::BlktraceAlone),
    ("6.12", Backends::Both),
    ("7.1", Backends::Both),
    ("7.3", Backends::Both),
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for (series, backends) in KERNELS {
        report.case(&format!("guest-kernels/{series}"), |case| {
            let kernel = kernel_image::obtain(series)?;
            let initramfs = initramfs::obtain(&kernel)?;
            case.figure(kernel.release.clone());
            let of_kernel = |spec| GuestSpec {
                kernel: kernel.clone(),
                initramfs: initramfs.clone(),
                ..spec
            };
            backends::record(ctx, case, backends, of_kernel)
        })?;
    }
    Ok(())
}
