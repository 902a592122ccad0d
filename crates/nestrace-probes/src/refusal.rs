//! Why the kernel took a program not, in one line.

use aya::programs::ProgramError;

/// What the verifier says at the end of every log.
fn is_statistics(line: &str) -> bool {
    ["processed ", "verification time ", "stack depth "]
        .iter()
        .any(|start| line.starts_with(start))
}

/// One line of a program error: the last line of the verifier's log says why.
pub(super) fn describe(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            let log = verifier_log.to_string();
            if std::env::var_os("NESTRACE_VERIFIER_LOG").is_some() {
                eprintln!("{log}");
            }
            let reason = log
                .lines()
                .rev()
                .find(|line| !line.is_empty() && !is_statistics(line))
                .unwrap_or("no verifier log");
            format!("refused by the verifier ({io_error}): {reason}")
        }
        other => with_causes(other),
    }
}

/// An error with its causes, in one line.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
