//! Loads the probes, tells them about this kernel, attaches them and keeps them attached.
//!
//! What to attach is decided by `nestrace_kernel` (pure); here it is only done. A probe that this
//! kernel refuses never stops the others: it is reported with the reason.

pub(crate) mod bpf_call;
mod counted;
pub mod done;
pub mod globals;
pub mod load;
pub mod object;
mod preemption;
pub mod qemu;
mod refusal;
mod standby;
mod uprobe_multi;

/// Why the probes could not be loaded at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The kernel was built without BTF (or sysfs is not mounted).
    #[error("this kernel has no type information (/sys/kernel/btf/vmlinux)")]
    NoBtf,
    /// The caller may not load probes.
    #[error("recording needs root (CAP_BPF and CAP_PERFMON)")]
    NoPrivilege,
    /// Guests were asked for, and process ids here are not those that the probes see.
    #[error(
        "process ids here are those of another PID namespace than the host's, as in a container: probes do not know QEMU by them"
    )]
    OtherPidNamespace,
    /// The probe object could not be loaded.
    #[error("the probes do not load on this kernel")]
    Load(#[source] Box<aya::EbpfError>),
    /// A map is missing from the object or has another shape.
    #[error("map {map} of the probes cannot be used")]
    Map {
        /// Its name.
        map: &'static str,
        /// What the kernel or aya said.
        #[source]
        source: Box<aya::maps::MapError>,
    },
    /// None of the probes could be attached.
    #[error("no probe could be attached: {0}")]
    NothingAttached(String),
}
