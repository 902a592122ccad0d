//! The newest kernel of Debian's archive, before a user meets it: its layout, and a guest that is followed.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use nestrace_kernel::btf::Btf;
use nestrace_kernel::layout::{KernelTypes, Layout};
use nestrace_kernel::probes::MODULES;
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::initramfs;
use nestrace_rig::kernel_image::{self, KernelImage};
use xtask::case::Report;
use xtask::progress::Progress;

use super::context::LiveContext;
use super::{Scenario, guest_kernels};

/// The scenario. An unknown kernel is not a failure of nestrace: only `--full` fails for it.
pub const SCENARIO: Scenario = Scenario {
    name: "newest-kernel",
    about: "the newest kernel of Debian's archive as a guest; only --full fails for it",
    run,
    alone: false,
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let kernel = match kernel_image::obtain_newest() {
        Ok(kernel) => kernel,
        Err(error) if !ctx.full => {
            let error = anyhow::Error::from(error);
            ctx.progress
                .say(&format!("the newest kernel is not to be had: {error:#}"));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if guest_kernels::boots_series_of(&kernel.release) {
        ctx.progress.say(&format!(
            "{} is the newest kernel: guest-kernels boots its series",
            kernel.release
        ));
        return Ok(());
    }
    follow(ctx, report, &kernel)
}

/// A guest with the kernel, in a report of its own that counts where it has to.
fn follow(ctx: &LiveContext, report: &mut Report, kernel: &KernelImage) -> anyhow::Result<()> {
    let mut own = Report::default();
    let name = format!("newest-kernel/{}", kernel.release);
    let good = own.case(&name, |case| guest_kernels::follow(ctx, case, kernel))?;
    if good || ctx.full {
        report.absorb(own);
    } else {
        ctx.progress
            .say("that is not counted: cargo xtask vm newest fails for it");
    }
    Ok(())
}

/// `cargo xtask vm newest`: freezes the kernel's layout in `fixtures/kernel`, and follows a guest with it.
pub fn freeze_and_follow(progress: Progress) -> anyhow::Result<ExitCode> {
    let ctx = LiveContext::prepare(None, true, progress)?;
    let kernel = kernel_image::obtain_newest()?;
    progress.say(&format!("{} is the newest kernel", kernel.release));
    let numbers: Vec<&str> = kernel.release.split(['.', '-', '+']).take(2).collect();
    let path = Path::new("fixtures/kernel").join(format!("{}.txt", numbers.join(".")));
    let text = format!(
        "# Layout of Linux {} (Debian's package)\n# made by: cargo xtask vm newest\n{}",
        kernel.release,
        layout(&ctx, &kernel)?.to_text()
    );
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    progress.say(&format!(
        "wrote {}; what attaches there: cargo test -p nestrace-kernel --test plan",
        path.display()
    ));
    let mut report = Report::default();
    follow(&ctx, &mut report, &kernel)?;
    Ok(match report.failed() {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// What the probes ask of the kernel, from the types that it shows in a guest.
fn layout(ctx: &LiveContext, kernel: &KernelImage) -> anyhow::Result<Layout> {
    let name = ctx.guest_name("layout");
    let guest = Guest::boot(GuestSpec {
        modules: MODULES.iter().map(|name| (*name).to_owned()).collect(),
        ..GuestSpec::new(name, kernel, &initramfs::obtain(kernel)?)
    })?;
    let pack = format!(
        "cd /sys/kernel/btf && tar -cf /tmp/btf.tar vmlinux $(for m in {}; do [ -e $m ] && echo $m; done)",
        MODULES.join(" ")
    );
    guest.run_ok(&pack, Duration::from_secs(60))?;
    let folder = ctx.fetch_archive(&guest, "btf", "/tmp/btf.tar")?;
    let read = |name: &str| std::fs::read(folder.join(name));
    let mut types = KernelTypes::new(Btf::parse(&read("vmlinux").context("read its types")?)?);
    for module in MODULES {
        if let Ok(bytes) = read(module) {
            types.add_module(*module, Btf::parse_split(&bytes, types.vmlinux())?);
        }
    }
    ctx.discard(&folder);
    Ok(Layout::read(&types))
}
