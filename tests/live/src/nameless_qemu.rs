//! A copy of QEMU that exports the functions which nestrace looks for under other names, as a build without exported
//! functions has them under none.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nestrace_rig::external_tool::{Tool, find_program};

/// What nestrace looks for in QEMU.
pub const NAMES: [&str; 12] = [
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

/// Puts a file of debug symbols of the same build into a folder: what distributions ship apart from the program.
pub fn debug_file(folder: &Path) -> anyhow::Result<PathBuf> {
    let qemu = find_program("qemu-system-x86_64").context("find QEMU")?;
    let qemu = qemu.display().to_string();
    let exported = Tool::new("nm")
        .args(["-D", "--defined-only", &qemu])
        .run()?;
    let sections = Tool::new("readelf").args(["-SW", &qemu]).run()?;
    let text = address_of_text(&sections).context("find QEMU's code")?;
    let mut arguments = vec![String::from("--only-keep-debug")];
    for line in exported.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(address), Some(_), Some(name)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if NAMES.contains(&name) {
            let address = u64::from_str_radix(address, 16).context("read an address of nm")?;
            let place = address
                .checked_sub(text)
                .context("find a function in QEMU's code")?;
            arguments.push(String::from("--add-symbol"));
            arguments.push(format!("{name}=.text:{place:#x},function,global"));
        }
    }
    let symbols = folder.join("qemu.debug");
    arguments.extend([qemu, symbols.display().to_string()]);
    Tool::new("objcopy").args(arguments).run()?;
    Ok(symbols)
}

/// Of `readelf -SW`: `[15] .text PROGBITS 0000000000341d00 341d00 …`.
fn address_of_text(sections: &str) -> Option<u64> {
    let line = sections.lines().find(|line| line.contains(" .text "))?;
    let mut fields = line.split_ascii_whitespace();
    fields.find(|field| *field == ".text")?;
    u64::from_str_radix(fields.nth(1)?, 16).ok()
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
