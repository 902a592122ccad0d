//! Disks right on block devices of the host, without a file system between; and beside them one
//! that cannot be followed here (nbd).

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::interrupt;
use nestrace_rig::loop_device::LoopDevice;
use nestrace_rig::stack::{Aio, Bus, CacheMode, DiskStack};
use nestrace_trace::flags::{OWNER_DIRECT, OWNER_PAGES};
use nestrace_trace::{Event, Kind};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use xtask::case::{Case, Report};

use super::analysis::{entry, number};
use super::context::LiveContext;
use super::ground_truth::Counts;
use super::image_pattern::PATTERN_BYTES;
use super::measure::{Measured, Observed, host_live, measure_observed, under_an_image};
use super::topology::{self, Facts};
use super::{Scenario, backend_calls, direct_io_link, ground_truth, image_pattern};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "block-device",
    about: "disks right on block devices of the host, and one over nbd that cannot be followed",
    run,
    alone: false,
};

/// The disk over nbd.
pub(super) const NBD: &str = "disk-nbd";
const DISK_BYTES: u64 = 64 << 20;
/// What a disk is written and read: the pattern, and as much in large requests.
const LOAD_BYTES: u64 = PATTERN_BYTES + (8 << 20);
const LOAD_PATIENCE: Duration = Duration::from_secs(60);
/// A recording that has to be made again costs less the fewer disks it has.
const DISKS_AT_ONCE: usize = 2;

const STACKS: [DiskStack; 5] = {
    use self::Aio::{IoUring, Native, Threads};
    use self::Bus::{Ide, Virtio, VirtioScsi};
    use self::CacheMode::{None as Uncached, Writeback};
    [
        stack(Uncached, IoUring, Virtio),
        stack(Uncached, Native, VirtioScsi),
        stack(Uncached, Threads, Ide),
        stack(Writeback, Threads, Virtio),
        stack(Writeback, IoUring, VirtioScsi),
    ]
};

const fn stack(cache: CacheMode, aio: Aio, bus: Bus) -> DiskStack {
    DiskStack {
        cache,
        aio,
        bus,
        ..DiskStack::RAW
    }
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let devices = (0..STACKS.len())
        .map(|index| RawDevice::create(index % 2 == 0))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let server = NbdServer::start()?;
    let disks = devices.iter().zip(STACKS).enumerate();
    let disks = disks.map(|(index, (device, stack))| {
        DiskSpec::new(format!("disk-{index}"), device.device.path(), stack)
    });
    let guest = Guest::boot(GuestSpec {
        disks: disks.collect(),
        extra_arguments: server.disk_arguments(),
        ..ctx.guest_spec(&ctx.guest_name("raw"))
    })?;
    ctx.progress.say("the guest is up");
    let disks: Vec<(&DiskSpec, &RawDevice)> = guest.spec().disks.iter().zip(&devices).collect();
    for group in disks.chunks(DISKS_AT_ONCE) {
        let names: Vec<String> = group
            .iter()
            .map(|(disk, _)| format!("{}/{}/{}", disk.stack.cache, disk.stack.aio, disk.stack.bus))
            .collect();
        report.case(&format!("block-device/{}", names.join(" + ")), |case| {
            let measured = measure_devices(ctx, &guest, group)?;
            ground_truth::nothing_lost(case, &measured.analysis)?;
            for ((disk, device), truth) in group.iter().zip(&measured.truth) {
                compare(case, &measured, guest.name(), disk, device, truth)?;
            }
            nbd(case, &measured, guest.name())?;
            let events = direct_io_link::host_events(&measured.bundle)?;
            backend_calls::bytes_are_accounted(case, &events);
            ctx.discard(&measured.bundle);
            Ok(())
        })?;
    }
    Ok(())
}

