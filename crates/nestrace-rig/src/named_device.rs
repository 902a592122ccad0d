//! A block device that the user named for the lab's file systems: looked at before anything is written,
//! locked while it is used, and left without a file system.
//!
//! The command line has to allow that the device's data is lost. Some devices are refused even then: one that is
//! mounted or otherwise in use, one that holds partitions, and one that is too small.

mod facts;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

pub use facts::Objection;

use crate::external_tool::{Tool, ToolError};
use crate::interrupt::{self, Interrupted};
use facts::Facts;

/// How often a device is looked at that somebody has open: udev looks at each that was written.
const LOOKS: u32 = 20;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(150);

/// A named device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// It cannot be looked at.
    #[error("look at the device {path}")]
    Look {
        /// As it was named.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It may not be written to.
    #[error("use the device {path}: {objection}; nothing was written to it")]
    Refused {
        /// As it was named.
        path: PathBuf,
        /// Why not.
        objection: Objection,
    },
    /// Two names of one device.
    #[error("use the devices {one} and {other}: they are the same")]
    Twice {
        /// A name.
        one: PathBuf,
        /// Another.
        other: PathBuf,
    },
    /// wipefs failed.
    #[error("remove what the device {path} holds")]
    Wipe {
        /// As it was named.
        path: PathBuf,
        /// What the program said.
        source: ToolError,
    },
    /// A setting of its queue.
    #[error("set {path}")]
    Setting {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Files of queues and what was in them at first. Partitions of one disk share its queue, so that all devices of a run
/// share these: the second one to be given back would else set what it found, which was the first one's.
type Settings = Arc<Mutex<Vec<(PathBuf, String)>>>;

/// A device that is the lab's for a while. Dropping it removes the file system that was put on it and gives
/// its queue the settings back that it had; one that was never written to stays as it is.
#[derive(Debug)]
pub struct NamedDevice {
    /// As it was named.
    path: PathBuf,
    /// What QEMU and mount open: a symbolic link is no device to those who look at their command lines.
    node: PathBuf,
    name: String,
    number: (u64, u64),
    needed_bytes: u64,
    is_written: AtomicBool,
    settings: Settings,
    /// Two labs never use one device, even between their mounts.
    _lock: Flock<File>,
}

impl NamedDevice {
    /// Looks at every device before any is taken: all of them, or none. Nothing is written. Needs root.
    ///
    /// # Errors
    /// One is no block device, mounted, in use, holds partitions, has less than `needed_bytes`, or is there
    /// under two names.
    pub fn claim_all(paths: &[PathBuf], needed_bytes: u64) -> Result<Vec<Self>, DeviceError> {
        let mut devices: Vec<Self> = Vec::new();
        let settings = Settings::default();
        for path in paths {
            let device = Self::claim(path, needed_bytes, Arc::clone(&settings))?;
            if let Some(same) = devices.iter().find(|one| one.number == device.number) {
                return Err(DeviceError::Twice {
                    one: same.path.clone(),
                    other: path.clone(),
                });
            }
            devices.push(device);
        }
        Ok(devices)
    }

    fn claim(path: &Path, needed_bytes: u64, settings: Settings) -> Result<Self, DeviceError> {
        let facts = look(path, needed_bytes)?;
        let failed = |source| DeviceError::Look {
            path: path.to_owned(),
            source,
        };
        let node = File::open(path).map_err(failed)?;
        let lock =
            Flock::lock(node, FlockArg::LockExclusiveNonblock).map_err(|_| DeviceError::Refused {
                path: path.to_owned(),
                objection: Objection::Locked,
            });
        Ok(Self {
            path: path.to_owned(),
            node: facts.node,
            name: facts.name,
            number: facts.number,
            needed_bytes,
            is_written: AtomicBool::new(false),
            settings,
            _lock: lock?,
        })
    }

    /// As it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its node, without symbolic links: `/dev/sdb1`.
    #[must_use]
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The kernel's name: `sdb1`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes it bare, right before something is put on it: looks at it again, removes what earlier file
    /// systems left, and gives its queue the settings back that it had.
    ///
    /// # Errors
    /// Somebody else uses it now, its name belongs to another device now, or wipefs failed.
    pub fn renew(&self) -> Result<(), DeviceError> {
        let facts = look(&self.path, self.needed_bytes)?;
        if (facts.number, &facts.node) != (self.number, &self.node) {
            return Err(DeviceError::Refused {
                path: self.path.clone(),
                objection: Objection::Another,
            });
        }
        self.restore_settings();
        self.is_written.store(true, Ordering::Relaxed);
        self.wipe(Tool::new("wipefs"))
    }

    /// Sets a file of its queue (`scheduler`, `read_ahead_kb`): of a partition, that of the whole disk.
    ///
    /// # Errors
    /// There is no such file, or the kernel refuses the value.
    pub fn set(&self, setting: &str, value: &str) -> Result<(), DeviceError> {
        let path = facts::queue(&self.name).join(setting);
        let failed = |source| DeviceError::Setting {
            path: path.clone(),
            source,
        };
        let before = std::fs::read_to_string(&path).map_err(failed)?;
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if settings.iter().all(|(known, _)| *known != path) {
            settings.push((path.clone(), facts::chosen(&before).to_owned()));
        }
        std::fs::write(&path, value).map_err(failed)
    }

    fn restore_settings(&self) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, value) in settings.drain(..) {
            if let Err(error) = std::fs::write(&path, value) {
                eprintln!(
                    "nestrace-lab: failed to set {} back: {error}",
                    path.display()
                );
            }
        }
    }

    fn wipe(&self, wipefs: Tool) -> Result<(), DeviceError> {
        let done = wipefs.args(["--all", "--quiet"]).arg(&self.node).run();
        done.map(|_| ()).map_err(|source| DeviceError::Wipe {
            path: self.path.clone(),
            source,
        })
    }
}

impl Drop for NamedDevice {
    fn drop(&mut self) {
        self.restore_settings();
        if !self.is_written.load(Ordering::Relaxed) {
            return;
        }
        // wipefs itself refuses a device that is mounted.
        if let Err(error) = self.wipe(Tool::new("wipefs").for_clean_up()) {
            eprintln!("nestrace-lab: failed to {error}");
        }
    }
}

/// Looks until there is nothing against it, or something that does not pass.
fn look(path: &Path, needed_bytes: u64) -> Result<Facts, DeviceError> {
    let mut looks = 1;
    loop {
        interrupt::check()?;
        let facts = Facts::of(path).map_err(|source| DeviceError::Look {
            path: path.to_owned(),
            source,
        })?;
        match facts.objection(needed_bytes) {
            None => return Ok(facts),
            Some(objection) if looks == LOOKS || !objection.may_pass() => {
                return Err(DeviceError::Refused {
                    path: path.to_owned(),
                    objection,
                });
            }
            Some(_) => looks += 1,
        }
        thread::sleep(PAUSE);
    }
}
