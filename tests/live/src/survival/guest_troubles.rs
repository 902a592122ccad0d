//! What happens to a guest while it is recorded.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use nestrace_trace::manifest::Notice;
use nestrace_trace::{Event, Kind};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use xtask::case::Case;

use crate::analysis::{entry, number};
use crate::stage::{
    CLOSED, DISK, Ended, LIVE, SPARE_DISK, Stage, events_so_far, has_notice, manifest,
};

/// How long a guest is paused.
const PAUSE: Duration = Duration::from_millis(700);

/// The guest is reset and boots again: the recording goes on and has the I/O of both lives.
pub fn reset(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(500));
    let began_ns = crate::stage::monotonic_ns()?;
    stage.guest.qmp("system_reset", Value::Null)?;
    stage.guest.wait_for_reboot()?;
    let booted_ns = crate::stage::monotonic_ns()?;
    stage.load()?;
    thread::sleep(Duration::from_millis(500));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let events = events_so_far(&ended.bundle)?;
    let after = events
        .iter()
        .filter(|event| event.ts_ns > booted_ns)
        .count();
    let before = events.len() - after;
    case.holds(
        "I/O of the guest's first life",
        before > 100,
        &before.to_string(),
    );
    case.holds("I/O of its second", after > 100, &after.to_string());
    case.figure(format!("{before} events up to the boot, {after} after it"));
    let notices = manifest(&ended.bundle)?.notices;
    let resets: Vec<&Notice> = notices
        .iter()
        .filter(|notice| notice.what == "guest_reset")
        .collect();
    let Some((first, further)) = resets.split_first() else {
        bail!("find a notice guest_reset in {notices:?}");
    };
    is_notice(case, first, "(host-qmp-system-reset)", began_ns..booted_ns);
    // The firmware resets the machine itself where it finds that it has run before.
    for notice in further {
        is_notice(case, notice, "(guest-reset)", began_ns..booted_ns);
    }
    case.figure(format!("{} resets", resets.len()));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The guest is paused and goes on: two notices say when, and nothing of the guest lies between them.
