//! What the recorder says of a kernel, before and while it records.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use nestrace_trace::Manifest;
use serde_json::Value;
use xtask::case::Case;

use super::machine::Machine;

/// Tracepoints and functions that the kernels of a series do not have, or whose module is not loaded: no image is on NFS or
/// SMB.
fn absent(series: &str) -> BTreeSet<&'static str> {
    let mut absent = BTreeSet::from([
        "nfs_initiate_read",
        "nfs_initiate_write",
        "nfs_initiate_commit",
        "nfs_readpage_done",
        "nfs_writeback_done",
        "nfs_commit_done",
        "smb2_async_readv",
        "smb2_async_writev",
        "smb2_readv_callback",
        "smb2_writev_callback",
        "smb2_flush_file",
    ]);
    if ["6.1", "6.12"].contains(&series) {
        absent.extend([
            "page_cache_sync_ra",
            "page_cache_async_ra",
            "page_cache_ra_order",
            "page_cache_ra_unbounded",
        ]);
    }
    if series == "7.3" {
        absent.insert("btrfs_sync_file");
    }
    if series == "6.1" {
        absent.extend(["iomap_dio_rw_begin", "iomap_dio_complete"]);
    }
    absent
}

/// `nestrace doctor`: says that recording works, and of every check how it is.
pub fn doctor(case: &mut Case, machine: &Machine) -> anyhow::Result<()> {
    let text = machine.nestrace("doctor", Duration::from_secs(60))?;
    case.holds(
        "doctor",
        text.starts_with("Recording works here."),
        text.lines().next().unwrap_or_default(),
    );
    let json = machine.nestrace("doctor --json", Duration::from_secs(60))?;
    let report: Value = serde_json::from_str(&json).context("read doctor's JSON")?;
    case.holds(
        "doctor: can_record",
        report["can_record"] == true,
        &report["can_record"].to_string(),
    );
    let checks = report["checks"]
        .as_array()
        .context("find doctor's checks")?;
    for check in checks {
        // securityfs is not mounted in the guest, so whether the kernel is locked down is unknown.
        let state = check["state"].as_str().unwrap_or_default();
        case.holds(
            "doctor: a check",
            ["ok", "unknown"].contains(&state),
            &check.to_string(),
        );
    }
    case.figure(format!("{} checks", checks.len()));
    Ok(())
}

/// Every probe is attached that this kernel has the tracepoint for, and each other one says so. (That
/// QEMU's functions are not found where there is no QEMU is another matter.)
pub fn attached(case: &mut Case, manifest: &Manifest, series: &str) {
    let refused = || {
        manifest
            .refused
            .iter()
            .filter(|probe| probe.source != "qemu")
    };
    let names: BTreeSet<&str> = refused().map(|probe| probe.name.as_str()).collect();
    let expected = absent(series);
    case.holds(
        "probes refused",
        names == expected,
        &format!("{names:?}, expected {expected:?}"),
    );
    for probe in refused() {
        let reason = probe.reason.as_str();
        let is_absent = ["module nfs is not loaded", "module cifs is not loaded"].contains(&reason);
        let is_reason = reason.contains("no tracepoint") || is_absent;
        let says_why = is_reason && !probe.cost.is_empty();
        case.holds(
            "why a probe is refused",
            says_why,
            &format!("{}: {}", probe.name, probe.reason),
        );
    }
    case.figure(format!(
        "{}: {} attached, {} refused",
        manifest.host.kernel,
        manifest.probes.len(),
        names.len()
    ));
}
