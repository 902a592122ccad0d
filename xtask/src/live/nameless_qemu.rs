//! A copy of QEMU that exports the functions which nestrace looks for under other names, as a build without exported
//! functions has them under none.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nestrace_lab::external_tool::find_program;

/// What nestrace looks for in QEMU.
const NAMES: [&str; 12] = [
    "block_acct_start",
    "block_acct_done",
    "block_acct_failed",
    "block_acct_invalid",
    "blk_aio_preadv",
    "blk_aio_pwritev",
    "blk_aio_pwrite_zeroes",
    "blk_aio_flush",
    "blk_aio_pdiscard",
    "virtqueue_push",
    "qemu_system_reset",
    "vm_state_notify",
];

/// Puts a copy into a folder, and says where. QEMU finds its modules and its firmware relative to where it lies itself.
pub fn copy(folder: &Path) -> anyhow::Result<PathBuf> {
    let qemu = find_program("qemu-system-x86_64").context("find QEMU")?;
    let mut bytes = fs::read(&qemu).context("read QEMU")?;
    for name in NAMES {
        // A whole string of the table of names. Its own calls are by address and go on working.
        let whole = [b"\0", name.as_bytes(), b"\0"].concat();
        let at = bytes
            .windows(whole.len())
            .position(|window| window == whole);
        let at = at.with_context(|| format!("find the name {name} in QEMU"))?;
        bytes[at + 1] = b'x';
    }
    let usr = folder.join("usr");
    fs::create_dir_all(usr.join("bin"))?;
    for name in ["lib", "share"] {
        symlink(Path::new("/usr").join(name), usr.join(name))?;
    }
    let copy = usr.join("bin/qemu-system-x86_64");
    write_program(&copy, &bytes)?;
    Ok(copy)
}

fn write_program(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).context("write a copy of QEMU")?;
    fs::set_permissions(path, Permissions::from_mode(0o755))?;
    ensure!(
        path.metadata()?.len() == bytes.len() as u64,
        "write a copy of QEMU"
    );
    Ok(())
}
