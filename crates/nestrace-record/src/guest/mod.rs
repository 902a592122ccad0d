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
pub mod image_chain;
mod inspect;
pub mod libvirt;
pub mod option_syntax;
pub mod process;
pub mod program;
mod qemu_threads;
pub mod qmp;
pub mod select;
pub mod socket;
pub mod tree;

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nestrace_trace::manifest::{Guest, Topology};
use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;
use crate::side_by_side::side_by_side;
pub use crate::topology::Diagnostic;
use crate::topology::Survey;
use crate::topology::image_file::FileIdentity;
use command_line::CommandLine;
use process::Process;
use program::{ParsedProgram, Program};
use select::Identity;
pub use select::Selection;

/// What a look at the machine found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// The chosen guests and the devices below their images.
    pub topology: Topology,
    /// For each guest of `topology`: when its process started, in clock ticks since boot.
    pub start_ticks: Vec<u64>,
    /// For each guest of `topology`: what its QEMU had open when it was looked at; `None` where that cannot be listed.
    pub open_files: Vec<Option<BTreeSet<FileIdentity>>>,
    /// For each guest of `topology`: how it could get the agent's channel.
    pub channels: Vec<channel::Channel>,
    /// For each guest of `topology`: what its program's tables say, where they were read.
    pub programs: Vec<Option<ParsedProgram>>,
    /// What could not be found out, and why.
    pub diagnostics: Vec<Diagnostic>,
    /// Chosen guests that are not in `topology`, because looking at their files took too long.
    pub unexamined: Vec<Unexamined>,
}

