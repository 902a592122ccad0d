//! What a kernel and the user who asks are able to do, as plain data. Who gathers it (`doctor`, the
//! recorder, the agent) is not this crate's business.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The capabilities that matter here, by their bit (`include/uapi/linux/capability.h`).
pub mod capability {
    /// Read what file permissions forbid.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// Look into other users' processes (`/proc/PID/fd`, `/proc/PID/root`).
    pub const SYS_PTRACE: u32 = 19;
    /// The old key to everything, BPF included.
    pub const SYS_ADMIN: u32 = 21;
    /// See kernel addresses.
    pub const SYSLOG: u32 = 34;
    /// Attach tracing programs.
    pub const PERFMON: u32 = 38;
    /// Load BPF programs.
    pub const BPF: u32 = 39;
}

/// Facts of one machine and one user. `None` means that it could not be found out (mostly: not
/// allowed to ask), which never counts against a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// `uname -m`.
    pub arch: String,
    /// Whether `/sys/kernel/btf/vmlinux` exists and parses.
    pub btf: bool,
    /// Why it does not parse, where it exists.
    pub btf_problem: Option<String>,
    /// Modules with BTF in `/sys/kernel/btf`.
    pub module_btf: BTreeSet<String>,
    /// Names of tracepoints that tracefs lists; `None` where tracefs is not mounted or not readable.
    pub tracefs_events: Option<BTreeSet<String>>,
    /// Where tracefs is mounted.
    pub tracefs: Option<String>,
    /// Where debugfs is mounted.
    pub debugfs: Option<String>,
    /// Whether the `bpf` system call exists.
    pub bpf_syscall: Option<bool>,
    /// Not even the simplest map could be created although the capabilities suffice: a seccomp filter
    /// or a security module refuses, or (before 5.11) RLIMIT_MEMLOCK is too low.
    pub bpf_refused: Option<bool>,
    /// A BPF ring buffer could be created (Linux 5.8).
    pub ring_buffer: Option<bool>,
    /// A raw-tracepoint program could be loaded.
    pub raw_tracepoints: Option<bool>,
    /// A BTF tracepoint program could be loaded.
    pub btf_tracepoints: Option<bool>,
    /// A program that reads kernel memory could be loaded (lockdown=confidentiality refuses it).
    pub kernel_reads: Option<bool>,
    /// A fentry program could be loaded.
    pub fentry: Option<bool>,
    /// The kernel was built with uprobes that perf can open.
    pub uprobes: Option<bool>,
    /// The kernel was built with kprobes that perf can open.
    pub kprobes: Option<bool>,
    /// `none`, `integrity` or `confidentiality`, where securityfs tells.
    pub lockdown: Option<String>,
    /// Active Linux security modules, where securityfs tells.
    pub security_modules: Option<Vec<String>>,
    /// Effective user id.
    pub euid: u32,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether the process is in the initial user namespace: capabilities elsewhere do not count for BPF.
    pub initial_user_namespace: bool,
    /// Whether the process ids that are read here are those of the initial PID namespace, which are all that
    /// probes know of (`bpf_get_current_pid_tgid()`).
    pub initial_pid_namespace: Option<bool>,
    /// `/proc/kallsyms` shows addresses as 0.
    pub kallsyms_hidden: Option<bool>,
    /// `/proc/sys/kernel/unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<u32>,
    /// `/proc/sys/kernel/perf_event_paranoid`.
    pub perf_event_paranoid: Option<i32>,
    /// Soft limit of locked memory in bytes; `None` = unlimited. Only kernels before 5.11 charge BPF
    /// maps to it.
    pub memlock: Option<u64>,
}

impl KernelFacts {
    /// Whether a capability is effective.
    #[must_use]
    pub const fn has_capability(&self, number: u32) -> bool {
        match 1u64.checked_shl(number) {
            Some(bit) => self.capabilities & bit != 0,
            None => false,
        }
    }

    /// Whether tracing programs may be loaded and attached: CAP_BPF with CAP_PERFMON, or CAP_SYS_ADMIN,
    /// in the initial user namespace.
    #[must_use]
    pub const fn may_trace(&self) -> bool {
        let split =
            self.has_capability(capability::BPF) && self.has_capability(capability::PERFMON);
        self.initial_user_namespace && (split || self.has_capability(capability::SYS_ADMIN))
    }

    /// Whether probes know a process by the id that it has here. Devices are followed without.
    #[must_use]
    pub const fn may_follow_processes(&self) -> bool {
        !matches!(self.initial_pid_namespace, Some(false))
    }
}
