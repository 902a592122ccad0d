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

/// Ends what ignores SIGINT, here and in programs that are started from here: a shell has whatever it starts in the background
/// ignore it.
///
/// # Errors
/// The kernel refused it.
pub fn heed_ctrl_c() -> Result<(), nix::Error> {
    heed(Signal::SIGINT)
}

fn heed(signal: Signal) -> Result<(), nix::Error> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: it has no handler.
    unsafe { sigaction(signal, &action) }.map(drop)
}

/// Catches SIGINT, SIGTERM and SIGHUP for the rest of the process; what its parent has it ignore stays ignored, as
/// SIGHUP under nohup.
///
/// # Errors
/// The kernel refused a handler.
pub fn catch_signals() -> Result<(), nix::Error> {
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .try_for_each(catch)
}

fn catch(signal: Signal) -> Result<(), nix::Error> {
    let action = SigAction::new(
        SigHandler::Handler(note_signal),
        SaFlags::empty(),
        SigSet::empty(),
    );
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
    let before = unsafe { sigaction(signal, &action) }?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        // SAFETY: it has no handler.
        unsafe { sigaction(signal, &before) }?;
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

#[cfg(test)]
mod tests {
    use super::*;

    // Signals that nothing else here uses.

    #[test]
    fn what_was_ignored_may_be_heeded() {
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: it has no handler.
        unsafe { sigaction(Signal::SIGURG, &ignored) }.unwrap();
        heed(Signal::SIGURG).unwrap();
        // SAFETY: as above.
        let now = unsafe { sigaction(Signal::SIGURG, &ignored) }.unwrap();
        assert!(matches!(now.handler(), SigHandler::SigDfl));
    }

    #[test]
    fn what_was_ignored_stays_ignored() {
        for (signal, before, is_caught) in [
            (Signal::SIGUSR1, SigHandler::SigIgn, false),
            (Signal::SIGUSR2, SigHandler::SigDfl, true),
        ] {
            let action = SigAction::new(before, SaFlags::empty(), SigSet::empty());
            // SAFETY: neither has a handler.
            unsafe { sigaction(signal, &action) }.unwrap();
            catch(signal).unwrap();
            // SAFETY: as above.
            let now = unsafe { sigaction(signal, &action) }.unwrap().handler();
            let is_ignored = matches!(now, SigHandler::SigIgn);
            let has_handler = matches!(now, SigHandler::Handler(_));
            assert_eq!(
                (is_ignored, has_handler),
                (!is_caught, is_caught),
                "{signal}"
            );
        }
    }
}
