//! The system calls that each process of nestrace may use: a list of what is allowed, and `EPERM` for all others.
//!
//! The lists hold what glibc and musl make of Rust's standard library and of our own calls. `clone3`, whose flags lie in
//! memory that a filter cannot read, is not there for glibc (`ENOSYS`), which then calls `clone`.

#![allow(
    clippy::unnecessary_cast,
    reason = "the numbers of requests of ioctl have another type with musl"
)]

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::SandboxError;

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Drains the rings and writes the bundle.
    Recorder,
    /// Notices which files guests open and close: it opens nothing itself.
    Watcher,
    /// Reads QEMU's memory and qcow2 tables through descriptors that it gets: it opens nothing itself.
    Reader,
    /// Connects to agents and gives the bundle back. It opens folders and places, never what is in a file.
    Keeper,
    /// Asks QEMU's monitors. It opens places of sockets, never what is in a file.
    Asker,
    /// Finds guests. It opens files for reading, and connects to nothing.
    Finder,
}

/// One way in which a system call is allowed: each argument, masked, has this value.
type Way = &'static [(u8, u64, u64)];

/// Always.
const ANY: &[Way] = &[];

const PROT_EXEC: u64 = libc::PROT_EXEC as u64;
const ACCESS: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;
const O_PATH: u64 = libc::O_PATH as u64;
const O_DIRECTORY: u64 = libc::O_DIRECTORY as u64;
const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;
/// Namespaces of its own.
const CLONE_NEW: u64 = 0x7e02_0000;

/// What each of them needs.
const ALL: &[(libc::c_long, &[Way])] = &[
    (libc::SYS_read, ANY),
    (libc::SYS_write, ANY),
    (libc::SYS_readv, ANY),
    (libc::SYS_writev, ANY),
    (libc::SYS_close, ANY),
    (libc::SYS_fstat, ANY),
    (libc::SYS_newfstatat, ANY),
    (libc::SYS_statx, ANY),
    (libc::SYS_lseek, ANY),
    (libc::SYS_getdents64, ANY),
    (libc::SYS_fcntl, ANY),
    (libc::SYS_dup, ANY),
    // No memory becomes code.
    (libc::SYS_mmap, &[&[(2, PROT_EXEC, 0)]]),
    (libc::SYS_mprotect, &[&[(2, PROT_EXEC, 0)]]),
    (libc::SYS_munmap, ANY),
    (libc::SYS_mremap, ANY),
    (libc::SYS_madvise, ANY),
    (libc::SYS_brk, ANY),
    (libc::SYS_rt_sigaction, ANY),
    (libc::SYS_rt_sigprocmask, ANY),
    (libc::SYS_rt_sigreturn, ANY),
    (libc::SYS_sigaltstack, ANY),
    (libc::SYS_futex, ANY),
    (libc::SYS_nanosleep, ANY),
    (libc::SYS_clock_nanosleep, ANY),
    (libc::SYS_clock_gettime, ANY),
    (libc::SYS_clock_getres, ANY),
    (libc::SYS_gettimeofday, ANY),
    (libc::SYS_getrandom, ANY),
    (libc::SYS_ppoll, ANY),
    (libc::SYS_sched_yield, ANY),
    (libc::SYS_sched_getaffinity, ANY),
    (libc::SYS_getpid, ANY),
    (libc::SYS_gettid, ANY),
    (libc::SYS_getuid, ANY),
    (libc::SYS_geteuid, ANY),
    (libc::SYS_getgid, ANY),
    (libc::SYS_getegid, ANY),
    (libc::SYS_uname, ANY),
    (libc::SYS_set_robust_list, ANY),
    (libc::SYS_rseq, ANY),
    (libc::SYS_membarrier, ANY),
    (libc::SYS_restart_syscall, ANY),
    (libc::SYS_exit, ANY),
    (libc::SYS_exit_group, ANY),
    // Limits are read, as the size of a new thread's stack is, and not set.
    (libc::SYS_prlimit64, &[&[(2, u64::MAX, 0)]]),
    // A thread's name.
    (
        libc::SYS_prctl,
        &[&[(0, u64::MAX, libc::PR_SET_NAME as u64)]],
    ),
    // Threads, not processes.
    (
        libc::SYS_clone,
        &[&[(0, CLONE_THREAD | CLONE_NEW, CLONE_THREAD)]],
    ),
    (libc::SYS_clone3, ANY),
    (libc::SYS_sendto, ANY),
    (libc::SYS_recvfrom, ANY),
    (libc::SYS_sendmsg, ANY),
    (libc::SYS_recvmsg, ANY),
    (libc::SYS_getsockopt, ANY),
    (libc::SYS_setsockopt, ANY),
];

