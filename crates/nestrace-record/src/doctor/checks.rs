//! One line of the report for each thing that matters: is it there, what does its lack cost, how is it got.

use nestrace_kernel::facts::{KernelFacts, capability};
use serde::Serialize;

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is there.
    Ok,
    /// It is not, and recording cannot work without it.
    Required,
    /// It is not; something is lost.
    Missing,
    /// It is not, and nothing is lost: nestrace does without.
    NotNeeded,
    /// This user cannot find out.
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, stable: `btf`, `ring_buffer`, ….
    pub id: &'static str,
    /// For a person.
    pub what: &'static str,
    /// Whether it is there.
    pub state: State,
    /// What was seen.
    pub detail: String,
    /// What the user loses without it.
    pub cost: Option<String>,
    /// How to get it: a command to type, or words where there is none.
    pub how: Option<String>,
}

impl Check {
    fn new(id: &'static str, what: &'static str) -> Self {
        Self {
            id,
            what,
            state: State::Ok,
            detail: String::new(),
            cost: None,
            how: None,
        }
    }

    /// Sets the state by what is known. `lack` is what its absence means.
    fn judge(mut self, known: Option<bool>, lack: State, yes: &str, no: &str) -> Self {
        let (state, detail) = match known {
            Some(true) => (State::Ok, yes),
            Some(false) => (lack, no),
            None => (State::Unknown, "this user cannot check"),
        };
        self.state = state;
        self.detail = detail.to_owned();
        self
    }

    /// Cost and remedy, kept only where it is not there.
    fn otherwise(mut self, cost: &str, how: &str) -> Self {
        if self.state != State::Ok {
            self.cost = Some(cost.to_owned());
            self.how = (!how.is_empty()).then(|| how.to_owned());
        }
        self
    }
}

const NOTHING_IS_RECORDED: &str = "Nothing can be recorded.";
/// What finds out what this user cannot.
pub(super) const AS_ROOT: &str = "sudo nestrace doctor";

pub(super) fn all(facts: &KernelFacts) -> Vec<Check> {
    vec![
        privilege(facts),
        btf(facts),
        bpf(facts),
        ring_buffer(facts),
        btf_tracepoints(facts),
        raw_tracepoints(facts),
        kernel_reads(facts),
        uprobes(facts),
        kernel_addresses(facts),
        other_processes(facts),
        pid_namespace(facts),
        tracefs(facts),
        lockdown(facts),
        fentry(facts),
        kprobes(facts),
    ]
}

fn privilege(facts: &KernelFacts) -> Check {
    let who = if facts.euid == 0 {
        "root"
    } else {
        "an ordinary user"
    };
    let (lacks, how) = if facts.initial_user_namespace {
        (
            format!("{who} without CAP_BPF and CAP_PERFMON"),
            "sudo nestrace record …",
        )
    } else {
        let how = "run nestrace on the host, outside the container";
        (format!("{who} in a separate user namespace"), how)
    };
    Check::new("privilege", "permission to trace")
        .judge(Some(facts.may_trace()), State::Required, who, &lacks)
        .otherwise("Nothing can be recorded; recordings can be analyzed.", how)
}

fn btf(facts: &KernelFacts) -> Check {
    let absent = facts
        .btf_problem
        .as_deref()
        .unwrap_or("no /sys/kernel/btf/vmlinux");
    Check::new("btf", "kernel types (BTF)")
        .judge(
            Some(facts.btf),
            State::Required,
            "/sys/kernel/btf/vmlinux",
            absent,
        )
        .otherwise(
            NOTHING_IS_RECORDED,
            "a kernel with CONFIG_DEBUG_INFO_BTF=y; distribution kernels since 2021 have it",
        )
}

fn bpf(facts: &KernelFacts) -> Check {
    let absent = facts.bpf_syscall == Some(false);
    let (known, no, how) = match (absent, facts.bpf_refused) {
        (true, _) => (
            Some(false),
            "not in this kernel",
            "a kernel with CONFIG_BPF_SYSCALL=y",
        ),
        (_, Some(true)) => {
            let how = "run nestrace outside the container, or allow bpf in its seccomp profile; \
                       before Linux 5.11 also: ulimit -l unlimited";
            (Some(false), "refused to this process", how)
        }
        (_, refused) => (refused.map(|_| true), "", AS_ROOT),
    };
    Check::new("bpf", "BPF")
        .judge(known, State::Required, "maps can be created", no)
        .otherwise(NOTHING_IS_RECORDED, how)
}

fn ring_buffer(facts: &KernelFacts) -> Check {
    Check::new("ring_buffer", "BPF ring buffer")
        .judge(
            facts.ring_buffer,
            State::Required,
            "one was created",
            "refused",
        )
        .otherwise(
            NOTHING_IS_RECORDED,
            remedy(facts.ring_buffer, "Linux 5.8 or later"),
        )
}

fn btf_tracepoints(facts: &KernelFacts) -> Check {
    let known = facts.btf_tracepoints;
    Check::new("btf_tracepoints", "block layer (BTF tracepoints)")
        .judge(
            known,
            State::Required,
            "a program loads",
            "the kernel refuses such programs",
        )
        .otherwise(
            "No block layer, so no latency.",
            remedy(
                known,
                "a kernel with CONFIG_BPF_EVENTS=y and CONFIG_DEBUG_INFO_BTF=y",
            ),
        )
}

