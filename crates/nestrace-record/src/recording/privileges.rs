//! Giving up what a running recording no longer needs.
//!
//! Attaching needs nearly all of root. Afterwards only three things are left: the rings and maps,
//! whose descriptors are open; the bundle's files, which exist; and looking at the guests' processes,
//! for images that they open and close. So every capability but
//! `CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH` and `CAP_BPF` (kernels before 5.19 ask for it at every
//! map access) goes, and a seccomp filter refuses what a tracer of system calls has no business with.
//! Under sudo the bundle belongs to the user who typed the command; without the capability to write
//! into anybody's files the recorder does so as that user.

use std::collections::BTreeMap;

use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// Why privileges could not be given up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// Capabilities could not be set.
    #[error("give up capabilities")]
    Capabilities(#[source] caps::errors::CapsError),
    /// The filter could not be built or installed.
    #[error("install the system-call filter")]
    Filter(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// What stays.
const KEPT: &[Capability] = &[
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_BPF,
];

/// System calls that fail with EPERM from now on: starting programs, changing the system, writing
/// into other processes, loading code into the kernel.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsmount,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_userfaultfd,
];

/// Gives up privileges for good. Call it when everything is attached and the command, if there is
/// one, has been started.
///
/// # Errors
/// [`PrivilegeError`]; the recording can go on with what it has.
pub fn give_up() -> Result<(), PrivilegeError> {
    give_up_in_thread()?;
    install_filter()
}

/// The part of [`give_up`] that a thread has to do for itself: capabilities and the file-system user
/// are each thread's own. The filter is for all.
///
/// # Errors
/// [`PrivilegeError::Capabilities`].
pub fn give_up_in_thread() -> Result<(), PrivilegeError> {
    let kept: CapsHashSet = KEPT.iter().copied().collect();
    let had = caps::read(None, CapSet::Permitted).map_err(PrivilegeError::Capabilities)?;
    let left: CapsHashSet = had.intersection(&kept).copied().collect();
    // Takes the capabilities about files out of the effective set; what is kept of them comes back below.
    if let Some((uid, gid)) = sudo_user() {
        setfsgid(gid);
        setfsuid(uid);
    }
    // What execve would give back: a child could otherwise regain everything.
    for capability in had.difference(&kept) {
        caps::drop(None, CapSet::Bounding, *capability).map_err(PrivilegeError::Capabilities)?;
    }
    caps::clear(None, CapSet::Inheritable).map_err(PrivilegeError::Capabilities)?;
    caps::set(None, CapSet::Effective, &left).map_err(PrivilegeError::Capabilities)?;
    caps::set(None, CapSet::Permitted, &left).map_err(PrivilegeError::Capabilities)
}

/// The user who typed the command, where this is root by way of sudo.
#[must_use]
pub fn sudo_user() -> Option<(Uid, Gid)> {
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let user = (
        Uid::from_raw(id("SUDO_UID")?),
        Gid::from_raw(id("SUDO_GID")?),
    );
    Uid::effective().is_root().then_some(user)
}

fn install_filter() -> Result<(), PrivilegeError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| PrivilegeError::Filter(error);
    let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
        REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(|e| failed(Box::new(e)))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)
        .map_err(|e| failed(Box::new(e)))?;
    let program: BpfProgram = filter
        .try_into()
        .map_err(|e: seccompiler::BackendError| failed(Box::new(e)))?;
    seccompiler::apply_filter_all_threads(&program).map_err(|e| failed(Box::new(e)))
}
