//! Finding guests: which QEMUs run, what disks they have, and (with [`crate::topology`]) what these
//! disks lie on.
//!
//! ```no_run
//! use nestrace_record::guest::{Selection, discover};
//! let found = discover(&Selection::Named(vec!["vm1".to_owned()]))?;
//! print!("{}", nestrace_record::guest::tree::render(&found.topology));
//! # Ok::<(), nestrace_record::guest::DiscoverError>(())
//! ```
//!
//! QMP is asked where a socket is free, for less than a second, and never held. What cannot be found
//! out is a [`Diagnostic`], not an error.

pub mod block_node;
pub mod cache_mode;
pub mod channel;
pub mod command_line;
pub mod device_model;
pub mod disks;
pub mod drive;
pub mod executable;
mod inspect;
pub mod libvirt;
pub mod options;
pub mod process;
pub mod qmp;
pub mod select;
pub mod socket;
pub mod tree;

use std::collections::BTreeSet;
use std::io;
use std::thread;

use nestrace_trace::manifest::Topology;

pub use crate::topology::Diagnostic;
use crate::topology::Survey;
use crate::topology::image_file::FileIdentity;
use command_line::CommandLine;
use process::Process;
use select::Identity;
pub use select::Selection;

/// What a look at the machine found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The chosen guests and the devices beneath their images.
    pub topology: Topology,
    /// For each guest of `topology`: what its QEMU had open when it was looked at; `None` where that cannot be listed.
    pub open_files: Vec<Option<BTreeSet<FileIdentity>>>,
    /// For each guest of `topology`: how it could get the agent's channel.
    pub channels: Vec<channel::Channel>,
    /// What could not be found out, and why.
    pub diagnostics: Vec<Diagnostic>,
}

/// Why guests could not be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// No guest is called so.
    #[error("find guest {wanted:?}: {}", running_text(running))]
    UnknownGuest {
        /// What was asked for.
        wanted: String,
        /// Names of those that run.
        running: Vec<String>,
    },
    /// Several guests are called so.
    #[error(
        "find one guest {wanted:?}: several have that name; use {}",
        pids_text(pids)
    )]
    AmbiguousGuest {
        /// What was asked for.
        wanted: String,
        /// Their process ids.
        pids: Vec<u32>,
    },
    /// `/proc` cannot be listed.
    #[error("list the processes in /proc")]
    Proc(#[source] io::Error),
}

fn running_text(running: &[String]) -> String {
    if running.is_empty() {
        return "no QEMU guest is running".to_owned();
    }
    format!("running are {}", running.join(", "))
}

fn pids_text(pids: &[u32]) -> String {
    pids.iter()
        .map(|pid| format!("pid:{pid}"))
        .collect::<Vec<_>>()
        .join(" or ")
}

/// A QEMU before anything but its command line was looked at.
struct Candidate {
    process: Process,
    line: CommandLine,
    identity: Identity,
}

/// Finds the chosen guests and everything beneath them. Takes about a second at most, however many
/// guests there are: their monitors are asked at the same time.
///
/// # Errors
///
/// Where a name is not that of exactly one running guest, or `/proc` cannot be listed.
pub fn discover(selection: &Selection) -> Result<Discovery, DiscoverError> {
    let (candidates, hidden) = candidates(selection)?;
    let identities: Vec<Identity> = candidates.iter().map(|c| c.identity.clone()).collect();
    let chosen: Vec<&Candidate> = select::select(selection, &identities)?
        .into_iter()
        .filter_map(|index| candidates.get(index))
        .collect();

    let looks: Vec<inspect::Look> = thread::scope(|scope| {
        let asked: Vec<_> = chosen
            .iter()
            .map(|c| scope.spawn(|| inspect::look(&c.process, &c.line)))
            .collect();
        asked
            .into_iter()
            .map(|thread| thread.join().unwrap_or_default())
            .collect()
    });
    let mut survey = Survey::default();
    let mut guests = Vec::new();
    let mut channels = Vec::new();
    let mut open_files = Vec::new();
    for (candidate, look) in chosen.into_iter().zip(looks) {
        survey.guest = Some(candidate.identity.name.clone());
        if hidden.contains(&candidate.process.pid) {
            survey.note(
                &format!("pid {}", candidate.process.pid),
                "belongs to another user: only its command line can be read; run as root for the rest".to_owned(),
            );
        }
        let open = look.open_files();
        let guest = inspect::guest(
            &mut survey,
            &candidate.process,
            &candidate.line,
            &candidate.identity,
            look,
        );
        if candidate.process.is_alive() {
            guests.push(guest);
            channels.push(candidate.line.channel.clone());
            open_files.push(open);
        } else {
            survey.note(
                &format!("pid {}", candidate.process.pid),
                "exited while it was looked at".to_owned(),
            );
        }
    }
    let (devices, diagnostics) = survey.into_devices();
    Ok(Discovery {
        topology: Topology { guests, devices },
        open_files,
        channels,
        diagnostics,
    })
}

/// Every QEMU that runs a guest, and the pids of which only the command line can be read.
fn candidates(selection: &Selection) -> Result<(Vec<Candidate>, Vec<u32>), DiscoverError> {
    let mut census = process::census().map_err(DiscoverError::Proc)?;
    if let Selection::Named(names) = selection {
        // A process that is asked for by number is looked into, whatever it is called.
        for pid in names.iter().filter_map(|n| select::pid_of(n)) {
            if census.processes.iter().all(|p| p.pid != pid)
                && let Some((process, hidden)) = process::identify(pid, true)
            {
                census.processes.push(process);
                census.hidden.extend(hidden.then_some(pid));
            }
        }
    }
    let candidates = census
        .processes
        .into_iter()
        .map(|process| {
            let line = command_line::parse(&process.argv);
            let name = line
                .name
                .clone()
                .unwrap_or_else(|| format!("pid:{}", process.pid));
            Candidate {
                identity: Identity {
                    pid: process.pid,
                    name,
                    uuid: line.uuid.clone(),
                },
                process,
                line,
            }
        })
        // libvirt starts `-machine none` to ask a binary what it can do.
        .filter(|candidate| candidate.line.machine.as_deref() != Some("none"))
        .collect();
    Ok((candidates, census.hidden))
}
