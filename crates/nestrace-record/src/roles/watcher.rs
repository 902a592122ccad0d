//! The watcher: which files the guests' processes open and close.
//!
//! Only a process with `CAP_SYS_PTRACE` and `CAP_DAC_READ_SEARCH` may ask where the descriptors of another user's process
//! lead. This one has nothing else: it cannot open a file, and so reads none; it lists folders that it was given.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use caps::Capability;
use nestrace_probes::proc_file::MAX_DESCRIPTORS;
use nix::dir::Dir;
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, Received, next_of};
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};
use crate::topology::image_file::{FileIdentity, identity_in};

/// How often it looks.
const LOOK_AROUND: Duration = Duration::from_millis(500);
/// How long it may take to begin.
const BEGIN: Duration = Duration::from_secs(2);
/// Files in one message.
const MAX_FILES: usize = 500;

/// What a process closed and opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The guest, by its place in the topology.
    pub guest: usize,
    /// Files that it no longer has open.
    pub closed: Vec<FileIdentity>,
    /// Files that it had not open before.
    pub opened: Vec<FileIdentity>,
}

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// The next guest; its folder of descriptors comes beside it, if it could be opened.
    Guest,
    /// Files that the last one had open when it was found. Without any of these: those that it has now.
    HadOpen(Vec<FileIdentity>),
    /// All was said. The watcher is this user from now on.
    Begin { user: Option<u32> },
}

/// The recorder's view of its watcher.
#[derive(Debug)]
pub struct Watcher {
    /// `None` once it is gone.
    channel: Option<Channel>,
}

impl Watcher {
    /// Starts it; it waits for [`Self::begin`].
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            channel: Some(Helper::Watcher.start()?),
        })
    }

    /// Lets it watch these processes, each with the files that it had open when it was looked at, `None` for now.
    ///
    /// # Errors
    /// What the system says, or the watcher.
    pub fn begin<'a>(
        &self,
        guests: impl Iterator<Item = (u32, Option<&'a BTreeSet<FileIdentity>>)>,
        user: Option<User>,
    ) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let channel = self.channel.as_ref().ok_or_else(gone)?;
        for (pid, open) in guests {
            // One that is gone, or may not be looked at, has none.
            let folder = File::open(format!("/proc/{pid}/fd")).ok();
            let folder: Vec<_> = folder.iter().map(AsFd::as_fd).collect();
            channel.send(&Order::Guest, &folder)?;
            if let Some(open) = open {
                let open: Vec<FileIdentity> = open.iter().copied().collect();
                channel.send(&Order::HadOpen(Vec::new()), &[])?;
                for part in open.chunks(MAX_FILES) {
                    channel.send(&Order::HadOpen(part.to_vec()), &[])?;
                }
            }
        }
        let user = user.map(|user| user.uid);
        channel.send(&Order::Begin { user }, &[])?;
        let (answer, _): Received<Result<(), String>> = channel.answer(BEGIN)?;
        answer.map_err(io::Error::other)
    }

    /// What has changed since the last call. An error where the watcher is gone or makes no sense, once.
    ///
    /// # Errors
    /// What the system says.
    pub fn changes(&mut self) -> io::Result<Vec<Changes>> {
        let mut all = Vec::new();
        while let Some(changes) = next_of(&mut self.channel, Duration::ZERO)? {
            all.push(changes);
        }
        Ok(all)
    }
}

/// A process whose descriptors are watched.
struct Watched {
    folder: Option<Dir>,
    open: Option<BTreeSet<FileIdentity>>,
}

impl Watched {
    fn of(folder: Option<OwnedFd>) -> Self {
        Self {
            folder: folder.and_then(|folder| Dir::from_fd(folder).ok()),
            open: None,
        }
    }

