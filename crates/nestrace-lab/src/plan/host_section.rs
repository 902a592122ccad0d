//! The table `[host]` of a plan: what the host's side runs on.

use std::path::PathBuf;

use super::axes::{Axis, HostDisk};
use super::cells::Values;
use super::devices;
use super::error::PlanError;
use super::section::{Placed, Section};

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
    /// The modelled disk in place of the lab's own files.
    pub(super) disk: Option<Placed<String>>,
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
    let disk = section.string(DISK)?;
    if let Some((word, span)) = &disk
        && let Err(unknown) = word.parse::<HostDisk>()
    {
        return Err(section.error(span, unknown.to_string()));
    }
    Ok(HostSection {
        devices,
        is_in_guest,
        disk: disk.map(|(word, span)| (word.to_owned(), span)),
    })
}

impl HostSection {
    /// Puts its disk among the values of the axes, and refuses two answers to what the host's side runs on.
    ///
    /// # Errors
    /// The axis has values besides the disk, there are disks beside devices, or a host inside a guest has several.
    pub(super) fn set_disk(&self, top: &Section<'_>, values: &mut Values) -> Result<(), PlanError> {
        if let Some((word, span)) = &self.disk
            && values
                .insert(Axis::HostDisk, vec![(word.clone(), span.clone())])
                .is_some()
        {
            let message =
                "disk under [host] is the disk of all cells: it excludes the axis host_disk";
            return Err(top.error(span, message));
        }
        match values.get(&Axis::HostDisk).and_then(|disks| disks.first()) {
            Some((_, span)) if !self.devices.is_empty() => {
                let message =
                    "a modelled disk takes the place of devices under [host]: it excludes them";
                Err(top.error(span, message))
            }
            Some((_, span)) if self.is_in_guest && self.disk.is_none() => {
                let message = "a host inside a guest (in_guest) has disks of one model: name it as disk under [host]";
                Err(top.error(span, message))
            }
            _ => Ok(()),
        }
    }
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
            assert_eq!(with.modelled_disks(), [word].into());
            // Its data is in memory and not in the folder of results.
            let (with, without) = (with.estimate(), plan("").unwrap().estimate());
            assert_eq!(with.work_bytes, 0);
            assert!(with.memory_bytes > without.memory_bytes);
        }
        for (host, expected) in [
            (
                "disk = 'hdd-7201'",
                "line 5, column 8: read \"hdd-7201\" as a modelled disk",
            ),
            (
                "disk = 'nvme'\n[[include]]\nhost_disk = 'hdd-5400'",
                "it excludes the axis host_disk",
            ),
            (
                "in_guest = true\n[[include]]\nhost_disk = 'hdd-5400'",
                "has disks of one model: name it as disk under [host]",
            ),
            ("disk = 'nvme'\ndevices = '/dev/sdb1'", "it excludes them"),
        ] {
            let error = plan(host).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_modelled_disks_of_a_host_inside_a_guest_are_outside_of_it() {
        let plan = plan("in_guest = true\ndisk = 'hdd-7200'").unwrap();
        // The bare device, jfs and reiserfs.
        let (n, bytes) = plan.disks_outside().unwrap();
        assert_eq!((n, bytes), (3, plan.device_bytes()));
        let (outside, inside) = (plan.estimate(), plan.estimate_inside());
        assert!(outside.memory_bytes > inside.memory_bytes + 3 * bytes);
        assert_eq!(inside.work_bytes, 0);
    }
}
