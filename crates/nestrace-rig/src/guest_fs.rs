//! Makes and mounts file systems in a guest.

use std::time::Duration;

use crate::guest::{Guest, GuestError};
use crate::stack::GuestFsKind;

/// Where guests of the rig have their programs. Without it their shell would take those of busybox first.
pub const PROGRAM_FOLDER: &str = "/usr/bin/";

impl GuestFsKind {
    /// The guest's module.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Ext2 | Self::Ext3 | Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Jfs => "jfs",
            Self::Reiserfs => "reiserfs",
            Self::Btrfs => "btrfs",
            Self::F2fs => "f2fs",
        }
    }

    /// Shell command that formats `device`; nothing is left to be initialised later.
    #[must_use]
    pub fn mkfs_command(self, device: &str) -> String {
        self.mkfs_command_in(PROGRAM_FOLDER, device)
    }

    /// The same with the program in the folder `bin`, which ends with a slash or is empty.
    #[must_use]
    pub fn mkfs_command_in(self, bin: &str, device: &str) -> String {
        let mkfs = match self {
            // Blocks of 4 KiB, as on any disk of usual size: a small one would get 1 KiB, and what is
            // smaller than a block of the host's file system makes the host zero the rest.
            Self::Ext2 | Self::Ext3 | Self::Ext4 => format!(
                "mkfs.{self} -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard"
            ),
            Self::Xfs => "mkfs.xfs -q -f -K".to_owned(),
            Self::Jfs => "mkfs.jfs -q".to_owned(),
            Self::Reiserfs => "mkreiserfs -q -f -f".to_owned(),
            Self::Btrfs => "mkfs.btrfs -q -f -K".to_owned(),
            Self::F2fs => "mkfs.f2fs -q -f -t 0".to_owned(),
        };
        format!("{bin}{mkfs} {device}")
    }

    /// Shell command that checks all of a file system which is not mounted, clean or not, and changes
    /// nothing; 0 where nothing is wrong.
    #[must_use]
    pub fn fsck_command(self, bin: &str, device: &str) -> String {
        let fsck = match self {
            Self::Ext2 | Self::Ext3 | Self::Ext4 => "e2fsck -f -n",
            Self::Xfs => "xfs_repair -n",
            Self::Jfs => "jfs_fsck -f -n",
            Self::Reiserfs => "reiserfsck --check --yes",
            Self::Btrfs => "btrfs check",
            Self::F2fs => "fsck.f2fs --dry-run",
        };
        format!("{bin}{fsck} {device}")
    }
}

impl Guest {
    /// Formats a disk (by the id it was given) with a file system.
    ///
    /// # Errors
    /// The guest has no such disk, or mkfs failed.
    pub fn make_fs(&self, disk: &str, kind: GuestFsKind) -> Result<(), GuestError> {
        let device = self.device_of(disk)?;
        let script = format!("load {}; {}", kind.module(), kind.mkfs_command(&device));
        self.run_ok(&script, Duration::from_secs(180)).map(|_| ())
    }

    /// Mounts a disk's file system at `folder`, which is made; `options` may be empty.
    ///
    /// # Errors
    /// The guest has no such disk, or mount failed.
    pub fn mount(
        &self,
        disk: &str,
        kind: GuestFsKind,
        folder: &str,
        options: &str,
    ) -> Result<(), GuestError> {
        let device = self.device_of(disk)?;
        let options = if options.is_empty() { "rw" } else { options };
        let script = format!(
            "load {}; mkdir -p {folder} && mount -t {kind} -o {options} {device} {folder}",
            kind.module()
        );
        self.run_ok(&script, Duration::from_secs(60)).map(|_| ())
    }

    /// Unmounts.
    ///
    /// # Errors
    /// umount failed.
    pub fn unmount(&self, folder: &str) -> Result<(), GuestError> {
        self.run_ok(&format!("umount {folder}"), Duration::from_secs(60))
            .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::external_tool::{Tool, find_program};

    /// On a file instead of a device, with this machine's programs, which are those that guests get.
    fn check(kind: GuestFsKind) {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        // Sparse, and not more than the tests of mkfs write.
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let commands = [
            kind.mkfs_command(image.to_str().unwrap()),
            kind.fsck_command(PROGRAM_FOLDER, image.to_str().unwrap()),
        ];
        for command in commands {
            let mut words = command.split(' ');
            let program = words.next().unwrap().trim_start_matches("/usr/bin/");
            let Some(found) = find_program(program) else {
                let is_ci = std::env::var_os("NESTRACE_CI").is_some_and(|word| word == "1");
                assert!(!is_ci, "{program} is not on this machine");
                eprintln!("skipped: {program} is not on this machine");
                return;
            };
            let tool = Tool::new(found.to_str().unwrap()).args(words);
            tool.run().unwrap_or_else(|error| panic!("{kind}: {error}"));
        }
    }

    #[test]
    fn what_mkfs_made_is_clean() {
        for &kind in GuestFsKind::ALL {
            check(kind);
        }
    }
}
