//! How soon a recording of many guests ends, and that a recorder that dies leaves its guest alone.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::recorder::Recorder;
use nix::sys::signal::Signal;
use xtask::case::Case;

use super::processes::Programs;
use crate::stage::{DISK, Stage, manifest};

const N_GUESTS: usize = 32;
/// The contract for a recording of so many guests.
const MAX_ENDING: Duration = Duration::from_secs(3);
const N_KILLS: usize = 100;

/// A QEMU that never starts its processor.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// 32 guests in one recording, each with twelve functions probed.
pub fn of_32_guests(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    let folder = Programs::folder()?;
    let mut guests = Vec::new();
    let mut words = vec!["record".to_owned()];
    for index in 0..N_GUESTS {
        let image = folder.path(&format!("{index}.img"));
        File::create(&image)?.set_len(1 << 20)?;
        let name = stage.ctx.guest_name(&format!("stopped-{index}"));
        let drive = format!("file={},format=raw,if=virtio", image.display());
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-name", &name, "-S", "-accel", "tcg", "-m", "32"])
            .args(["-nodefaults", "-display", "none", "-drive", &drive])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ends_with_us(&mut command, Signal::SIGKILL);
        guests.push(Stopped(command.spawn().context("start QEMU")?));
        words.extend(["--guest".to_owned(), name]);
    }
    // Each has its image open when it is up.
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_up = |guest: &Stopped| {
        let files = std::fs::read_dir(format!("/proc/{}/fd", guest.0.id()));
        files.is_ok_and(|files| {
            let mut links = files
                .flatten()
                .filter_map(|file| std::fs::read_link(file.path()).ok());
            links.any(|link| link.extension().is_some_and(|it| it == "img"))
        })
    };
    while !guests.iter().all(is_up) {
        ensure!(Instant::now() < deadline, "see all guests up");
        thread::sleep(Duration::from_millis(100));
    }
    let bundle = stage.ctx.bundle("32-guests");
    let mut command = Command::new(&stage.ctx.nestrace);
    command
        .args(&words)
        .args(["--agent", "off", "-o"])
        .arg(&bundle);
    let begin = Instant::now();
    let mut recorder = Recorder::spawn(command, false)?;
    recorder.wait_live(Duration::from_secs(60))?;
    let started = begin.elapsed();
    thread::sleep(Duration::from_secs(1));
    let end = recorder.stop(Signal::SIGINT, Duration::from_secs(120))?;
    case.holds("exit code 0", end.status.code() == Some(0), &end.stderr);
    case.holds(
        "it ends within 3 s",
        end.took < MAX_ENDING,
        &format!("{:.1} s", end.took.as_secs_f64()),
    );
    let manifest = manifest(&bundle)?;
    let probes = manifest
        .probes
        .iter()
        .filter(|probe| probe.source == "qemu")
        .count();
    case.holds(
        "QEMU is probed in each",
        probes >= N_GUESTS * 10,
        &probes.to_string(),
    );
    case.figure(format!(
        "{probes} probes, live after {:.2} s, ended in {:.2} s",
        started.as_secs_f64(),
        end.took.as_secs_f64()
    ));
    stage.ctx.discard(&bundle);
    Ok(())
}

/// Kills the recorder again and again while the guest writes and its agent records: the guest goes on each time.
pub fn killed_again_and_again(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.guest.start_agent("")?;
    stage.load()?;
    let mut slowest = Duration::ZERO;
    // Once at each of the moments, with --full four times.
    let n_kills = if stage.ctx.full { N_KILLS } else { N_KILLS / 4 };
    for kill in 0..n_kills {
        let bundle = stage.ctx.bundle("killed");
        let mut recording = stage.start(&[], &bundle, &[])?;
        recording.recorder.wait_live(Duration::from_secs(60))?;
        // At another moment each time.
        thread::sleep(Duration::from_millis(7 * (kill as u64 % 23)));
        recording.stop(Signal::SIGKILL)?;
        stage.ctx.discard(&bundle);
        let begin = Instant::now();
        let before = stage.guest.disk_stats(DISK)?.writes;
        let goes_on =
            || -> anyhow::Result<bool> { Ok(stage.guest.disk_stats(DISK)?.writes > before) };
        while !goes_on()? {
            ensure!(
                begin.elapsed() < Duration::from_secs(20),
                "see the guest write after kill {}",
                kill + 1
            );
            thread::sleep(Duration::from_millis(20));
        }
        slowest = slowest.max(begin.elapsed());
    }
    stage.rest()?;
    let runs = stage.guest.run("true", Duration::from_secs(10));
    case.holds("the guest answers", runs.is_ok(), "it does not");
    case.figure(format!(
        "{n_kills} kills, the guest wrote on within {:.2} s",
        slowest.as_secs_f64()
    ));
    Ok(())
}
