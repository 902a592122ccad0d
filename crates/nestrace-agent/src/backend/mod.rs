//! Where events come from.

mod blktrace;
mod ebpf;
mod pace;
mod piece;
mod summing;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use nestrace_kernel::plan::Detail;
use nestrace_trace::manifest::{Probe, Refused};
use nestrace_wire::kernel_buffers::Format;

use crate::guest::Facts;
use crate::names::noted::NewFiles;
use blktrace::Blktrace;
use ebpf::{Ebpf, NotLoaded};
pub use piece::{Events, Piece};
pub use summing::Summing;

/// `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// ebpf where it works, else blktrace.
    Auto,
    /// nestrace's own probes.
    Ebpf,
    /// The kernel's blktrace.
    Blktrace,
}

/// What is attached, and what is not and why.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    pub probes: Vec<Probe>,
    pub refused: Vec<Refused>,
}

/// A source of events of this machine.
pub trait Backend {
    /// `ebpf` or `blktrace`.
    fn name(&self) -> &'static str;

    /// Begins: from the return on, everything is recorded.
    ///
    /// # Errors
    /// A reason in words if nothing can be recorded; nothing is attached then.
    fn start(&mut self, facts: &Facts, asked: (Detail, bool)) -> Result<Attached, String>;

    /// Disks or mounts have changed. Gives what of them cannot be recorded, which may be known already.
    fn update(&mut self, facts: &Facts) -> Vec<Refused>;

    /// Looks for what comes without a word: processors.
    fn look(&mut self) {}

