//! `-- COMMAND`: looked for, started, waited for and ended with the recording.

use std::{io, path::Path, process::ExitStatus, time::Duration};

use nestrace_record::recording::{CommandEnder, Recorder};
use nix::unistd::{AccessFlags, access};
use tokio::process::{Child, Command};

use crate::exit::{Failure, INPUT, say};

/// Looks for the command before anything is attached; only `exec` knows whether it will really start.
pub(super) fn check_command(words: &[String]) -> Result<(), Failure> {
    let Some(program) = words.first() else {
        return Ok(());
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let runs = |file: &Path| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    let is_there = if program.contains('/') {
        runs(Path::new(program))
    } else {
        std::env::split_paths(&path).any(|folder| runs(&folder.join(program)))
    };
    if is_there {
        return Ok(());
    }
    Err(Failure::new(
        INPUT,
        format!("cannot start {program}: there is no such program, or it may not be run"),
    )
    .hint("give the command's name or path after --, and each argument as a word of its own"))
}

pub(super) fn start_command(words: &[String]) -> Result<Option<Child>, Failure> {
    let Some((program, arguments)) = words.split_first() else {
        return Ok(None);
    };
    let child = Command::new(program)
        .args(arguments)
        .spawn()
        .map_err(|error| Failure::new(INPUT, format!("cannot start {program}: {error}")))?;
    Ok(Some(child))
}

/// Who ends the command when the recorder may not any more.
pub(super) fn command_ender(recorder: &Recorder, child: Option<&Child>) -> Option<CommandEnder> {
    let pid = child?.id()?;
    match recorder.command_ender(pid) {
        Ok(ender) => Some(ender),
        Err(error) => {
            say(format_args!(
                "note: the command will not be ended with the recording: {error}"
            ));
            None
        }
    }
}

pub(super) async fn wait_for_command(child: &mut Option<Child>) -> io::Result<ExitStatus> {
    match child {
        Some(running) => {
            let status = running.wait().await;
            *child = None;
            status
        }
        None => std::future::pending().await,
    }
}

pub(super) fn command_ended(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) if status.success() => "command ended".to_owned(),
        Ok(status) => format!("command ended ({status})"),
        Err(error) => format!("command lost ({error})"),
    }
}

/// The command outlives neither the duration nor a signal, but is asked, not killed.
pub(super) async fn stop_command(child: Option<Child>, ender: Option<CommandEnder>) {
    let Some(mut child) = child else { return };
    if let Some(ender) = ender {
        // Where it has just ended there is nothing to do.
        let _ = ender.end();
    }
    if tokio::time::timeout(Duration::from_secs(2), child.wait())
        .await
        .is_err()
    {
        say("note: the command still runs; it was asked to end");
    }
}
