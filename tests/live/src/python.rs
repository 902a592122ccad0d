//! Readers from PyPI, in a virtual environment of their own.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use nestrace_rig::external_tool::{Tool, last_lines};
use nestrace_rig::{cache_dir, packages};
use serde_json::Value;

/// Debian's; the wheels are for it.
const PYTHON: &str = "/usr/bin/python3";
/// What Debian leaves out of Python.
const PACKAGE: &str = "python3-venv";

/// Come as sources of Python alone: nothing is compiled.
const NO_WHEELS: &str = "pyspark";

/// An environment with these releases (`name==version`).
#[derive(Clone, Copy, Debug)]
pub struct Python(pub &'static [&'static str]);

impl Python {
    /// Makes the environment unless an earlier run did.
    pub fn prepare(self, say: impl Fn(&str)) -> anyhow::Result<()> {
        // What was made elsewhere and moved works as long as it is called by the name of its python.
        cache_dir::entry(&cache_dir::root()?, &self.name(), |folder| {
            say(&format!("installing {}", self.0.join(" ")));
            packages::install_packages(&[PACKAGE], &say)?;
            Tool::new(PYTHON).args(["-m", "venv"]).arg(folder).run()?;
            let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
            let python = folder.join("bin/python");
            Tool::new(&python.to_string_lossy())
                .args(pip)
                .args(["--only-binary", ":all:", "--no-binary", NO_WHEELS])
                .args(self.0)
                .run()?;
            anyhow::Ok(())
        })?;
        Ok(())
    }

    /// Of a folder for these releases.
    fn name(self) -> String {
        format!("python-{}", self.0.join("-").replace("==", "-"))
    }

    /// What a program prints as JSON when it is given a file or folder, or what it is to do.
    pub fn read(self, program: &str, what: &Path) -> anyhow::Result<Value> {
        let python = cache_dir::root()?.join(self.name()).join("bin/python");
        let output = Command::new(python)
            .args(["-c", program])
            .arg(what)
            .output()
            .context("start python")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "read {} back: {}",
            what.display(),
            last_lines(&stderr, 5)
        );
        serde_json::from_slice(&output.stdout).context("read what was read back")
    }
}
