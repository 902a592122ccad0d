//! Disks by libvirt.

use std::os::unix::fs::FileTypeExt;

use nestrace_rig::external_tool::{Tool, ToolError};
use nestrace_rig::guest::DiskSpec;
use tempfile::TempDir;

use super::hotplug::Hotplug;
use super::{OwnGuestError, domain_xml};

/// A domain; its disks are named by target (`vdb`).
#[derive(Debug)]
pub(super) struct Libvirt {
    /// libvirt's name of it.
    pub(super) domain: String,
}

impl Libvirt {
    fn xml(&self) -> Result<String, ToolError> {
        virsh(&["dumpxml", &self.domain]).for_clean_up().run()
    }
}

fn virsh(args: &[&str]) -> Tool {
    Tool::new("virsh").arg("-q").args(args)
}

impl Hotplug for Libvirt {
    fn name(&self) -> Result<String, OwnGuestError> {
        Ok(self.domain.clone())
    }

    fn state(&self) -> Result<String, OwnGuestError> {
        let state = virsh(&["domstate", &self.domain]).run();
        let state = state.map_err(|error| OwnGuestError::NoDomain {
            domain: self.domain.clone(),
            said: error.to_string(),
        })?;
        Ok(state.trim().to_owned())
    }

    fn is_kvm(&self) -> Result<bool, OwnGuestError> {
        let xml = self.xml()?;
        Ok(xml.split('>').next().unwrap_or_default().contains("kvm"))
    }

    fn attached(&self) -> Result<Vec<String>, OwnGuestError> {
        Ok(domain_xml::disks(&self.xml()?)?.ours)
    }

    fn attach(&self, disk: &DiskSpec) -> Result<(), OwnGuestError> {
        let there = domain_xml::disks(&self.xml()?)?;
        if let Some(disk) = there.alike.into_iter().next() {
            return Err(OwnGuestError::Alike {
                guest: self.domain.clone(),
                disk,
            });
        }
        let target = domain_xml::free_target(&there.targets, disk.stack.bus)
            .ok_or_else(|| OwnGuestError::Full(self.domain.clone()))?;
        let is_device = disk
            .image
            .metadata()
            .is_ok_and(|about| about.file_type().is_block_device());
        let folder = TempDir::new().map_err(OwnGuestError::Script)?;
        let place = folder.path().join("disk.xml");
        std::fs::write(&place, domain_xml::disk(disk, &target, is_device))
            .map_err(OwnGuestError::Script)?;
        let place = place.display().to_string();
        virsh(&["attach-device", "--live", &self.domain, &place]).run()?;
        Ok(())
    }

    fn detach(&self, disk: &str) -> Result<(), OwnGuestError> {
        virsh(&["detach-disk", "--live", &self.domain, disk])
            .for_clean_up()
            .run()?;
        Ok(())
    }

    fn detach_by_hand(&self, disk: &str) -> String {
        format!("virsh detach-disk {} {disk}", self.domain)
    }
}