/// A guest that could not be examined as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unexamined {
    /// What its command line and its monitor say, with each image by its path alone.
    pub guest: Guest,
    /// When its process started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Unexamined {
    /// Names alone.
    fn bare(candidate: &Candidate) -> Self {
        Self {
            guest: Guest {
                name: candidate.identity.name.clone(),
                uuid: candidate.identity.uuid.clone(),
                pid: candidate.process.pid,
                ..Guest::default()
            },
            start_ticks: candidate.process.start_ticks,
        }
    }
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
    /// The process that looks for guests failed.
    #[error("look for guests in a process of its own")]
    Finder(#[source] io::Error),
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
#[derive(Clone)]
struct Candidate {
    process: Process,
    line: CommandLine,
    identity: Identity,
}

/// Finds the chosen guests and what their disks lie on. Takes about a second, however many guests there are: they are
/// looked at side by side, and one that does not answer is left out after three.
///
/// # Errors
///
/// Where a name is not that of exactly one running guest, or `/proc` cannot be listed.
pub fn discover(selection: &Selection) -> Result<Discovery, DiscoverError> {
    let mut found = discover_within(selection, MAX_LOOK)?;
    for Unexamined { guest, .. } in &found.unexamined {
        found.diagnostics.push(Diagnostic {
            guest: Some(guest.name.clone()),
            subject: format!("pid {}", guest.pid),
            message: format!("{}; left out", not_examined(MAX_LOOK)),
        });
    }
    Ok(found)
}

/// Why a guest is in [`Discovery::unexamined`].
pub(crate) fn not_examined(limit: Duration) -> String {
    format!(
        "could not be examined within {} s (reading its files or its memory map takes too long)",
        limit.as_secs()
    )
}

/// [`discover`], where the look at one guest takes no longer than `limit`. Which ones took longer is for the caller to say.
///
/// # Errors
///
/// As [`discover`].
pub fn discover_within(selection: &Selection, limit: Duration) -> Result<Discovery, DiscoverError> {
    let Candidates {
        all: candidates,
        hidden,
        left_out,
    } = candidates(selection)?;
    let identities: Vec<Identity> = candidates.iter().map(|c| c.identity.clone()).collect();
    let mut candidates: Vec<Option<Candidate>> = candidates.into_iter().map(Some).collect();
    let chosen: Vec<Candidate> = select::select(selection, &identities)?
        .into_iter()
        .filter_map(|index| candidates.get_mut(index)?.take())
        .collect();
    let namesakes: Vec<(String, Vec<u32>)> = chosen
        .iter()
        .map(|c| {
            (
                c.identity.name.clone(),
                select::namesakes(&c.identity, &identities),
            )
        })
        .filter(|(_, others)| !others.is_empty() && *selection != Selection::All)
        .collect();
    let known = chosen.clone();
    let looks = side_by_side(chosen, LOOKING, limit, move |candidate| {
        look_at(candidate, hidden.contains(&candidate.process.pid))
    });

    let mut survey = Survey::default();
    for (name, others) in namesakes {
        survey.note(
            &format!("guest {name}"),
            format!(
                "another guest has this name or UUID too; it is chosen only by its pid: {}",
                pids_text(&others)
            ),
        );
    }
    let n_more = left_out.len().saturating_sub(MAX_LEFT_OUT_NOTES);
    for (pid, why) in left_out.into_iter().take(MAX_LEFT_OUT_NOTES) {
        survey.note(&format!("pid {pid}"), why);
    }
    if n_more > 0 {
        survey.note(
            "processes",
            format!("{n_more} more were left out like these"),
        );
    }
    let mut found = Discovery::default();
    let mut unexamined = Vec::new();
    for (known, look) in known.into_iter().zip(looks) {
        let Some(Looked {
            candidate,
            of_guest,
            guest,
        }) = look
        else {
            unexamined.push(known);
            continue;
        };
        survey.absorb(of_guest);
        if let Some((guest, open_files)) = guest {
            found.topology.guests.push(guest);
            found.start_ticks.push(candidate.start_ticks);
            found.channels.push(candidate.channel);
            found.open_files.push(open_files);
        }
    }
    let bare: Vec<Unexamined> = unexamined.iter().map(Unexamined::bare).collect();
    let looks = side_by_side(unexamined, LOOKING, limit, look_lightly_at);
    for (bare, look) in bare.into_iter().zip(looks) {
        let unexamined = look.map(|(of_guest, unexamined)| {
            survey.absorb(of_guest);
            unexamined
        });
        found.unexamined.push(unexamined.unwrap_or(bare));
    }
    (found.topology.devices, found.diagnostics) = survey.into_devices();
    let hierarchies = Hierarchies::read();
    let topology = &mut found.topology;
    for guest in &mut topology.guests {
        guest.limits = hierarchies.limits(guest.pid, &topology.devices);
    }
    Ok(found)
}

impl Discovery {
    /// Reads the tables of each guest's program, side by side.
    pub fn parse_programs(&mut self) {
        let pids = self.topology.guests.iter().map(|guest| guest.pid);
        let processes: Vec<(u32, u64)> = pids.zip(self.start_ticks.iter().copied()).collect();
        let parsed = side_by_side(processes, PARSING, MAX_LOOK, |(pid, start_ticks)| {
            let program = Program::open(*pid, *start_ticks).ok()?;
            Some(program.parse())
        });
        self.programs = parsed.into_iter().map(Option::flatten).collect();
    }
}

/// Processes that are left out and named one by one.
const MAX_LEFT_OUT_NOTES: usize = 8;
/// Threads that look at guests: nearly all of the time they wait for a monitor's answer.
const LOOKING: usize = 32;
/// Threads that read command lines, which is a matter of computing.
const PARSING: usize = 2;
/// How long reading one command line may take: that of a guest with a thousand disks takes a tenth.
const MAX_PARSE: Duration = Duration::from_millis(500);
/// How long a look at one guest may take: a monitor has 0.9 s.
const MAX_LOOK: Duration = Duration::from_secs(3);

/// What a look at one guest gave.
struct Looked {
    candidate: Kept,
    of_guest: Survey,
    /// `None` where it ended meanwhile.
    guest: Option<(Guest, Option<BTreeSet<FileIdentity>>)>,
}

/// What is kept of a candidate.
struct Kept {
    start_ticks: u64,
    channel: channel::Channel,
}

fn look_at(candidate: &Candidate, is_hidden: bool) -> Looked {
    let mut survey = Survey::default();
    survey.guest = Some(candidate.identity.name.clone());
    let pid = format!("pid {}", candidate.process.pid);
    if is_hidden {
        survey.note(
            &pid,
            "belongs to another user: only its command line can be read; run as root for the rest"
                .to_owned(),
        );
    }
    let look = inspect::look(&candidate.process, &candidate.line);
    let open = look.open_files();
    let guest = inspect::guest(
        &mut survey,
        &candidate.process,
        &candidate.line,
        &candidate.identity,
        look,
    );
    let is_alive = candidate.process.is_alive();
    if !is_alive {
        survey.note(&pid, "exited while it was examined".to_owned());
    }
    Looked {
        candidate: Kept {
            start_ticks: candidate.process.start_ticks,
            channel: candidate.line.channel.clone(),
        },
        of_guest: survey,
        guest: is_alive.then_some((guest, open)),
    }
}

/// Of a guest with files that do not answer: what can be known without them.
fn look_lightly_at(candidate: &Candidate) -> (Survey, Unexamined) {
    let mut survey = Survey::default();
    survey.guest = Some(candidate.identity.name.clone());
    let guest = inspect::guest_without_files(
        &mut survey,
        &candidate.process,
        &candidate.line,
        &candidate.identity,
    );
    let unexamined = Unexamined {
        guest,
        start_ticks: candidate.process.start_ticks,
    };
    (survey, unexamined)
}

/// Every QEMU that runs a guest.
struct Candidates {
    all: Vec<Candidate>,
    /// Those with nothing but a command line to read.
    hidden: Vec<u32>,
    /// Processes that could not be looked at, and why.
    left_out: Vec<(u32, String)>,
}

fn candidates(selection: &Selection) -> Result<Candidates, DiscoverError> {
    let mut census = process::census().map_err(DiscoverError::Proc)?;
    if let Selection::Named(names) = selection {
        // A process that is asked for by number is looked into, whatever it is called.
        for pid in names.iter().filter_map(|n| select::pid_of(n)) {
            if census.processes.iter().all(|p| p.pid != pid) {
                census.left_out.retain(|(left_out, _)| *left_out != pid);
                census.add(pid, process::identify(pid));
            }
        }
    }
    // Arguments are not needed any more then, except the program.
    let only_program = |process: &mut Process| {
        let program = process.argv.first().cloned();
        std::mem::replace(&mut process.argv, program.into_iter().collect())
    };
    let arguments: Vec<Vec<String>> = census.processes.iter_mut().map(only_program).collect();
    let looks = side_by_side(arguments, PARSING, MAX_PARSE, |argv: &Vec<String>| {
        command_line::parse(argv)
    });
    let mut parsed = Vec::new();
    for (process, line) in census.processes.into_iter().zip(looks) {
        match line {
            Some(line) => parsed.push((process, line)),
            None => census.left_out.push((
                process.pid,
                format!(
                    "has arguments that take more than {} ms to parse; left out",
                    MAX_PARSE.as_millis()
                ),
            )),
        }
    }
    let candidates = parsed
        .into_iter()
        .map(|(process, line)| {
            let name = line
                .name
                .clone()
                .unwrap_or_else(|| format!("pid:{}", process.pid));
            Candidate {
                identity: Identity {
                    pid: process.pid,
                    name,
                    uuid: line.uuid.clone(),
                    is_trusted: process::user_of(process.pid).is_some_and(select::is_trusted),
                },
                process,
                line,
            }
        })
        // libvirt starts `-machine none` to ask a binary what it can do.
        .filter(|candidate| candidate.line.machine.as_deref() != Some("none"))
        .collect();
    Ok(Candidates {
        all: candidates,
        hidden: census.hidden,
        left_out: census.left_out,
    })
}
