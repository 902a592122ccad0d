//! Which probes will be attached on a kernel, which not, and what that costs.

use std::collections::BTreeSet;

use nestrace_abi::{Source, maps::NESTED_PROGRAM};
use serde::{Serialize, Serializer};

use crate::facts::KernelFacts;
use crate::layout::Layout;
use crate::needs;
use crate::preemption::tracepoints_may_be_preempted;
use crate::probes::{At, How, ProbeRow, QEMU, QEMU_USDT, TRACEPOINTS};
use crate::uring;
use crate::{smb, throttle};

/// `--detail`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    #[default]
    Full,
    /// Everything but the calls of a guest's programs: in a guest the block layer alone, on a host all of `full`.
    Io,
    /// One record for each completed request, and file I/O.
    Light,
    /// No events: sums of each disk, operation and layer, which stay in the kernel until they are read.
    Sums,
}

impl Detail {
    /// The word of the options, of manifests and between recorder and agent: `full`, `io`, `light`, `sums`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Io => "io",
            Self::Light => "light",
            Self::Sums => "sums",
        }
    }

    /// The level that a recorder asks an agent for; one that a newer recorder added is `full`.
    ///
    /// ```
    /// use nestrace_kernel::plan::Detail;
    /// assert_eq!(Detail::asked("io"), Detail::Io);
    /// assert_eq!(Detail::asked(""), Detail::Full);
    /// ```
    #[must_use]
    pub fn asked(name: &str) -> Self {
        let all = [Self::Full, Self::Io, Self::Light];
        let asked = all.into_iter().find(|detail| detail.name() == name);
        asked.unwrap_or_default()
    }
}

/// What is to be recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The level of detail.
    pub detail: Detail,
    /// Whether processes are traced: without one the system calls need no probe.
    pub processes: bool,
    /// Whether everybody's calls on files of chosen mounts are traced, which is a guest's way. Then nothing
    /// looks at the page cache: each page of each file would be an event.
    pub mounts: bool,
    /// Whether it is recorded when the threads that carry I/O have a processor. Not with [`Detail::Light`], and in a guest
    /// not with [`Detail::Io`].
    pub cpu: bool,
}

/// A probe that can be attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedProbe {
    /// Program in the probe object.
    pub program: &'static str,
    /// Tracepoint, function or USDT probe to attach it to.
    pub target: &'static str,
    /// The loss counter that it counts into.
    #[serde(serialize_with = "source_name")]
    pub source: Source,
    /// How.
    pub how: How,
}

/// A probe that cannot be attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedProbe {
    /// Program in the probe object.
    pub program: &'static str,
    /// The tracepoint or function that it wanted.
    pub target: &'static str,
    /// The loss counter that it would have counted into.
    #[serde(serialize_with = "source_name")]
    pub source: Source,
    /// Why, in words.
    pub reason: String,
    /// What the user loses, as a sentence.
    pub cost: String,
}

/// What attaches and what does not, in the order of the probe table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProbePlan {
    /// Probes to attach.
    pub attach: Vec<PlannedProbe>,
    /// Probes to do without.
    pub refused: Vec<RefusedProbe>,
}

impl ProbePlan {
    /// Whether a program of this name is to be attached.
    #[must_use]
    pub fn attaches(&self, program: &str) -> bool {
        self.attach.iter().any(|probe| probe.program == program)
    }

    /// Why nothing useful can be recorded: without issue and completion of requests there is no
    /// latency. `None` if recording can work.
    #[must_use]
    pub fn obstacle(&self) -> Option<&str> {
        let vital = |target| ["block_rq_issue", "block_rq_complete"].contains(&target);
        let refused = self.refused.iter().find(|probe| vital(probe.target));
        refused.map(|probe| probe.reason.as_str())
    }

    fn settle(&mut self, row: &ProbeRow, found: Result<(&'static str, How), Refusal>) {
        let &ProbeRow {
            program, source, ..
        } = row;
        match found {
            Ok((target, how)) => self.attach.push(PlannedProbe {
                program,
                target,
                source,
                how,
            }),
            Err(Refusal { reason, cost }) => self.refused.push(RefusedProbe {
                program,
                target: row.target,
                source,
                reason,
                cost: cost.unwrap_or_else(|| row.cost.to_owned()),
            }),
        }
    }
}

/// Why a row is refused; the cost only where it is not the row's own.
struct Refusal {
    reason: String,
    cost: Option<String>,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self { reason, cost: None }
    }
}

