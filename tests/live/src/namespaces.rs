//! QEMU in a mount namespace of its own, as in a container: its paths mean something else here.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nestrace_rig::disk_image;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack, HostFsKind, ImageFormat, Stack};
use xtask::case::{Case, Report};

use super::context::LiveContext;
use super::measure::{Measured, Watched, measure};
use super::topology::{self, Facts};
use super::{Scenario, ground_truth, image_pattern};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "namespaces",
    about: "QEMU in another mount namespace, with another file of the image's name on the host",
    run,
    alone: false,
};

/// The folder `$0` of the host appears at `$1`, in QEMU's namespace only.
const IN_NAMESPACE: &str = r#"mount --bind "$0" "$1" && shift && exec "$@""#;

const STACKS: [DiskStack; 2] = [
    DiskStack {
        aio: Aio::IoUring,
        ..DiskStack::RAW
    },
    DiskStack {
        format: ImageFormat::Qcow2,
        cache: CacheMode::Writeback,
        aio: Aio::Threads,
        bus: Bus::VirtioScsi,
        iothread: false,
    },
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let host = ctx.host_fs(HostFsKind::Xfs, true, "")?;
    let folder = tempfile::Builder::new()
        .prefix("nestrace-private-")
        .tempdir()
        .context("make a mount point")?;
    let point = folder.path().join("images");
    std::fs::create_dir(&point).context("make a mount point")?;
    let mut disks = Vec::new();
    for (index, stack) in STACKS.into_iter().enumerate() {
        let id = format!("disk-{index}");
        let name = format!("{id}.{}", stack.format);
        // A file of the same name on the host must not be taken for the image.
        for place in [host.path(), &point] {
            disk_image::create(&place.join(&name), stack.format, 64 << 20, "falloc")?;
        }
        disks.push(DiskSpec::new(id, point.join(name), stack));
    }
    let qemu = launcher(folder.path(), host.path(), &point)?;
    let guest = Guest::boot(GuestSpec {
        qemu: qemu.clone(),
        disks,
        ..ctx.guest_spec(&ctx.guest_name("namespace"))
    })?;
    ctx.progress.say("the guest is up");
    let watched: Vec<Watched<'_>> = guest
        .spec()
        .disks
        .iter()
        .map(|disk| Watched {
            guest: &guest,
            disk: &disk.id,
            host: &host,
        })
        .collect();
    report.case("namespaces", |case| {
        let measured = measure(ctx, &watched, || {
            watched
                .iter()
                .try_for_each(|disk| image_pattern::write_and_read(disk.guest, disk.disk))
        })?;
        compare(case, &measured, &watched)
    })?;
    Ok(())
}

/// A program that starts QEMU in a mount namespace where `images` lies at `point`.
fn launcher(folder: &Path, images: &Path, point: &Path) -> anyhow::Result<PathBuf> {
    let launcher = folder.join("qemu");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount --propagation private sh -c '{IN_NAMESPACE}' {} {} \
         qemu-system-x86_64 \"$@\"\n",
        images.display(),
        point.display()
    );
    std::fs::write(&launcher, text).context("write a launcher of QEMU")?;
    std::fs::set_permissions(&launcher, std::fs::Permissions::from_mode(0o755))
        .context("make the launcher executable")?;
    Ok(launcher)
}

fn compare(case: &mut Case, measured: &Measured, watched: &[Watched<'_>]) -> anyhow::Result<()> {
    let analysis = &measured.analysis;
    ground_truth::nothing_lost(case, analysis)?;
    let found = topology::recorded(&measured.bundle)?;
    for ((disk, truth), stack) in watched.iter().zip(&measured.truth).zip(STACKS) {
        let (guest, device) = (disk.guest.name(), disk.host.device());
        let spec = disk
            .guest
            .spec()
            .disks
            .iter()
            .find(|spec| spec.id == disk.disk);
        let path = &spec.context("find the disk's image")?.image;
        let facts = Facts {
            guest,
            disk: disk.disk,
            image: &path.display().to_string(),
            stack,
            device,
        };
        topology::disk_is(case, &found, &facts)?;
        let name = path.file_name().context("name the image")?;
        let real = disk
            .host
            .path()
            .join(name)
            .metadata()
            .context("look at the image")?;
        let inode = &topology::disk(&found, guest, disk.disk)?["images"][0]["inode"];
        let figures = format!("{inode}, expected {}", real.ino());
        case.holds("inode of the image", *inode == real.ino(), &figures);
        ground_truth::device(case, analysis, device, &truth.device)?;
        ground_truth::qemu(case, analysis, guest, disk.disk, &truth.disk)?;
        let whole = Stack {
            host_fs: disk.host.kind(),
            disk: stack,
        };
        let device_read = truth.device.read_sectors * 512;
        image_pattern::compare(case, analysis, (guest, disk.disk), &whole, device_read)?;
    }
    Ok(())
}