pub fn paused(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(500));
    let began_ns = crate::stage::monotonic_ns()?;
    stage.guest.qmp("stop", Value::Null)?;
    let stopped_ns = crate::stage::monotonic_ns()?;
    thread::sleep(PAUSE);
    stage.guest.qmp("cont", Value::Null)?;
    let went_on_ns = crate::stage::monotonic_ns()?;
    thread::sleep(Duration::from_millis(500));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    let notices = manifest(&ended.bundle)?.notices;
    let span = began_ns..went_on_ns;
    let paused_ns = notice_in(case, &notices, "guest_paused", "(paused)", span.clone());
    let resumed_ns = notice_in(case, &notices, "guest_resumed", "(running)", span);
    let apart = Duration::from_nanos(resumed_ns.saturating_sub(paused_ns));
    case.holds(
        "the pause is as long as it was",
        apart >= PAUSE,
        &format!("{apart:?}"),
    );
    // When its processors stand still QEMU still takes up what they had asked for (`virtio_bus_cleanup_host_notifier()`), and
    // waits for all I/O before it answers.
    let events = events_so_far(&ended.bundle)?;
    let requests = |span: std::ops::Range<u64>| {
        let begins =
            |event: &&Event| event.kind() == Some(Kind::AcctStart) && span.contains(&event.ts_ns);
        events.iter().filter(begins).count()
    };
    case.equal(
        "requests while it was paused",
        requests(stopped_ns..resumed_ns),
        0,
    );
    let after = requests(resumed_ns..u64::MAX);
    case.holds("requests after it", after > 10, &after.to_string());
    case.figure(format!("paused for {apart:?}"));
    let text = stage.text(&ended.bundle)?;
    case.holds(
        "the text tells of the pause",
        text.contains("was stopped (paused)"),
        &text,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The one notice of a kind that ends with these words and is of that time; when it was.
fn notice_in(
    case: &mut Case,
    notices: &[Notice],
    what: &str,
    words: &str,
    span: std::ops::Range<u64>,
) -> u64 {
    let of_kind: Vec<&Notice> = notices
        .iter()
        .filter(|notice| notice.what == what)
        .collect();
    case.equal(&format!("notices {what}"), of_kind.len(), 1);
    let Some(notice) = of_kind.first() else {
        return 0;
    };
    is_notice(case, notice, words, span);
    notice.mono_ns
}

fn is_notice(case: &mut Case, notice: &Notice, words: &str, span: std::ops::Range<u64>) {
    let what = &notice.what;
    case.holds(
        &format!("{what}: why"),
        notice.message.ends_with(words),
        &notice.message,
    );
    case.holds(
        &format!("{what}: when"),
        span.contains(&notice.mono_ns),
        &format!("{}, expected {span:?}", notice.mono_ns),
    );
}

/// A disk is unplugged: a notice says so, and the other disk goes on.
pub fn unplug(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let spare = stage.guest.device_of(SPARE_DISK)?;
    let recording = stage.record(&[])?;
    let write = format!("dd if=/dev/zero of={spare} bs=64k count=32 oflag=direct 2> /dev/null");
    stage.guest.run_ok(&write, Duration::from_secs(20))?;
    stage.guest.qmp("device_del", json!({ "id": SPARE_DISK }))?;
    let deadline = Instant::now() + Duration::from_secs(15);
    while stage.guest.device_of(SPARE_DISK).is_ok() {
        if Instant::now() > deadline {
            bail!("see the guest let go of its disk");
        }
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(Duration::from_millis(1500));
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    let removed = manifest
        .notices
        .iter()
        .find(|notice| notice.what == "disk_removed");
    case.holds(
        "a notice names the disk that was removed",
        removed.is_some_and(|notice| notice.message.contains(SPARE_DISK)),
        &ended.end.stderr,
    );
    let guest = stage.guest.name();
    for (disk, least) in [(SPARE_DISK, 32 * 65536), (DISK, 4096)] {
        let keys = [("guest", guest), ("disk", disk)];
        let written = number(entry(&analysis, "qemu", &keys)?, "/bytes/write")?;
        case.holds(
            &format!("bytes written to {disk}"),
            written >= least,
            &written.to_string(),
        );
    }
    if let Some(removed) = removed {
        let after = events_so_far(&ended.bundle)?;
        let after = after
            .iter()
            .filter(|event| event.ts_ns > removed.mono_ns)
            .count();
        case.holds("the other disk goes on", after > 100, &after.to_string());
        case.figure(format!("{:?}, {after} events after it", removed.message));
    }
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// QEMU is killed: the recording ends by itself.
pub fn killed(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    ends_with_guest(stage, case, || {
        kill(Pid::from_raw(stage.guest.pid() as i32), Signal::SIGKILL)?;
        Ok(())
    })
}

/// QEMU ends in order.
pub fn exited(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    ends_with_guest(stage, case, || {
        stage.guest.qmp("quit", Value::Null)?;
        Ok(())
    })
}

fn ends_with_guest(
    stage: &Stage<'_>,
    case: &mut Case,
    end_guest: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    stage.load()?;
    let recording = stage.record(&[])?;
    thread::sleep(Duration::from_millis(700));
    end_guest()?;
    let gone = Instant::now();
    let ended: Ended = recording.wait(LIVE)?;
    let took = gone.elapsed();
    case.holds(
        "ends within 10 s",
        took < CLOSED,
        &format!("{:.1} s", took.as_secs_f64()),
    );
    case.figure(format!("ended {:.2} s after QEMU", took.as_secs_f64()));
    stage.ended_well(case, &ended, "guest_exited")?;
    let manifest = manifest(&ended.bundle)?;
    case.holds(
        "a notice says that the guest exited",
        has_notice(&manifest, "guest_exited"),
        &ended.end.stderr,
    );
    stage.ctx.discard(&ended.bundle);
    Ok(())
}