/// The probes of the kernel. Without BTF, `layout` is empty. A lack of one never stops the others.
#[must_use]
pub fn plan(facts: &KernelFacts, layout: &Layout, wanted: Wanted) -> ProbePlan {
    let mut plan = ProbePlan::default();
    let preempted = tracepoints_may_be_preempted(&facts.release);
    let is_wanted = |row: &&ProbeRow| is_wanted(row, wanted) && (preempted || !row.where_preempted);
    for row in TRACEPOINTS.iter().filter(is_wanted) {
        let found = tracepoint(facts, layout, row).map(|target| (target, row.how));
        // What has no first program needs no second one.
        let is_second = row.program.ends_with(NESTED_PROGRAM);
        let first = || plan.attach.iter().any(|probe| probe.target == row.target);
        if found.is_ok() || !is_second || first() {
            plan.settle(row, found);
        }
    }
    plan
}

/// What is attached to QEMU for [`Detail::Sums`]: a request's begin and its end.
pub const QEMU_SUMMED: &[&str] = &["block_acct_start", "block_acct_done", "block_acct_failed"];

/// The probes of one QEMU binary, given the functions and USDT probes (of provider `qemu`) that were
/// located in it. They need neither BTF nor tracepoints.
#[must_use]
pub fn plan_qemu(
    facts: &KernelFacts,
    functions: &BTreeSet<String>,
    usdt: &BTreeSet<String>,
) -> ProbePlan {
    let mut plan = ProbePlan::default();
    for row in QEMU {
        plan.settle(row, qemu_function(facts, functions, usdt, row));
    }
    plan
}

/// What a sum of file I/O does not need: the steps between its begin and its end.
const NOT_SUMMED: &[&str] = &[
    "io_uring_queue_async_work",
    "iomap_dio_rw_begin",
    "ext4_sync_file_enter",
    "ext4_sync_file_exit",
    "xfs_file_fsync",
    "btrfs_sync_file",
];

fn is_wanted(row: &ProbeRow, wanted: Wanted) -> bool {
    let at = match wanted.detail {
        Detail::Full | Detail::Io => row.at != At::Light,
        Detail::Light => row.at != At::Full,
        Detail::Sums => row.at != At::Full && !NOT_SUMMED.contains(&row.target),
    };
    // In a guest, what is not of the block layer is there for the calls.
    let left_out = wanted.mounts && wanted.detail == Detail::Io && row.source != Source::Block;
    let calls = wanted.processes || wanted.mounts;
    at && !left_out
        && (wanted.cpu || row.source != Source::Cpu)
        && !(wanted.mounts && row.images_only)
        && (wanted.mounts || !row.by_mount)
        && (calls || !matches!(row.target, "sys_enter" | "sys_exit"))
}

fn tracepoint(
    facts: &KernelFacts,
    layout: &Layout,
    row: &ProbeRow,
) -> Result<&'static str, Refusal> {
    can_load(facts)?;
    if let Some(problem) = &facts.btf_problem {
        return Err(no(&format!("the kernel's BTF does not parse: {problem}")));
    }
    if !facts.btf {
        return Err(no(
            "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF), which says where its fields are",
        ));
    }
    if facts.kernel_reads == Some(false) {
        return Err(no(
            "the kernel refuses to let programs read its memory (lockdown=confidentiality)",
        ));
    }
    let (loads, kind) = match row.how {
        How::TpBtf => (facts.btf_tracepoints, "BTF tracepoint programs"),
        // Whether it has kprobes is asked only where the function is there.
        How::Kprobe | How::Kretprobe => (None, "kprobes"),
        _ => (facts.raw_tracepoints, "raw tracepoint programs"),
    };
    if loads == Some(false) {
        return Err(no(&format!("the kernel refuses {kind}")));
    }
    let has = |name: &&str| {
        let listed = |events: &BTreeSet<String>| row.how == How::RawTp && events.contains(*name);
        if row.how.is_on_function() {
            return layout.functions.contains_key(*name);
        }
        layout.tracepoints.contains_key(*name) || facts.tracefs_events.as_ref().is_some_and(listed)
    };
    let mut names = std::iter::once(row.target).chain(row.older_target);
    let found = names.find(has).ok_or_else(|| absent(facts, row))?;
    if row.how.is_on_function() && facts.kprobes == Some(false) {
        return Err(no("the kernel has no kprobes (CONFIG_KPROBE_EVENTS)"));
    }
    if row.program.starts_with("io_uring_") {
        names_its_request(layout, row)?;
    }
    if row.target == "balance_dirty_pages" && throttle::pause_argument(layout).is_none() {
        return Err(no(
            "this kernel's balance_dirty_pages has the pause in another place",
        ));
    }
    if row.module == Some("cifs") && smb::message_argument(layout).is_none() {
        return Err(no(
            "this kernel's SMB client has the message of a reply in another place",
        ));
    }
    needs::lacking(layout, row.program, found).map_or(Ok(found), |reason| Err(no(&reason)))
}

