//! What is written down of an error: a line that says what went wrong, and the log behind it.

use super::{LabError, OwnGuestError};
use crate::external_tool::last_lines;
use crate::guest::GuestError;

/// The line alone.
pub(super) fn first_line(error: &LabError) -> String {
    let (message, _) = told(error);
    message.lines().next().unwrap_or_default().to_owned()
}

/// Status of a script that took too long.
pub(super) const STOPPED: i64 = 137;

/// What a script in a guest had said when it failed, and its status.
pub(super) fn log_of(error: &LabError) -> Option<(&str, i64)> {
    match error {
        LabError::Guest(GuestError::Command { status, output, .. }) => {
            Some((output, i64::from(*status)))
        }
        LabError::OwnGuest(OwnGuestError::Command { status, said, .. }) => Some((said, *status)),
        _ => None,
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
    let (script, status, output) = match error {
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
        _ => return chain(error),
    };
    let why = match status {
        STOPPED => "it took too long",
        _ => output.lines().last().unwrap_or("it said nothing"),
    };
    let message = format!("a script in the guest ended with status {status}: {why}");
    (message, format!("{output}\n\n{script}"))
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
        assert_eq!(log_of(&error), Some(("", STOPPED)));
        let (message, log) = told(&with_log(error, String::from("job 1 of 2")));
        assert!(message.ends_with("it took too long"), "{message}");
        assert!(log.starts_with("job 1 of 2"), "{log}");
        assert_eq!(log_of(&LabError::NoAgent("a".into())), None);
    }
}
