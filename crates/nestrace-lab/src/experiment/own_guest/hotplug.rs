//! What gives a running guest disks and takes them away.

use std::fmt::Debug;

use nestrace_rig::guest::DiskSpec;

use super::OwnGuestError;
use super::libvirt::Libvirt;
use super::qemu_monitor::QemuMonitor;
use crate::plan::{Monitor, OwnGuest};

/// libvirt or QEMU's monitor. Ctrl-C stops neither [`Self::attached`] nor [`Self::detach`] half way.
pub(super) trait Hotplug: Debug {
    /// The guest's name, as `nestrace guests` has it.
    fn name(&self) -> Result<String, OwnGuestError>;

    /// `running`, or another word.
    fn state(&self) -> Result<String, OwnGuestError>;

    /// Whether the processor executes it.
    fn is_kvm(&self) -> Result<bool, OwnGuestError>;

    /// The disks that the lab gave it, by what [`Self::detach`] takes.
    fn attached(&self) -> Result<Vec<String>, OwnGuestError>;

    /// Gives it a disk.
    fn attach(&self, disk: &DiskSpec) -> Result<(), OwnGuestError>;

    /// Asks it to let go of a disk, which it does later.
    fn detach(&self, disk: &str) -> Result<(), OwnGuestError>;

    /// What a person types to the same end.
    fn detach_by_hand(&self, disk: &str) -> String;
}

/// What the plan names.
pub(super) fn of(guest: &OwnGuest) -> Box<dyn Hotplug> {
    match &guest.monitor {
        Monitor::Libvirt(domain) => Box::new(Libvirt {
            domain: domain.clone(),
        }),
        Monitor::Qmp(socket) => Box::new(QemuMonitor {
            socket: socket.clone(),
        }),
    }
}
