//! Loop devices, and files that are written in full to lie below them.

use std::path::{Path, PathBuf};

use crate::external_tool::{Tool, ToolError};

/// An attached loop device; dropping it detaches it.
#[derive(Debug)]
pub struct LoopDevice {
    name: String,
}

impl LoopDevice {
    /// Attaches the first free loop device to `file`.
    ///
    /// # Errors
    /// losetup is missing or refused.
    pub fn attach(file: &Path, direct_io: bool) -> Result<Self, ToolError> {
        Self::with_sectors(file, direct_io, 512)
    }

    /// The same with logical blocks of `sector_bytes`.
    ///
    /// # Errors
    /// losetup is missing or refused.
    pub fn with_sectors(
        file: &Path,
        direct_io: bool,
        sector_bytes: u32,
    ) -> Result<Self, ToolError> {
        let direct = if direct_io { "on" } else { "off" };
        // `--find` with the file asks LOOP_CTL_GET_FREE and retries when another one was faster.
        let mut tool = Tool::new("losetup")
            .args(["--find", "--show"])
            .arg(format!("--direct-io={direct}"));
        if sector_bytes != 512 {
            tool = tool.arg(format!("--sector-size={sector_bytes}"));
        }
        let path = tool.arg(file).run()?;
        Ok(Self {
            name: path.trim().trim_start_matches("/dev/").to_owned(),
        })
    }

    /// The kernel's name: `loop3`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The program below a modelled disk detaches it where it ends first.
        let attached = format!("/sys/block/{}/loop/backing_file", self.name);
        if !Path::new(&attached).exists() {
            return;
        }
        if let Err(error) = Tool::new("losetup")
            .arg("--detach")
            .arg(self.path())
            .for_clean_up()
            .run()
        {
            eprintln!("nestrace-lab: {error}");
        }
    }
}

/// Writes a file of zeros in full and waits until it is on the disk.
pub fn fill(file: &Path, size_bytes: u64) -> Result<(), ToolError> {
    const BLOCK: u64 = 1 << 20;
    Tool::new("dd")
        .args(["if=/dev/zero", "bs=1M", "conv=fsync,notrunc", "status=none"])
        .arg(format!("count={}", size_bytes.div_ceil(BLOCK)))
        .arg(format!("of={}", file.display()))
        .run()?;
    Ok(())
}
