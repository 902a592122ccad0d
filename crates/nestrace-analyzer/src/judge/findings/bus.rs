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
        return Err("the disk's bus is unknown");
    }
    let in_guest = subject.in_guest;
    let depth = in_guest.map_or(0, |device| device.queue_depth.max);
    let requests = units::of(depth, "request", "requests");
    let waiting = in_guest
        .and_then(|device| device.stats.as_ref())
        .map_or(0, |stats| stats.at_queue.max);
    let others = match waiting {
        0 => String::new(),
        waiting => format!(" Up to {waiting} more wait in the guest."),
    };
    Case {
        title: format!("{} of the latency is waiting for an emulated {bus} controller", percent(share)),
        explanation: format!(
            "The controller passed at most {requests} to QEMU at a time.{others} QEMU emulates the controller's \
             registers for each request. Waiting in the guest, the way in and the way out take {} of the latency.",
            percent(share)
        ),
        advice: vec![String::from(
            "Use virtio-blk or virtio-scsi. Linux has had the drivers since 2.6.25; in Windows, install them first. If \
             `/etc/fstab` or the boot loader names the disk `hda` or `sda`, change that too.",
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