/// The pattern on these disks, and on the one over nbd, which is part of every recording.
fn measure_devices(
    ctx: &LiveContext,
    guest: &Guest,
    disks: &[(&DiskSpec, &RawDevice)],
) -> anyhow::Result<Measured> {
    let counts = || {
        let take = |(disk, device): &(&DiskSpec, &RawDevice)| {
            anyhow::Ok(Counts {
                device: BlockStat::read(device.device.name())?,
                disk: guest.disk_stats(&disk.id)?,
            })
        };
        disks.iter().map(take).collect()
    };
    let observed = Observed {
        guests: vec![guest.name()],
        counts: &counts,
        sync: &|| disks.iter().try_for_each(|(_, device)| device.sync()),
        live: &host_live,
        counts_on: under_an_image,
    };
    measure_observed(ctx, &observed, || {
        let ids = disks.iter().map(|(disk, _)| disk.id.as_str());
        for id in ids.chain([NBD]) {
            image_pattern::write_and_read(guest, id)?;
            guest.run_ok(&large_requests(&guest.device_of(id)?), LOAD_PATIENCE)?;
        }
        Ok(())
    })
}

/// Requests of more than 256 pages: the kernel makes them another way, and a bio of theirs that has
/// to be split is given back to io_uring, which queues it again.
fn large_requests(device: &str) -> String {
    format!(
        "dd if=/dev/zero of={device} bs=4M seek=8 count=2 oflag=direct && \
         dd if={device} of=/dev/null bs=4M skip=8 count=2 iflag=direct"
    )
}

fn compare(
    case: &mut Case,
    measured: &Measured,
    guest: &str,
    disk: &DiskSpec,
    device: &RawDevice,
    truth: &Counts,
) -> anyhow::Result<()> {
    let analysis = &measured.analysis;
    let name = device.device.name();
    ground_truth::device(case, analysis, name, &truth.device)?;
    ground_truth::qemu(case, analysis, guest, &disk.id, &truth.disk)?;
    let found = topology::recorded(&measured.bundle)?;
    let facts = Facts {
        guest,
        disk: &disk.id,
        image: &disk.image.display().to_string(),
        stack: disk.stack,
        device: name,
    };
    topology::disk_is(case, &found, &facts)?;
    let about = &topology::disk(&found, guest, &disk.id)?["images"][0];
    let is_device = about["is_block_device"] == true && about["mount"].is_null();
    case.holds("image is a block device", is_device, &about.to_string());

    let image = entry(analysis, "images", &[("guest", guest), ("disk", &disk.id)])?;
    // Through the page cache nothing has to be read again but what the host needed the memory of.
    let read_at_q = if disk.stack.cache.is_direct() {
        LOAD_BYTES
    } else {
        truth.device.read_sectors * 512
    };
    let pairs = [
        ("/file_io/bytes/write", LOAD_BYTES),
        ("/file_io/bytes/read", LOAD_BYTES),
        ("/host_bytes/write", LOAD_BYTES),
        ("/host_bytes/read", read_at_q),
        ("/file_io/buffered_fallback", 0),
    ];
    for (pointer, expected) in pairs {
        let DiskStack { cache, aio, .. } = disk.stack;
        let what = format!("{} ({cache}, {aio}): images{pointer}", disk.id);
        case.equal(&what, number(image, pointer)?, expected);
    }
    owners(case, measured, disk, name)
}

/// Direct I/O names its kiocb in each bio, unless its thread waits for it; what went through the page
/// cache lies in pages of the device's own inode, whose number is the device's.
fn owners(
    case: &mut Case,
    measured: &Measured,
    disk: &DiskSpec,
    device: &str,
) -> anyhow::Result<()> {
    let events = direct_io_link::host_events(&measured.bundle)?;
    let dev = direct_io_link::device_number(device)?;
    let is_ours =
        |event: &&Event| event.kind() == Some(Kind::Queue) && event.dev == dev && event.bytes > 0;
    let bios: Vec<&Event> = events.iter().filter(is_ours).collect();
    let count = |owner: u8| bios.iter().filter(|bio| bio.sub == owner).count();
    let (direct, pages) = (count(OWNER_DIRECT), count(OWNER_PAGES));
    let figures = format!("{direct} by kiocb, {pages} by page, of {} bios", bios.len());
    case.figure(format!("{}: {figures}", disk.id));
    let DiskStack { cache, aio, .. } = disk.stack;
    let what = format!("{} ({cache}, {aio}): owners at Q", disk.id);
    let good = match (cache.is_direct(), aio) {
        (true, Aio::Threads) => pages == 0,
        (true, _) => direct == bios.len(),
        (false, _) => pages == bios.len() && bios.iter().all(|bio| bio.inode == u64::from(dev)),
    };
    case.holds(&what, good, &figures);
    Ok(())
}

