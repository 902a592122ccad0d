//! Allow-lists of system calls: what is not named fails with EPERM.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

use super::ConfineError;

/// A system call, and the conditions on its arguments under which it is allowed: one of them has to hold, none means
/// always.
pub type Allowed = (libc::c_long, Vec<SeccompRule>);

/// What every process of Rust's and C's library needs to compute, to wait and to end: memory, threads, locks, time,
/// signals, reading and writing of descriptors that are open. No path is opened and nothing is executed with these.
pub const TO_RUN: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Lets through [`TO_RUN`], `always` and `allowed`, and refuses every other system call of every thread with EPERM.
/// It cannot be taken back.
///
/// # Errors
/// [`ConfineError::Filter`].
pub fn allow_only(
    always: &[libc::c_long],
    allowed: impl IntoIterator<Item = Allowed>,
) -> Result<(), ConfineError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| ConfineError::Filter(error);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    rules.extend(allowed);
    for number in TO_RUN.iter().chain(always) {
        rules.insert(*number, Vec::new());
    }
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(|error| failed(Box::new(error)))?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        SeccompAction::Allow,
        architecture,
    )
    .map_err(|error| failed(Box::new(error)))?;
    let program: BpfProgram = filter
        .try_into()
        .map_err(|error: seccompiler::BackendError| failed(Box::new(error)))?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| failed(Box::new(error)))
}
