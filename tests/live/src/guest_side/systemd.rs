//! The unit and the udev rule that are given to users: a real systemd is the first process of the guest, the port starts the
//! agent in the unit's confinement, a recording sees all that it should, and what is killed comes back.
//!
//! systemd and udev are this machine's own, seen over 9p.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nestrace_rig::guest::{Guest, GuestSpec};
use nestrace_rig::machine_root::{self, ROOT};
use nestrace_rig::stack::GuestFsKind;
use nestrace_trace::{Kind, Source};
use nix::sys::signal::Signal;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::sides::{events_so_far, sides, wait_agent};
use crate::context::LiveContext;
use crate::direct_io_link::stream_events;
use crate::stage::{SPARE_DISK, Stage};

const UNIT: &str = "nestrace-agent.service";
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a translated guest may take for systemd and for the verifier.
const UP: Duration = Duration::from_secs(180);

/// Puts the three files where docs/agent.md says, and lets nothing of this machine start but what brings up a unit.
const INSTALL: &str = "set -e
mkdir -p ROOT/etc/systemd/system-generators ROOT/run/agent
cp /usr/bin/nestrace-agent /opt/nestrace-agent.service /opt/99-nestrace-agent.rules ROOT/run/agent/
chroot ROOT sh -e -c 'cd /run/agent
  install -m 755 nestrace-agent /usr/local/bin/
  install -m 644 nestrace-agent.service /etc/systemd/system/
  install -m 644 99-nestrace-agent.rules /etc/udev/rules.d/'
cd ROOT/etc/systemd/system
for generator in ROOT/lib/systemd/system-generators/*; do
  ln -sf /dev/null ../system-generators/${generator##*/}
done
for wanted in ROOT/lib/systemd/system/*.wants/* *.wants/*; do
  unit=${wanted##*/}
  case $unit in *.target | systemd-udevd* | nestrace-*) continue ;; esac
  ln -sf /dev/null $unit
done
cat > /run/successor <<'END'
#!/bin/busybox sh
exec chroot ROOT /lib/systemd/systemd --unit=basic.target --show-status=0
END
chmod 755 /run/successor
kill -USR1 1";

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/systemd", |case| unit(ctx, case))?;
    Ok(())
}

