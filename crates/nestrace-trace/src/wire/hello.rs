//! What an agent says of its guest, and the bounds of it.

use serde::{Deserialize, Serialize};

use crate::manifest::{GuestDisk, GuestMount, GuestSide, Machine, Probe, Refused};

/// Entries of a list that a guest may name.
const MAX_DISKS: usize = 256;
const MAX_MOUNTS: usize = 1024;
pub(super) const MAX_PROBES: usize = 256;
/// Characters of a name, a path or a reason that a guest gives.
const MAX_TEXT: usize = 1024;

/// The agent's first message of a session, and again whenever its facts have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentHello {
    /// [`super::VERSION`] of the agent.
    pub protocol: u16,
    /// [`super::Start::session`], so that an answer to somebody else's question is told apart.
    pub session: u64,
    /// Version of the agent.
    pub agent_version: String,
    /// `ebpf` or `blktrace`.
    pub backend: String,
    /// Why this backend, in words.
    pub backend_reason: String,
    /// The guest.
    pub machine: Machine,
    /// Guest's `CLOCK_REALTIME` at `mono_ns`, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Guest's `CLOCK_MONOTONIC` now.
    pub mono_ns: u64,
    /// Disks that are recorded.
    pub disks: Vec<GuestDisk>,
    /// File systems on them.
    pub mounts: Vec<GuestMount>,
    /// Names of disks that were asked for and are not there.
    pub missing: Vec<String>,
}

impl AgentHello {
    /// Cuts lists and texts to what a report can show, and takes control characters out of the texts:
    /// they end up on somebody's terminal.
    pub fn bound(&mut self) {
        for text in [
            &mut self.agent_version,
            &mut self.backend,
            &mut self.backend_reason,
            &mut self.machine.hostname,
            &mut self.machine.kernel,
            &mut self.machine.arch,
            &mut self.machine.boot_id,
        ] {
            bound_text(text);
        }
        self.disks.truncate(MAX_DISKS);
        for disk in &mut self.disks {
            for text in [
                &mut disk.name,
                &mut disk.serial,
                &mut disk.model,
                &mut disk.sysfs_path,
                &mut disk.driver,
                &mut disk.scheduler,
                &mut disk.write_cache,
            ] {
                bound_text(text);
            }
        }
        self.mounts.truncate(MAX_MOUNTS);
        for mount in &mut self.mounts {
            for text in [
                &mut mount.disk,
                &mut mount.fs_type,
                &mut mount.mount_point,
                &mut mount.options,
            ] {
                bound_text(text);
            }
        }
        self.missing.truncate(MAX_DISKS);
        self.missing.iter_mut().for_each(bound_text);
    }

    /// The guest's side of a bundle as far as the guest knows it: the names `guest` and `file` are the
    /// recorder's.
    #[must_use]
    pub fn guest_side(&self, guest: &str, file: &str) -> GuestSide {
        GuestSide {
            guest: guest.to_owned(),
            file: file.to_owned(),
            backend: self.backend.clone(),
            backend_reason: self.backend_reason.clone(),
            agent_version: self.agent_version.clone(),
            machine: self.machine.clone(),
            start_unix_ns: self.unix_ns,
            start_mono_ns: self.mono_ns,
            disks: self.disks.clone(),
            mounts: self.mounts.clone(),
            ..GuestSide::default()
        }
    }
}

/// Cuts a text and replaces control characters.
pub(super) fn bound_text(text: &mut String) {
    if text.chars().nth(MAX_TEXT).is_none() && !text.chars().any(char::is_control) {
        return;
    }
    *text = text
        .chars()
        .take(MAX_TEXT)
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect();
}

pub(super) fn bound_probes(probes: &mut Vec<Probe>) {
    probes.truncate(MAX_PROBES);
    for probe in probes {
        probe.guest = None;
        for text in [&mut probe.name, &mut probe.source, &mut probe.how] {
            bound_text(text);
        }
    }
}

pub(super) fn bound_refused(refused: &mut Vec<Refused>) {
    refused.truncate(MAX_PROBES);
    for probe in refused {
        probe.guest = None;
        for text in [
            &mut probe.name,
            &mut probe.source,
            &mut probe.reason,
            &mut probe.cost,
        ] {
            bound_text(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_is_cut_and_harmless_on_a_terminal() {
        let mut hello = AgentHello {
            agent_version: "1\x1b[2J".to_owned(),
            disks: vec![
                GuestDisk {
                    name: "x".repeat(5000),
                    ..GuestDisk::default()
                };
                1000
            ],
            ..AgentHello::default()
        };
        hello.bound();
        assert_eq!(hello.agent_version, "1\u{fffd}[2J");
        assert_eq!(
            (hello.disks.len(), hello.disks.first().map(|d| d.name.len())),
            (256, Some(1024))
        );
        let side = hello.guest_side("vm1", "guest-vm1.arrows");
        assert_eq!(
            (side.guest.as_str(), side.file.as_str()),
            ("vm1", "guest-vm1.arrows")
        );
    }
}
