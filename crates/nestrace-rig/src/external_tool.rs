//! Runs the machine's own programs (`mkfs.xfs`, `losetup`, `qemu-img`, …) and keeps what they say.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::child_process::ends_with_us;
use crate::interrupt::{self, Interrupted};

/// Where administrators' programs are, which an ordinary user's PATH may not name.
const EXTRA_PATH: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// A program that could not be run, or that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The program could not be started.
    #[error("start {program}")]
    Start {
        /// Program's name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its output could not be kept.
    #[error("keep the output of {program}")]
    Output {
        /// Program's name.
        program: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It ended with something else than 0.
    #[error("run `{command}` ({status}): {stderr}")]
    Failed {
        /// Whole command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its stderr.
        stderr: String,
    },
    /// Ctrl-C came while it ran; it was killed.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// One run of a program.
#[derive(Debug)]
pub struct Tool {
    program: String,
    command: Command,
    finish_when_interrupted: bool,
}

impl Tool {
    /// A run of `program`, found in PATH or among the administrators' programs.
    #[must_use]
    pub fn new(program: &str) -> Self {
        let path = find_program(program).unwrap_or_else(|| PathBuf::from(program));
        let mut command = Command::new(path);
        // Its own group: the terminal's Ctrl-C must not break a clean-up half way.
        command
            .stdin(Stdio::null())
            .env("LC_ALL", "C")
            .process_group(0);
        Self {
            program: program.to_owned(),
            command,
            finish_when_interrupted: false,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Gives it something to read.
    #[must_use]
    pub fn stdin(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it in `folder`.
    #[must_use]
    pub fn current_dir(mut self, folder: &std::path::Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Lets it finish although Ctrl-C came: for cleaning up.
    #[must_use]
    pub fn for_clean_up(mut self) -> Self {
        self.finish_when_interrupted = true;
        self
    }

    /// Runs it to its end and gives its stdout.
    ///
    /// # Errors
    /// It could not start, ended with something else than 0, or Ctrl-C came.
    pub fn run(mut self) -> Result<String, ToolError> {
        let output = |source| ToolError::Output {
            program: self.program.clone(),
            source,
        };
        // Files, not pipes: a pipe would have to be drained while we wait.
        let stdout = tempfile::tempfile().map_err(output)?;
        let stderr = tempfile::tempfile().map_err(output)?;
        self.command
            .stdout(stdout.try_clone().map_err(output)?)
            .stderr(stderr.try_clone().map_err(output)?);
        if !self.finish_when_interrupted {
            // A tool that cleans up finishes even if we are killed; every other tool ends with us.
            ends_with_us(&mut self.command, Signal::SIGTERM);
        }
        let mut child = self.command.spawn().map_err(|source| ToolError::Start {
            program: self.program.clone(),
            source,
        })?;
        let status = self.wait(&mut child)?;
        if !status.success() {
            return Err(ToolError::Failed {
                command: self.command_line(),
                status,
                stderr: last_lines(&whole(stderr).map_err(output)?, 12),
            });
        }
        whole(stdout).map_err(output)
    }

    fn wait(&self, child: &mut Child) -> Result<ExitStatus, ToolError> {
        let mut pause = Duration::from_millis(1);
        loop {
            let output = |source| ToolError::Output {
                program: self.program.clone(),
                source,
            };
            if let Some(status) = child.try_wait().map_err(output)? {
                return Ok(status);
            }
            if !self.finish_when_interrupted && interrupt::is_interrupted() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Interrupted.into());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn command_line(&self) -> String {
        let args = self.command.get_args().map(OsStr::to_string_lossy);
        std::iter::once(self.program.as_str().into())
            .chain(args)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Finds a program in PATH and in the administrators' folders.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(EXTRA_PATH.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The last `n` lines of a text, without white space around them.
#[must_use]
pub fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

fn whole(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdout_is_returned_and_a_failure_names_command_and_stderr() {
        assert_eq!(
            Tool::new("sh")
                .args(["-c", "echo one; echo two"])
                .run()
                .unwrap(),
            "one\ntwo\n"
        );
        let error = Tool::new("sh")
            .args(["-c", "echo why >&2; exit 3"])
            .run()
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("sh -c") && text.contains("why") && text.contains('3'),
            "{text}"
        );
    }

    #[test]
    fn a_program_ends_with_who_started_it_unless_it_cleans_up() {
        // It says which signal it has asked for when its parent ends.
        let ask = "import ctypes; n = ctypes.c_int(); \
                   ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)";
        if find_program("python3").is_none() {
            eprintln!("skipped: no python3, which asks the kernel");
            return;
        }
        let asked = || Tool::new("python3").args(["-c", ask]);
        let sigterm = format!("{}\n", Signal::SIGTERM as i32);
        assert_eq!(asked().run().unwrap(), sigterm);
        assert_eq!(asked().for_clean_up().run().unwrap(), "0\n");
    }

    #[test]
    fn a_missing_program_is_a_start_error() {
        let error = Tool::new("no-such-program-here").run().unwrap_err();
        assert!(matches!(error, ToolError::Start { .. }), "{error}");
    }

    #[test]
    fn last_lines_keeps_the_end() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
    }
}
