//! The table `[host]` of a plan: what the host's side runs on.

use std::path::PathBuf;

use nestrace_modelled_disk::parameters::BUILT_IN;
use nestrace_rig::modelled_disk::is_file;

use super::devices;
use super::error::PlanError;
use super::section::Section;

/// Its name.
pub(super) const TABLE: &str = "host";
const IN_GUEST: &str = "in_guest";
const DISK: &str = "disk";

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostSection {
    /// Devices for host file systems and bare disks.
    pub(super) devices: Vec<PathBuf>,
    /// Whether the host's role runs inside a guest.
    pub(super) is_in_guest: bool,
    /// The modelled disk in place of the lab's own files: a built-in model's name, or a TOML file.
    pub(super) disk: Option<String>,
}

/// Reads it, where the plan has one.
///
/// # Errors
/// An unknown key, a name that is none of a device or of a modelled disk, or devices for a host that would not see them.
pub(super) fn read(top: &Section<'_>) -> Result<HostSection, PlanError> {
    let Some(section) = top.section(TABLE)? else {
        return Ok(HostSection::default());
    };
    section.only(&[devices::KEY, IN_GUEST, DISK])?;
    let is_in_guest = section.boolean(IN_GUEST)?.unwrap_or(false);
    if let Some((_, span)) = section.words(devices::KEY)?.into_iter().flatten().next()
        && is_in_guest
    {
        let message =
            "devices belong to this machine: a host inside a guest (in_guest) has its own disk";
        return Err(section.error(&span, message));
    }
    let devices = devices::read(&section)?;
    let disk = disk(&section, is_in_guest || !devices.is_empty())?;
    Ok(HostSection {
        devices,
        is_in_guest,
        disk,
    })
}

/// The modelled disk. A file of parameters is read when the plan runs.
fn disk(section: &Section<'_>, is_elsewhere: bool) -> Result<Option<String>, PlanError> {
    let Some((word, span)) = section.string(DISK)? else {
        return Ok(None);
    };
    if is_elsewhere {
        let message = "a modelled disk takes the place of the lab's own devices on this machine: it excludes devices and in_guest";
        return Err(section.error(&span, message));
    }
    if !is_file(word) && !BUILT_IN.contains(&word) {
        let message = format!(
            "\"{word}\" is no modelled disk: there are {}, and files that end with .toml",
            BUILT_IN.join(", ")
        );
        return Err(section.error(&span, message));
    }
    Ok(Some(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    fn plan(host: &str) -> Result<Plan, crate::plan::PlanError> {
        Plan::read(&format!(
            "name = 'p'\n[axes]\nhost_fs = ['jfs', 'reiserfs']\n[host]\n{host}\n[[workload]]\nname = 'randwrite'\n"
        ))
    }

    #[test]
    fn a_host_inside_a_guest_takes_longer_and_has_no_devices_of_this_machine() {
        let (here, inside) = (plan("").unwrap(), plan("in_guest = true").unwrap());
        assert!(!here.host_in_guest && inside.host_in_guest);
        assert_eq!(here.cells, inside.cells);
        assert!(inside.estimate().seconds > 5 * here.estimate().seconds);
        let error = plan("in_guest = true\ndevices = '/dev/sdb1'").unwrap_err();
        assert!(error.to_string().starts_with("line 6, column "), "{error}");
    }
    #[test]
    fn a_modelled_disk_is_named_or_a_file_and_takes_the_place_of_the_labs_own() {
        for word in ["hdd-7200", "hdd-sw-raid10", "nvme", "my disk.toml"] {
            let with = plan(&format!("disk = '{word}'")).unwrap();
            assert_eq!(with.modelled_disk.as_deref(), Some(word));
            // Its data is in memory and not in the folder of results.
            let (with, without) = (with.estimate(), plan("").unwrap().estimate());
            assert_eq!(with.work_bytes, 0);
            assert!(with.memory_bytes > without.memory_bytes);
        }
        for (host, expected) in [
            (
                "disk = 'hdd-7201'",
                "line 5, column 8: \"hdd-7201\" is no modelled disk",
            ),
            (
                "disk = 'nvme'\nin_guest = true",
                "it excludes devices and in_guest",
            ),
            (
                "disk = 'nvme'\ndevices = '/dev/sdb1'",
                "it excludes devices and in_guest",
            ),
        ] {
            let error = plan(host).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
