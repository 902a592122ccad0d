//! Looks at the shell and at fio's options of a plan before anything is built: a quote that is not closed, or a word
//! that fio does not know, would be found by the guest alone.

use std::collections::BTreeSet;

use nestrace_rig::external_tool::{Tool, ToolError, find_program};

use crate::plan::workload::{Action, FioJobs};
use crate::plan::{Place, Plan, Workload};

/// fio's own options that act as soon as they are read.
const ACTING: [&str; 17] = [
    "aux-path",
    "client",
    "cmdhelp",
    "cpuclock-test",
    "crctest",
    "daemonize",
    "debug",
    "enghelp",
    "help",
    "idle-prof",
    "inflate-log",
    "memcpytest",
    "merge-blktrace-only",
    "output",
    "profile",
    "server",
    "version",
];

/// A text of a plan that is no shell, or nothing for fio.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// A shell, or fio, does not take it.
    #[error("{place}: read {key} of the workload \"{workload}\": {said}")]
    Refused {
        /// In the plan.
        place: Place,
        /// `command`, `prepare` or `fio`.
        key: &'static str,
        /// The workload's name.
        workload: String,
        /// The program's words.
        said: String,
    },
    /// There is no shell to ask.
    #[error(transparent)]
    Tool(#[from] ToolError),
}

/// Has a shell read what the plan's workloads do, without running any of it, and fio its options, where it is on this
/// machine and is that of the guests.
///
/// # Errors
/// One of them is no shell, or has options that fio does not take.
pub fn check_scripts(plan: &Plan) -> Result<(), ScriptError> {
    let mut seen = BTreeSet::new();
    let has_fio = plan.own_guest.is_none() && find_program("fio").is_some();
    for cell in &plan.cells {
        if seen.insert(&cell.workload.name) {
            check(&cell.workload, has_fio)?;
        }
    }
    Ok(())
}

fn check(workload: &Workload, has_fio: bool) -> Result<(), ScriptError> {
    for &(key, place) in &workload.places {
        let (text, jobs) = match (key, &workload.action) {
            ("prepare", Action::Script(script)) => (script.prepare.clone(), None),
            ("command", Action::Script(script)) => (script.measure.clone(), None),
            ("fio", Action::Fio(jobs)) => (format!("fio {}", jobs.options), Some(jobs)),
            _ => continue,
        };
        let refused = |error| match error {
            ToolError::Failed { stderr: said, .. } => ScriptError::Refused {
                place,
                key,
                workload: workload.name.clone(),
                said,
            },
            error => error.into(),
        };
        let shell = Tool::new("/bin/sh").args(["-n", "-c", "--", &text]);
        shell.run().map_err(refused)?;
        if let (Some(jobs), true) = (jobs, has_fio) {
            try_fio(jobs, workload).map_err(refused)?;
        }
    }
    Ok(())
}

/// Has fio read its options, and do nothing. What is none of a job's is for the guest's fio alone.
fn try_fio(jobs: &FioJobs, workload: &Workload) -> Result<(), ToolError> {
    // There is nothing in them that a shell would do.
    let arguments = jobs.arguments(&workload.scale, None);
    let script = format!("set -f; printf '%s\\n' {arguments}");
    let words = Tool::new("/bin/sh").args(["-c", &script]).run()?;
    if words.lines().all(is_of_any_machine) {
        let fio = Tool::new("fio").arg("--parse-only").args(words.lines());
        fio.run()?;
    }
    Ok(())
}

/// Whether an option is a job's and means the same on this machine as in a guest.
fn is_of_any_machine(word: &str) -> bool {
    let Some(option) = word.strip_prefix("--") else {
        return false;
    };
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    // Names may be cut short.
    let is = |known: &str| known.starts_with(name);
    // An engine may be a library anywhere, a pattern a 'file'.
    let names_a_file = (is("ioengine") && value.contains('/')) || value.contains('\'');
    let is_of_machine = name.contains("cpu") || name.contains("numa") || names_a_file;
    !is_of_machine && !ACTING.iter().any(|known| is(known))
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
                "line 4, column 11: read command of the workload \"x\": ",
            ),
            ("command = 'if true; then'", "read command of"),
            (
                "command = 'true'\nprepare = 'if'",
                "line 5, column 11: read prepare of",
            ),
            ("fio = \"--rw=read --name='a\"", "read fio of"),
            ("command = ') ; ('", "read command of"),
        ] {
            let error = checked(workload).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.to_lowercase().contains("syntax error"), "{error}");
        }
    }

    #[test]
    fn what_fio_does_not_know_is_told_with_its_workload() {
        if find_program("fio").is_none() {
            let is_ci = std::env::var_os("NESTRACE_CI").is_some_and(|word| word == "1");
            assert!(!is_ci, "fio is not on this machine");
            eprintln!("skipped: fio is not on this machine");
            return;
        }
        for (options, expected) in [
            ("--rw=randdrw", "failed parsing rw=randdrw"),
            (
                "--rw=read --iodeptth=3",
                "unrecognized option '--iodeptth=3'",
            ),
            ("--rw=read --bs=4k --ioengine=libbaio", "libbaio"),
        ] {
            let error = checked(&format!("fio = '{options}'")).unwrap_err();
            let place = "line 4, column 7: read fio of the workload \"x\": ";
            assert!(
                error.starts_with(place) && error.contains(expected),
                "{error}"
            );
        }
        checked("use = 'fileserver'\nfio = '--fsync=8 --rwmixread=30'").unwrap();
        checked("fio = '--rw=read --filename=/mnt/nestrace-lab/a --direct=1'").unwrap();
        checked("fio = '--name=\"a b\" --rw=write'").unwrap();
    }

    #[test]
    fn fio_does_nothing_on_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("made");
        for option in [
            "--output=",
            "--outp=",
            "--write_bw_log=",
            "--filename=",
            "--exec_prerun=touch ",
        ] {
            checked(&format!(
                "fio = '--rw=write \"{option}{}\"'",
                place.display()
            ))
            .unwrap();
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        for word in [
            "-output=a",
            "job",
            "--",
            "--serv",
            "--ioeng=./x",
            "--cpus_allowed=70",
            "--verify_pattern='a'",
        ] {
            assert!(!is_of_any_machine(word), "{word}");
        }
        for word in [
            "--rw=read",
            "--ioengine=libaio",
            "--output-format=json",
            "--runtime=3",
        ] {
            assert!(is_of_any_machine(word), "{word}");
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