/// Older names of the same, which musl uses where there are such.
#[cfg(target_arch = "x86_64")]
const ALL_OLDER: &[(libc::c_long, &[Way])] = &[
    (libc::SYS_poll, ANY),
    (libc::SYS_stat, ANY),
    (libc::SYS_lstat, ANY),
    (libc::SYS_arch_prctl, ANY),
];
#[cfg(not(target_arch = "x86_64"))]
const ALL_OLDER: &[(libc::c_long, &[Way])] = &[];

const MAP_COMMANDS: &[Way] = &[
    // BPF_MAP_LOOKUP_ELEM, UPDATE_ELEM, DELETE_ELEM, GET_NEXT_KEY: of maps whose descriptors it has.
    &[(0, u64::MAX, 1)],
    &[(0, u64::MAX, 2)],
    &[(0, u64::MAX, 3)],
    &[(0, u64::MAX, 4)],
];

const TERMINAL_AND_PROBES: &[Way] = &[
    &[(1, u64::MAX, libc::TCGETS as u64)],
    &[(1, u64::MAX, libc::TIOCGWINSZ as u64)],
    &[(1, u64::MAX, libc::FIONBIO as u64)],
    &[(1, u64::MAX, libc::FIOCLEX as u64)],
    // PERF_EVENT_IOC_DISABLE: a probe is taken away.
    &[(1, u64::MAX, 0x2401)],
];

const RECORDER: &[(libc::c_long, &[Way])] = &[
    (libc::SYS_pread64, ANY),
    (libc::SYS_pwrite64, ANY),
    (libc::SYS_pwritev, ANY),
    (libc::SYS_ftruncate, ANY),
    (libc::SYS_fallocate, ANY),
    (libc::SYS_fsync, ANY),
    (libc::SYS_fdatasync, ANY),
    (libc::SYS_fadvise64, ANY),
    // Where Landlock is missing, what may be opened is a matter of the user's rights.
    (libc::SYS_openat, ANY),
    (libc::SYS_renameat, ANY),
    (libc::SYS_renameat2, ANY),
    (libc::SYS_unlinkat, ANY),
    (libc::SYS_fstatfs, ANY),
    (libc::SYS_epoll_pwait, ANY),
    (libc::SYS_epoll_ctl, ANY),
    (libc::SYS_wait4, ANY),
    (libc::SYS_bpf, MAP_COMMANDS),
    (libc::SYS_ioctl, TERMINAL_AND_PROBES),
];

#[cfg(target_arch = "x86_64")]
const RECORDER_OLDER: &[(libc::c_long, &[Way])] =
    &[(libc::SYS_open, ANY), (libc::SYS_epoll_wait, ANY)];
#[cfg(not(target_arch = "x86_64"))]
const RECORDER_OLDER: &[(libc::c_long, &[Way])] = &[];

const READER: &[(libc::c_long, &[Way])] = &[(libc::SYS_pread64, ANY), (libc::SYS_fadvise64, ANY)];

const KEEPER: &[(libc::c_long, &[Way])] = &[
    // Places and folders: nothing that is read or written through the descriptor.
    (
        libc::SYS_openat,
        &[
            &[(2, O_PATH, O_PATH)],
            &[(2, O_DIRECTORY | ACCESS, O_DIRECTORY)],
        ],
    ),
    (
        libc::SYS_socket,
        &[
            &[(0, u64::MAX, libc::AF_UNIX as u64)],
            &[(0, u64::MAX, libc::AF_VSOCK as u64)],
        ],
    ),
    (libc::SYS_connect, ANY),
    (libc::SYS_fchown, ANY),
    (libc::SYS_fchownat, ANY),
    (libc::SYS_ioctl, &[&[(1, u64::MAX, libc::FIONBIO as u64)]]),
];

