//! Looks at the shell of a plan before anything is built: a quote that is not closed would be found by the guest alone.

use std::collections::BTreeSet;

use crate::external_tool::{Tool, ToolError};
use crate::plan::workload::Action;
use crate::plan::{Plan, Workload};

/// A text of a plan that is no shell.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// A shell does not take it.
    #[error("read {key} of the workload \"{workload}\": {said}")]
    NoShell {
        /// `command`, `prepare` or `fio`.
        key: &'static str,
        /// The workload's name.
        workload: String,
        /// The shell's words.
        said: String,
    },
    /// There is no shell to ask.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// Has a shell read what the plan's workloads do, without running any of it.
///
/// # Errors
/// One of them is no shell.
pub fn check_scripts(plan: &Plan) -> Result<(), ScriptError> {
    let mut seen = BTreeSet::new();
    for cell in &plan.cells {
        if seen.insert(&cell.workload.name) {
            check(&cell.workload)?;
        }
    }
    Ok(())
}

fn check(workload: &Workload) -> Result<(), ScriptError> {
    let texts = match &workload.action {
        Action::Script(script) => vec![
            ("prepare", script.prepare.clone()),
            ("command", script.measure.clone()),
        ],
        Action::Fio(fio) => vec![("fio", format!("fio {}", fio.options))],
        Action::FileIo(_) | Action::Oltp(_) | Action::RealTool(_) => Vec::new(),
    };
    for (key, text) in texts {
        match Tool::new("/bin/sh").args(["-n", "-c", "--", &text]).run() {
            Ok(_) => {}
            Err(ToolError::Failed { stderr, .. }) => {
                return Err(ScriptError::NoShell {
                    key,
                    workload: workload.name.clone(),
                    said: stderr,
                });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::shipped;

    fn checked(workload: &str) -> Result<(), String> {
        let text = format!("name = 'p'\n[[workload]]\nname = 'x'\n{workload}\n");
        check_scripts(&Plan::read(&text).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_no_shell_is_told_with_its_workload() {
        for (workload, expected) in [
            (
                "command = \"echo 'a\"",
                "read command of the workload \"x\": ",
            ),
            ("command = 'if true; then'", "read command of"),
            ("command = 'true'\nprepare = 'if'", "read prepare of"),
            ("fio = \"--rw=read --name='a\"", "read fio of"),
            ("command = ') ; ('", "read command of"),
        ] {
            let error = checked(workload).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.to_lowercase().contains("syntax error"), "{error}");
        }
    }

    #[test]
    fn nothing_of_it_is_run() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("made");
        checked(&format!("command = 'touch {}'", place.display())).unwrap();
        assert!(!place.exists());
        checked("command = '-x; true'").unwrap();
        for (_, text) in shipped::PLANS {
            check_scripts(&Plan::read(text).unwrap()).unwrap();
        }
    }
}
