//! What is written down of an error: a line that says what went wrong, and the log behind it.

use std::time::Duration;

use nestrace_rig::external_tool::last_lines;
use nestrace_rig::guest::GuestError;

use super::{LabError, OwnGuestError};

/// The line alone.
pub(super) fn first_line(error: &LabError) -> String {
    let (message, _) = told(error);
    message.lines().next().unwrap_or_default().to_owned()
}

/// A shell's status of a script that SIGKILL ended, which is how one ends that took too long.
pub(super) const KILLED: i32 = 137;

/// What is in a line that says what went wrong, in small letters; words of a shell's regular expression too.
pub(super) const TELLING: [&str; 15] = [
    "error",
    "fail",
    "cannot",
    "can't",
    "unable to",
    "invalid",
    "bad value",
    "unrecognized",
    "no such",
    "not found",
    "denied",
    "refused",
    "not permitted",
    "no space",
    "read-only file system",
];

/// A script in a guest that failed.
pub(super) struct FailedScript<'e> {
    pub(super) script: &'e str,
    pub(super) status: i64,
    /// After which it was stopped, where it took too long.
    pub(super) seconds: Option<u64>,
    /// The end of what it said.
    pub(super) said: &'e str,
}

/// The script that failed, where one did.
pub(super) fn script_of(error: &LabError) -> Option<FailedScript<'_>> {
    let (script, status, seconds, said) = match error {
        LabError::Guest(GuestError::Command {
            script,
            status,
            output,
        }) => (script, i64::from(*status), None, output),
        LabError::OwnGuest(OwnGuestError::Command {
            script,
            status,
            said,
        }) => (script, *status, None, said),
        LabError::TookTooLong {
            script,
            seconds,
            said,
        } => (script, i64::from(KILLED), Some(*seconds), said),
        _ => return None,
    };
    Some(FailedScript {
        script,
        status,
        seconds,
        said,
    })
}

impl FailedScript<'_> {
    /// Whether SIGKILL ended it, the lab's or another's.
    pub(super) fn was_killed(&self) -> bool {
        self.status == i64::from(KILLED)
    }

    /// Why it failed, in a line.
    fn why(&self) -> &str {
        let lines = self.said.lines().rev().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty());
        let last = lines.clone().next().unwrap_or("it said nothing");
        lines.find(|line| is_telling(line)).unwrap_or(last)
    }
}

fn is_telling(line: &str) -> bool {
    let line = line.to_lowercase();
    TELLING.iter().any(|word| line.contains(word))
}

/// The error of a script that was given `patience` and took `took`: one that was killed before its time was up was not
/// stopped by the lab.
pub(super) fn judged(error: LabError, took: Duration, patience: Duration) -> LabError {
    // A guest's clock is not this machine's.
    let was_up = took >= patience * 9 / 10;
    match script_of(&error) {
        Some(failed) if failed.was_killed() && was_up => LabError::TookTooLong {
            script: failed.script.to_owned(),
            seconds: took.as_secs(),
            said: failed.said.to_owned(),
        },
        _ => error,
    }
}

/// The same with another log.
pub(super) fn with_log(mut error: LabError, log: String) -> LabError {
    match &mut error {
        LabError::Guest(GuestError::Command { output, .. }) => *output = log,
        LabError::OwnGuest(OwnGuestError::Command { said, .. })
        | LabError::TookTooLong { said, .. } => *said = log,
        _ => {}
    }
    error
}

/// What went wrong in a line, and its log. Of a script in a guest, what it said of it is what matters.
pub(super) fn told(error: &LabError) -> (String, String) {
    let Some(failed) = script_of(error) else {
        return chain(error);
    };
    let message = match (failed.seconds, failed.was_killed()) {
        (Some(seconds), _) => {
            format!("a script in the guest was stopped after {seconds} s: it took too long")
        }
        (None, true) => {
            String::from("a script in the guest was killed before its time was up, not by the lab")
        }
        (None, false) => {
            let (status, why) = (failed.status, failed.why());
            format!("a script in the guest ended with status {status}: {why}")
        }
    };
    let FailedScript { script, said, .. } = failed;
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
    fn the_last_line_that_tells_is_why_a_script_failed() {
        for (said, expected) in [
            ("laying out\nfio: no space left", "fio: no space left"),
            (
                "fio: failed parsing rw=nosense\n   valid values: read\n    : write  Sequential write\n",
                "fio: failed parsing rw=nosense",
            ),
            (
                "dd: error writing 'a': No space left on device\n101+0 records in\n100+0 records out",
                "dd: error writing 'a': No space left on device",
            ),
            ("sh: 1: foo: NOT FOUND\nbye", "sh: 1: foo: NOT FOUND"),
            ("one\ntwo\n\n", "two"),
            ("", "it said nothing"),
            ("\n", "it said nothing"),
        ] {
            let (message, log) = told(&script(3, said));
            let all = format!("a script in the guest ended with status 3: {expected}");
            assert_eq!(message, all);
            assert!(
                log.starts_with(said) && log.ends_with("fio --name=a"),
                "{log}"
            );
        }
    }

    #[test]
    fn a_script_that_hung_is_told_with_what_it_had_said() {
        let minute = Duration::from_secs(60);
        let error = judged(script(KILLED, ""), minute, minute);
        assert!(
            script_of(&error).is_some_and(|failed| failed.was_killed() && failed.said.is_empty())
        );
        let (message, log) = told(&with_log(error, String::from("job 1 of 2")));
        assert!(
            message.ends_with("after 60 s: it took too long"),
            "{message}"
        );
        assert!(log.starts_with("job 1 of 2"), "{log}");
        assert!(script_of(&LabError::NoAgent("a".into())).is_none());
    }

    #[test]
    fn a_script_that_something_else_killed_did_not_take_too_long() {
        let minute = Duration::from_secs(60);
        for (status, took) in [(KILLED, minute / 2), (1, minute * 2)] {
            let (message, _) = told(&judged(script(status, ""), took, minute));
            assert!(!message.contains("too long"), "{message}");
        }
    }
}
