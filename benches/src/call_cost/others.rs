//! Who traces this kernel: the processes that hold a link of a BPF program to a tracepoint or function.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context;
use nix::unistd::{Pid, getpgid};

/// What `/proc/PID/fdinfo` says of such a descriptor.
const LINKS: [&str; 2] = ["link_type:\traw_tracepoint", "link_type:\ttracing"];
/// What begins the name of a link in `/proc/PID/fd`.
const LINK: &str = "anon_inode:bpf_link";

/// Those that are not in the process group of `own`.
pub fn trace(own: Option<u32>) -> anyhow::Result<BTreeSet<u32>> {
    let own = own.map(|pid| Pid::from_raw(pid.cast_signed()));
    let mut others = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("list /proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // One that ends while we look is left out.
        let group = || getpgid(Some(Pid::from_raw(i32::try_from(pid).unwrap_or(0)))).ok();
        if holds_a_link(pid) && (own.is_none() || group() != own) {
            others.insert(pid);
        }
    }
    Ok(others)
}

fn holds_a_link(pid: u32) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut links = descriptors.into_iter().flatten().flatten().filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with(LINK))
    });
    links.any(|entry| {
        let number = entry.file_name();
        let info = format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        LINKS.iter().any(|kind| info.contains(kind))
    })
}
