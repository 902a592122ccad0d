use std::collections::BTreeSet;

use nestrace_kernel::facts::KernelFacts;
use nestrace_kernel::layout::Layout;
use nestrace_kernel::probes::QEMU;

use nestrace_probes::kernel_facts::gather;

use super::{DoctorReport, QemuBinary, State};
use crate::qemu_binary::find_qemu;
use crate::qemu_symbols::Located;

fn frozen(kernel: &str) -> Layout {
    let path = format!(
        "{}/../../fixtures/kernel/{kernel}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("the fixture is there");
    Layout::from_text(&text).expect("a frozen layout reads")
}

/// Root on a kernel that allows everything.
fn open_machine() -> KernelFacts {
    KernelFacts {
        release: "6.1.0-56-amd64".to_owned(),
        arch: "x86_64".to_owned(),
        btf: true,
        module_btf: ["ext4", "jbd2"].map(str::to_owned).into(),
        tracefs: Some("/sys/kernel/tracing".to_owned()),
        tracefs_events: Some(BTreeSet::new()),
        bpf_syscall: Some(true),
        bpf_refused: Some(false),
        ring_buffer: Some(true),
        raw_tracepoints: Some(true),
        btf_tracepoints: Some(true),
        kernel_reads: Some(true),
        fentry: Some(true),
        uprobes: Some(true),
        kprobes: Some(true),
        lockdown: Some("none".to_owned()),
        capabilities: u64::MAX >> 23,
        initial_user_namespace: true,
        initial_pid_namespace: Some(true),
        kallsyms_hidden: Some(false),
        ..KernelFacts::default()
    }
}

/// What an ordinary user sees: no attempt was made.
fn ordinary_user() -> KernelFacts {
    KernelFacts {
        euid: 1000,
        capabilities: 0,
        kallsyms_hidden: Some(true),
        tracefs_events: None,
        lockdown: None,
        bpf_syscall: None,
        bpf_refused: None,
        ring_buffer: None,
        raw_tracepoints: None,
        btf_tracepoints: None,
        kernel_reads: None,
        fentry: None,
        ..open_machine()
    }
}

fn qemu(functions: &[&str]) -> QemuBinary {
    let symbols = functions
        .iter()
        .map(|name| ((*name).to_owned(), 4096))
        .collect();
    QemuBinary {
        pid: Some(4711),
        guest: Some("vm1".to_owned()),
        path: "/usr/bin/qemu-system-x86_64".to_owned(),
        located: Ok(Located {
            symbols,
            ..Located::default()
        }),
    }
}

fn state(report: &DoctorReport, id: &str) -> State {
    report
        .checks
        .iter()
        .find(|check| check.id == id)
        .expect("the check exists")
        .state
}

#[test]
fn an_open_machine_lacks_nothing() {
    let all: Vec<_> = QEMU.iter().map(|row| row.target).collect();
    let report = DoctorReport::new(open_machine(), &frozen("6.1"), &[qemu(&all)]);
    assert_eq!((report.can_record, report.exit_code()), (true, 0));
    for check in &report.checks {
        assert_eq!(
            (check.state, &check.cost, &check.how),
            (State::Ok, &None, &None),
            "{check:?}"
        );
    }
    let text = report.to_text();
    assert!(
        text.starts_with("Recording works here.\n\nKernel 6.1.0-56-amd64 (x86_64)\n"),
        "{text}"
    );
    assert!(
        text.contains(
            "\nQEMU guest vm1 (pid 4711, /usr/bin/qemu-system-x86_64): 12 of 12 can be attached\n"
        ),
        "{text}"
    );
}

#[test]
fn every_lack_has_a_cost_and_a_required_one_a_remedy() {
    let bare = KernelFacts {
        euid: 1000,
        ..KernelFacts::default()
    };
    let refused = KernelFacts {
        bpf_refused: Some(true),
        ring_buffer: Some(false),
        raw_tracepoints: Some(false),
        btf_tracepoints: Some(false),
        kernel_reads: Some(false),
        fentry: Some(false),
        uprobes: Some(false),
        kprobes: Some(false),
        lockdown: Some("confidentiality".to_owned()),
        tracefs: None,
        kallsyms_hidden: Some(true),
        ..open_machine()
    };
    for facts in [bare, ordinary_user(), refused] {
        let report = DoctorReport::new(facts, &Layout::default(), &[]);
        assert_eq!((report.can_record, report.exit_code()), (false, 4));
        for check in report
            .checks
            .iter()
            .filter(|check| check.state != State::Ok)
        {
            assert!(
                check.cost.is_some() && !check.detail.is_empty(),
                "{check:?}"
            );
            let can_do_without = matches!(check.id, "fentry" | "kprobes");
            assert!(check.how.is_some() || can_do_without, "{check:?}");
        }
    }
}

#[test]
fn machines_that_cannot_record() {
    let no_btf = KernelFacts {
        btf: false,
        ..open_machine()
    };
    let confidential = KernelFacts {
        kernel_reads: Some(false),
        lockdown: Some("confidentiality".to_owned()),
        ..open_machine()
    };
    let cases = [
        (no_btf, "btf", "the kernel has no BTF"),
        (
            ordinary_user(),
            "privilege",
            "not permitted: CAP_BPF and CAP_PERFMON (or root) are needed",
        ),
        (
            confidential,
            "kernel_reads",
            "the kernel refuses to let programs read its memory",
        ),
    ];
    for (facts, id, obstacle) in cases {
        let layout = if facts.btf {
            frozen("6.1")
        } else {
            Layout::default()
        };
        let report = DoctorReport::new(facts, &layout, &[]);
        assert_eq!(
            (state(&report, id), report.exit_code()),
            (State::Required, 4),
            "{id}"
        );
        let text = report.to_text();
        assert!(
            text.starts_with(&format!("Recording cannot work here: {obstacle}")),
            "{text}"
        );
        assert!(text.contains("NEEDED"), "{text}");
        assert!(
            text.contains("Tracepoints: 0 of ") && !text.contains("block_rq_merge"),
            "{text}"
        );
    }
}

#[test]
fn a_container_with_process_ids_of_its_own() {
    let container = KernelFacts {
        initial_pid_namespace: Some(false),
        ..open_machine()
    };
    let all: Vec<_> = QEMU.iter().map(|row| row.target).collect();
    let report = DoctorReport::new(container, &frozen("6.1"), &[qemu(&all)]);
    // Devices are recorded all the same.
    assert_eq!(
        (state(&report, "pid_namespace"), report.exit_code()),
        (State::Missing, 0)
    );
    let text = report.to_text();
    for part in ["loses:  Guests", "--pid=host", "0 of 12 can be attached"] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    let unknown = KernelFacts {
        initial_pid_namespace: None,
        ..open_machine()
    };
    let report = DoctorReport::new(unknown, &frozen("6.1"), &[qemu(&all)]);
    assert_eq!(state(&report, "pid_namespace"), State::Unknown);
    assert!(report.to_text().contains("12 of 12 can be attached"));
}

#[test]
fn what_is_lost_on_5_15() {
    let mut layout = frozen("6.1");
    layout
        .tracepoints
        .retain(|name, _| !name.starts_with("iomap_dio_"));
    let report = DoctorReport::new(open_machine(), &layout, &[qemu(&["block_acct_start"])]);
    assert_eq!(report.exit_code(), 0);
    let text = report.to_text();
    for part in [
        "missing iomap_dio_complete: this kernel has no tracepoint iomap_dio_complete\n",
        "loses:  The end of direct I/O with aio=native is not seen",
        "missing block_acct_done: this QEMU exports no symbol block_acct_done",
        "1 of 12 can be attached",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    // What nestrace does without is no lack.
    let shut = KernelFacts {
        fentry: Some(false),
        tracefs: None,
        ..open_machine()
    };
    let report = DoctorReport::new(shut, &frozen("6.1"), &[]);
    let states = [state(&report, "fentry"), state(&report, "tracefs")];
    assert_eq!(states, [State::NotNeeded, State::NotNeeded]);
    assert!(!report.to_text().contains("get it"));
    // Lockdown=integrity forbids blktrace, not nestrace.
    let integrity = KernelFacts {
        lockdown: Some("integrity".to_owned()),
        ..open_machine()
    };
    let report = DoctorReport::new(integrity, &layout, &[]);
    assert_eq!(
        (state(&report, "lockdown"), report.exit_code()),
        (State::Ok, 0)
    );
}

#[test]
fn a_qemu_that_cannot_be_read() {
    let unreadable = QemuBinary {
        located: Err("read /proc/4711/exe: Permission denied (os error 13)".to_owned()),
        ..qemu(&[])
    };
    let no_program = QemuBinary {
        located: Ok(Located {
            problem: Some("Invalid ELF header".to_owned()),
            ..Located::default()
        }),
        ..qemu(&[])
    };
    let report = DoctorReport::new(open_machine(), &frozen("6.1"), &[unreadable, no_program]);
    let text = report.to_text();
    assert!(
        text.contains("  failed to read /proc/4711/exe: Permission denied"),
        "{text}"
    );
    assert!(
        text.contains("  failed to read /usr/bin/qemu-system-x86_64: Invalid ELF header"),
        "{text}"
    );
}

#[test]
fn a_guest_s_name_cannot_write_on_the_terminal() {
    let named = QemuBinary {
        guest: Some("vm\u{1b}]0;x\u{7}".to_owned()),
        ..qemu(&[])
    };
    let report = DoctorReport::new(open_machine(), &frozen("6.1"), &[named]);
    let text = report.to_text();
    assert!(
        text.contains("\nQEMU guest vm\u{fffd}]0;x\u{fffd} (pid 4711"),
        "{text:?}"
    );
}

/// The machine that runs the tests. As root nothing may stay unknown that an attempt answers.
#[test]
fn this_machine() {
    let (facts, layout) = gather();
    assert!(!facts.release.is_empty());
    assert_eq!(
        facts.btf,
        std::path::Path::new("/sys/kernel/btf/vmlinux").exists()
    );
    if facts.may_trace() {
        for (name, known) in [
            ("bpf_syscall", facts.bpf_syscall),
            ("bpf_refused", facts.bpf_refused),
        ] {
            assert!(known.is_some(), "{name}");
        }
    } else {
        assert_eq!((facts.bpf_syscall, facts.ring_buffer), (None, None));
    }
    let report = DoctorReport::new(facts.clone(), &layout, &find_qemu());
    assert_eq!(report.can_record, report.probes.attaches("block_rq_issue"));
    assert!(facts.may_trace() || !report.can_record);
    let json = serde_json::to_value(&report).expect("the report serializes");
    assert_eq!(json["can_record"], report.can_record);
    assert_eq!(json["facts"]["release"], facts.release);
}

/// Attempts tell what works: here everything but fentry does, as `facts.md` measured by other means.
#[test]
fn attempts_agree_with_the_kernel() {
    let (facts, _) = gather();
    if !facts.may_trace() || facts.bpf_refused == Some(true) {
        println!("not checked: this user may not load BPF programs");
        return;
    }
    let found = (facts.ring_buffer, facts.raw_tracepoints, facts.kernel_reads);
    assert_eq!(found, (Some(true), Some(true), Some(true)));
    assert_eq!(facts.btf_tracepoints, facts.btf.then_some(true));
}
