//! Which modules a guest has to load for a driver or a file system, in which order.
//!
//! Loading everything costs a TCG guest 17 s; loading what is used, half a second.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Modules that the kernel asks for at run time by an alias, so `modules.dep` does not name them:
/// the crypto API wants a crc32c or a crc32, and there is no modprobe helper in the guest to bring it.
const ASKED_AT_RUN_TIME: [(&str, &str); 4] = [
    ("libcrc32c", "crc32c_generic"),
    ("jbd2", "crc32c_generic"),
    ("btrfs", "crc32c_generic"),
    ("f2fs", "crc32_generic"),
];

/// `modules.dep` and `modules.builtin` of one kernel.
#[derive(Clone, Debug, Default)]
pub struct KernelModules {
    folder: PathBuf,
    files: BTreeMap<String, String>,
    needs: BTreeMap<String, Vec<String>>,
    builtin: BTreeSet<String>,
}

/// A module that the kernel has neither as a file nor built in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("find the kernel module {name} in {folder}")]
pub struct NoSuchModule {
    /// Module's name.
    pub name: String,
    /// `lib/modules/RELEASE`.
    pub folder: PathBuf,
}

impl KernelModules {
    /// Reads `modules.dep` and `modules.builtin` in `lib/modules/RELEASE`.
    ///
    /// # Errors
    /// `modules.dep` cannot be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let dep = std::fs::read_to_string(folder.join("modules.dep"))?;
        let builtin = std::fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
        Ok(Self::parse(folder, &dep, &builtin))
    }

    fn parse(folder: &Path, dep: &str, builtin: &str) -> Self {
        let mut modules = Self {
            folder: folder.to_owned(),
            ..Self::default()
        };
        for line in dep.lines() {
            let Some((file, needs)) = line.split_once(':') else {
                continue;
            };
            let name = module_name(file);
            let needs = needs.split_whitespace().map(module_name).collect();
            modules.files.insert(name.clone(), file.to_owned());
            modules.needs.insert(name, needs);
        }
        modules.builtin = builtin.lines().map(module_name).collect();
        modules
    }

    /// Files to load for `name`, dependencies first, relative to `lib/modules/RELEASE`; empty when
    /// it is built in.
    ///
    /// # Errors
    /// The kernel has no such module.
    pub fn load_order(&self, name: &str) -> Result<Vec<String>, NoSuchModule> {
        let mut order = Vec::new();
        self.visit(&name.replace('-', "_"), &mut order)?;
        Ok(order)
    }

    fn visit(&self, name: &str, order: &mut Vec<String>) -> Result<(), NoSuchModule> {
        let Some(file) = self.files.get(name) else {
            if self.builtin.contains(name) {
                return Ok(());
            }
            return Err(NoSuchModule {
                name: name.to_owned(),
                folder: self.folder.clone(),
            });
        };
        if order.contains(file) {
            return Ok(());
        }
        for (_, asked) in ASKED_AT_RUN_TIME
            .iter()
            .filter(|(module, _)| *module == name)
        {
            // Newer kernels have it as a library, without a module.
            let _ = self.visit(asked, order);
        }
        for need in self.needs.get(name).into_iter().flatten() {
            self.visit(need, order)?;
        }
        order.push(file.clone());
        Ok(())
    }
}

/// `kernel/fs/ext4/ext4.ko.xz` → `ext4`; dashes are underscores, as the kernel has them.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
                       kernel/fs/jbd2/jbd2.ko:\n\
                       kernel/lib/crc16.ko:\n\
                       kernel/crypto/crc32c_generic.ko:\n\
                       kernel/drivers/block/virtio-blk.ko.xz: kernel/drivers/virtio/virtio.ko\n";

    #[test]
    fn dependencies_come_first_and_once() {
        let modules = KernelModules::parse(Path::new("/m"), DEP, "kernel/drivers/virtio/virtio.ko");
        assert_eq!(
            modules.load_order("ext4").unwrap(),
            [
                "kernel/crypto/crc32c_generic.ko",
                "kernel/fs/jbd2/jbd2.ko",
                "kernel/lib/crc16.ko",
                "kernel/fs/ext4/ext4.ko"
            ]
        );
    }

    #[test]
    fn built_in_ones_need_no_file_and_unknown_ones_are_an_error() {
        let dep = DEP.replace(" kernel/drivers/virtio/virtio.ko", "");
        let modules =
            KernelModules::parse(Path::new("/m"), &dep, "kernel/drivers/virtio/virtio.ko");
        assert_eq!(modules.load_order("virtio").unwrap(), [] as [&str; 0]);
        assert_eq!(
            modules.load_order("virtio-blk").unwrap(),
            ["kernel/drivers/block/virtio-blk.ko.xz"]
        );
        assert_eq!(modules.load_order("zfs").unwrap_err().name, "zfs");
    }
}