/// The disk over nbd: listed with the reason; QEMU's side of it is counted all the same.
fn nbd(case: &mut Case, measured: &Measured, guest: &str) -> anyhow::Result<()> {
    let found = topology::recorded(&measured.bundle)?;
    let disk = topology::disk(&found, guest, NBD)?;
    let reason = disk["not_followed"].as_str().unwrap_or_default();
    case.holds(
        "nbd: why it is not followed",
        reason.contains("nbd"),
        reason,
    );
    case.figure(format!("nbd: {reason}"));
    let no_images = disk["images"].as_array().is_some_and(Vec::is_empty);
    case.holds("nbd: images", no_images, &disk["images"].to_string());
    let qemu = entry(
        &measured.analysis,
        "qemu",
        &[("guest", guest), ("disk", NBD)],
    )?;
    case.equal(
        "nbd: qemu.bytes.write",
        number(qemu, "/bytes/write")?,
        LOAD_BYTES,
    );
    Ok(())
}

/// A loop device over a whole file of its own.
struct RawDevice {
    // Detached before the file goes.
    device: LoopDevice,
    _folder: TempDir,
}

impl RawDevice {
    fn create(direct_io: bool) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-raw-")
            .tempdir()
            .context("make a folder for a device")?;
        let backing = backing_file(folder.path())?;
        Ok(Self {
            device: LoopDevice::attach(&backing, direct_io)?,
            _folder: folder,
        })
    }

    /// Writes back the device's own page cache.
    fn sync(&self) -> anyhow::Result<()> {
        File::open(self.device.path())
            .and_then(|device| device.sync_all())
            .with_context(|| format!("write back {}", self.device.name()))
    }
}

fn backing_file(folder: &Path) -> anyhow::Result<PathBuf> {
    let backing = folder.join("backing");
    let file = File::create(&backing).context("make a backing file")?;
    file.set_len(DISK_BYTES).context("make a backing file")?;
    Ok(backing)
}

/// `qemu-nbd` on a socket of its own; dropping it kills it.
pub(super) struct NbdServer {
    child: Child,
    folder: TempDir,
}

impl NbdServer {
    /// Starts it over a new file.
    pub(super) fn start() -> anyhow::Result<Self> {
        let folder = Self::folder()?;
        let backing = backing_file(folder.path())?;
        let backing = backing.display().to_string();
        Self::serve(folder, &["--format=raw", &backing])
    }

    /// Starts it over nothing that takes this long for each request.
    pub(super) fn delayed(delay: Duration) -> anyhow::Result<Self> {
        let delay = delay.as_nanos();
        let nothing = format!("driver=null-co,size={DISK_BYTES},latency-ns={delay}");
        Self::serve(Self::folder()?, &["--image-opts", &nothing])
    }

    fn folder() -> anyhow::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("nestrace-nbd-").tempdir();
        folder.context("make a folder for nbd")
    }

    fn serve(folder: TempDir, what: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new("qemu-nbd");
        command
            .args(["--persistent", "--socket"])
            .arg(folder.path().join("nbd.sock"))
            .args(what)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command.spawn().context("start qemu-nbd")?;
        let server = Self { child, folder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !server.socket().exists() {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!("see qemu-nbd's socket within 10 s");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    /// The disk over it, as `-drive` and `-device`.
    pub(super) fn disk_arguments(&self) -> Vec<String> {
        self.arguments_of(NBD)
    }

    /// The same of a disk that is called so.
    pub(super) fn arguments_of(&self, id: &str) -> Vec<String> {
        let socket = self.socket().display().to_string();
        vec![
            "-drive".to_owned(),
            format!("file=nbd+unix:///?socket={socket},if=none,id={id},format=raw"),
            "-device".to_owned(),
            format!("virtio-blk-pci,drive={id},id={id},serial={id}"),
        ]
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