const ASKER: &[(libc::c_long, &[Way])] = &[
    (libc::SYS_openat, &[&[(2, O_PATH, O_PATH)]]),
    (libc::SYS_socket, &[&[(0, u64::MAX, libc::AF_UNIX as u64)]]),
    (libc::SYS_connect, ANY),
    (libc::SYS_ioctl, &[&[(1, u64::MAX, libc::FIONBIO as u64)]]),
];

const FINDER: &[(libc::c_long, &[Way])] = &[
    (
        libc::SYS_openat,
        &[&[(2, ACCESS, 0)], &[(2, O_PATH, O_PATH)]],
    ),
    // Its flags lie in memory; the user has the right to write to nothing.
    (libc::SYS_openat2, ANY),
    (libc::SYS_pread64, ANY),
    (libc::SYS_readlinkat, ANY),
    (libc::SYS_fgetxattr, ANY),
    (libc::SYS_fadvise64, ANY),
    (libc::SYS_fstatfs, ANY),
    // Which file a loop device has, and whether btrfs writes a file in place: both read.
    (
        libc::SYS_ioctl,
        &[
            &[(1, u64::MAX, LOOP_GET_STATUS64)],
            &[(1, u64::MAX, libc::FS_IOC_GETFLAGS as u64)],
        ],
    ),
];
/// Of `<linux/loop.h>`.
const LOOP_GET_STATUS64: u64 = 0x4c05;

#[cfg(target_arch = "x86_64")]
const FINDER_OLDER: &[(libc::c_long, &[Way])] = &[
    (libc::SYS_open, &[&[(1, ACCESS, 0)], &[(1, O_PATH, O_PATH)]]),
    (libc::SYS_readlink, ANY),
];
#[cfg(not(target_arch = "x86_64"))]
const FINDER_OLDER: &[(libc::c_long, &[Way])] = &[];

fn calls_of(role: Role) -> impl Iterator<Item = &'static (libc::c_long, &'static [Way])> {
    let own: [&[(libc::c_long, &[Way])]; 2] = match role {
        Role::Recorder => [RECORDER, RECORDER_OLDER],
        Role::Reader => [READER, &[]],
        Role::Watcher => [&[], &[]],
        Role::Keeper => [KEEPER, &[]],
        Role::Asker => [ASKER, &[]],
        Role::Finder => [FINDER, FINDER_OLDER],
    };
    ALL.iter().chain(ALL_OLDER).chain(own[0]).chain(own[1])
}

/// A filter that is ready to be put on a thread.
#[derive(Debug)]
pub(super) struct Filter {
    no_clone3: BpfProgram,
    allowed: BpfProgram,
}

impl Filter {
    pub(super) fn of(role: Role) -> Result<Self, SandboxError> {
        let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for (call, ways) in calls_of(role) {
            let rules = ways.iter().map(|way| rule(way));
            let rules = rules.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            allowed.entry(*call).or_default().extend(rules);
        }
        let refuse = |error: i32| SeccompAction::Errno(error.unsigned_abs());
        let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        Ok(Self {
            no_clone3: program(clone3, SeccompAction::Allow, refuse(libc::ENOSYS))?,
            allowed: program(allowed, refuse(libc::EPERM), SeccompAction::Allow)?,
        })
    }

    /// Puts the calling thread under this filter.
    pub(super) fn install(&self) -> Result<(), SandboxError> {
        seccompiler::apply_filter(&self.no_clone3).map_err(failed)?;
        seccompiler::apply_filter(&self.allowed).map_err(failed)
    }
}

fn rule(way: Way) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = way.iter().map(|(argument, mask, value)| {
        // The kernel takes these arguments as 32 bits, but for pointers.
        let (length, operator) = match *mask {
            u64::MAX if *value == 0 => (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq),
            u64::MAX => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq),
            mask => (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask)),
        };
        SeccompCondition::new(*argument, length, operator, *value)
    });
    SeccompRule::new(conditions.collect::<Result<Vec<_>, _>>()?)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, SandboxError> {
    let architecture = std::env::consts::ARCH.try_into().map_err(failed)?;
    let filter = SeccompFilter::new(rules, otherwise, matching, architecture).map_err(failed)?;
    filter
        .try_into()
        .map_err(failed::<seccompiler::BackendError>)
}

fn failed<E: std::error::Error + Send + Sync + 'static>(error: E) -> SandboxError {
    SandboxError::Filter(Box::new(error))
}
