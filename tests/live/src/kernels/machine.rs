//! The guest that plays the host: its disks, and the block devices that it makes.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nestrace_rig::external_tool::{Tool, find_program};
use nestrace_rig::guest::{DiskSpec, Guest, GuestSpec};
use nestrace_rig::kernel_image::KernelImage;
use nestrace_rig::kernel_modules::KernelModules;
use nestrace_rig::stack::{Aio, CacheMode, DiskStack};
use nestrace_rig::{initramfs, kernel_image};
use nestrace_trace::device_number;
use tempfile::TempDir;

use crate::context::LiveContext;
use crate::direct_io_link::FileId;

/// Where the program and its libraries are in the guest.
const PLACE: &str = "/opt/nestrace";
/// Room for the program in the initramfs, for the ring buffers, and for the recordings.
const MEMORY_MIB: u32 = 2048;
/// What every such guest has: `record.sh` runs a `workload.sh` between two looks at the devices that
/// `setup.sh` left in `/tmp/devices`; `qemu.sh` starts a QEMU in it.
const SCRIPTS: [(&str, &str); 4] = [
    ("quiet.sh", include_str!("quiet.sh")),
    ("in_folder.sh", include_str!("in_folder.sh")),
    ("record.sh", include_str!("record.sh")),
    ("qemu.sh", include_str!("qemu.sh")),
];

/// What a guest is given to play the host with.
#[derive(Clone, Copy, Debug)]
pub struct Role<'a> {
    /// Series of the kernel: `6.1`.
    pub series: &'a str,
    /// Virtio disks: serial number and bytes.
    pub disks: &'a [(&'a str, u64)],
    /// `setup.sh`, `workload.sh` and what else it runs: name and text.
    pub scripts: &'a [(&'a str, &'a str)],
    /// Programs of this machine that are not in the initramfs.
    pub programs: &'a [&'a str],
    /// Modules that no other guest needs.
    pub modules: &'a [&'a str],
    /// More arguments of its QEMU.
    pub extra_arguments: &'a [&'a str],
}

/// A block device of the guest.
#[derive(Clone, Debug)]
pub struct Device {
    /// `loop0`.
    pub kernel_name: String,
    /// As events have it.
    pub dev: u32,
}

/// The guest, and what it made.
#[derive(Debug)]
pub struct Machine {
    /// Series of the kernel: `6.1`.
    pub series: String,
    /// The guest.
    guest: Guest,
    /// Files by their name in `setup.sh` (loop devices' ones have the device's).
    files: BTreeMap<String, FileId>,
    devices: BTreeMap<String, Device>,
    _folder: TempDir,
}

impl Machine {
    /// Boots a guest with the newest Debian kernel of a series and makes its devices.
    pub fn boot(ctx: &LiveContext, role: &Role<'_>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-kernel-")
            .tempdir()
            .context("make a folder for the guest's disks")?;
        let kernel = kernel_image::obtain(role.series)?;
        let initramfs = initramfs::obtain(&kernel)?;
        let mut spec = GuestSpec::new(ctx.guest_name("kernel"), &kernel, &initramfs);
        spec.memory_mib = MEMORY_MIB;
        spec.disks = disks(role, folder.path())?;
        spec.files = files(&ctx.nestrace, role, folder.path())?;
        spec.files
            .extend(modules(role.modules, &kernel, folder.path())?);
        let arguments = role.extra_arguments.iter().copied();
        spec.extra_arguments = arguments.map(str::to_owned).collect();
        ctx.progress.say(&format!("booting {}", kernel.release));
        let guest = Guest::boot(spec)?;
        ctx.progress.say("making the guest's devices");
        let output = guest.run_ok(&format!("sh {PLACE}/setup.sh"), Duration::from_secs(120))?;
        let mut machine = Self {
            series: role.series.to_owned(),
            guest,
            files: BTreeMap::new(),
            devices: BTreeMap::new(),
            _folder: folder,
        };
        for line in output.stdout.lines() {
            machine
                .note(line)
                .with_context(|| format!("read setup.sh's line {line:?}"))?;
        }
        Ok(machine)
    }

    /// A device by its name in `setup.sh`.
    pub fn device(&self, name: &str) -> anyhow::Result<&Device> {
        self.devices
            .get(name)
            .with_context(|| format!("find the guest's device {name}"))
    }

    /// A file by its name in `setup.sh`.
    pub fn file(&self, name: &str) -> anyhow::Result<&FileId> {
        self.files
            .get(name)
            .with_context(|| format!("find the guest's file {name}"))
    }