fn unit(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let agent = ctx.agent()?.to_owned();
    let packaged = |name: &str| {
        (
            format!("/opt/{name}"),
            workspace().join("packaging").join(name),
        )
    };
    let stage = Stage::boot_as(ctx, "systemd", |spec| GuestSpec {
        agent: Some(agent),
        files: [UNIT, "99-nestrace-agent.rules"].map(packaged).to_vec(),
        modules: machine_root::MODULES.map(str::to_owned).to_vec(),
        extra_arguments: machine_root::arguments().to_vec(),
        memory_mib: 1024,
        ..spec
    })?;
    let guest = &stage.guest;
    guest.run_ok(&machine_root::mount_script(), PATIENCE)?;
    guest.run_ok(&INSTALL.replace("ROOT", ROOT), PATIENCE)?;
    wait_until(guest, "systemctl is-active basic.target", "active")?;
    let first = guest.run_ok("cat /proc/1/comm", PATIENCE)?.stdout;
    case.equal("the first process", first.trim(), "systemd");
    let before = property(guest, "ActiveState")?;
    case.equal(
        "the unit before its port is seen",
        before.as_str(),
        "inactive",
    );
    in_root(
        guest,
        "udevadm trigger --action=add --subsystem-match=virtio-ports",
    )?;
    wait_until(guest, &format!("systemctl is-active {UNIT}"), "active")?;

    // What systemd's own processes see, the agent sees.
    let place = format!("{ROOT}/mnt/later");
    guest.run_ok("load ext4", PATIENCE)?;
    guest.make_fs(SPARE_DISK, GuestFsKind::Ext4)?;
    let mut recording = stage.record(&[])?;
    wait_agent(&stage, &mut recording)?;
    guest.mount(SPARE_DISK, GuestFsKind::Ext4, &place, "")?;
    let write = &format!(
        "for n in $(seq 200); do \
                 dd if=/dev/zero of={place}/$n bs=4k count=4 conv=fsync 2> /dev/null; done"
    );
    // The agent looks once a second whether something was mounted.
    thread::sleep(Duration::from_secs(2));
    guest.run_ok(write, PATIENCE)?;
    let pid = property(guest, "MainPID")?;
    in_root(guest, &format!("systemctl kill --signal=KILL {UNIT}"))?;
    wait_until(guest, &format!("systemctl show -P NRestarts {UNIT}"), "1")?;
    wait_until(guest, &format!("systemctl is-active {UNIT}"), "active")?;
    let other = property(guest, "MainPID")?;
    case.holds(
        "another process after a kill",
        other != pid && other != "0",
        &other,
    );
    let before = events_so_far(&recording.bundle)?;
    let deadline = Instant::now() + UP;
    while events_so_far(&recording.bundle)? < before + 200 {
        ensure!(
            Instant::now() < deadline,
            "see events of the second process"
        );
        guest.run_ok(write, PATIENCE)?;
    }
    guest.unmount(&place)?;
    // It has seen that too, and the mount is listed all the same.
    thread::sleep(Duration::from_secs(2));
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    look_at(case, &ended.bundle)?;
    let memory: u64 = property(guest, "MemoryCurrent")?
        .parse()
        .context("read the unit's memory")?;
    case.figure(format!("the unit held {} MiB", memory >> 20));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// What the agent does without confinement it does within: BPF and the calls of programs; nothing is refused to it but what
/// the kernel has not.
fn look_at(case: &mut Case, bundle: &Path) -> anyhow::Result<()> {
    let sides = sides(bundle)?;
    let (side, n) = sides.first().context("find the guest's side")?;
    case.equal("backend", side.backend.as_str(), "ebpf");
    case.holds("events", *n > 1000, &n.to_string());
    let of = |source: Source| {
        side.probes
            .iter()
            .filter(|probe| probe.source == source.name())
            .count()
    };
    case.holds("probes of calls", of(Source::File) > 0, "none");
    let gaps = side.gaps.len();
    case.holds("the kill is reported", gaps > 0, "no gap");
    let calls = stream_events(bundle, &side.file)?;
    let calls = calls
        .iter()
        .filter(|event| event.kind() == Some(Kind::SyscallEnter))
        .count();
    case.holds(
        "calls on the mount that came later",
        calls >= 200,
        &calls.to_string(),
    );
    let is_ext4 = side.mounts.iter().any(|mount| mount.fs_type == "ext4");
    case.holds("the mount that came later", is_ext4, "not named");
    for refused in &side.probes_refused {
        let why = &refused.reason;
        let is_absent = why.contains("is not loaded") || why.contains("has no tracepoint");
        case.holds(&format!("{} is not there", refused.name), is_absent, why);
    }
    case.figure(format!(
        "{n} events, {} probes absent",
        side.probes_refused.len()
    ));
    Ok(())
}

fn in_root(guest: &Guest, command: &str) -> anyhow::Result<String> {
    Ok(guest
        .run_ok(&format!("chroot {ROOT} {command}"), PATIENCE)?
        .stdout)
}

fn property(guest: &Guest, name: &str) -> anyhow::Result<String> {
    Ok(in_root(guest, &format!("systemctl show -P {name} {UNIT}"))?
        .trim()
        .to_owned())
}

/// Waits until a command in the root says this.
fn wait_until(guest: &Guest, command: &str, wanted: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + UP;
    loop {
        let said = guest
            .run(&format!("chroot {ROOT} {command} 2>&1"), PATIENCE)?
            .stdout;
        if said.trim() == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            let state = guest.run(
                &format!(
                    "chroot {ROOT} systemctl status --no-pager {UNIT} 2>&1; dmesg | tail -n 40"
                ),
                PATIENCE,
            )?;
            bail!(
                "hear `{wanted}` of `{command}`, not `{}`: {}{}",
                said.trim(),
                state.stdout,
                guest.console()
            );
        }
        thread::sleep(Duration::from_millis(500));
    }
}
