//! Notices while recording that a guest is gone, that it was reset, stopped or started, or that one of
//! its images was closed or opened.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::FileExt,
};

use nestrace_abi::Kind;
use nestrace_trace::Event;

use crate::topology::image_file::{FileIdentity, identity_at};

/// What a process closed and opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files that it no longer has open.
    pub closed: Vec<FileIdentity>,
    /// Files that it had not open before.
    pub opened: Vec<FileIdentity>,
}

/// A process that is watched through an open file of its own, so that a reused pid is not taken for it.
pub struct Watched {
    pid: u32,
    stat: Option<File>,
    open: BTreeSet<FileIdentity>,
}

impl Watched {
    /// Begins to watch; a process that is gone already counts as gone. `open` is what it had open when it was looked
    /// at, `None` for now.
    #[must_use]
    pub fn new(pid: u32, open: Option<BTreeSet<FileIdentity>>) -> Self {
        let stat = File::open(format!("/proc/{pid}/stat")).ok();
        let mut watched = Self {
            pid,
            stat,
            open: BTreeSet::new(),
        };
        watched.open = open.unwrap_or_else(|| watched.open_files().unwrap_or_default());
        watched
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

    /// Files that were closed and opened since the last call; none where they cannot be listed.
    pub fn changes(&mut self) -> Changes {
        let Some(now) = self.open_files() else {
            return Changes::default();
        };
        let closed = self.open.difference(&now).copied().collect();
        let opened = now.difference(&self.open).copied().collect();
        self.open = now;
        Changes { closed, opened }
    }

    fn open_files(&self) -> Option<BTreeSet<FileIdentity>> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?;
        // Other files are no images.
        let images = entries
            .flatten()
            .filter_map(|entry| identity_at(&entry.path()));
        Some(images.collect())
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
    let state = word(RUN_STATES, event.aux as usize);
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
    use crate::topology::image_file::identity;

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
        let watched = Watched::new(child.id(), None);
        assert!(watched.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!watched.is_alive());
    }

    #[test]
    fn files_that_are_opened_and_closed_are_noticed() {
        let mut watched = Watched::new(std::process::id(), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        let meta = file.as_file().metadata();
        let identity = meta.map(|meta| identity(&meta)).unwrap();
        assert!(watched.changes().opened.contains(&identity));
        // Only closed: a deleted file's number could be that of a file of another test at once.
        let _closed = file.into_temp_path();
        assert!(watched.changes().closed.contains(&identity));
    }

    #[test]
    fn what_was_opened_since_a_process_was_found_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let opened = identity(&file.metadata().unwrap());
        let found = Some(BTreeSet::new());
        let mut watched = Watched::new(std::process::id(), found);
        assert!(watched.changes().opened.contains(&opened));
        assert!(!watched.changes().opened.contains(&opened));
    }
}
