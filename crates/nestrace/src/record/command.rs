//! `-- COMMAND`: looked for, started, waited for and ended with the recording.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::ExitStatus,
    time::Duration,
};

use nestrace_record::recording::{RecordError, Recorder, RunningCommand};
use nix::unistd::{AccessFlags, access};
use tokio::io::unix::AsyncFd;

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
        format!("cannot start {program}: it does not exist or is not executable"),
    )
    .hint("after --, give the command's name or path, and each argument as a separate word"))
}

/// Starts the command and removes the bundle that is replaced; without a command that alone.
pub(super) fn launch(recorder: &mut Recorder) -> Result<Option<Command>, RecordError> {
    let Some(running) = recorder.launch()? else {
        return Ok(None);
    };
    let failed = |source| RecordError::Helper {
        name: "the launcher",
        source,
    };
    let own = running.as_fd().try_clone_to_owned().map_err(failed)?;
    // SAFETY: the descriptor is owned by what is registered, and stays open as long.
    let readable = unsafe { AsyncFd::register(own) };
    let readable = readable.map_err(|error| failed(io::Error::from(error)))?;
    Ok(Some(Command { running, readable }))
}

/// A command that was started.
pub(super) struct Command {
    running: RunningCommand,
    readable: AsyncFd<OwnedFd>,
}

impl Command {
    async fn ended(&self) -> io::Result<ExitStatus> {
        loop {
            let mut ready = self.readable.readable().await?;
            if let Some(status) = self.running.status(Duration::ZERO)? {
                return Ok(status);
            }
            ready.clear_ready();
        }
    }
}

pub(super) async fn wait_for_command(command: &mut Option<Command>) -> io::Result<ExitStatus> {
    match command {
        Some(running) => {
            let status = running.ended().await;
            *command = None;
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
pub(super) async fn stop_command(command: Option<Command>) {
    let Some(command) = command else { return };
    // Where it has just ended there is nothing to do.
    let _ = command.running.end();
    let ended = tokio::time::timeout(Duration::from_secs(2), command.ended());
    if ended.await.is_err() {
        say("note: the command still runs; it was asked to end");
    }
}
