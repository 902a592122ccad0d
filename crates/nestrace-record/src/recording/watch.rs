//! Notices while recording that a guest is gone, and that it was reset, stopped or started.

use std::{fs::File, os::unix::fs::FileExt};

use nestrace_abi::Kind;
use nestrace_trace::Event;

/// A process that is watched through an open file of its own, so that a reused pid is not taken for it.
pub struct Watched {
    stat: Option<File>,
}

impl Watched {
    /// Begins to watch; a process that is gone already counts as gone.
    #[must_use]
    pub fn new(pid: u32) -> Self {
        Self {
            stat: File::open(format!("/proc/{pid}/stat")).ok(),
        }
    }

    /// Whether the process still runs. A zombie has let go of its files and counts as gone.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(stat) = &self.stat else { return false };
        let mut buffer = [0u8; 512];
        let Ok(n) = stat.read_at(&mut buffer, 0) else {
            return false;
        };
        // The name in parentheses may hold anything; the state follows the last one.
        let line = &buffer[..n];
        let state = line
            .iter()
            .rposition(|byte| *byte == b')')
            .and_then(|at| line.get(at + 2));
        !matches!(state, None | Some(b'Z' | b'X'))
    }
}

/// QEMU's RunState by number (`qapi/run-state.json`, the same order in 7.2 and 10.0).
const RUN_STATES: &[&str] = &[
    "debug",
    "inmigrate",
    "internal-error",
    "io-error",
    "paused",
    "postmigrate",
    "prelaunch",
    "finish-migrate",
    "restore-vm",
    "running",
    "save-vm",
    "shutdown",
    "suspended",
    "watchdog",
    "guest-panicked",
    "colo",
];

/// QEMU's ShutdownCause by number (`qapi/run-state.json`, the same order in 7.2 and 10.0).
const RESET_CAUSES: &[&str] = &[
    "none",
    "host-error",
    "host-qmp-quit",
    "host-qmp-system-reset",
    "host-signal",
    "host-ui",
    "guest-shutdown",
    "guest-reset",
    "guest-panic",
    "subsystem-reset",
    "snapshot-load",
];

/// What a [`Kind::GuestRun`] or [`Kind::GuestReset`] says of a guest: the notice's `what`
/// (`guest_resumed`, `guest_paused`, `guest_reset`) and its message.
#[must_use]
pub fn machine_notice(event: &Event, guest: &str) -> Option<(&'static str, String)> {
    let word = |words: &[&'static str], number: usize| {
        words.get(number).copied().unwrap_or("unknown state")
    };
    let state = word(RUN_STATES, event.run_state() as usize);
    Some(match (event.kind()?, event.sub) {
        (Kind::GuestRun, 0) => (
            "guest_paused",
            format!("guest {guest} was stopped ({state})"),
        ),
        (Kind::GuestRun, _) => (
            "guest_resumed",
            format!("guest {guest} runs again ({state})"),
        ),
        (Kind::GuestReset, cause) => {
            let cause = word(RESET_CAUSES, usize::from(cause));
            ("guest_reset", format!("guest {guest} was reset ({cause})"))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_happens_to_a_machine_has_words() {
        let event = |kind: Kind, sub, aux| Event {
            kind: kind as u8,
            sub,
            aux,
            ..Event::default()
        };
        for (event, expected) in [
            (
                event(Kind::GuestRun, 0, 4),
                Some(("guest_paused", "guest a was stopped (paused)")),
            ),
            (
                event(Kind::GuestRun, 0, 3),
                Some(("guest_paused", "guest a was stopped (io-error)")),
            ),
            (
                event(Kind::GuestRun, 1, 9),
                Some(("guest_resumed", "guest a runs again (running)")),
            ),
            (
                event(Kind::GuestRun, 0, 77),
                Some(("guest_paused", "guest a was stopped (unknown state)")),
            ),
            (
                event(Kind::GuestReset, 3, 0),
                Some(("guest_reset", "guest a was reset (host-qmp-system-reset)")),
            ),
            (event(Kind::Queue, 0, 0), None),
        ] {
            let found = machine_notice(&event, "a");
            let found = found
                .as_ref()
                .map(|(what, message)| (*what, message.as_str()));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_process_that_ends_is_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let watched = Watched::new(child.id());
        assert!(watched.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!watched.is_alive());
    }
}