    /// Hands over what is old enough to be in order, and of buffers no more than so many bytes: the rest has room where
    /// it is.
    fn drain(&mut self, max_bytes: usize, sink: &mut dyn FnMut(Piece<'_>));

    /// Ends recording and hands over the rest. What is attached stays so until [`Self::release`], which
    /// may take its time.
    fn stop(&mut self, sink: &mut dyn FnMut(Piece<'_>));

    /// Detaches everything.
    fn release(&mut self);

    /// Events lost since the start, by number of a [`nestrace_trace::Source`].
    fn lost(&self) -> BTreeMap<u32, u64>;

    /// From now on files with I/O are noted, or not.
    fn note_files(&mut self, _wanted: bool) {}

    /// Files with I/O that are new since the last call. blktrace shows none.
    fn take_files(&mut self) -> NewFiles {
        NewFiles::default()
    }

    /// What is in the buffers of the recording that runs.
    fn format(&self) -> Format;

    /// How often [`Self::drain`] is to be called.
    fn period(&self) -> Duration;
}

/// The backends of this machine, ready to start.
pub struct Backends {
    choice: Choice,
    /// Why not, if not.
    ebpf: Result<Ebpf, NotLoaded>,
    /// Why it could not start where blktrace then could: programs load when they are attached.
    ebpf_failed: Option<String>,
    blktrace: Blktrace,
    /// The probes as sums, once they were asked for.
    summing: Option<Summing>,
}

/// The backend of one recording, and why it is this one.
pub struct Chosen<'b> {
    pub backend: &'b mut dyn Backend,
    pub reason: String,
    pub attached: Attached,
}

impl Backends {
    /// Loads the probes, unless they will not be needed, and cleans up after an agent that was killed.
    pub fn prepare(choice: Choice) -> Self {
        blktrace::end_left_behind();
        let ebpf = match choice {
            Choice::Blktrace => Err(NotLoaded {
                reason: "--backend blktrace was given".to_owned(),
                passes: false,
            }),
            Choice::Auto | Choice::Ebpf => Ebpf::load(),
        };
        Self {
            choice,
            ebpf,
            ebpf_failed: None,
            blktrace: Blktrace::default(),
            summing: None,
        }
    }

    /// Says which backend will be used.
    pub fn report(&self) {
        match &self.ebpf {
            Ok(_) => eprintln!("nestrace-agent: backend ebpf: its probes are loaded"),
            Err(NotLoaded { reason, .. }) => {
                eprintln!("nestrace-agent: backend blktrace: {reason}");
            }
        }
    }

    /// What [`Self::start`] will try first, and why; for a first word before it has.
    pub fn expected(&self, asked: &str) -> (&'static str, String) {
        match self.choice_for(asked) {
            Choice::Blktrace => ("blktrace", "it was asked for".to_owned()),
            Choice::Ebpf => ("ebpf", "it was asked for".to_owned()),
            Choice::Auto => match (&self.ebpf, &self.ebpf_failed) {
                (Ok(_), None) => ("ebpf", "its probes load on this kernel".to_owned()),
                (Err(NotLoaded { reason, .. }), _) | (_, Some(reason)) => {
                    ("blktrace", format!("ebpf does not work here: {reason}"))
                }
            },
        }
    }

    /// Starts a backend. `asked` is the recorder's wish, which counts unless the command line has one.
    ///
    /// # Errors
    /// Why none can record.
    pub fn start(
        &mut self,
        asked: &str,
        facts: &Facts,
        wanted: (Detail, bool),
    ) -> Result<Chosen<'_>, String> {
        if facts.disks.is_empty() {
            return Err(match facts.missing.as_slice() {
                [] => "this machine has no disk".to_owned(),
                missing => format!("this machine has no disk {}", missing.join(", ")),
            });
        }
        let choice = self.choice_for(asked);
        if choice != Choice::Blktrace && self.ebpf.as_ref().is_err_and(|why| why.passes) {
            self.ebpf = Ebpf::load();
        }
        let (_, mut reason) = self.expected(asked);
        let mut failed_now = None;
        if choice != Choice::Blktrace {
            let failed = self.ebpf_failed.clone();
            let started = match (&mut self.ebpf, failed) {
                (Err(why), _) => Err(why.reason.clone()),
                (_, Some(reason)) if choice == Choice::Auto => Err(reason),
                (Ok(ebpf), _) => ebpf.start(facts, wanted),
            };
            match (started, &mut self.ebpf) {
                (Ok(attached), Ok(ebpf)) => {
                    return Ok(Chosen {
                        backend: ebpf,
                        reason,
                        attached,
                    });
                }
                (Err(why), _) if choice == Choice::Ebpf => return Err(why),
                (Err(why), ebpf) => {
                    reason = format!("ebpf does not work here: {why}");
                    failed_now = ebpf.is_ok().then_some(why);
                }
                (Ok(_), Err(_)) => {}
            }
        }
        match self.blktrace.start(facts, wanted) {
            Ok(attached) => {
                // The next session expects blktrace from the start.
                self.ebpf_failed = failed_now.or(self.ebpf_failed.take());
                Ok(Chosen {
                    backend: &mut self.blktrace,
                    reason,
                    attached,
                })
            }
            Err(why) if choice == Choice::Blktrace => Err(why),
            Err(why) => Err(format!("{reason}; nor does blktrace: {why}")),
        }
    }

    /// The probes as sums, with room for so many disks. Only BPF can sum.
    ///
    /// # Errors
    /// Why they cannot be had, in words.
    pub fn summing(&mut self, n_disks: usize) -> Result<&mut Summing, String> {
        if self.ebpf.as_ref().is_err_and(|why| why.passes) {
            self.ebpf = Ebpf::load();
        }
        let ebpf = self.ebpf.as_ref().map_err(|why| why.reason.clone())?;
        let kept = self.summing.take();
        let summing = match kept.filter(|kept| kept.has_room(n_disks)) {
            Some(summing) => summing,
            None => Summing::load(ebpf, n_disks)?,
        };
        Ok(self.summing.insert(summing))
    }

    fn choice_for(&self, asked: &str) -> Choice {
        match (self.choice, asked) {
            (Choice::Auto, "ebpf") => Choice::Ebpf,
            (Choice::Auto, "blktrace") => Choice::Blktrace,
            (choice, _) => choice,
        }
    }
}