    /// Files that were closed and opened since the last call; none where they cannot be listed.
    fn changes(&mut self) -> Option<(Vec<FileIdentity>, Vec<FileIdentity>)> {
        let now = self.open_files()?;
        let before = self.open.replace(now)?;
        let now = self.open.as_ref()?;
        let closed = before.difference(now).copied().collect();
        let opened = now.difference(&before).copied().collect();
        Some((closed, opened))
    }

    fn open_files(&mut self) -> Option<BTreeSet<FileIdentity>> {
        let folder = self.folder.as_mut()?;
        let mut names = Vec::new();
        for entry in folder.iter() {
            names.push(entry.ok()?.file_name().to_owned());
            if names.len() > MAX_DESCRIPTORS {
                return None;
            }
        }
        // Of a process that has ended nothing is listed, which does not mean that it closed its files one by one.
        if names.is_empty() {
            return None;
        }
        // Other files are no images.
        let files = names
            .iter()
            .filter_map(|name| identity_in(folder.as_fd(), name));
        Some(files.collect())
    }
}

/// The watcher's life.
pub(super) fn run(channel: &Channel) -> io::Result<()> {
    let mut guests: Vec<Watched> = Vec::new();
    let user = loop {
        let Some((order, with)) = channel.receive()? else {
            return Ok(());
        };
        match order {
            Order::Guest => guests.push(Watched::of(with.into_iter().next())),
            Order::HadOpen(files) => {
                if let Some(guest) = guests.last_mut() {
                    guest.open.get_or_insert_default().extend(files);
                }
            }
            Order::Begin { user } => break user,
        }
    };
    let user = user.map(User::of_id);
    let kept = [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH];
    let entered = Sandbox::new(Role::Watcher, user, &kept).and_then(|sandbox| sandbox.enter_last());
    let answer: Result<(), String> = entered.map_err(|error| error.to_string());
    channel.send(&answer, &[])?;
    loop {
        for (guest, watched) in guests.iter_mut().enumerate() {
            let Some((closed, opened)) = watched.changes() else {
                continue;
            };
            let parts = closed.len().max(opened.len()).div_ceil(MAX_FILES);
            for part in 0..parts {
                let part_of = |files: &[FileIdentity]| -> Vec<FileIdentity> {
                    files
                        .chunks(MAX_FILES)
                        .nth(part)
                        .unwrap_or_default()
                        .to_vec()
                };
                let changes = Changes {
                    guest,
                    closed: part_of(&closed),
                    opened: part_of(&opened),
                };
                channel.send(&changes, &[])?;
            }
        }
        // Nothing more is said: what there is to receive is the recorder's end.
        if channel.wait(LOOK_AROUND)? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::image_file::identity;

    fn own(open: Option<BTreeSet<FileIdentity>>) -> Watched {
        let folder = File::open("/proc/self/fd").unwrap();
        Watched {
            open,
            ..Watched::of(Some(folder.into()))
        }
    }

    #[test]
    fn files_that_are_opened_and_closed_are_noticed() {
        let mut watched = own(None);
        assert_eq!(watched.changes(), None);
        let file = tempfile::NamedTempFile::new().unwrap();
        let identity = identity(&file.as_file().metadata().unwrap());
        let (_, opened) = watched.changes().unwrap();
        assert!(opened.contains(&identity));
        // Only closed: a deleted file's number could be that of a file of another test at once.
        let _closed = file.into_temp_path();
        let (closed, _) = watched.changes().unwrap();
        assert!(closed.contains(&identity));
    }

    #[test]
    fn what_was_opened_since_a_process_was_found_is_noticed() {
        let file = tempfile::tempfile().unwrap();
        let opened = identity(&file.metadata().unwrap());
        let mut watched = own(Some(BTreeSet::new()));
        assert!(watched.changes().unwrap().1.contains(&opened));
        assert!(!watched.changes().unwrap().1.contains(&opened));
    }

    #[test]
    fn a_process_that_cannot_be_looked_at_has_no_changes() {
        assert_eq!(Watched::of(None).changes(), None);
    }
}
