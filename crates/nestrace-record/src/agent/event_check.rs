//! What an event of a guest's stream must be before it is written.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeSet;

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;

/// How far an event may lie behind the newest one. Rings are drained within a second; an agent whose
/// port is stuck sends late, but in order.
const BEHIND_NS: u64 = 10_000_000_000;
/// How far an event may lie ahead of the guest's clock as the host expects it.
const AHEAD_NS: u64 = 5_000_000_000;

/// How far behind itself the guest's clock may be seen without having gone back.
const BACK_NS: u64 = 1_000_000_000;

/// No writer sleeps longer for too many dirty pages: a kernel's limit is 0.2 s.
const MAX_PAUSE_NS: u64 = 1_000_000_000;

/// Devices that a guest may name in one stream.
const MAX_DEVICES: usize = 1024;

/// Why an event was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventRefusal {
    /// No kind that this release knows.
    UnknownKind,
    /// A kind that only the host's probes have.
    HostKind,
    /// A device that the agent did not name.
    UnknownDevice,
    /// Far behind the newest event.
    Behind,
    /// Ahead of any clock.
    Ahead,
}

impl EventRefusal {
    /// For the manifest.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UnknownKind => "event of a kind that this release does not know",
            Self::HostKind => "event of a kind that guests do not send",
            Self::UnknownDevice => "event of a device that the agent did not name",
            Self::Behind => "event more than 10 s behind the newest",
            Self::Ahead => "event ahead of the guest's clock",
        }
    }
}

/// How a guest's clock has jumped. Within a boot it does so only where the guest was set to another time from
/// outside, and the events of that time would all be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockJump {
    /// It has gone back, as when a snapshot is loaded: events are [`EventRefusal::Behind`].
    Back,
    /// It has gone ahead: events are [`EventRefusal::Ahead`].
    Ahead {
        /// By so much more than the host's clock has since the guest's was last known.
        by_ns: u64,
    },
}

/// The state of the check over one stream.
#[derive(Clone, Debug, Default)]
pub struct EventCheck {
    devices: BTreeSet<u32>,
    newest_ns: u64,
    /// The latest that the guest's clock has shown, events apart, and when it did on the host's.
    shown_ns: u64,
    shown_host_ns: u64,
    hello_guest_ns: u64,
    hello_host_ns: u64,
}

impl EventCheck {
    /// For a stream whose agent said `guest_ns` at the host's `host_ns`.
    #[must_use]
    pub fn new(guest_ns: u64, host_ns: u64) -> Self {
        Self {
            devices: BTreeSet::new(),
            newest_ns: guest_ns,
            shown_ns: guest_ns,
            shown_host_ns: host_ns,
            hello_guest_ns: guest_ns,
            hello_host_ns: host_ns,
        }
    }

    /// Adds devices that events may be about.
    pub fn know(&mut self, devices: impl Iterator<Item = u32>) {
        let room = MAX_DEVICES.saturating_sub(self.devices.len());
        self.devices.extend(devices.take(room));
    }

    /// The latest that the guest's clock can show. It may stand still while the guest is paused, but
    /// it does not run a quarter faster than the host's, even if NTP bends both as far as kernels allow
    /// ([`MAX_CLOCK_CORRECTION_PPM`](nestrace_trace::manifest::MAX_CLOCK_CORRECTION_PPM)).
    #[must_use]
    pub fn latest_ns(&self, host_ns: u64) -> u64 {
        let elapsed = host_ns.saturating_sub(self.hello_host_ns);
        self.hello_guest_ns
            .saturating_add(elapsed)
            .saturating_add(elapsed / 4)
            .saturating_add(AHEAD_NS)
    }

    /// Time of the newest event.
    #[must_use]
    pub fn newest_ns(&self) -> u64 {
        self.newest_ns
    }

    /// When the guest's clock last showed a time of this stream, on the host's clock.
    #[must_use]
    pub fn shown_host_ns(&self) -> u64 {
        self.shown_host_ns
    }

