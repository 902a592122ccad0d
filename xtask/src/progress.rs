//! What is going on, on stderr, with the time since the start.

use std::time::Instant;

/// A clock that speaks.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts now.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// One line.
    pub fn say(&self, text: &str) {
        eprintln!("[{:6.1} s] {text}", self.start.elapsed().as_secs_f64());
    }
}

/// Runs a stage and prints when it begins and how long it took.
pub fn timed(name: &str, stage: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let start = Instant::now();
    println!("== {name}");
    stage()?;
    println!("== {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