    /// Copies an archive out of the guest and unpacks it in a folder of its own.
    pub fn fetch(&self, ctx: &LiveContext, archive_in_guest: &str) -> anyhow::Result<PathBuf> {
        ctx.fetch_archive(&self.guest, "kernel", archive_in_guest)
    }

    /// Runs one of the scripts, perhaps with an argument.
    pub fn run_script(&self, script: &str, timeout: Duration) -> anyhow::Result<String> {
        let output = self
            .guest
            .run_ok(&format!("sh {PLACE}/{script}"), timeout)
            .with_context(|| self.out_of_memory())?;
        Ok(output.stdout)
    }

    /// What the guest's kernel says of memory that it lacks.
    fn out_of_memory(&self) -> String {
        let console = self.guest.console();
        let says = console
            .lines()
            .filter(|line| line.contains("Out of memory") || line.contains("oom-kill"));
        let says: Vec<&str> = says.collect();
        format!("lines of its console about lack of memory: {says:?}")
    }

    /// Runs nestrace in the guest; its stdout.
    pub fn nestrace(&self, arguments: &str, timeout: Duration) -> anyhow::Result<String> {
        let command = format!("LD_LIBRARY_PATH={PLACE} {PLACE}/nestrace {arguments}");
        Ok(self.guest.run_ok(&command, timeout)?.stdout)
    }

    fn note(&mut self, line: &str) -> anyhow::Result<()> {
        match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["device", name, kernel_name, number] => {
                let device = Device {
                    kernel_name: (*kernel_name).to_owned(),
                    dev: device_number(number)?,
                };
                self.devices.insert((*name).to_owned(), device);
            }
            ["file", name, inode, number] => {
                let file = FileId {
                    inode: inode.parse()?,
                    dev: device_number(number)?,
                };
                self.files.insert((*name).to_owned(), file);
            }
            _ => bail!("find a device or a file in it"),
        }
        Ok(())
    }
}

/// `MAJOR:MINOR` as events have it.
fn device_number(text: &str) -> anyhow::Result<u32> {
    device_number::parse(text).with_context(|| format!("read {text:?} as a device number"))
}

fn disks(role: &Role<'_>, folder: &Path) -> anyhow::Result<Vec<DiskSpec>> {
    let stack = DiskStack {
        cache: CacheMode::Writeback,
        aio: Aio::Threads,
        ..DiskStack::RAW
    };
    let disk = |&(id, bytes): &(&str, u64)| {
        let image = folder.join(id);
        File::create(&image)
            .and_then(|file| file.set_len(bytes))
            .with_context(|| format!("make {}", image.display()))?;
        Ok(DiskSpec::new(id, image, stack))
    };
    role.disks.iter().map(disk).collect()
}

/// The program under test and the role's own ones with their libraries, and the scripts: place in the
/// guest and file here.
fn files(
    nestrace: &Path,
    role: &Role<'_>,
    folder: &Path,
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut files = with_libraries("nestrace", nestrace)?;
    for name in role.programs {
        let program = find_program(name).with_context(|| format!("find {name}"))?;
        files.extend(with_libraries(name, &program)?);
    }
    let fio = find_program("fio").context("find fio")?;
    files.push((format!("{PLACE}/qemu-system-x86_64"), fio));
    for (name, text) in SCRIPTS.iter().chain(role.scripts) {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        files.push((format!("{PLACE}/{name}"), path));
    }
    Ok(files)
}

/// Modules with what they need, where `load` of the guest looks for them.
pub fn modules(
    names: &[&str],
    kernel: &KernelImage,
    folder: &Path,
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let modules = KernelModules::read(&kernel.modules).context("read the list of modules")?;
    let mut files = BTreeMap::new();
    for name in names {
        let mut order = String::new();
        for file in modules.load_order(name)? {
            let place = format!("/lib/modules/{file}");
            order.push_str(&place);
            order.push('\n');
            files.insert(place, kernel.modules.join(file));
        }
        let path = folder.join(format!("load-{name}"));
        std::fs::write(&path, order).with_context(|| format!("write {}", path.display()))?;
        files.insert(format!("/lib/load/{name}"), path);
    }
    Ok(files.into_iter().collect())
}

/// A program and the libraries that it asks for. (The loader and libc are in the initramfs for the
/// other programs already.)
pub fn with_libraries(name: &str, program: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut files = vec![(format!("{PLACE}/{name}"), program.to_owned())];
    let listing = Tool::new("ldd").arg(program).run()?;
    let libraries = listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    for library in libraries.map(PathBuf::from) {
        let name = library
            .file_name()
            .context("name a library")?
            .to_string_lossy()
            .into_owned();
        files.push((format!("{PLACE}/{name}"), library));
    }
    Ok(files)
}
