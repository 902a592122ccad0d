//! Devices that a user names, with loop devices in their place: what is refused leaves every byte as it
//! was, and what is used is given back bare.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::host_fs::{HostFs, HostFsError, kernel_has};
use nestrace_rig::loop_device::LoopDevice;
use nestrace_rig::named_device::{DeviceError, NamedDevice, Objection};
use nestrace_rig::recorder::nestrace;
use nestrace_rig::stack::HostFsKind;
use xtask::case::Case;

/// What the plan below needs of each: an image of 512 MiB, and what lies around it.
const ENOUGH: u64 = 1 << 30;
const TOO_LITTLE: u64 = 512 << 20;
/// Of the file systems that are made without a plan: far less than the device has.
const FS_BYTES: u64 = 400 << 20;

/// A loop device with a pattern in it.
struct Device {
    device: LoopDevice,
    file: PathBuf,
}

impl Device {
    fn new(folder: &Path, name: &str, bytes: u64) -> anyhow::Result<Self> {
        let file = folder.join(name);
        std::fs::write(&file, b"what a user would miss".repeat(1000)).context("write a file")?;
        let whole = File::options().write(true).open(&file);
        whole
            .and_then(|file| file.set_len(bytes))
            .context("make a file")?;
        let device = LoopDevice::attach(&file, false)?;
        Ok(Self { device, file })
    }

    fn path(&self) -> String {
        self.device.path().display().to_string()
    }

    /// What stands at its beginning, where tables and super blocks are.
    fn head(&self) -> anyhow::Result<Vec<u8>> {
        Tool::new("sync").arg(self.device.path()).run()?;
        let mut head = vec![0; 1 << 20];
        let mut file = File::open(&self.file).context("open a device's file")?;
        file.read_exact(&mut head).context("read a device's file")?;
        Ok(head)
    }
}

/// A table with one partition of 64 MiB, which the kernel is not asked to read.
fn make_table(device: &Path) -> io::Result<()> {
    let mut table = [0; 66];
    // Linux, from the first MiB on.
    table[4] = 0x83;
    table[8..12].copy_from_slice(&2_048_u32.to_le_bytes());
    table[12..16].copy_from_slice(&131_072_u32.to_le_bytes());
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    let device = File::options().write(true).open(device)?;
    device.write_all_at(&table, 446)?;
    device.sync_all()
}

/// Refusals of the command.
pub fn refused(program: &Path, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for devices")?;
    let good = Device::new(folder.path(), "good", ENOUGH)?;
    let small = Device::new(folder.path(), "small", TOO_LITTLE)?;
    let parted = Device::new(folder.path(), "parted", ENOUGH)?;
    let mounted = Device::new(folder.path(), "mounted", ENOUGH)?;
    make_table(&parted.device.path()).context("make a table of partitions")?;
    let point = folder.path().join("point");
    std::fs::create_dir(&point).context("make a mount point")?;
    Tool::new("mke2fs").arg("-qF").arg(mounted.path()).run()?;
    Tool::new("mount").arg(mounted.path()).arg(&point).run()?;
    let under = Device {
        file: folder.path().join("upper"),
        device: LoopDevice::attach(&good.device.path(), false)?,
    };
    let plan = folder.path().join("plan.toml");
    let results = folder.path().join("results");
    let results = super::name(&results)?;
    let run = |devices: &[&str], told: &[&str]| -> anyhow::Result<_> {
        let list = devices.join("', '");
        let text = format!(
            "name = 'p'\nagent = false\n[host]\ndevices = ['{list}']\n[[workload]]\nname = 'randread'\n"
        );
        std::fs::write(&plan, text).context("write a plan")?;
        let mut args = vec!["lab", "run", super::name(&plan)?, "-o", results];
        for device in told {
            args.extend(["--i-know-this-erases", device]);
        }
        Ok(nestrace(program, &args)?)
    };
    let before: Vec<Vec<u8>> = [&good, &small, &parted]
        .map(Device::head)
        .into_iter()
        .collect::<anyhow::Result<_>>()?;
    let (one, other) = (good.path(), small.path());
    let line = format!("--i-know-this-erases {one} --i-know-this-erases {other}");
    let end = run(&[&one, &other], &[&other])?;
    case.equal("exit without the flag", end.code.unwrap_or(-1), 2);
    let told = end.stderr.starts_with("nestrace: ") && end.stderr.contains(&line);
    case.holds("the line to type", told, &end.stderr);
    let file = under.file.display().to_string();
    for (device, expected) in [
        (&parted.path(), String::from("partition table (dos)")),
        (&mounted.path(), format!("mounted at {}", point.display())),
        (&other, String::from("MiB are needed, it has 512")),
        (&one, format!("{} lies on it", under.device.name())),
        (&file, String::from("is not a device")),
    ] {
        let end = run(&[device], &[device])?;
        case.equal(device, end.code.unwrap_or(-1), 3);
        case.holds(device, end.stderr.contains(&expected), &end.stderr);
    }
    drop(under);
    // The second is refused, so the first is not touched either.
    let end = run(&[&one, &other], &[&one, &other])?;
    case.equal("exit of a good and a small one", end.code.unwrap_or(-1), 3);
    for (device, before) in [&good, &small, &parted].into_iter().zip(before) {
        let same = device.head()? == before;
        case.holds(&device.path(), same, "it was written to");
    }
    let lost = !point.join("lost+found").is_dir();
    Tool::new("umount").arg(&point).run()?;
    case.holds("the mounted one", !lost, "its file system is gone");
    Ok(())
}

