//! A QEMU without a guest, stopped, in a folder of its own: enough to be found.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::recorder;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::context::LiveContext;

/// What QEMU may take to open its images.
pub const UP: Duration = Duration::from_secs(20);

/// A QEMU without a guest in a folder of its own.
pub struct Stopped<'a> {
    ctx: &'a LiveContext,
    name: String,
    folder: tempfile::TempDir,
    qemu: Option<Child>,
}

impl<'a> Stopped<'a> {
    /// One that does not run yet.
    pub fn new(ctx: &'a LiveContext) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-images-")
            .tempdir()
            .context("make a folder for images")?;
        Ok(Self {
            ctx,
            name: ctx.guest_name("images"),
            folder,
            qemu: None,
        })
    }

    /// The guest's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of a file in its folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Runs a script in the folder.
    pub fn sh(&self, script: &str) -> anyhow::Result<()> {
        let tool = Tool::new("sh").args(["-c", script]);
        tool.current_dir(self.folder.path()).run()?;
        Ok(())
    }

    /// Starts QEMU, whose arguments and redirections a shell reads, in the folder.
    pub fn start(&mut self, arguments: &str, with_qmp: bool) -> anyhow::Result<()> {
        let _ = std::fs::remove_file(self.folder.path().join("qmp"));
        let qmp = match with_qmp {
            true => "-qmp unix:qmp,server=on,wait=off",
            false => "",
        };
        self.run(&format!(
            "exec qemu-system-x86_64 -name guest={} -accel tcg -m 64 -display none -S {qmp} {arguments}",
            self.name
        ))
    }

    /// Starts what a shell reads, in the folder.
    pub fn run(&mut self, line: &str) -> anyhow::Result<()> {
        self.stop();
        let qemu = Command::new("bash")
            .args(["-c", line])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start QEMU")?;
        self.qemu = Some(qemu);
        Ok(())
    }

    /// The paths of each disk's images, top first, as soon as there are so many disks.
    pub fn images(&self, n_disks: usize) -> anyhow::Result<Vec<(String, Vec<String>)>> {
        let deadline = Instant::now() + UP;
        loop {
            let disks = self.disks()?;
            let with_images = disks.iter().filter(|(_, images)| !images.is_empty());
            if with_images.count() >= n_disks || Instant::now() > deadline {
                return Ok(disks);
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// The same of the disks that there are now.
    pub fn disks(&self) -> anyhow::Result<Vec<(String, Vec<String>)>> {
        let arguments = ["guests", "--json", "--guest", &self.name];
        let end = recorder::nestrace(&self.ctx.nestrace, &arguments)?;
        // It has not come up.
        if end.code != Some(0) {
            return Ok(Vec::new());
        }
        let list: Value = serde_json::from_str(&end.stdout).context("read the list of guests")?;
        let disks = list["guests"][0]["disks"].as_array();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let disk = |disk: &Value| {
            let images = disk["images"].as_array().into_iter().flatten();
            let paths = images.map(|image| text(&image["path"])).collect();
            (text(&disk["name"]), paths)
        };
        Ok(disks.into_iter().flatten().map(disk).collect())
    }

    /// Ends it.
    pub fn stop(&mut self) {
        if let Some(mut qemu) = self.qemu.take() {
            // Children of a wrapper too.
            let group = Pid::from_raw(qemu.id().cast_signed());
            let _ = killpg(group, Signal::SIGKILL);
            let _ = qemu.wait();
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}