    /// The guest's clock shows `guest_ns` at the host's `host_ns`.
    ///
    /// # Errors
    /// How it has jumped; the check stays as it was.
    pub fn shows(&mut self, guest_ns: u64, host_ns: u64) -> Result<(), ClockJump> {
        if guest_ns.saturating_add(BACK_NS) < self.shown_ns.max(self.newest_ns) {
            return Err(ClockJump::Back);
        }
        if guest_ns > self.latest_ns(host_ns) {
            let elapsed = host_ns.saturating_sub(self.shown_host_ns);
            let expected_ns = self.shown_ns.saturating_add(elapsed);
            let by_ns = guest_ns.saturating_sub(expected_ns);
            return Err(ClockJump::Ahead { by_ns });
        }
        if guest_ns >= self.shown_ns {
            (self.shown_ns, self.shown_host_ns) = (guest_ns, host_ns);
        }
        Ok(())
    }

    /// Checks an event and takes out of it what a guest has no say in. `latest_ns` is
    /// [`Self::latest_ns`] now.
    ///
    /// # Errors
    /// Why it must not be written.
    pub fn check(&mut self, event: &mut Event, latest_ns: u64) -> Result<(), EventRefusal> {
        let kind = event.kind().ok_or(EventRefusal::UnknownKind)?;
        match kind.source() {
            Source::Block if !self.devices.contains(&event.dev) => {
                return Err(EventRefusal::UnknownDevice);
            }
            Source::File if matches!(kind, Kind::RpcBegin | Kind::RpcEnd) => {
                return Err(EventRefusal::HostKind);
            }
            Source::Block | Source::File | Source::HostFs | Source::Meta | Source::Cpu => {}
            Source::Qemu | Source::Walk => return Err(EventRefusal::HostKind),
        }
        if event.ts_ns.saturating_add(BEHIND_NS) < self.newest_ns {
            return Err(EventRefusal::Behind);
        }
        if event.ts_ns > latest_ns {
            return Err(EventRefusal::Ahead);
        }
        self.newest_ns = self.newest_ns.max(event.ts_ns);
        match kind {
            // On the host the index of a guest; the stream alone says which guest this is.
            Kind::SyscallExit | Kind::AioSubmit => event.dev = 0,
            // `related` is when the call began.
            Kind::SyscallEnter | Kind::CallDone => {
                event.dev = 0;
                event.related = event.related.min(event.ts_ns);
            }
            Kind::DirtyThrottle => event.offset = event.offset.min(MAX_PAUSE_NS),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn check(kind: u8, dev: u32, ts_ns: u64) -> Result<u32, EventRefusal> {
        let mut check = EventCheck::new(100 * SECOND, 5 * SECOND);
        check.know([8 << 20].into_iter());
        let mut event = Event {
            kind,
            dev,
            ts_ns,
            ..Event::default()
        };
        let latest = check.latest_ns(6 * SECOND);
        check.check(&mut event, latest).map(|()| event.dev)
    }

    #[test]
    fn each_reason_to_refuse() {
        let vda = 8 << 20;
        let issue = Kind::Issue as u8;
        assert_eq!(check(issue, vda, 100 * SECOND), Ok(vda));
        assert_eq!(
            check(issue, 9, 100 * SECOND),
            Err(EventRefusal::UnknownDevice)
        );
        assert_eq!(
            check(200, vda, 100 * SECOND),
            Err(EventRefusal::UnknownKind)
        );
        assert_eq!(
            check(Kind::AcctStart as u8, 0, 100 * SECOND),
            Err(EventRefusal::HostKind)
        );
        assert_eq!(check(issue, vda, 89 * SECOND), Err(EventRefusal::Behind));
        assert_eq!(check(issue, vda, 91 * SECOND), Ok(vda));
        assert_eq!(check(issue, vda, 0), Err(EventRefusal::Behind));
        assert_eq!(check(issue, vda, 106 * SECOND), Ok(vda));
        assert_eq!(check(issue, vda, 107 * SECOND), Err(EventRefusal::Ahead));
        assert_eq!(check(issue, vda, u64::MAX), Err(EventRefusal::Ahead));
        assert_eq!(check(Kind::SyscallEnter as u8, 3, 100 * SECOND), Ok(0));
        assert_eq!(
            check(Kind::JournalCommitStart as u8, 3, 100 * SECOND),
            Ok(3)
        );
    }

    #[test]
    fn what_cannot_be_is_cut() {
        let mut check = EventCheck::new(0, 0);
        let mut cut = |kind: Kind| {
            let mut event = Event {
                kind: kind as u8,
                ts_ns: SECOND,
                dev: 7,
                related: u64::MAX,
                offset: u64::MAX,
                ..Event::default()
            };
            assert_eq!(check.check(&mut event, SECOND), Ok(()));
            event
        };
        for kind in [Kind::CallDone, Kind::SyscallEnter] {
            let call = cut(kind);
            assert_eq!((call.related, call.dev), (SECOND, 0));
        }
        assert_eq!(cut(Kind::DirtyThrottle).offset, MAX_PAUSE_NS);
    }

    /// A guest's NTP may make up for minutes, while the host's goes the other way.
    #[test]
    fn a_clock_that_ntp_bends_is_not_ahead() {
        let check = EventCheck::new(0, 0);
        for (ppm, fits) in [(181_000, true), (300_000, false)] {
            let shows = 1000 * SECOND + 1000 * ppm * 1000;
            assert_eq!(shows <= check.latest_ns(1000 * SECOND), fits, "{ppm} ppm");
        }
    }

    #[test]
    fn a_clock_that_goes_back_is_noticed() {
        let mut check = EventCheck::new(100 * SECOND, 0);
        let mut shows = |seconds: u64| check.shows(seconds * SECOND, 5 * SECOND);
        assert_eq!((shows(105), shows(104)), (Ok(()), Ok(())));
        assert_eq!(shows(103), Err(ClockJump::Back));
        let mut event = Event {
            kind: Kind::Thread as u8,
            ts_ns: 107 * SECOND,
            ..Event::default()
        };
        assert_eq!(check.check(&mut event, u64::MAX), Ok(()));
        let mut shows = |seconds: u64| check.shows(seconds * SECOND, 5 * SECOND);
        assert_eq!((shows(105), shows(107)), (Err(ClockJump::Back), Ok(())));
    }

    #[test]
    fn a_clock_that_goes_ahead_is_noticed_with_how_far() {
        let mut check = EventCheck::new(100 * SECOND, 0);
        let mut shows = |guest_s: u64, host_s: u64| check.shows(guest_s * SECOND, host_s * SECOND);
        assert_eq!(shows(110, 10), Ok(()));
        let by = |seconds: u64| ClockJump::Ahead {
            by_ns: seconds * SECOND,
        };
        // 12.5 s at most in 10 s, and 5 s more.
        assert_eq!(shows(118, 10), Err(by(8)));
        // It is an hour ahead for as long as it goes on there.
        assert_eq!(shows(3712, 12), Err(by(3600)));
        assert_eq!(shows(3720, 20), Err(by(3600)));
        assert_eq!(shows(120, 20), Ok(()));
        assert!(check.shows(u64::MAX, u64::MAX / 2).is_err());
    }

    #[test]
    fn one_event_far_ahead_does_not_shut_the_others_out() {
        let mut check = EventCheck::new(100, 0);
        let mut event = |ts_ns| {
            let latest = check.latest_ns(SECOND);
            let mut event = Event {
                kind: Kind::Thread as u8,
                ts_ns,
                ..Event::default()
            };
            check.check(&mut event, latest)
        };
        assert_eq!(event(u64::MAX), Err(EventRefusal::Ahead));
        assert_eq!(event(SECOND), Ok(()));
    }
}
