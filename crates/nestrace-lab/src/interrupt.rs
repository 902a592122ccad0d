//! Ctrl-C, SIGTERM and SIGHUP become an error that unwinds, so that owners clean up.
//!
//! Every wait of this crate looks at the flag. QEMU and the tools run in process groups of their
//! own: the terminal's Ctrl-C reaches this process alone, which then takes them down in order.

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A signal asked this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted by a signal")]
pub struct Interrupted;

extern "C" fn note_signal(_signal: i32) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Catches SIGINT, SIGTERM and SIGHUP for the rest of the process.
///
/// # Errors
/// The kernel refused a handler.
pub fn catch_signals() -> Result<(), nix::Error> {
    let action = SigAction::new(
        SigHandler::Handler(note_signal),
        SaFlags::empty(),
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Whether a signal has come.
#[must_use]
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Fails once a signal has come; for loops that wait.
///
/// # Errors
/// [`Interrupted`].
pub fn check() -> Result<(), Interrupted> {
    if is_interrupted() {
        Err(Interrupted)
    } else {
        Ok(())
    }
}
