//! The devices under the images: a loop device over a file that is written in full, a modelled disk, or one that the user
//! named; bare or with a file system on it, and the images of the guest's disks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nestrace_report::lab::Base as BaseSpeed;
use nestrace_rig::disk_image;
use nestrace_rig::external_tool::{Tool, ToolError};
use nestrace_rig::guest::DiskSpec;
use nestrace_rig::host_device::{HostDevice, LoopFile};
use nestrace_rig::host_fs::{HostFs, HostFsError, HostFsSpec};
use nestrace_rig::loop_device::fill;
use nestrace_rig::modelled_disk::{ModelledDisk, ModelledDiskError, ModelledDiskSpec};
use nestrace_rig::named_device::{DeviceError, NamedDevice};
use tempfile::TempDir;

use super::scattered_image;
use crate::plan::{BaseNeed, Batch, Combination, Host, Placement, Scheduler};

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseError {
    /// A host file system.
    #[error(transparent)]
    HostFs(#[from] HostFsError),
    /// A device that the user named.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A modelled disk.
    #[error(transparent)]
    Modelled(#[from] ModelledDiskError),
    /// A program failed.
    #[error("make the disks of a guest")]
    Tool(#[from] ToolError),
    /// A file.
    #[error("write {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A device under disks of a guest; dropping it removes everything.
#[derive(Debug)]
pub(super) struct Base {
    kind: Kind,
    disks: Vec<usize>,
}

/// What a guest gets.
#[derive(Debug)]
pub(super) enum Attached {
    /// A disk.
    Disk(DiskSpec),
    /// A folder, by the id of a disk.
    Folder(PathBuf),
}

#[derive(Debug)]
enum Kind {
    // The device is detached before its file goes.
    Bare {
        device: HostDevice,
        _folder: Option<TempDir>,
    },
    Fs(HostFs),
}

/// Bytes that are written to a device, and read, to see that it is as fast as the others.
const PROBE_BYTES: u64 = 128 << 20;

impl Base {
    /// Takes the named device, or makes one, of a modelled disk where its key has one, and makes the file system that
    /// it is for. `modelled` is everything about a modelled disk but its model.
    pub(super) fn create(
        need: &BaseNeed,
        named: Option<&Arc<NamedDevice>>,
        modelled: &ModelledDiskSpec,
        work: &Path,
    ) -> Result<Self, BaseError> {
        let disks = need.disks.clone();
        let modelled = need.key.host_disk.model().map(|model| modelled.of(model));
        let kind = match (need.key.host, named) {
            (Host::Bare, None) => bare(need.bytes, modelled.as_ref(), work)?,
            (Host::Bare, Some(named)) => {
                named.renew()?;
                Kind::Bare {
                    device: HostDevice::Named(Arc::clone(named)),
                    _folder: None,
                }
            }
            (Host::Fs(fs), None) => Kind::Fs(HostFs::create(&HostFsSpec {
                size_bytes: need.bytes,
                direct_io: knows_direct_io(work),
                backing_folder: work.to_owned(),
                mount_options: need.key.host_mount_options.clone(),
                is_filled: true,
                modelled,
                ..HostFsSpec::new(fs)
            })?),
            (Host::Fs(fs), Some(named)) => {
                named.renew()?;
                let options = &need.key.host_mount_options;
                let named = Arc::clone(named);
                Kind::Fs(HostFs::create_on(named, fs, need.bytes, options, work)?)
            }
        };
        let base = Self { kind, disks };
        // Nothing that is made on it is measured.
        base.pace(false)?;
        base.turn(&need.key, named.map(Arc::as_ref))?;
        Ok(base)
    }

    /// The kernel's name of the device.
    pub(super) fn device(&self) -> &str {
        match &self.kind {
            Kind::Bare { device, .. } => device.name(),
            Kind::Fs(fs) => fs.device(),
        }
    }

    /// The modelled disk that it is, if it is one.
    pub(super) fn modelled(&self) -> Option<&ModelledDisk> {
        match &self.kind {
            Kind::Bare { device, .. } => device.modelled(),
            Kind::Fs(fs) => fs.modelled(),
        }
    }

    /// Whether a modelled disk takes its time.
    pub(super) fn pace(&self, modelled: bool) -> Result<(), BaseError> {
        match self.modelled() {
            Some(disk) => Ok(disk.pace(modelled)?),
            None => Ok(()),
        }
    }

    /// Whether the disk lies on it.
    pub(super) fn carries(&self, disk: usize) -> bool {
        self.disks.contains(&disk)
    }

    /// Writes back what is dirty.
    pub(super) fn sync(&self) -> io::Result<()> {
        match &self.kind {
            Kind::Bare { device, .. } => File::open(device.path())?.sync_all(),
            Kind::Fs(fs) => fs.sync(),
        }
    }

    /// Sets scheduler and read-ahead of the device.
    fn turn(&self, key: &Combination, named: Option<&NamedDevice>) -> Result<(), BaseError> {
        let queue = Path::new("/sys/block").join(self.device()).join("queue");
        let set = |name: &str, value: String| {
            if let Some(named) = named {
                return Ok(named.set(name, &value)?);
            }
            let path = queue.join(name);
            std::fs::write(&path, value).map_err(|source| BaseError::File { path, source })
        };
        if key.host_scheduler != Scheduler::Default {
            set("scheduler", key.host_scheduler.to_string())?;
        }
        match key.host_read_ahead_kib {
            Some(kib) => set("read_ahead_kb", kib.to_string()),
            None => Ok(()),
        }
    }

    /// Its disks, with their numbers. One that cannot be made leaves the others as they are.
    pub(super) fn disks<'b>(
        &'b self,
        batch: &'b Batch,
        image_bytes: u64,
    ) -> impl Iterator<Item = (usize, Result<Attached, BaseError>)> + 'b {
        self.disks.iter().filter_map(move |&number| {
            let disk = &batch.disks.get(number)?.combination;
            Some((number, self.attached(number, disk, image_bytes)))
        })
    }

    /// Makes the image of a disk, or takes the bare device for one, or makes a folder that is passed through.
    fn attached(
        &self,
        number: usize,
        disk: &Combination,
        image_bytes: u64,
    ) -> Result<Attached, BaseError> {
        let path = match &self.kind {
            Kind::Bare { device, .. } => device.path(),
            Kind::Fs(fs) if disk.is_passed_through() => {
                let path = fs.path().join(disk_id(number));
                return match std::fs::create_dir(&path) {
                    Ok(()) => Ok(Attached::Folder(path)),
                    Err(source) => Err(BaseError::File { path, source }),
                };
            }
            Kind::Fs(fs) => {
                let image = fs.path().join(format!("disk{number}.{}", disk.disk.format));
                make_image(&image, disk, image_bytes)?;
                image
            }
        };
        let mut spec = DiskSpec::new(disk_id(number), path, disk.disk);
        if let Kind::Bare {
            device: HostDevice::Named(_),
            ..
        } = &self.kind
        {
            // As large as every other disk, whatever the partition has.
            spec.drive_options = format!("size={image_bytes}");
        }
        Ok(Attached::Disk(spec))
    }
}

/// What ids of a guest's disks begin with; the guest sees them as serial numbers.
const DISK_ID: &str = "nestrace-lab-";

/// The id of a guest's disk.
pub(super) fn disk_id(number: usize) -> String {
    format!("{DISK_ID}{number}")
}

/// Whether a disk's id is one that the lab gives.
pub(super) fn is_disk_id(id: &str) -> bool {
    id.strip_prefix(DISK_ID).is_some_and(|number| {
        !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
    })
}

fn bare(bytes: u64, modelled: Option<&ModelledDiskSpec>, work: &Path) -> Result<Kind, BaseError> {
    if let Some(modelled) = modelled {
        return Ok(Kind::Bare {
            device: HostDevice::Modelled(ModelledDisk::start(modelled, bytes, work)?),
            _folder: None,
        });
    }
    let failed = |source| BaseError::File {
        path: work.to_owned(),
        source,
    };
    let folder = tempfile::Builder::new()
        .prefix("bare-")
        .tempdir_in(work)
        .map_err(failed)?;
    let file = folder.path().join("backing");
    File::create(&file).map_err(failed)?;
    fill(&file, bytes)?;
    let device = LoopFile::attach(&file, knows_direct_io(work), 512, false)?;
    Ok(Kind::Bare {
        device: HostDevice::LoopFile(device),
        _folder: Some(folder),
    })
}

/// tmpfs does not.
pub(super) fn knows_direct_io(folder: &Path) -> bool {
    use nix::sys::statfs::{TMPFS_MAGIC, statfs};
    statfs(folder).is_ok_and(|about| about.filesystem_type() != TMPFS_MAGIC)
}

fn make_image(image: &Path, disk: &Combination, bytes: u64) -> Result<(), BaseError> {
    disk_image::create(image, disk.disk.format, bytes, disk.preallocation.word())?;
    match disk.placement {
        Placement::Sparse => Ok(()),
        Placement::Preallocated => Ok(fill(image, bytes)?),
        Placement::Fragmented => {
            let written = scattered_image::write(image, bytes, disk.host);
            written.map_err(|source| BaseError::File {
                path: image.to_owned(),
                source,
            })
        }
    }
}

/// How often each device is measured: in turn, so that a machine that drifts favours none.
const PROBES: usize = 3;

/// How fast bare devices are before anything is put on them, one for each of these names: partitions have to be equal
/// before what lies on them is compared. Of modelled disks all are alike, so there is one of each model.
pub(super) fn probe(
    names: &BTreeSet<&str>,
    models: &[ModelledDiskSpec],
    work: &Path,
) -> Result<Vec<BaseSpeed>, BaseError> {
    let own = names.iter().map(|name| (*name, None));
    let modelled = models.iter().map(|disk| (disk.model.as_str(), Some(disk)));
    let mut devices = Vec::new();
    for (name, disk) in own.chain(modelled) {
        devices.push((name, bare(PROBE_BYTES, disk, work)?));
    }
    let mut places = Vec::new();
    for (name, kind) in &devices {
        if let Kind::Bare { device, .. } = kind {
            places.push(((*name).to_owned(), device.path()));
        }
    }
    speeds(&places)
}

/// The same of devices that the user named.
pub(super) fn probe_named(devices: &[Arc<NamedDevice>]) -> Result<Vec<BaseSpeed>, BaseError> {
    let mut places = Vec::new();
    for device in devices {
        device.renew()?;
        places.push((
            device.path().display().to_string(),
            device.node().to_owned(),
        ));
    }
    speeds(&places)
}

/// The best rates of each.
fn speeds(places: &[(String, PathBuf)]) -> Result<Vec<BaseSpeed>, BaseError> {
    let named = |(name, _): &(String, PathBuf)| BaseSpeed {
        name: name.clone(),
        ..BaseSpeed::default()
    };
    let mut best: Vec<BaseSpeed> = places.iter().map(named).collect();
    for round in 0..PROBES {
        let mut order: Vec<usize> = (0..places.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for number in order {
            let device = places[number].1.display();
            let write = rate(
                &["if=/dev/zero", "oflag=direct", "conv=fsync,notrunc"],
                format!("of={device}"),
            )?;
            let read = rate(&["of=/dev/null", "iflag=direct"], format!("if={device}"))?;
            let best = &mut best[number];
            best.write_bytes_per_s = best.write_bytes_per_s.max(write);
            best.read_bytes_per_s = best.read_bytes_per_s.max(read);
        }
    }
    Ok(best)
}

/// Bytes per second at which dd moves [`PROBE_BYTES`].
fn rate(options: &[&str], device: String) -> Result<f64, BaseError> {
    let begin = Instant::now();
    Tool::new("dd")
        .args(["bs=1M", "status=none"])
        .arg(format!("count={}", PROBE_BYTES >> 20))
        .args(options)
        .arg(device)
        .run()?;
    Ok(PROBE_BYTES as f64 / begin.elapsed().as_secs_f64().max(1e-6))
}
