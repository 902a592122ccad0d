//! Loads the probes, tells them about this kernel, attaches them, keeps them attached and drains their buffers.
//!
//! What to attach is decided by `nestrace_kernel` (pure); here it is only done. A probe that this
//! kernel refuses never stops the others: it is reported with the reason.
//!
//! Sits below the recorder and the agent, which both stand on it, so it knows nothing of guests, QEMU or bundles. Beside the
//! probes it reads what both ask of a kernel: its facts ([`kernel_facts`]), its clocks, its mounts and its block devices. The
//! agent links all of it into a small static program: a dependency is added here only with a reason
//! (`docs/supply-chain.md`).
//!
//! ```no_run
//! use nestrace_kernel::plan::{Detail, Wanted as PlanWanted, plan};
//! use nestrace_probes::collect::{Collector, translate::translation};
//! use nestrace_probes::load::{Probes, Wanted};
//! use nestrace_probes::{clock, globals::Globals, kernel_facts};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (facts, layout) = kernel_facts::gather();
//! let globals = Globals::resolve(&layout, false);
//! let disk = Wanted { devices: [254 << 20].into(), ring_bytes: 1 << 20, ..Wanted::default() };
//! let mut probes = Probes::load(&globals, &disk)?;
//! let wanted = PlanWanted { detail: Detail::Full, processes: false, mounts: false, cpu: false };
//! probes.attach(&plan(&facts, &layout, wanted));
//! probes.set_gate(true)?;
//! let n_rings = probes.rings_mut().len();
//! let mut collector = Collector::new(n_rings, translation(&layout, &globals.end_io));
//! std::thread::sleep(std::time::Duration::from_secs(1));
//! collector.drain(probes.rings_mut(), clock::monotonic_ns(), |event| println!("{event:?}"));
//! # Ok(())
//! # }
//! ```

mod attachment;
mod attempt;
pub mod block_device;
pub mod bpf_call;
pub mod clock;
mod closer;
pub mod collect;
mod counted;
pub mod done;
pub mod entry;
pub mod globals;
mod inode_bytes;
pub mod kernel_facts;
pub mod load;
pub mod loop_status;
mod mapped;
mod mapped_device;
pub mod mountinfo;
mod network_device;
pub mod object;
mod preemption;
pub mod proc_file;
pub mod refusal;
mod rings;
mod standby;
pub mod sums;
mod uprobe_multi;
mod wanted;

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
        "process ids here belong to another PID namespace than the host's, as in a container: probes cannot recognize QEMU by them"
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

/// The error of a map of the probes.
fn map_error(map: &'static str) -> impl Fn(aya::maps::MapError) -> ProbeError {
    move |source| ProbeError::Map {
        map,
        source: Box::new(source),
    }
}

/// The error of the object or of one of its programs.
fn load_error(error: aya::EbpfError) -> ProbeError {
    ProbeError::Load(Box::new(error))
}
