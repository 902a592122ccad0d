//! Which thread of QEMU is what.

use std::fs;

use nestrace_trace::manifest::QemuThread;

use super::process::{Process, thread_ids};
use super::qmp::Facts;

/// The threads of a QEMU now: what QMP says of them, else what their names say, which they have with `debug-threads=on`
/// (libvirt sets it).
pub(super) fn threads(process: &Process, facts: Option<&Facts>) -> Vec<QemuThread> {
    let mut threads: Vec<QemuThread> = thread_ids(process.pid)
        .into_iter()
        .map(|tid| {
            let path = process.proc_path(&format!("task/{tid}/comm"));
            let name = fs::read_to_string(path).unwrap_or_default();
            thread(tid, name.trim_end(), facts)
        })
        .collect();
    threads.sort_by_key(|thread| thread.tid);
    threads
}

fn thread(tid: u32, name: &str, facts: Option<&Facts>) -> QemuThread {
    let vcpus = facts.map_or([].as_slice(), |facts| &facts.vcpus);
    let iothreads = facts.map_or([].as_slice(), |facts| &facts.iothreads);
    let vcpu = vcpus.iter().find(|vcpu| vcpu.thread_id == tid);
    let iothread = iothreads.iter().find(|thread| thread.thread_id == tid);
    let mut thread = QemuThread::default();
    thread.tid = tid;
    thread.vcpu = vcpu.map(|vcpu| vcpu.cpu_index).or_else(|| vcpu_of(name));
    thread.iothread = iothread
        .map(|thread| thread.id.clone())
        .or_else(|| name.strip_prefix("IO ").map(str::to_owned));
    name.clone_into(&mut thread.name);
    thread
}

/// `CPU 3/KVM`, `CPU 0/TCG`.
fn vcpu_of(name: &str) -> Option<u32> {
    let (number, _) = name.strip_prefix("CPU ")?.split_once('/')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_by_name_and_by_qmp() {
        let by_name = |name| {
            let thread = thread(5, name, None);
            (thread.vcpu, thread.iothread)
        };
        assert_eq!(by_name("CPU 12/KVM"), (Some(12), None));
        assert_eq!(
            by_name("IO iothread1"),
            (None, Some("iothread1".to_owned()))
        );
        assert_eq!(by_name("qemu-system-x86"), (None, None));
        assert_eq!(by_name("CPU x/KVM"), (None, None));
    }
}