fn raw_tracepoints(facts: &KernelFacts) -> Check {
    let known = facts.raw_tracepoints;
    Check::new(
        "raw_tracepoints",
        "file I/O and file systems (raw tracepoints)",
    )
    .judge(
        known,
        State::Missing,
        "a program loads",
        "the kernel refuses such programs",
    )
    .otherwise(
        "QEMU's file I/O, journals and read-ahead: only the block layer is left.",
        remedy(known, "a kernel with CONFIG_BPF_EVENTS=y"),
    )
}

fn kernel_reads(facts: &KernelFacts) -> Check {
    let known = facts.kernel_reads;
    Check::new("kernel_reads", "reading the kernel's memory")
        .judge(known, State::Required, "a program that reads loads", "refused to every program")
        .otherwise(NOTHING_IS_RECORDED, remedy(known, "boot without lockdown=confidentiality (integrity, as under Secure Boot, is enough)"))
}

fn uprobes(facts: &KernelFacts) -> Check {
    Check::new("uprobes", "QEMU's functions (uprobes)")
        .judge(
            facts.uprobes,
            State::Missing,
            "the kernel has uprobes",
            "not in this kernel",
        )
        .otherwise(
            "QEMU's own time: only its file I/O is recorded.",
            remedy(facts.uprobes, "a kernel with CONFIG_UPROBE_EVENTS=y"),
        )
}

fn kernel_addresses(facts: &KernelFacts) -> Check {
    let known = facts.kallsyms_hidden.map(|hidden| !hidden);
    let how = if facts.has_capability(capability::SYSLOG) {
        "sudo sysctl kernel.kptr_restrict=1"
    } else {
        AS_ROOT
    };
    Check::new("kernel_addresses", "addresses of kernel functions")
        .judge(known, State::Missing, "/proc/kallsyms shows them", "/proc/kallsyms shows zeros")
        .otherwise("The completion function cannot show who sent a host I/O (direct I/O, journal, metadata).", how)
}

fn other_processes(facts: &KernelFacts) -> Check {
    let known = facts.has_capability(capability::SYS_PTRACE);
    Check::new("other_processes", "access to QEMU processes")
        .judge(
            Some(known),
            State::Missing,
            "CAP_SYS_PTRACE",
            "only this user's own",
        )
        .otherwise("Disks and images of other users' guests.", AS_ROOT)
}

fn pid_namespace(facts: &KernelFacts) -> Check {
    let known = facts.initial_pid_namespace;
    Check::new("pid_namespace", "the host's process ids (PID namespace)")
        .judge(
            known,
            State::Missing,
            "the initial namespace",
            "a separate namespace, as in a container",
        )
        .otherwise(
            "Guests cannot be recorded; devices (--device) can.",
            remedy(
                known,
                "docker run --pid=host … or podman run --pid=host …; or run nestrace on the host",
            ),
        )
}

fn tracefs(facts: &KernelFacts) -> Check {
    let yes = facts.tracefs.as_deref().unwrap_or_default();
    let detail = if facts.tracefs_events.is_some() {
        yes.to_owned()
    } else {
        format!("{yes} (not readable by this user)")
    };
    let lack = if facts.btf {
        State::NotNeeded
    } else {
        State::Missing
    };
    Check::new("tracefs", "tracefs")
        .judge(Some(facts.tracefs.is_some()), lack, &detail, "not mounted")
        .otherwise(
            "Nothing, as long as BTF describes the tracepoints; modules built without BTF need it.",
            "sudo mount -t tracefs tracefs /sys/kernel/tracing",
        )
}

fn lockdown(facts: &KernelFacts) -> Check {
    let check = Check::new("lockdown", "kernel lockdown");
    match facts.lockdown.as_deref() {
        Some("none") => check.judge(Some(true), State::Ok, "none", ""),
        Some("confidentiality") => check
            .judge(Some(false), State::Required, "", "confidentiality")
            .otherwise(NOTHING_IS_RECORDED, "boot without lockdown=confidentiality"),
        Some(mode) => check.judge(
            Some(true),
            State::Ok,
            &format!("{mode}: blktrace cannot run here, nestrace can"),
            "",
        ),
        None => Check {
            detail: "securityfs is not mounted".to_owned(),
            state: State::Unknown,
            ..check
        }
        .otherwise(
            "Nothing: the checks above already tried what lockdown forbids.",
            "sudo mount -t securityfs securityfs /sys/kernel/security",
        ),
    }
}

fn fentry(facts: &KernelFacts) -> Check {
    Check::new("fentry", "fentry")
        .judge(
            facts.fentry,
            State::NotNeeded,
            "a program loads",
            "the kernel refuses such programs",
        )
        .otherwise("Nothing: tracepoints are used.", "")
}

fn kprobes(facts: &KernelFacts) -> Check {
    Check::new("kprobes", "kprobes")
        .judge(
            facts.kprobes,
            State::NotNeeded,
            "the kernel has kprobes",
            "not in this kernel",
        )
        .otherwise("Nothing: tracepoints are used.", "")
}

/// What was refused needs the remedy; what is unknown needs a look as root.
fn remedy(known: Option<bool>, how: &'static str) -> &'static str {
    if known.is_some() { how } else { AS_ROOT }
}
