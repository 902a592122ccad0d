//! What is written down of an error: a line that says what went wrong, and the log behind it.

use super::{LabError, OwnGuestError};
use crate::external_tool::last_lines;
use crate::guest::GuestError;

/// The line alone.
pub(super) fn first_line(error: &LabError) -> String {
    let (message, _) = told(error);
    message.lines().next().unwrap_or_default().to_owned()
}

/// A shell's status of a script that SIGKILL ended, which is how one ends that took too long.
pub(super) const KILLED: i32 = 137;

/// A script in a guest that failed.
pub(super) struct FailedScript<'e> {
    pub(super) script: &'e str,
    pub(super) status: i64,
    /// The end of what it said.
    pub(super) said: &'e str,
}

/// The script that failed, where one did.
pub(super) fn script_of(error: &LabError) -> Option<FailedScript<'_>> {
    let (script, status, said) = match error {
        LabError::Guest(GuestError::Command {
            script,
            status,
            output,
        }) => (script, i64::from(*status), output),
        LabError::OwnGuest(OwnGuestError::Command {
            script,
            status,
            said,
        }) => (script, *status, said),
        _ => return None,
    };
    Some(FailedScript {
        script,
        status,
        said,
    })
}

impl FailedScript<'_> {
    /// Whether it took too long.
    pub(super) fn was_killed(&self) -> bool {
        self.status == i64::from(KILLED)
    }
}

/// The same with another log.
pub(super) fn with_log(mut error: LabError, log: String) -> LabError {
    match &mut error {
        LabError::Guest(GuestError::Command { output, .. }) => *output = log,
        LabError::OwnGuest(OwnGuestError::Command { said, .. }) => *said = log,
        _ => {}
    }
    error
}

/// What went wrong in a line, and its log. Of a script in a guest, what it said last is what matters.
pub(super) fn told(error: &LabError) -> (String, String) {
    let Some(failed) = script_of(error) else {
        return chain(error);
    };
    let FailedScript {
        script,
        status,
        said,
    } = failed;
    let why = if failed.was_killed() {
        "it took too long"
    } else {
        said.lines().last().unwrap_or("it said nothing")
    };
    let message = format!("a script in the guest ended with status {status}: {why}");
    (message, format!("{said}\n\n{script}"))
}

/// The error with its causes, and the end of what programs said.
fn chain(error: &dyn std::error::Error) -> (String, String) {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = cause.source();
    }
    let log = last_lines(&message, 20);
    let first = message.lines().next().unwrap_or_default();
    let short: String = first.chars().take(300).collect();
    (short, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(status: i32, output: &str) -> LabError {
        LabError::Guest(GuestError::Command {
            script: String::from("fio --name=a"),
            status,
            output: output.to_owned(),
        })
    }

    #[test]
    fn what_a_script_said_last_is_why_it_failed() {
        let (message, log) = told(&script(3, "laying out\nfio: no space left"));
        assert_eq!(
            message,
            "a script in the guest ended with status 3: fio: no space left"
        );
        assert!(
            log.contains("laying out") && log.ends_with("fio --name=a"),
            "{log}"
        );
        let (message, _) = told(&script(1, ""));
        assert!(message.ends_with("it said nothing"), "{message}");
    }

    #[test]
    fn a_script_that_hung_is_told_with_what_it_had_said() {
        let error = script(137, "");
        assert!(
            script_of(&error).is_some_and(|failed| failed.was_killed() && failed.said.is_empty())
        );
        let (message, log) = told(&with_log(error, String::from("job 1 of 2")));
        assert!(message.ends_with("it took too long"), "{message}");
        assert!(log.starts_with("job 1 of 2"), "{log}");
        assert!(script_of(&LabError::NoAgent("a".into())).is_none());
    }
}
