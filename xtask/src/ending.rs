//! How the project's own programs begin and end.

use std::process::ExitCode;

use nestrace_rig::interrupt::{self, Interrupted};
use nestrace_rig::packages::PackagesError;
use nestrace_rig::root::NeedsRoot;

/// Runs a chore that may start guests and programs; Ctrl-C ends them in order.
pub fn of(chore: impl FnOnce() -> anyhow::Result<ExitCode>) -> ExitCode {
    let run = || {
        // Cases send it to what they start.
        interrupt::heed_ctrl_c()?;
        interrupt::catch_signals()?;
        chore()
    };
    match run() {
        Ok(code) => code,
        Err(error) => report(&error),
    }
}

/// The same codes as the command's: 4 for what the machine lacks; and a shell's for Ctrl-C.
fn report(error: &anyhow::Error) -> ExitCode {
    if interrupt::is_interrupted() || error.chain().any(|cause| cause.is::<Interrupted>()) {
        eprintln!("xtask: interrupted; what was started is gone");
        return ExitCode::from(130);
    }
    eprintln!("xtask: failed to {error:#}");
    let lacks = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref(), Some(PackagesError::Missing { .. }))
            || cause.is::<NeedsRoot>()
    };
    if error.chain().any(lacks) {
        ExitCode::from(4)
    } else {
        ExitCode::FAILURE
    }
}
