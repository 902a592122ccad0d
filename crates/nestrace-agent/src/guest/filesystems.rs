//! The kernel's own file systems that the agent needs. What is missing is mounted for the agent alone:
//! no other process of the guest sees it.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nestrace_probes::mountinfo;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Place, type, and a file that shows that it is there.
const NEEDED: [(&str, &str, &str); 3] = [
    ("/proc", "proc", "/proc/self/mountinfo"),
    ("/sys", "sysfs", "/sys/block"),
    ("/dev", "devtmpfs", "/dev/null"),
];

/// Mounts proc, sysfs and devtmpfs where they are not there, in a mount namespace of the agent's own.
pub fn provide() -> anyhow::Result<()> {
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|(_, _, shows)| !Path::new(shows).exists())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    own_namespace().context("leave the guest's mounts alone")?;
    for (place, fs_type, _) in missing {
        let _ = fs::create_dir(place);
        mount(
            Some(*fs_type),
            *place,
            Some(*fs_type),
            MsFlags::MS_NOSUID,
            None::<&str>,
        )
        .with_context(|| format!("mount {fs_type} on {place}"))?;
    }
    Ok(())
}

/// A mount namespace of one's own that still sees what the guest mounts later.
fn own_namespace() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    // An initramfs' root cannot be changed like that before 2.6.x and needs not: it is not shared.
    let _ = mount(None::<&str>, "/", None::<&str>, flags, None::<&str>);
    Ok(())
}

/// debugfs, wherever it is mounted, or one that only this process can see.
pub struct DebugFs {
    path: PathBuf,
    /// Keeps a private one.
    _root: Option<File>,
}

impl DebugFs {
    /// Finds it, or mounts it privately.
    pub fn open() -> io::Result<Self> {
        let mounted = mountinfo::read(0)?
            .into_iter()
            .find(|entry| entry.fs_type == "debugfs" && entry.root == "/");
        if let Some(entry) = mounted {
            return Ok(Self {
                path: entry.mount_point.into(),
                _root: None,
            });
        }
        let root = private_debugfs()?;
        Ok(Self {
            path: format!("/proc/self/fd/{}", root.as_raw_fd()).into(),
            _root: Some(root),
        })
    }

    /// Its root.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A thread mounts it in a namespace that ends with the thread; the open folder keeps the mount. So no
/// other mount of the guest is held, which a namespace of the agent's own would do.
fn private_debugfs() -> io::Result<File> {
    let thread = std::thread::Builder::new().spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let _ = mount(None::<&str>, "/", None::<&str>, private, None::<&str>);
        let place = "/sys/kernel/debug";
        mount(
            Some("debugfs"),
            place,
            Some("debugfs"),
            MsFlags::empty(),
            None::<&str>,
        )?;
        File::open(place)
    })?;
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the thread that mounts it died")))
}
