//! Gathers [`KernelFacts`] from `/proc`, `/sys` and a few attempts.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nestrace_kernel::btf::Btf;
use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::kallsyms::Addresses;
use nestrace_kernel::layout::{KernelTypes, Layout};
use nestrace_kernel::probes::MODULES;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::attempt::{Body, MapType, Program, create_map, load_program};
use crate::mountinfo::{self, MountEntry};

const BTF_FOLDER: &str = "/sys/kernel/btf";
/// Inode number of the initial PID namespace: `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`, since 3.8
/// (98f842e675f9, "proc: Usable inode numbers for the namespace file descriptors").
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The facts of this machine and user, and what the kernel's BTF says (empty without BTF).
#[must_use]
pub fn gather() -> (KernelFacts, Layout) {
    let mut facts = KernelFacts {
        release: word_of("/proc/sys/kernel/osrelease").unwrap_or_default(),
        arch: std::env::consts::ARCH.to_owned(),
        euid: nix::unistd::geteuid().as_raw(),
        capabilities: capabilities().unwrap_or_default(),
        initial_user_namespace: in_initial_user_namespace(),
        initial_pid_namespace: initial_pid_namespace(
            pid_namespace_of("self"),
            pid_namespace_of("1"),
        ),
        unprivileged_bpf_disabled: number_of("/proc/sys/kernel/unprivileged_bpf_disabled"),
        perf_event_paranoid: number_of("/proc/sys/kernel/perf_event_paranoid"),
        kprobes: perf_has("kprobe"),
        uprobes: perf_has("uprobe"),
        lockdown: chosen("/sys/kernel/security/lockdown"),
        security_modules: word_of("/sys/kernel/security/lsm")
            .map(|list| list.split(',').map(str::to_owned).collect()),
        memlock: getrlimit(Resource::RLIMIT_MEMLOCK)
            .ok()
            .map(|(soft, _)| soft)
            .filter(|soft| *soft != RLIM_INFINITY),
        kallsyms_hidden: kallsyms_hidden(),
        ..KernelFacts::default()
    };
    mounts(&mut facts);
    let types = read_types(&mut facts);
    if facts.may_trace() {
        try_bpf(&mut facts, types.as_ref());
    }
    (facts, types.as_ref().map(Layout::read).unwrap_or_default())
}

/// Which of the modules that the probes ask something of are loaded now. What [`gather`] finds depends on
/// it, and it is cheap to ask again.
#[must_use]
pub fn modules() -> BTreeSet<&'static str> {
    let loaded = |module: &&str| Path::new("/sys/module").join(module).exists();
    MODULES.iter().copied().filter(loaded).collect()
}

fn read_types(facts: &mut KernelFacts) -> Option<KernelTypes> {
    let folder = Path::new(BTF_FOLDER);
    let bytes = fs::read(folder.join("vmlinux")).ok()?;
    let vmlinux = match Btf::parse(&bytes) {
        Ok(vmlinux) => vmlinux,
        Err(error) => {
            facts.btf_problem = Some(error.to_string());
            return None;
        }
    };
    facts.btf = true;
    let mut types = KernelTypes::new(vmlinux);
    for module in MODULES {
        let Ok(bytes) = fs::read(folder.join(module)) else {
            continue;
        };
        if let Ok(btf) = Btf::parse_split(&bytes, types.vmlinux()) {
            facts.module_btf.insert((*module).to_owned());
            types.add_module(*module, btf);
        }
    }
    Some(types)
}

/// Only with the capabilities: without, every attempt fails and says nothing about the kernel.
fn try_bpf(facts: &mut KernelFacts, types: Option<&KernelTypes>) {
    match create_map(MapType::Array) {
        Ok(()) => (facts.bpf_syscall, facts.bpf_refused) = (Some(true), Some(false)),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            facts.bpf_syscall = Some(false);
            return;
        }
        Err(_) => {
            (facts.bpf_syscall, facts.bpf_refused) = (Some(true), Some(true));
            return;
        }
    }
    let loads = |program| Some(load_program(program, Body::Nothing).is_ok());
    facts.ring_buffer = Some(create_map(MapType::RingBuffer).is_ok());
    facts.raw_tracepoints = loads(Program::RawTracepoint);
    facts.kernel_reads = facts
        .raw_tracepoints
        .filter(|loads| *loads)
        .map(|_| load_program(Program::RawTracepoint, Body::ReadKernel).is_ok());
    facts.uprobes = facts
        .uprobes
        .map(|opens| opens && loads(Program::Uprobe) == Some(true));
    let id = |query: &dyn Fn(&Btf) -> Option<u32>| types.and_then(|types| query(types.vmlinux()));
    facts.btf_tracepoints = id(&|btf| btf.tracepoint_id("block_rq_issue"))
        .and_then(|target| loads(Program::BtfTracepoint { target }));
    // Any function that every kernel has and that can be traced.
    facts.fentry =
        id(&|btf| btf.func_id("vfs_read")).and_then(|target| loads(Program::Fentry { target }));
}

