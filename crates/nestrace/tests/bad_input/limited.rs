//! Runs the command with limits that a healthy run never meets.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use nix::sys::resource::{UsageWho, getrusage};

/// Address space of a run. A process that asks for more aborts, and the test fails.
pub const ADDRESS_SPACE: u64 = 2 << 30;
/// Memory that runs on small inputs may hold: a window of events to be ordered is 60 MiB of it.
pub const RESIDENT_KIB: i64 = 400 << 10;
/// A run that takes longer hangs: these end within a second on an idle machine.
const SECONDS: &str = "120";

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    pub words: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `nestrace WORDS…`. No input comes from stdin, and none may be waited for.
pub fn nestrace<S: AsRef<OsStr>>(words: &[S]) -> Outcome {
    run(words, "unlimited")
}

/// The same on a disk that is full as soon as one file has so many bytes.
pub fn nestrace_on_full_disk<S: AsRef<OsStr>>(file_bytes: u64, words: &[S]) -> Outcome {
    run(words, &file_bytes.to_string())
}

fn run<S: AsRef<OsStr>>(words: &[S], file_bytes: &str) -> Outcome {
    let output = Command::new("timeout")
        .args(["--signal=KILL", SECONDS])
        // A write beyond the limit is an error, not the end of the process.
        .args(["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh", "prlimit"])
        .arg(format!("--as={ADDRESS_SPACE}"))
        .arg(format!("--fsize={file_bytes}"))
        .arg(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("timeout and prlimit run");
    let words: Vec<_> = words
        .iter()
        .map(|word| word.as_ref().to_string_lossy())
        .collect();
    Outcome {
        words: words.join(" "),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Outcome {
    /// Done, or bad input with one clear line: never anything else.
    pub fn check(&self) -> &Self {
        let Self { code, stderr, .. } = self;
        assert!(matches!(code, Some(0 | 3)), "{self:#?}");
        assert!(!stderr.contains("panicked"), "{self:#?}");
        let failures = stderr.lines().filter(|line| line.starts_with("nestrace: "));
        let expected = usize::from(*code == Some(3));
        assert_eq!(failures.count(), expected, "{self:#?}");
        if *code == Some(3) {
            assert!(self.stdout.is_empty(), "{self:#?}");
            let long = stderr.lines().filter(|line| line.len() > 500);
            assert_eq!(long.count(), 0, "{self:#?}");
        }
        self
    }

    /// Bad input.
    pub fn refused(&self) -> &Self {
        self.check();
        assert_eq!(self.code, Some(3), "{self:#?}");
        self
    }

    /// The command read it and reported what is missing.
    pub fn done(&self) -> &Self {
        self.check();
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// The analysis, without the name of the input.
    pub fn analysis(&self) -> serde_json::Value {
        self.done();
        let mut json: serde_json::Value = serde_json::from_str(&self.stdout).expect("JSON");
        json["trace"]["path"].take();
        json
    }
}

/// The most memory that any run of this test program has held so far, KiB.
pub fn peak_kib() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .expect("a figure")
        .max_rss()
}
