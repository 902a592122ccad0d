//! What stops QEMU as a whole: signals, debuggers, cgroups, and its own run state.

use super::chain::holder;
use super::{Holder, HolderKind, Trouble, Verdict};
use crate::facts::{GuestFacts, ThreadFacts};
use crate::words::{count, since};

/// A process that is stopped.
pub(super) fn troubles(guest: &GuestFacts) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    if let Some(cgroup) = &guest.cgroup.frozen {
        troubles.push(Trouble {
            verdict: Verdict::Stuck,
            sentence: format!(
                "{} is frozen with the cgroup {cgroup} (cgroup.freeze or freezer.state)",
                guest.name
            ),
            holder: Some(holder(HolderKind::CgroupFreezer, cgroup)),
            ..Trouble::default()
        });
    }
    if guest.is_stopped {
        let ns = oldest(guest, "T");
        troubles.push(Trouble {
            verdict: Verdict::Stuck,
            sentence: format!(
                "{}'s QEMU is stopped by a signal{}; kill -CONT {} starts it again",
                guest.name,
                since(ns),
                guest.pid
            ),
            holder: Some(Holder {
                pid: Some(guest.pid),
                ..holder(HolderKind::Signal, "SIGSTOP")
            }),
            since_ns: ns,
            ..Trouble::default()
        });
    }
    troubles.extend(traced(guest));
    troubles
}

/// Threads that a debugger holds.
fn traced(guest: &GuestFacts) -> Option<Trouble> {
    let held: Vec<&ThreadFacts> = guest.threads.iter().filter(|t| t.state == "t").collect();
    let first = held.first()?;
    let which = match (first.role.as_str(), held.len()) {
        ("", 1) => format!("thread {} of {}'s QEMU is", first.tid, guest.name),
        (role, 1) => format!("thread {} ({role}) of {}'s QEMU is", first.tid, guest.name),
        (_, n) => format!("{n} threads of {}'s QEMU are", guest.name),
    };
    let (name, pid) = match &first.tracer {
        Some(tracer) => (tracer.name.clone(), Some(tracer.pid)),
        None => ("a tracer".to_owned(), None),
    };
    let by = pid.map_or_else(|| name.clone(), |pid| format!("{name} (pid {pid})"));
    let ns = oldest(guest, "t");
    Some(Trouble {
        verdict: Verdict::Stuck,
        sentence: format!(
            "{which} stopped by {by}, which traces it{}; it has {}",
            since(ns),
            count(guest.n_threads, "thread")
        ),
        holder: Some(Holder {
            pid,
            ..holder(HolderKind::Tracer, &name)
        }),
        since_ns: ns,
        ..Trouble::default()
    })
}

fn oldest(guest: &GuestFacts, state: &str) -> Option<u64> {
    let threads = guest.threads.iter().filter(|thread| thread.state == state);
    threads.filter_map(|thread| thread.asleep_ns).max()
}

/// A guest that does not run, by QEMU's own word.
pub(super) fn run_state(guest: &GuestFacts) -> Option<Trouble> {
    let state = guest.run_state.as_deref()?;
    let name = &guest.name;
    let failed = guest
        .disks
        .iter()
        .find(|disk| matches!(disk.io_status.as_deref(), Some("failed" | "nospace")));
    if state == "io-error" {
        let disk = failed.map(|disk| disk.name.clone());
        let of = disk.as_deref().unwrap_or("a disk");
        let status = failed.and_then(|disk| disk.io_status.as_deref());
        let why = match status {
            Some("nospace") => "no space is left for its image",
            _ => "a read or write of its image failed",
        };
        let place = failed
            .and_then(|disk| disk.images.first())
            .map(|image| match image.mount_point.as_str() {
                "" => format!(" ({})", image.path),
                mount => format!(" ({} on {mount})", image.path),
            })
            .unwrap_or_default();
        return Some(Trouble {
            verdict: Verdict::Stuck,
            sentence: format!(
                "{name} is stopped by an I/O error of {of}: {why}{place}; once that is repaired, QMP's cont (virsh resume) \
                 goes on"
            ),
            disk,
            holder: Some(holder(HolderKind::IoError, status.unwrap_or("failed"))),
            ..Trouble::default()
        });
    }
    let words = match state {
        "running" => return None,
        "paused" => "is paused (QMP's stop, virsh suspend): cont or virsh resume goes on",
        "prelaunch" => "has not been started yet (-S): QMP's cont starts it",
        "inmigrate" => "waits for an incoming migration",
        "postmigrate" => "is stopped: it was migrated away, or saved",
        "finish-migrate" => "is stopped while a migration finishes",
        "save-vm" => "is stopped while it is saved",
        "restore-vm" => "is stopped while it is restored",
        "suspended" => "sleeps by its own wish (suspended to memory)",
        "shutdown" => "has shut down; its QEMU runs on (-no-shutdown)",
        "guest-panicked" => "is stopped: its kernel has panicked",
        "watchdog" => "is stopped by its watchdog",
        "internal-error" => "is stopped by an internal error of QEMU or KVM",
        "debug" => "is stopped by a debugger (gdbstub)",
        "colo" => "is stopped by its replication (COLO)",
        _ => "does not run",
    };
    Some(Trouble {
        verdict: Verdict::Paused,
        sentence: format!("{name} {words}"),
        holder: Some(holder(HolderKind::RunState, state)),
        ..Trouble::default()
    })
}
