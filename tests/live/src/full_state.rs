//! Which cases of a full matrix passed, for this commit: a run that was cut goes on where it stopped.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;
use xtask::cargo_build::workspace;

/// What passed, and the file that remembers it.
pub struct FullState {
    path: PathBuf,
    commit: String,
    passed: BTreeSet<String>,
}

impl FullState {
    /// What earlier runs of the same commit left in `target/NAME.txt`.
    pub fn read(name: &str) -> anyhow::Result<Self> {
        let path = workspace().join("target").join(name).with_extension("txt");
        let head = Command::new("git")
            .args(["rev-parse", "HEAD"])
            .current_dir(workspace())
            .output()
            .context("ask git for the commit")?;
        let commit = String::from_utf8_lossy(&head.stdout).trim().to_owned();
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text.lines();
        // Another commit's results say nothing about this one.
        let passed = match lines.next() {
            Some(first) if first == commit => lines.map(str::to_owned).collect(),
            _ => BTreeSet::new(),
        };
        Ok(Self {
            path,
            commit,
            passed,
        })
    }

    /// How many passed.
    pub fn n_passed(&self) -> usize {
        self.passed.len()
    }

    /// Whether a case passed.
    pub fn has(&self, case: &str) -> bool {
        self.passed.contains(case)
    }

    /// Notes that a case passed.
    pub fn add(&mut self, case: &str) -> anyhow::Result<()> {
        self.passed.insert(case.to_owned());
        let lines: Vec<&str> = std::iter::once(self.commit.as_str())
            .chain(self.passed.iter().map(String::as_str))
            .collect();
        let unfinished = self.path.with_extension("unfinished");
        std::fs::write(&unfinished, lines.join("\n") + "\n").context("note what passed")?;
        std::fs::rename(&unfinished, &self.path).context("note what passed")
    }
}