fn names_its_request(layout: &Layout, row: &ProbeRow) -> Result<(), Refusal> {
    if let Some(reason) = uring::obstacle(layout) {
        return Err(Refusal {
            reason: reason.to_owned(),
            cost: Some(uring::COST.to_owned()),
        });
    }
    uring::misplaced(layout, row.target).map_or(Ok(()), |reason| Err(no(reason)))
}

/// A tracepoint of a module that is not loaded is no loss: its file system is not in use.
fn absent(facts: &KernelFacts, row: &ProbeRow) -> Refusal {
    match row.module {
        Some(module) if !facts.module_btf.contains(module) && !built_in(facts, module) => Refusal {
            reason: format!("module {module} is not loaded"),
            cost: Some(format!(
                "Nothing, as long as no file system of module {module} is mounted."
            )),
        },
        _ if row.how.is_on_function() => no(&format!("this kernel has no function {}", row.target)),
        _ => no(&format!("this kernel has no tracepoint {}", row.target)),
    }
}

/// tracefs lists an event group's names; any event that begins with the module's name shows it.
fn built_in(facts: &KernelFacts, module: &str) -> bool {
    let prefix = format!("{module}_");
    let of_module = |events: &BTreeSet<String>| events.iter().any(|name| name.starts_with(&prefix));
    facts.tracefs_events.as_ref().is_some_and(of_module)
}

fn qemu_function(
    facts: &KernelFacts,
    functions: &BTreeSet<String>,
    usdt: &BTreeSet<String>,
    row: &ProbeRow,
) -> Result<(&'static str, How), Refusal> {
    can_load(facts)?;
    if facts.uprobes == Some(false) {
        return Err(no(
            "the kernel was built without uprobes (CONFIG_UPROBE_EVENTS)",
        ));
    }
    if !facts.may_follow_processes() {
        return Err(no(
            "QEMU's process id is that of a container's PID namespace, not the host's",
        ));
    }
    if functions.contains(row.target) {
        return Ok((row.target, How::Uprobe));
    }
    let note = QEMU_USDT
        .iter()
        .find(|(function, note)| *function == row.target && usdt.contains(*note));
    let reason = || {
        no(&format!(
            "this QEMU exports no symbol {} and has no USDT probe for it",
            row.target
        ))
    };
    note.map(|(_, note)| (*note, How::Usdt)).ok_or_else(reason)
}

fn can_load(facts: &KernelFacts) -> Result<(), Refusal> {
    if facts.bpf_syscall == Some(false) {
        return Err(no("the kernel has no bpf system call (CONFIG_BPF_SYSCALL)"));
    }
    if !facts.initial_user_namespace {
        return Err(no(
            "BPF needs the initial user namespace; this is a container with its own",
        ));
    }
    if !facts.may_trace() {
        return Err(no(
            "not permitted: CAP_BPF and CAP_PERFMON (or root) are needed",
        ));
    }
    if facts.bpf_refused == Some(true) {
        return Err(no(
            "the bpf system call is refused: by a container's seccomp filter or a security module",
        ));
    }
    if facts.ring_buffer == Some(false) {
        return Err(no("the kernel has no BPF ring buffer (Linux 5.8)"));
    }
    Ok(())
}

fn no(reason: &str) -> Refusal {
    Refusal::from(reason.to_owned())
}

// serde hands a reference to every such function.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn source_name<S: Serializer>(source: &Source, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(source.name())
}
