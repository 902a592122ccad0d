//! The guest of a stage: one that the lab boots, or a running one of the user's.

use std::time::{Duration, Instant};

use nestrace_rig::guest::Guest;

use super::own_guest::OwnGuestWithDisks;
use super::{LabError, failure};

/// Either.
#[derive(Debug)]
pub(super) enum LabGuest {
    /// It ends with its owner.
    Booted(Box<Guest>),
    /// It loses its disks with its owner, and runs on.
    Own(OwnGuestWithDisks),
}

impl LabGuest {
    /// Its name, as `nestrace guests` has it.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Booted(guest) => guest.name(),
            Self::Own(guest) => guest.name(),
        }
    }

    /// How many times longer than usual everything in it may take.
    pub(super) fn patience(&self) -> u32 {
        match self {
            Self::Booted(guest) => guest.spec().patience,
            Self::Own(_) => 1,
        }
    }

    /// Runs a shell script that has to succeed, and gives its stdout.
    pub(super) fn run_ok(&self, script: &str, patience: Duration) -> Result<String, LabError> {
        let begin = Instant::now();
        let done = match self {
            Self::Booted(guest) => guest
                .run_ok(script, patience)
                .map(|output| output.stdout)
                .map_err(LabError::from),
            Self::Own(guest) => guest.run_ok(script, patience).map_err(LabError::from),
        };
        done.map_err(|error| failure::judged(error, begin.elapsed(), patience * self.patience()))
    }

    /// Starts the agent in a guest of the lab; in one of the user's it is a service.
    pub(super) fn start_agent(&self) -> Result<(), LabError> {
        match self {
            Self::Booted(guest) => Ok(guest.start_agent("")?),
            Self::Own(_) => Ok(()),
        }
    }
}
