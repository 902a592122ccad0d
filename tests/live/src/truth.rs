//! Links against sources that know the truth without any clock: the data itself, and QEMU's log.
//!
//! In the guest, `stamp-writer` stamps every write with its address and serial number. On the host,
//! strace shows the first bytes of every write that QEMU makes. So each link from a guest's bio down
//! to a system call of QEMU is either right or wrong, and nothing about time or place has a say.
//! QEMU's own trace log, in which requests have addresses, does the same for requests of every kind.

mod alone;
mod data;
mod flush_names;
mod naive;
mod qemu_log;
mod requests;
mod scene;
pub mod stories;
mod system_calls;

use nestrace_rig::stack::{Aio, DiskStack, HostFsKind, ImageFormat};
use xtask::case::Report;

use super::Scenario;
use super::context::LiveContext;
use scene::{Backend, Functions, Scene, Writer};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "truth",
    about: "every link of stamped writes against the data, and of all requests against QEMU's log",
    run,
    alone: false,
};

const RAW: DiskStack = DiskStack {
    aio: Aio::Threads,
    ..DiskStack::RAW
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    for (backend, rewrites, storm) in [
        (Backend::Ebpf, "truth/rewrites", "truth/storm"),
        (
            Backend::Blktrace,
            "truth/blktrace-rewrites",
            "truth/blktrace-storm",
        ),
    ] {
        if !ctx.wants(rewrites) && !ctx.wants(storm) {
            continue;
        }
        let scene = Scene::boot(ctx, backend, HostFsKind::Xfs, RAW, &[])?;
        for (case, writer) in [(rewrites, &Writer::REWRITES), (storm, &Writer::STORM)] {
            if ctx.wants(case) {
                report.case(case, |case| data::check(case, &scene, writer))?;
            }
        }
    }
    if ctx.wants("truth/requests") {
        let scene = Scene::boot(
            ctx,
            Backend::Ebpf,
            HostFsKind::Xfs,
            RAW,
            &requests::ARGUMENTS,
        )?;
        report.case("truth/requests", |case| requests::check(case, &scene))?;
    }
    for (format, cases) in [
        (
            ImageFormat::Raw,
            &[
                ("truth/nameless-rewrites", &Writer::REWRITES),
                ("truth/nameless-storm", &Writer::STORM),
            ][..],
        ),
        (
            ImageFormat::Qcow2,
            &[("truth/nameless-qcow2", &Writer::REWRITES)][..],
        ),
    ] {
        let mut cases = cases.iter().filter(|(case, _)| ctx.wants(case)).peekable();
        if cases.peek().is_none() {
            continue;
        }
        let (backend, stack) = (Backend::Ebpf, DiskStack { format, ..RAW });
        let functions = Functions::None;
        let scene = Scene::boot_on(ctx, functions, backend, HostFsKind::Xfs, stack, &[])?;
        for (case, writer) in cases {
            report.case(case, |case| data::check(case, &scene, writer))?;
        }
    }
    if ctx.wants("truth/qcow2") {
        let stack = DiskStack {
            format: ImageFormat::Qcow2,
            iothread: true,
            ..RAW
        };
        let scene = Scene::boot(ctx, Backend::Ebpf, HostFsKind::Ext4, stack, &[])?;
        report.case("truth/qcow2", |case| {
            data::check(case, &scene, &Writer::REWRITES)
        })?;
    }
    Ok(())
}
