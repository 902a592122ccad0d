//! What an agent says of its guest, and the bounds of it.

use serde::{Deserialize, Serialize};

use crate::MAX_JSON;
use nestrace_trace::manifest::{
    GuestDisk, GuestMemory, GuestMount, GuestSide, MAX_CLOCK_CORRECTION_PPM, Machine, Probe,
    Refused,
};
use nestrace_trace::{is_printable, printable};

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
    /// [`crate::VERSION`] of the agent.
    pub protocol: u16,
    /// [`crate::Start::session`], so that an answer to somebody else's question is distinguished.
    pub session: u64,
    /// Version of the agent.
    pub agent_version: String,
    /// `ebpf` or `blktrace`.
    pub backend: String,
    /// Why this backend, in words.
    pub backend_reason: String,
    /// The guest.
    pub machine: Machine,
    /// [`GuestSide::memory`]; older agents do not say it.
    pub memory: GuestMemory,
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
    /// Until when all was as the Hello before this one said, on the guest's `CLOCK_MONOTONIC`: the last look at it. 0: there
    /// was none in this session, or the agent is an older one.
    pub held_mono_ns: u64,
    /// [`GuestSide::clock_correction_ppm`] so far; older agents do not say it.
    pub clock_correction_ppm: Option<u32>,
}

impl AgentHello {
    /// Cuts lists and texts to what a report can show, and takes control characters out of the texts:
    /// they end up on somebody's terminal. A clock is corrected by no more than a kernel can.
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
            // Which disk follows another is the recorder's to say.
            (disk.since_mono_ns, disk.until_mono_ns) = (0, 0);
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
        let correction = self.clock_correction_ppm;
        self.clock_correction_ppm = correction.map(|ppm| ppm.min(MAX_CLOCK_CORRECTION_PPM));
    }

    /// Cuts it to what a recorder takes: [`Self::bound`], and no more JSON than [`MAX_JSON`]. What stands last in
    /// a list is left out, mounts before disks. Gives how many mounts and disks that were.
    pub fn fit(&mut self) -> usize {
        let entries = |hello: &Self| hello.mounts.len() + hello.disks.len();
        let n = entries(self);
        self.bound();
        while serde_json::to_vec(self).is_ok_and(|json| json.len() > MAX_JSON) {
            let (mounts, disks) = (self.mounts.len(), self.disks.len());
            match (mounts, self.missing.len()) {
                (0, 0) if disks == 0 => break,
                (0, 0) => self.disks.truncate(disks / 2),
                (0, missing) => self.missing.truncate(missing / 2),
                _ => self.mounts.truncate(mounts - mounts.div_ceil(8)),
            }
        }
        n - entries(self)
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
            memory: self.memory,
            start_unix_ns: self.unix_ns,
            start_mono_ns: self.mono_ns,
            disks: self.disks.clone(),
            mounts: self.mounts.clone(),
            clock_correction_ppm: self.clock_correction_ppm,
            ..GuestSide::default()
        }
    }
}

/// Cuts a text and replaces what is not printable.
pub fn bound_text(text: &mut String) {
    if text.chars().nth(MAX_TEXT).is_none() && text.chars().all(is_printable) {
        return;
    }
    *text = printable(&text.chars().take(MAX_TEXT).collect::<String>());
}

/// Bounds what a guest says of its probes.
pub fn bound_probes(probes: &mut Vec<Probe>) {
    probes.truncate(MAX_PROBES);
    for probe in probes {
        probe.guest = None;
        for text in [&mut probe.name, &mut probe.source, &mut probe.how] {
            bound_text(text);
        }
    }
}

/// The same of probes that it could not attach.
pub fn bound_refused(refused: &mut Vec<Refused>) {
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
    use crate::{AgentMessage, FrameReader};

    #[test]
    fn a_host_of_containers_fits_into_a_message() {
        let of_container = |n| GuestMount {
            disk: "vda".to_owned(),
            dev: 254 << 20,
            fs_type: "ext4".to_owned(),
            mount_point: format!("/var/lib/docker/overlay2/{n}/{}", "merged".repeat(40)),
            options: "rw,relatime,errors=remount-ro".to_owned(),
        };
        let mut hello = AgentHello {
            session: 7,
            disks: vec![GuestDisk::default(); 3],
            mounts: (0..1500).map(of_container).collect(),
            ..AgentHello::default()
        };
        let first = hello.mounts.first().cloned();
        let left_out = hello.fit();
        assert_eq!(hello.mounts.len() + left_out, 1500);
        assert!(hello.mounts.len() > 400 && hello.mounts.first() == first.as_ref());
        assert_eq!((hello.disks.len(), hello.fit()), (3, 0));
        let mut bytes = Vec::new();
        AgentMessage::Hello(Box::new(hello.clone())).encode_to(&mut bytes);
        let mut reader = FrameReader::new();
        assert_eq!(reader.feed(&bytes), bytes.len());
        let frame = reader.next_frame().ok().flatten();
        let said = frame.and_then(|frame| AgentMessage::parse(frame).ok().flatten());
        assert_eq!(said, Some(AgentMessage::Hello(Box::new(hello))));
        // Whatever is too long, it ends.
        let mut absurd = AgentHello {
            disks: vec![
                GuestDisk {
                    name: "\u{10ffff}".repeat(5000),
                    ..GuestDisk::default()
                };
                300
            ],
            missing: vec!["\u{10ffff}".repeat(5000); 300],
            ..AgentHello::default()
        };
        assert!(absurd.fit() > 44);
        assert!(serde_json::to_vec(&absurd).is_ok_and(|json| json.len() <= MAX_JSON));
    }

    #[test]
    fn what_a_guest_says_is_cut_and_harmless_on_a_terminal() {
        let mut hello = AgentHello {
            agent_version: "1\x1b[2J".to_owned(),
            clock_correction_ppm: Some(u32::MAX),
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
        assert_eq!(side.clock_correction_ppm, Some(MAX_CLOCK_CORRECTION_PPM));
        assert_eq!(
            (side.guest.as_str(), side.file.as_str()),
            ("vm1", "guest-vm1.arrows")
        );
    }
}