fn word_of(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn number_of<T: std::str::FromStr>(path: &str) -> Option<T> {
    word_of(path)?.parse().ok()
}

/// The word in brackets: `none [integrity] confidentiality`.
fn chosen(path: &str) -> Option<String> {
    let text = word_of(path)?;
    let (chosen, _) = text.split_once('[')?.1.split_once(']')?;
    Some(chosen.to_owned())
}

/// Whether perf can open probes of this kind; unknown where sysfs has no list of perf's sources.
fn perf_has(kind: &str) -> Option<bool> {
    let folder = Path::new("/sys/bus/event_source/devices");
    folder.exists().then(|| folder.join(kind).exists())
}

fn capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The initial namespace maps every id to itself.
fn in_initial_user_namespace() -> bool {
    let Ok(map) = fs::read_to_string("/proc/self/uid_map") else {
        return true;
    };
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Inode number of a process' PID namespace, where this user may see it.
fn pid_namespace_of(process: &str) -> Option<u64> {
    let namespace = fs::metadata(format!("/proc/{process}/ns/pid")).ok()?;
    Some(namespace.ino())
}

/// Whether neither this process, whose namespace perf looks a pid up in (`find_lively_task_by_vpid()`), nor process 1
/// of `/proc`, which may be mounted from elsewhere, is in a PID namespace other than the initial one.
fn initial_pid_namespace(own: Option<u64>, of_proc: Option<u64>) -> Option<bool> {
    let is_initial = |inode| inode == INITIAL_PID_NAMESPACE;
    match (own.map(is_initial), of_proc.map(is_initial)) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (known, None) | (None, known) => known,
        (Some(true), Some(true)) => Some(true),
    }
}

fn kallsyms_hidden() -> Option<bool> {
    let listing = File::open("/proc/kallsyms").ok()?;
    // The first lines tell: the kernel hides all addresses or none.
    let head = io::Read::take(listing, 1 << 16);
    Some(Addresses::read(BufReader::new(head), &[]).ok()?.hidden)
}

fn mounts(facts: &mut KernelFacts) {
    let table = mountinfo::read(0).unwrap_or_default();
    facts.tracefs = mount_point(&table, "tracefs");
    facts.debugfs = mount_point(&table, "debugfs");
    let events = facts
        .tracefs
        .as_ref()
        .map(|mount| Path::new(mount).join("available_events"));
    facts.tracefs_events = events
        .and_then(|path| fs::read_to_string(path).ok())
        .map(event_names);
}

fn mount_point(table: &[MountEntry], fs_type: &str) -> Option<String> {
    let entry = table.iter().find(|entry| entry.fs_type == fs_type)?;
    Some(entry.mount_point.clone())
}

/// Lines of `available_events` are `system:name`.
fn event_names(list: String) -> BTreeSet<String> {
    list.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(_, name)| name.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{INITIAL_PID_NAMESPACE, event_names, initial_pid_namespace, mount_point};
    use crate::mountinfo;

    #[test]
    fn pids_are_the_host_s_where_no_namespace_says_otherwise() {
        let (host, container) = (Some(INITIAL_PID_NAMESPACE), Some(4_026_532_281));
        for (own, of_proc, expected) in [
            (host, host, Some(true)),
            // Another user's process 1.
            (host, None, Some(true)),
            (container, container, Some(false)),
            (container, None, Some(false)),
            // The host's `/proc` in a container, and a container's on the host.
            (container, host, Some(false)),
            (host, container, Some(false)),
            // This process is not in that `/proc`.
            (None, container, Some(false)),
            (None, host, Some(true)),
            (None, None, None),
        ] {
            assert_eq!(
                initial_pid_namespace(own, of_proc),
                expected,
                "{own:?} {of_proc:?}"
            );
        }
    }

    #[test]
    fn mounts_by_type() {
        let table = mountinfo::parse(
            "\
25 1 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
31 25 0:12 / /sys/kernel/tracing rw,nosuid - tracefs tracefs rw
36 25 8:1 / /mnt/debugfs rw - ext4 /dev/sda1 rw
",
        );
        assert_eq!(
            mount_point(&table, "tracefs").as_deref(),
            Some("/sys/kernel/tracing")
        );
        assert_eq!(mount_point(&table, "debugfs"), None);
    }

    #[test]
    fn events_without_their_system() {
        let names = event_names("block:block_rq_issue\nraw_syscalls:sys_enter\n\n".to_owned());
        assert!(
            names.contains("sys_enter") && names.contains("block_rq_issue") && names.len() == 2
        );
    }
}
