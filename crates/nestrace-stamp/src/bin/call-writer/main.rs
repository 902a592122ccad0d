//! Runs a script of calls on files, logs each with the time before and after it, and stamps the data that it writes;
//! see [`nestrace_stamp`].
//!
//! ```text
//! call-writer SCRIPT LOG
//! ```
//!
//! A line of the script is the number of a thread and what that does:
//!
//! ```text
//! 0 open NAME PATH NUMBER [create] [direct] [sync] [dsync]   NUMBER: of the file, in stamps
//! 0 write|read NAME OFFSET BYTES
//! 0 aio-write|aio-read NAME OFFSET BYTES COUNT DEPTH         COUNT pieces in a row, DEPTH of them in flight
//! 0 ring-write|ring-read NAME OFFSET BYTES COUNT DEPTH       the same by io_uring
//! 0 map-write NAME OFFSET BYTES                              through a mapping, then msync
//! 0 fsync|fdatasync|ring-fsync NAME
//! 0 drop                                                     the page cache
//! 0 pause MILLISECONDS
//! ---                                                        waits for all threads
//! ```

mod aio;
mod deed;
mod mapping;
mod queue;
mod ring;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;
use std::thread;

use deed::{Deed, Files};
use nestrace_stamp::CallLine;
use nix::time::{ClockId, clock_gettime};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let result = match words.as_slice() {
        [script, log] => run(script, log),
        _ => Err(wrong("expected SCRIPT LOG")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("call-writer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text.into())
}

/// What each thread does until the threads wait for each other.
type Stretch = BTreeMap<u32, Vec<Deed>>;

fn run(script: &str, log: &str) -> io::Result<()> {
    let text = fs::read_to_string(script)?;
    let files = Files::default();
    let mut lines = Vec::new();
    for stretch in stretches(&text)? {
        match stretch.len() {
            1 => {
                for deeds in stretch.into_values() {
                    lines.extend(all(&files, &deeds)?);
                }
            }
            _ => lines.extend(at_once(&files, &stretch)?),
        }
    }
    let mut file = BufWriter::new(File::create(log)?);
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

fn stretches(text: &str) -> io::Result<Vec<Stretch>> {
    let mut stretches = vec![Stretch::new()];
    for (step, line) in (1..).zip(text.lines()) {
        if line == "---" {
            stretches.push(Stretch::new());
            continue;
        }
        let failed = || wrong(format!("line {step}: {line}"));
        let (thread, deed) = line.split_once(' ').ok_or_else(failed)?;
        let thread = thread.parse().map_err(|_| failed())?;
        let deed = Deed::parse(step, deed).ok_or_else(failed)?;
        if let Some(stretch) = stretches.last_mut() {
            stretch.entry(thread).or_default().push(deed);
        }
    }
    Ok(stretches)
}

fn at_once(files: &Files, stretch: &Stretch) -> io::Result<Vec<CallLine>> {
    let logs: Vec<io::Result<Vec<CallLine>>> = thread::scope(|scope| {
        let threads: Vec<_> = stretch
            .values()
            .map(|deeds| scope.spawn(move || all(files, deeds)))
            .collect();
        let died = |_| Err(io::Error::other("a thread died"));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(died))
            .collect()
    });
    let logs: Vec<Vec<CallLine>> = logs.into_iter().collect::<io::Result<_>>()?;
    Ok(logs.into_iter().flatten().collect())
}

/// Does one thing after the other.
fn all(files: &Files, deeds: &[Deed]) -> io::Result<Vec<CallLine>> {
    let mut log = Vec::new();
    for deed in deeds {
        let step = deed.step;
        deed.perform(files, &mut log)
            .map_err(|error| io::Error::other(format!("line {step}: {error}")))?;
    }
    Ok(log)
}

fn monotonic_ns() -> io::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
