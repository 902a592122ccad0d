//! The table `[host]` of a plan: what the host's side runs on.

use std::path::PathBuf;

use super::devices;
use super::error::PlanError;
use super::section::Section;

/// Its name.
pub(super) const TABLE: &str = "host";
const IN_GUEST: &str = "in_guest";

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostSection {
    /// Devices for host file systems and bare disks.
    pub(super) devices: Vec<PathBuf>,
    /// Whether the host's role runs inside a guest.
    pub(super) is_in_guest: bool,
}

/// Reads it, where the plan has one.
///
/// # Errors
/// An unknown key, a name that is none of a device, or devices for a host that would not see them.
pub(super) fn read(top: &Section<'_>) -> Result<HostSection, PlanError> {
    let Some(section) = top.section(TABLE)? else {
        return Ok(HostSection::default());
    };
    section.only(&[devices::KEY, IN_GUEST])?;
    let is_in_guest = section.boolean(IN_GUEST)?.unwrap_or(false);
    if let Some((_, span)) = section.words(devices::KEY)?.into_iter().flatten().next()
        && is_in_guest
    {
        let message =
            "devices belong to this machine: a host inside a guest (in_guest) has its own disk";
        return Err(section.error(&span, message));
    }
    Ok(HostSection {
        devices: devices::read(&section)?,
        is_in_guest,
    })
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
}
