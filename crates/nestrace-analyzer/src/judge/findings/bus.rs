//! Rules about the controller that the guest sees.

use super::subject::Subject;
use super::{Case, Judgement, threshold};
use crate::result::units::{self, percent};

/// Controllers that are emulated in full, register by register.
/// `scsi` are LSI's, megasas and their kin: virtio-scsi has a name of its own.
const EMULATED: [&str; 7] = ["ide", "sata", "ahci", "scsi", "usb", "sd", "floppy"];

/// Whether a disk's controller is one of them.
pub(super) fn is_emulated(bus: &str) -> bool {
    EMULATED.contains(&bus)
}

pub(super) fn emulated_bus(subject: &Subject<'_>) -> Judgement {
    let bus = subject.bus();
    if !bus.is_empty() && !is_emulated(bus) {
        return Ok(None);
    }
    let chains = subject.followed_to_the_image()?;
    let share = Subject::share_of(chains, &["guest_queue", "virt_submit", "virt_complete"]);
    if share < threshold::NOTABLE {
        return Ok(None);
    }
    if bus.is_empty() {
        return Err("the disk's bus is not known");
    }
    let in_guest = subject.in_guest;
    let depth = in_guest.map_or(0, |device| device.queue_depth.max);
    let requests = units::of(
        depth,
        "request of the guest is",
        "requests of the guest are",
    );
    let waiting = in_guest
        .and_then(|device| device.stats.as_ref())
        .map_or(0, |stats| stats.at_queue.max);
    let others = match waiting {
        0 => String::new(),
        waiting => format!("; up to {waiting} others wait in the guest"),
    };
    Case {
        title: format!("the guest's disk is an emulated {bus} controller"),
        explanation: format!(
            "At most {requests} at QEMU at a time, and each costs the emulation of the controller's registers{others}. \
             Waiting there and the way in and out take {} of the latency.",
            percent(share)
        ),
        advice: vec![String::from(
            "Use virtio-blk or virtio-scsi: Linux has had the drivers since 2.6.25, Windows needs them installed \
             first. Change `/etc/fstab` and the boot loader if they name the disk `hda` or `sda`.",
        )],
        evidence: [
            ("bus", bus.into()),
            ("guest_depth_max", depth.into()),
            ("guest_waiting_max", waiting.into()),
        ]
        .into(),
        share,
        information: false,
    }
    .fires()
}
