//! A disk of any kind.

use crate::flash::Flash;
use crate::parameters::{MAX_DISK_BYTES, Parameters, ParametersError};
use crate::raid10::Raid10;
use crate::request::{Completion, DiskNs, Request};
use crate::spindle::Spindle;

/// A modelled disk.
#[derive(Clone, Debug)]
pub struct Disk(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Spindle(Box<Spindle>),
    Raid10(Box<Raid10>),
    Flash(Box<Flash>),
}

impl Disk {
    /// A disk of `size_bytes`. The seed says where platters stand at time 0.
    ///
    /// # Errors
    /// No disk can have these parameters and this size.
    pub fn new(
        parameters: &Parameters,
        size_bytes: u64,
        seed: u64,
    ) -> Result<Self, ParametersError> {
        if size_bytes > MAX_DISK_BYTES {
            return Err(ParametersError::TooLarge);
        }
        Ok(Self(match parameters {
            Parameters::Spindle(it) => Kind::Spindle(Box::new(Spindle::new(it, size_bytes, seed)?)),
            Parameters::Raid10(it) => Kind::Raid10(Box::new(Raid10::new(it, size_bytes, seed)?)),
            Parameters::Flash(it) => Kind::Flash(Box::new(Flash::new(it, size_bytes)?)),
        }))
    }

    /// Takes a request in. Times do not go back, and its name is that of no other request in flight.
    pub fn submit(&mut self, at: DiskNs, request: Request) {
        match &mut self.0 {
            Kind::Spindle(disk) => disk.submit(at, request),
            Kind::Raid10(disk) => disk.submit(at, request),
            Kind::Flash(disk) => disk.submit(at, request),
        }
    }

    /// When the disk has to decide something, if no other request comes.
    #[must_use]
    pub fn next_decision(&self) -> Option<DiskNs> {
        match &self.0 {
            Kind::Spindle(disk) => disk.next_decision(),
            Kind::Raid10(disk) => disk.next_decision(),
            Kind::Flash(disk) => disk.next_decision(),
        }
    }

    /// Decides everything that is due up to `until`. What comes later with an earlier time is not seen any more.
    pub fn decide(&mut self, until: DiskNs) {
        while let Some(at) = self.next_decision().filter(|at| *at <= until) {
            match &mut self.0 {
                Kind::Spindle(disk) => disk.decide(at),
                Kind::Raid10(disk) => disk.decide(at),
                Kind::Flash(disk) => disk.decide(at),
            }
        }
    }

    /// When the next completion comes that is decided already.
    #[must_use]
    pub fn next_completion(&self) -> Option<DiskNs> {
        match &self.0 {
            Kind::Spindle(disk) => disk.next_completion(),
            Kind::Raid10(disk) => disk.next_completion(),
            Kind::Flash(disk) => disk.next_completion(),
        }
    }

    /// Takes decided completions up to `until`, in order of time.
    pub fn take_completions(&mut self, until: DiskNs, into: &mut Vec<Completion>) {
        match &mut self.0 {
            Kind::Spindle(disk) => disk.take_completions(until, into),
            Kind::Raid10(disk) => disk.take_completions(until, into),
            Kind::Flash(disk) => disk.take_completions(until, into),
        }
    }

    /// Decides, and takes completions, up to `until`.
    pub fn advance(&mut self, until: DiskNs, into: &mut Vec<Completion>) {
        self.decide(until);
        self.take_completions(until, into);
    }
}
