//! The screen of `nestrace top` in a real terminal: tmux draws it, presses its keys, and knows what it leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::external_tool::{Tool, ToolError};
use nestrace_rig::guest::Guest;
use nestrace_rig::packages;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::case::Case;

use super::{DISKS, LiveContext, PATIENCE};

/// What the terminal runs: the screen, with the terminal's modes before and after it.
const SCRIPT: &str = "\
cd \"$1\"
stty -g > before
sh -c 'echo $$ > pid; exec \"$@\"' sh \"$2\" top --guest \"$3\" 2> stderr
echo $? > code
stty -g > after
mv after ended
exec sleep 600
";

/// A terminal with the screen in it. Dropping it ends both.
struct Pane {
    socket: String,
    folder: PathBuf,
}

impl Pane {
    fn open(ctx: &LiveContext, guest: &Guest, name: &str) -> anyhow::Result<Self> {
        let folder = ctx.bundle(name);
        fs::create_dir(&folder).context("make a folder for the terminal")?;
        fs::write(folder.join("script"), SCRIPT).context("write the terminal's script")?;
        let pane = Self {
            socket: ctx.guest_name(name),
            folder,
        };
        pane.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "200",
            "-y",
            "50",
        ])
        .args(["sh", &pane.file("script"), &pane.file("")])
        .arg(&ctx.nestrace)
        .arg(guest.name())
        .run()
        .context("start tmux")?;
        Ok(pane)
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// A server of its own, which no user's configuration reaches.
    fn tmux(&self, arguments: &[&str]) -> Tool {
        Tool::new("tmux")
            .env("LC_ALL", "C.UTF-8")
            .args(["-u", "-L", &self.socket])
            .args(arguments)
    }

    fn say(&self, arguments: &[&str]) -> Result<String, ToolError> {
        self.tmux(arguments).run()
    }

    fn press(&self, key: &str) -> Result<String, ToolError> {
        self.say(&["send-keys", key])
    }

    fn screen(&self) -> Result<String, ToolError> {
        self.say(&["capture-pane", "-p"])
    }

    /// Waits until the screen says so; gives the last one.
    fn wait_for(&self, says: impl Fn(&str) -> bool) -> anyhow::Result<(bool, String)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen()?;
            let is_so = says(&screen);
            if is_so || Instant::now() > deadline {
                return Ok((is_so, screen));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether the terminal shows a second screen, and a cursor.
    fn state(&self) -> Result<String, ToolError> {
        let state = self.say(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])?;
        Ok(state.trim().to_owned())
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        fs::read_to_string(self.folder.join(name)).with_context(|| format!("read {name}"))
    }

    /// Asserts that the screen has ended well, and that the terminal is as it was.
    fn assert_as_it_was(&self, case: &mut Case, after: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.folder.join("ended").exists() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(100));
        }
        case.equal(
            &format!("{after}: the exit code"),
            self.read("code")?.trim().to_owned(),
            "0".to_owned(),
        );
        case.equal(
            &format!("{after}: the terminal's modes"),
            self.read("ended")?,
            self.read("before")?,
        );
        case.equal(
            &format!("{after}: one screen, with a cursor"),
            self.state()?,
            "0 1".to_owned(),
        );
        Ok(())
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        // Where it has not started there is no server.
        let _ = self.tmux(&["kill-server"]).for_clean_up().run();
    }
}

/// The figures of a row of this disk: those between its name and the end of the line.
fn figures<'a>(screen: &'a str, disk: &str) -> Option<Vec<&'a str>> {
    let line = screen.lines().find(|line| {
        let name = line.split_whitespace().next();
        name.is_some_and(|name| name.ends_with(&format!("/{disk}")))
    })?;
    Some(line.split_whitespace().skip(1).collect())
}

/// Figures, keys, another size, a recording, and the end by Ctrl-C and by SIGTERM.
pub fn screen(ctx: &LiveContext, case: &mut Case, guest: &Guest) -> anyhow::Result<()> {
    packages::install_programs(&[("tmux", "tmux")], |line| ctx.progress.say(line))?;
    let (disk, _) = DISKS[0];
    let load = format!(
        "fio --name=s --filename={} --direct=1 --ioengine=libaio --iodepth=4 --bs=4k --rw=randrw --time_based \
         --runtime=25 --output=/dev/null",
        guest.device_of(disk)?
    );
    let running = guest.start(&load, PATIENCE)?;
    let pane = Pane::open(ctx, guest, "screen")?;
    // Its device, and reads and writes a second.
    let has_rates = |screen: &str| {
        figures(screen, disk).is_some_and(|figures| {
            let mut rates = figures.iter().skip(1).take(2);
            rates.all(|rate| rate.parse::<f64>().is_ok_and(|rate| rate > 0.0))
        })
    };
    let (seen, text) = pane.wait_for(has_rates)?;
    case.holds("figures of the disk under load", seen, &text);
    let has_layers = |screen: &str| screen.contains("layers, last interval");
    case.holds(
        "200 columns have the table of layers",
        has_layers(&text),
        &text,
    );
    case.equal(
        "a second screen, without a cursor",
        pane.state()?,
        "1 0".to_owned(),
    );
    pane.press("m")?;
    let (seen, text) = pane.wait_for(|screen| screen.contains("latency: p99"))?;
    case.holds("m shows the 99th percentile", seen, &text);
    pane.say(&["resize-window", "-x", "80", "-y", "24"])?;
    let is_small = |screen: &str| screen.contains("q quit") && !has_layers(screen);
    let (seen, text) = pane.wait_for(is_small)?;
    let longest = text.lines().map(|line| line.chars().count()).max();
    case.holds("80 columns", seen && longest <= Some(80), &text);
    answer(case, &pane, &pane.folder)?;
    pane.press("C-c")?;
    pane.assert_as_it_was(case, "Ctrl-C")?;
    ctx.discard(&pane.folder);
    drop(pane);

    let pane = Pane::open(ctx, guest, "screen-terminated")?;
    let (seen, text) = pane.wait_for(|screen| screen.contains("q quit"))?;
    case.holds("it is shown again", seen, &text);
    let pid = pane.read("pid")?.trim().parse().context("read the pid")?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).context("end the screen")?;
    pane.assert_as_it_was(case, "SIGTERM")?;
    ctx.discard(&pane.folder);
    running.wait()?;
    Ok(())
}

/// A key records the guest, and the answer is read in the screen.
fn answer(case: &mut Case, pane: &Pane, folder: &Path) -> anyhow::Result<()> {
    pane.press("e")?;
    let (seen, text) = pane.wait_for(|screen| screen.contains(" s left"))?;
    case.holds("e records", seen, &text);
    thread::sleep(Duration::from_secs(2));
    pane.press("x")?;
    let is_answer =
        |screen: &str| screen.starts_with("nestrace analyze") && screen.contains("In short");
    let (seen, text) = pane.wait_for(is_answer)?;
    case.holds("its answer is shown", seen, &text);
    pane.press("q")?;
    let (seen, text) = pane.wait_for(|screen| screen.contains("q quit"))?;
    case.holds("q closes the answer", seen, &text);
    let entries = fs::read_dir(folder).context("list the folder")?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let n = names.filter(|name| Path::new(name).extension().is_some_and(|it| it == "nest"));
    case.equal("recordings in the folder", n.count(), 1);
    Ok(())
}
