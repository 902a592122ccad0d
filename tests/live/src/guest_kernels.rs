//! Guests of other kernels: every bio is followed, and both backends of the agent see the same events.

use nestrace_rig::guest::GuestSpec;
use nestrace_rig::initramfs;
use nestrace_rig::kernel_image::{self, KernelImage};
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::guest_side::backends::{self, Backends};

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
        let name = format!("guest-kernels/{series}");
        if !ctx.wants(&name) {
            continue;
        }
        report.case(&name, |case| {
            let kernel = kernel_image::obtain(series)?;
            follow_with(ctx, case, &kernel, backends)
        })?;
    }
    Ok(())
}

/// Whether a kernel is of one of these series.
pub fn boots_series_of(release: &str) -> bool {
    let is_of = |(series, _): &(&str, Backends)| {
        let rest = release.strip_prefix(series);
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '+']))
    };
    KERNELS.iter().any(is_of)
}

/// A guest with a kernel that has both backends.
pub fn follow(ctx: &LiveContext, case: &mut Case, kernel: &KernelImage) -> anyhow::Result<()> {
    follow_with(ctx, case, kernel, Backends::Both)
}

fn follow_with(
    ctx: &LiveContext,
    case: &mut Case,
    kernel: &KernelImage,
    backends: Backends,
) -> anyhow::Result<()> {
    let initramfs = initramfs::obtain(kernel)?;
    case.figure(kernel.release.clone());
    let of_kernel = |spec| GuestSpec {
        kernel: kernel.clone(),
        initramfs,
        ..spec
    };
    backends::record(ctx, case, backends, of_kernel)
}
