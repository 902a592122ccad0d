//! Exit codes, and what is said on the way out.

use std::{
    fmt::Display,
    io::{self, Write},
    mem,
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
};

use clap::Parser;
use nestrace_bundle::ErrorKind;
use nestrace_trace::{printable, printable_lines};

/// Done.
pub const DONE: u8 = 0;
/// Unexpected failure.
pub const FAILURE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Bad or missing input.
pub const INPUT: u8 = 3;
/// A privilege, a kernel feature or a package is missing.
pub const MISSING: u8 = 4;
/// Done, but the recording is not whole: events were lost, or it is cut or was not closed (with `--strict`).
pub const LOST: u8 = 5;

/// A failure with its exit code, and what to try next.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure with this code.
    pub fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: message.to_string(),
            hint: None,
        }
    }

    /// A failure whose causes are part of the message.
    pub fn caused(code: u8, error: &dyn std::error::Error) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::new(code, message)
    }

    /// Says first which of several inputs it is about.
    pub fn of(mut self, which: &str) -> Self {
        if self.message != CLOSED_PIPE {
            self.message = format!("{which}: {}", self.message);
        }
        self
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// Adds what to type or do next.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What to type or do next.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Says it on stderr, before all notes. A closed pipe is success: whoever read the output has had enough.
    pub fn report(&self) -> ExitCode {
        if self.message == CLOSED_PIPE {
            return ExitCode::from(DONE);
        }
        let mut stderr = io::stderr().lock();
        let _ = writeln!(stderr, "nestrace: {}", printable_lines(&self.message));
        if let Some(hint) = &self.hint {
            let _ = writeln!(stderr, "hint: {}", printable_lines(hint));
        }
        drop(stderr);
        say_held();
        ExitCode::from(self.code())
    }
}

const CLOSED_PIPE: &str = "closed pipe";

impl From<nestrace_bundle::Error> for Failure {
    fn from(error: nestrace_bundle::Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Options => USAGE,
            ErrorKind::Input => INPUT,
            ErrorKind::TooManyFiles => MISSING,
            _ => FAILURE,
        };
        let failure = Self::new(code, &error);
        match error.way_out() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(DONE, CLOSED_PIPE);
        }
        Self::caused(FAILURE, &error)
    }
}

/// A program from its arguments to its exit code: reads them, does what they ask for, and says what was in the way.
pub fn run<C: Parser>(command: impl FnOnce(C) -> Result<u8, Failure>) -> ExitCode {
    let cli = match C::try_parse() {
        Ok(cli) => cli,
        Err(error) => return of_usage(&error),
    };
    match command(cli) {
        Ok(code) => {
            say_held();
            ExitCode::from(code)
        }
        Err(failure) => failure.report(),
    }
}

/// Says what is wrong with a command line, or the help that it asks for. A closed pipe is success, and there is nowhere left to
/// report anything else.
fn of_usage(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { USAGE } else { DONE };
    let _ = error.print();
    ExitCode::from(code)
}

/// Lines that wait for what comes of the command.
static HELD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// One line on stderr. A terminal that is gone must not end a recording, so nothing comes of an error.
pub fn say(line: impl Display) {
    say_held();
    write_line(&line.to_string());
}

/// A line on stderr before the result or, where there is none, after the error: with that a failure begins.
pub fn hold(line: impl Display) {
    held().push(line.to_string());
}

/// Something to know of an input or a result, held like any such line.
pub fn note(line: impl Display) {
    hold(format_args!("note: {line}"));
}

/// Takes the notes of [`nestrace_bundle`].
pub fn noted(line: &dyn Display) {
    note(line);
}

/// Says what was held: it is known what comes of the command.
fn say_held() {
    let lines = mem::take(&mut *held());
    lines.iter().for_each(|line| write_line(line));
}

fn held() -> MutexGuard<'static, Vec<String>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(line));
}

/// Writes a result to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    say_held();
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}