/// Every file system on a device, one after another, in a part of it.
pub fn used(case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for a device")?;
    let device = Device::new(folder.path(), "device", ENOUGH)?;
    let paths = [device.device.path()];
    // As a virtual machine has its disk: without a claim.
    let node = File::open(&paths[0]).context("open a device")?;
    let mut user = Command::new("sleep")
        .arg("60")
        .stdin(node)
        .spawn()
        .context("start sleep")?;
    let refused = NamedDevice::claim_all(&paths, ENOUGH);
    let is_told = matches!(
        &refused,
        Err(DeviceError::Refused { objection: Objection::Open { pid, .. }, .. }) if *pid == user.id()
    );
    user.kill().context("end sleep")?;
    user.wait().context("end sleep")?;
    case.holds("a device that a process has open", is_told, "it was given");
    let claimed = NamedDevice::claim_all(&paths, ENOUGH)?;
    let again = NamedDevice::claim_all(&paths, ENOUGH);
    let is_refused = matches!(again, Err(DeviceError::Refused { .. }));
    case.holds("a second claim", is_refused, "it was given twice");
    let claimed = claimed.into_iter().next().context("claim a device")?;
    let claimed = Arc::new(claimed);
    let queue = format!("/sys/block/{}/queue/read_ahead_kb", claimed.name());
    let read_ahead = || std::fs::read_to_string(&queue).context("read the read-ahead");
    let at_first = read_ahead()?;
    for &kind in HostFsKind::ALL.iter().filter(|kind| kernel_has(**kind)) {
        claimed.renew()?;
        claimed.set("read_ahead_kb", "12")?;
        case.equal("read-ahead", read_ahead()?.trim(), "12");
        let fs = create(&claimed, kind, folder.path())?;
        let stat = nix::sys::statvfs::statvfs(fs.path()).context("look at a file system")?;
        let bytes = stat.blocks() * stat.fragment_size();
        let fits = (FS_BYTES / 2..=FS_BYTES).contains(&bytes);
        case.holds(kind.word(), fits, &format!("{bytes} bytes"));
        let renewed = claimed.renew();
        let is_refused = matches!(renewed, Err(DeviceError::Refused { .. }));
        case.holds(kind.word(), is_refused, "it was wiped while it was mounted");
        std::fs::write(fs.path().join("file"), "x").context("write a file")?;
        fs.sync().context("write a file system back")?;
    }
    drop(claimed);
    case.equal("read-ahead afterwards", read_ahead()?, at_first);
    let left = Tool::new("wipefs")
        .arg("--noheadings")
        .arg(&paths[0])
        .run()?;
    case.holds("afterwards", left.trim().is_empty(), &left);
    Ok(())
}

fn create(
    device: &Arc<NamedDevice>,
    kind: HostFsKind,
    folder: &Path,
) -> Result<HostFs, HostFsError> {
    HostFs::create_on(Arc::clone(device), kind, FS_BYTES, "", folder)
}
