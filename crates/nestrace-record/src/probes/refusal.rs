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
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        }
    }
}
