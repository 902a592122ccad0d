//! Devices that a plan names for host file systems and bare disks.
//!
//! A guest's disks lie on as many of them as they need, the first device of a guest on the first that is
//! named, and so on; a guest never needs more than there are. All have to be large enough for each.

use std::path::{Path, PathBuf};

use super::error::PlanError;
use super::host_section::TABLE;
use super::section::Section;
use super::{GuestDisk, Plan};

/// Their key in the table of a plan.
pub(super) const KEY: &str = "devices";

/// What a plan names.
///
/// # Errors
/// A name is none of a device.
pub(super) fn read(section: &Section<'_>) -> Result<Vec<PathBuf>, PlanError> {
    let mut devices = Vec::new();
    for (word, span) in section.words(KEY)?.into_iter().flatten() {
        if !is_device(&word) {
            let message =
                format!("\"{word}\" is not a device: it has to be a path such as /dev/sdb1");
            return Err(section.error(&span, message));
        }
        devices.push(PathBuf::from(word));
    }
    Ok(devices)
}

/// A path that neither a shell nor QEMU takes for something else.
fn is_device(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_-.:+=@".contains(c);
    let path = Path::new(word);
    word.starts_with("/dev/")
        && word.chars().all(is_plain)
        && path.file_name().is_some()
        && !path.components().any(|part| part.as_os_str() == "..")
}

/// Refuses devices that nothing would be put on: nothing of them has to be lost.
///
/// # Errors
/// There are more than a guest needs.
pub(super) fn check(top: &Section<'_>, plan: &Plan) -> Result<(), PlanError> {
    let most = plan.most_bases();
    let Some(words) = top.section(TABLE)?.map(|section| section.words(KEY)) else {
        return Ok(());
    };
    match words?.into_iter().flatten().nth(most) {
        Some((word, span)) => {
            let message = format!("{word} would not be used: this plan needs {most} at a time");
            Err(top.error(&span, message))
        }
        None => Ok(()),
    }
}

impl Plan {
    /// Devices that a guest of the plan needs at a time.
    fn most_bases(&self) -> usize {
        let batches = self.schedule().batches.into_iter();
        let bases = batches.map(|batch| batch.bases(self.image_bytes).len());
        bases.max().unwrap_or(0)
    }

    /// How many modelled disks a guest that plays the host has from outside, and how large each is; `None` where there
    /// is no such guest, or its disks are files of its own.
    #[must_use]
    pub fn disks_outside(&self) -> Option<(usize, u64)> {
        let is_modelled = self.host_in_guest && !self.modelled_disks().is_empty();
        is_modelled.then(|| (self.most_bases(), self.device_bytes()))
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn disks_outside_bytes(&self) -> u64 {
        self.disks_outside()
            .map_or(0, |(n, bytes)| n as u64 * bytes)
    }

    /// Bytes that each named device has to have.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let batches = self.schedule().batches.into_iter();
        let bases = batches.flat_map(|batch| batch.bases(self.image_bytes));
        bases.map(|base| base.bytes).max().unwrap_or(0)
    }

    /// The named device that a cell's disk lies on, if the plan names any.
    #[must_use]
    pub fn device_of(&self, cell: usize) -> Option<&Path> {
        if self.devices.is_empty() {
            return None;
        }
        let disk = GuestDisk::of(cell, self.cells.get(cell)?);
        let bases = self.schedule().batches.into_iter().find_map(|batch| {
            let number = batch.disks.iter().position(|other| *other == disk)?;
            let bases = batch.bases(self.image_bytes);
            bases.iter().position(|base| base.disks.contains(&number))
        });
        self.devices.get(bases?).map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(head: &str, devices: &str) -> Result<Plan, PlanError> {
        Plan::read(&format!(
            "name = 'p'\n{head}\n[host]\ndevices = {devices}\n[[workload]]\nname = 'randwrite'\n"
        ))
    }

    const AXES: &str = "[axes]\nguest_fs = ['ext4', 'xfs']\nhost_fs = ['ext4', 'xfs', 'btrfs']";

    #[test]
    fn a_guest_has_no_more_devices_than_are_named() {
        // Two guest file systems share a disk; the bare device, ext4, xfs and btrfs are four bases.
        for (n, guests) in [(1, 4), (2, 2), (3, 2), (4, 1)] {
            let names: Vec<String> = (1..=n).map(|n| format!("'/dev/sdb{n}'")).collect();
            let plan = plan(AXES, &format!("[{}]", names.join(", "))).unwrap();
            let schedule = plan.schedule();
            assert_eq!(schedule.batches.len(), guests, "{n} devices");
            for batch in &schedule.batches {
                assert!(batch.bases(plan.image_bytes).len() <= n);
            }
            // Nothing is left out, and every cell knows its device.
            assert_eq!(schedule.steps.len(), plan.cells.len() * 4);
            for cell in 0..plan.cells.len() {
                let device = plan.device_of(cell).unwrap();
                assert!(plan.devices.iter().any(|one| one == device));
            }
        }
    }

    #[test]
    fn every_device_holds_the_largest_that_is_put_on_one() {
        let plan = plan(AXES, "['/dev/sdb1']").unwrap();
        // An image with an eighth more, and what a file system takes for itself.
        assert_eq!(plan.device_bytes(), (512 + 64 + 320) << 20);
        // They need no room where the results go.
        assert_eq!(plan.estimate().work_bytes, 0);
    }

    #[test]
    fn disks_that_set_a_queue_differently_are_not_in_one_guest() {
        let head = "[axes]\nhost_scheduler = ['none', 'bfq']";
        let plan = plan(head, "['/dev/sdb1', '/dev/sdb2']").unwrap();
        for batch in plan.schedule().batches {
            let mut disks = batch.disks.iter().map(|disk| &disk.combination);
            let first = disks.next().unwrap().host_scheduler;
            assert!(disks.all(|disk| disk.host_scheduler == first));
        }
    }

    #[test]
    fn names_that_are_no_devices_are_refused_with_their_place() {
        for (devices, expected) in [
            ("['sdb1']", "line 4, column 12: \"sdb1\" is not a device"),
            ("['/dev/../home']", "is not a device"),
            ("['/dev/sdb1; reboot']", "is not a device"),
            (
                "['/dev/sdb1', '/dev/sdb1']",
                "devices has \"/dev/sdb1\" twice",
            ),
            ("[]", "devices is empty"),
            (
                "['/dev/sdb1', '/dev/sdb2', '/dev/sdb3']",
                "line 4, column 38: /dev/sdb3 would not be used: this plan needs 2 at a time",
            ),
        ] {
            let error = plan("", devices).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\nexpected {expected}");
        }
        let error = Plan::read("name = 'p'\n[host]\ndevice = ['/dev/sdb1']\n").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("did you mean \"devices\"?"), "{error}");
    }
}
