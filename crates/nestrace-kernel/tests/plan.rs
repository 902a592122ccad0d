//! What attaches on which kernel, from frozen layouts (`fixtures/kernel`) and frozen facts.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use nestrace_abi::{Source, layout::FIELDS, maps::NESTED_PROGRAM};
use nestrace_kernel::btf::Btf;
use nestrace_kernel::facts::{KernelFacts, capability};
use nestrace_kernel::layout::{KernelTypes, Layout};
use nestrace_kernel::plan::{Detail, ProbePlan, Wanted, plan, plan_qemu};
use nestrace_kernel::probes::{self, QEMU, TRACEPOINTS};
use nestrace_kernel::throttle;
use nestrace_kernel::uring;

const FULL: Wanted = Wanted {
    detail: Detail::Full,
    processes: true,
    mounts: false,
    cpu: true,
};

fn frozen(kernel: &str) -> Layout {
    let path = format!(
        "{}/../../fixtures/kernel/{kernel}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Layout::from_text(&text).expect("a frozen layout reads")
}

/// Root on a kernel with BTF that allows all and has loaded the modules of `loaded`.
fn facts(loaded: &[&str]) -> KernelFacts {
    KernelFacts {
        release: "6.18.0".to_owned(),
        btf: true,
        module_btf: loaded.iter().map(|name| (*name).to_owned()).collect(),
        capabilities: u64::MAX >> 23,
        initial_user_namespace: true,
        ..KernelFacts::default()
    }
}

fn text(plan: &ProbePlan) -> String {
    let mut text = String::new();
    for probe in &plan.attach {
        let at = if probe.program == probe.target {
            ""
        } else {
            probe.target
        };
        let line = format!(
            "{:<8} {:<6} {:<29} {at}",
            probe.source.name(),
            probe.how.name(),
            probe.program
        );
        writeln!(text, "{}", line.trim_end()).expect("writing to memory");
    }
    for probe in &plan.refused {
        writeln!(
            text,
            "refused: {}: {}\n         {}",
            probe.program, probe.reason, probe.cost
        )
        .expect("writing to memory");
    }
    let _ = writeln!(text, "obstacle: {}", plan.obstacle().unwrap_or("none"));
    text
}

/// io_uring's tracepoints as `include/trace/events/io_uring.h` of 5.15 has them.
const URING_5_15: &str = "\
tracepoint io_uring_submit_sqe(void *, void *, u8 , u64 , u32 , bool , bool )
tracepoint io_uring_complete(void *, u64 , int , unsigned int )
tracepoint io_uring_queue_async_work(void *, int , void *, io_wq_work *, unsigned int )";
/// And that of 5.18.
const URING_5_18: &str = "\
tracepoint io_uring_submit_sqe(void *, void *, long long unsigned int , u8 , u32 , bool , bool )
tracepoint io_uring_complete(void *, void *, u64 , int , unsigned int )
tracepoint io_uring_queue_async_work(void *, void *, long long unsigned int , u8 , unsigned int , io_wq_work *, int )";

/// 6.1 with io_uring's tracepoints of another kernel. Of the others the plan asks for their names only.
fn with_uring(tracepoints: &str) -> Layout {
    let mut layout = frozen("6.1");
    let uring = Layout::from_text(tracepoints).expect("they are spelled as in a layout");
    layout.tracepoints.extend(uring.tracepoints);
    layout
}

/// 6.1 without what came after 5.15 and without modules.
fn like_5_15() -> Layout {
    let mut layout = with_uring(URING_5_15);
    let newer = [
        "iomap_dio_rw_begin",
        "iomap_dio_complete",
        "io_uring_submit_req",
    ];
    layout
        .tracepoints
        .retain(|name, _| !newer.contains(&name.as_str()));
    for module in ["ext4_", "xfs_", "btrfs_", "jbd2_"] {
        layout
            .tracepoints
            .retain(|name, _| !name.starts_with(module));
    }
    layout
}

#[test]
fn attaches_on_6_18() {
    insta::assert_snapshot!(text(&plan(&facts(&[]), &frozen("6.18"), FULL)));
}

#[test]
fn attaches_on_6_12() {
    let facts = facts(&["ext4", "jbd2", "xfs", "btrfs"]);
    insta::assert_snapshot!(text(&plan(&facts, &frozen("6.12"), FULL)));
}

#[test]
fn attaches_on_6_1() {
    let facts = facts(&["ext4", "jbd2", "xfs", "btrfs"]);
    insta::assert_snapshot!(text(&plan(&facts, &frozen("6.1"), FULL)));
}

#[test]
fn attaches_on_5_15_without_modules() {
    insta::assert_snapshot!(text(&plan(&facts(&[]), &like_5_15(), FULL)));
}

/// Every frozen kernel, oldest first.
fn all_kernels() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/kernel");
    let entries = std::fs::read_dir(folder).expect("the layouts are there");
    let names = entries.map(|entry| entry.expect("a layout").file_name());
    let mut kernels: Vec<String> = names
        .filter_map(|name| Some(name.to_str()?.strip_suffix(".txt")?.to_owned()))
        .collect();
    kernels.sort_by_key(|kernel| version(kernel));
    kernels
}

fn version(kernel: &str) -> Vec<u32> {
    let digits = kernel.split(|c: char| !c.is_ascii_digit());
    digits.filter_map(|part| part.parse().ok()).collect()
}

/// What each kernel does without, and whether recording works there at all.
#[test]
fn every_kernel_does_without() {
    let mut all = String::new();
    for kernel in all_kernels() {
        let facts = KernelFacts {
            release: kernel.trim_start_matches("about-").to_owned(),
            ..facts(&["ext4", "jbd2", "xfs", "btrfs", "f2fs"])
        };
        let plan = plan(&facts, &frozen(&kernel), FULL);
        let first = |program: &str| !program.ends_with(NESTED_PROGRAM);
        let attached = plan.attach.iter().filter(|probe| first(probe.program));
        writeln!(
            all,
            "{kernel}: {} programs and {} second ones; recording {}",
            attached.clone().count(),
            plan.attach.len() - attached.count(),
            plan.obstacle().unwrap_or("works")
        )
        .expect("writing to memory");
        for probe in plan.refused.iter().filter(|probe| first(probe.program)) {
            writeln!(all, "    {}: {}", probe.program, probe.reason).expect("writing to memory");
        }
    }
    insta::assert_snapshot!(all);
}

/// What names a log's write or a commit is asked for where the types of the modules are known, by a guest alone.
#[test]
fn waits_for_logs_in_a_guest() {
    let guest = Wanted {
        mounts: true,
        ..Wanted::default()
    };
    let with_modules = ["6.1", "6.12", "6.16", "6.17", "6.18", "7.1", "7.2", "7.3"];
    // Of the others these were not kept.
    let with_f2fs = ["6.1", "6.12", "7.3"];
    let with_log_space = ["6.1", "6.12", "6.18", "7.3"];
    let programs = [
        ("xlog_iclog_wait_on", &with_modules[..]),
        ("btrfs_sync_log", &with_modules[..]),
        ("btrfs_commit_transaction", &with_modules[..]),
        ("xfs_log_grant_sleep", &with_log_space[..]),
        ("xfs_log_grant_wake", &with_log_space[..]),
        ("__jbd2_log_wait_for_space", &with_log_space[..]),
        ("__jbd2_log_waited_for_space", &with_log_space[..]),
        ("f2fs_write_checkpoint", &with_f2fs[..]),
        ("f2fs_issue_checkpoint", &with_f2fs[..]),
    ];
    for kernel in all_kernels() {
        let layout = frozen(&kernel);
        let loaded = facts(&["jbd2", "xfs", "btrfs", "f2fs"]);
        let of_guest = plan(&loaded, &layout, guest);
        let of_host = plan(&loaded, &layout, FULL);
        for (program, kernels) in programs {
            let knows = kernels.contains(&kernel.as_str());
            assert_eq!(of_guest.attaches(program), knows, "{program} on {kernel}");
            assert!(!of_host.attaches(program), "{program} on {kernel}");
        }
    }
    let reason = |facts: &KernelFacts, layout: &Layout| {
        let plan = plan(facts, layout, guest);
        let found = plan
            .refused
            .iter()
            .find(|probe| probe.program == "btrfs_sync_log");
        found.map(|probe| (probe.reason.clone(), probe.cost.starts_with("Nothing")))
    };
    let loaded = facts(&["btrfs"]);
    let without_kprobes = KernelFacts {
        kprobes: Some(false),
        ..loaded.clone()
    };
    let mut layout = frozen("6.12");
    assert_eq!(reason(&loaded, &layout), None);
    let refused = "the kernel has no kprobes (CONFIG_KPROBE_EVENTS)".to_owned();
    assert_eq!(reason(&without_kprobes, &layout), Some((refused, false)));
    let function = layout.functions.get_mut("btrfs_sync_log");
    function.expect("it is there").remove(0);
    let other = "this kernel's btrfs_sync_log has other arguments".to_owned();
    assert_eq!(reason(&loaded, &layout), Some((other, false)));
    layout.functions.clear();
    let none = "this kernel has no function btrfs_sync_log".to_owned();
    assert_eq!(reason(&loaded, &layout), Some((none, false)));
    let not_loaded = "module btrfs is not loaded".to_owned();
    assert_eq!(reason(&facts(&[]), &layout), Some((not_loaded, true)));
}

/// Where the pause of a throttled writer is, and page faults, which only a guest asks for.
#[test]
fn throttled_writers_and_page_faults_in_a_guest() {
    let guest = Wanted {
        mounts: true,
        ..Wanted::default()
    };
    for kernel in all_kernels() {
        let layout = frozen(&kernel);
        let (is_6_16, is_6_12) = (
            version(&kernel) >= vec![6, 16],
            version(&kernel) >= vec![6, 12],
        );
        let place = if is_6_16 { 6 } else { 10 };
        assert_eq!(throttle::pause_argument(&layout), Some(place), "{kernel}");
        let of_guest = plan(&facts(&[]), &layout, guest);
        assert!(of_guest.attaches("balance_dirty_pages"), "{kernel}");
        assert_eq!(of_guest.attaches("mm_filemap_fault"), is_6_12, "{kernel}");
        let of_host = plan(&facts(&[]), &layout, FULL);
        assert!(!of_host.attaches("balance_dirty_pages"), "{kernel}");
    }
    let mut layout = frozen("6.18");
    let arguments = layout.tracepoints.get_mut("balance_dirty_pages");
    arguments.expect("it is there").remove(1);
    let plan = plan(&facts(&[]), &layout, guest);
    let mut refused = plan.refused.iter();
    let found = refused.find(|probe| probe.program == "balance_dirty_pages");
    let reason = "this kernel's balance_dirty_pages has the pause in another place";
    assert_eq!(found.map(|probe| probe.reason.as_str()), Some(reason));
}

/// What of io_uring is seen where, and why not the rest.
#[test]
fn io_uring_is_followed_where_its_tracepoints_name_the_request() {
    let check = |layout: &Layout, expected: &[(&str, Option<&str>)]| {
        let plan = plan(&facts(&[]), layout, FULL);
        for (program, refusal) in expected {
            let mut refused = plan.refused.iter();
            let found = refused.find(|probe| probe.program == *program);
            assert_eq!(
                found.map(|probe| probe.reason.as_str()),
                *refusal,
                "{program}"
            );
            assert_eq!(plan.attaches(program), refusal.is_none(), "{program}");
        }
    };
    let nameless =
        Some("this kernel's io_uring_complete does not say which request ends (Linux 5.18 does)");
    let misplaced =
        Some("this kernel's io_uring_queue_async_work has the request in another place");
    let rows = |submit, complete, queue_async| {
        [
            ("io_uring_submit_req", submit),
            ("io_uring_complete", complete),
            ("io_uring_queue_async_work", queue_async),
        ]
    };
    check(&like_5_15(), &rows(nameless, nameless, nameless));
    check(&with_uring(URING_5_18), &rows(None, None, misplaced));
    for kernel in ["6.1", "6.12", "6.18"] {
        check(&frozen(kernel), &rows(None, None, None));
    }
    assert!(
        uring::context_is_first(&with_uring(URING_5_18))
            && !uring::context_is_first(&frozen("6.1"))
    );
}

#[test]
fn attaches_in_light_detail() {
    let light = Wanted {
        detail: Detail::Light,
        ..Wanted::default()
    };
    insta::assert_snapshot!(text(&plan(&facts(&[]), &frozen("6.18"), light)));
}

#[test]
fn attaches_in_a_guest() {
    let guest = Wanted {
        mounts: true,
        ..Wanted::default()
    };
    let facts = facts(&["ext4", "jbd2"]);
    insta::assert_snapshot!(text(&plan(&facts, &frozen("6.1"), guest)));
}

/// The same guest without its calls: what a full plan has of the block layer, and nothing else, attached or refused.
#[test]
fn io_detail_in_a_guest_has_the_block_layer_alone() {
    let planned = |detail, (processes, mounts)| {
        let wanted = Wanted {
            detail,
            processes,
            mounts,
            cpu: true,
        };
        plan(&facts(&["ext4", "jbd2"]), &frozen("6.1"), wanted)
    };
    let in_a_guest = (false, true);
    let (mut full, io) = (
        planned(Detail::Full, in_a_guest),
        planned(Detail::Io, in_a_guest),
    );
    assert!(full.attaches("sys_enter") && full.attaches("jbd2_start_commit"));
    full.attach.retain(|probe| probe.source == Source::Block);
    full.refused.retain(|probe| probe.source == Source::Block);
    assert_eq!(io, full);
    assert!(io.attaches("block_bio_queue"));
    for on_a_host in [(true, false), (false, false)] {
        assert_eq!(
            planned(Detail::Io, on_a_host),
            planned(Detail::Full, on_a_host)
        );
    }
}

#[test]
fn obstacles() {
    let check = |change: &dyn Fn(&mut KernelFacts), expected: &str| {
        let mut facts = facts(&[]);
        change(&mut facts);
        let layout = if facts.btf {
            frozen("6.18")
        } else {
            Layout::default()
        };
        let plan = plan(&facts, &layout, FULL);
        assert_eq!(plan.obstacle(), Some(expected));
        assert!(!plan.attaches("block_rq_issue"));
        let first = |program: &&str| !program.ends_with(NESTED_PROGRAM);
        let attached = plan.attach.iter().map(|probe| probe.program);
        let refused = plan.refused.iter().map(|probe| probe.program);
        assert_eq!(
            attached.chain(refused).filter(first).count(),
            n_first_rows_in_full()
        );
        plan
    };
    check(
        &|facts| facts.btf = false,
        "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF), which says where its fields are",
    );
    check(
        &|facts| facts.capabilities = 0,
        "not permitted: CAP_BPF and CAP_PERFMON (or root) are needed",
    );
    check(
        &|facts| facts.capabilities = 1 << capability::BPF,
        "not permitted: CAP_BPF and CAP_PERFMON (or root) are needed",
    );
    check(
        &|facts| facts.bpf_syscall = Some(false),
        "the kernel has no bpf system call (CONFIG_BPF_SYSCALL)",
    );
    check(
        &|facts| facts.ring_buffer = Some(false),
        "the kernel has no BPF ring buffer (Linux 5.8)",
    );
    check(
        &|facts| facts.initial_user_namespace = false,
        "BPF needs the initial user namespace; this is a container with its own",
    );
    check(
        &|facts| facts.kernel_reads = Some(false),
        "the kernel refuses to let programs read its memory (lockdown=confidentiality)",
    );
    check(
        &|facts| facts.bpf_refused = Some(true),
        "the bpf system call is refused: by a container's seccomp filter or a security module",
    );
    check(
        &|facts| facts.btf_problem = Some("read BTF version".to_owned()),
        "the kernel's BTF does not parse: read BTF version",
    );
    let raw_only = check(
        &|facts| facts.btf_tracepoints = Some(false),
        "the kernel refuses BTF tracepoint programs",
    );
    assert!(
        raw_only.attaches("io_uring_complete"),
        "a lack of one layer must not stop the others"
    );
}

#[test]
fn what_is_enough() {
    let split = KernelFacts {
        capabilities: 1 << capability::BPF | 1 << capability::PERFMON,
        // Not known is not refused.
        ring_buffer: None,
        ..facts(&[])
    };
    assert_eq!(plan(&split, &frozen("6.18"), FULL).obstacle(), None);
    let admin = KernelFacts {
        capabilities: 1 << capability::SYS_ADMIN,
        ..split
    };
    assert_eq!(plan(&admin, &frozen("6.18"), FULL).obstacle(), None);
    // Without raw tracepoints the block layer and calls are still there.
    let btf_only = KernelFacts {
        raw_tracepoints: Some(false),
        ..admin
    };
    let plan = plan(&btf_only, &frozen("6.18"), FULL);
    assert!(plan.attaches("block_rq_issue") && plan.attaches("sys_enter"));
    assert!(!plan.attaches("io_uring_complete"));
    assert_eq!(plan.obstacle(), None);
}

/// A module without BTF whose tracepoint tracefs lists.
#[test]
fn a_tracepoint_that_only_tracefs_knows() {
    let mut facts = facts(&[]);
    facts.tracefs_events = Some(["xfs_log_force".to_owned()].into());
    let plan = plan(&facts, &like_5_15(), FULL);
    assert!(plan.attaches("xfs_log_force"));
    let refused = plan
        .refused
        .iter()
        .find(|probe| probe.program == "xfs_file_fsync")
        .expect("absent");
    assert_eq!(
        refused.reason,
        "this kernel has no tracepoint xfs_file_fsync"
    );
}

#[test]
fn functions_of_qemu() {
    let all: BTreeSet<String> = QEMU.iter().map(|row| row.target.to_owned()).collect();
    let none = BTreeSet::new();
    assert_eq!(plan_qemu(&facts(&[]), &all, &none).refused, []);
    let usdt = BTreeSet::from(["virtqueue_fill".to_owned()]);
    insta::assert_snapshot!(text(&plan_qemu(&facts(&[]), &none, &usdt)));
    let no_uprobes = KernelFacts {
        uprobes: Some(false),
        ..facts(&[])
    };
    assert_eq!(plan_qemu(&no_uprobes, &all, &none).attach, []);
}

/// The frozen layouts were made from the tables as they are now: regenerate them after adding a row.
#[test]
fn frozen_layouts_know_every_field_and_tracepoint() {
    for kernel in all_kernels() {
        let path = format!(
            "{}/../../fixtures/kernel/{kernel}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(path).expect("the fixture is there");
        for name in probes::tracepoints() {
            let present = text.contains(&format!("tracepoint {name}("));
            let absent = text.contains(&format!("# absent: tracepoint {name}\n"));
            assert!(present != absent, "{kernel}: {name}");
        }
        for field in FIELDS {
            let present = text.contains(&format!("field {} ", field.global));
            let absent = text.contains(&format!("# absent: {} ", field.global));
            assert!(present != absent, "{kernel}: {}", field.global);
        }
    }
}

#[test]
fn text_form_keeps_everything() {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux").expect("this kernel has no BTF");
    let types = KernelTypes::new(Btf::parse(&bytes).expect("the running kernel's BTF parses"));
    let layout = Layout::read(&types);
    assert_eq!(Layout::from_text(&layout.to_text()), Ok(layout.clone()));
    let globals: Vec<_> = layout.globals().collect();
    assert!(globals.contains(&("RQ_SIZE", layout.fields["RQ_SIZE"].size as u16)));
    assert!(globals.contains(&("BIO_NEXT", 0)));
    let error = Layout::from_text("enum A 1\nfield BIO_NEXT x 8\n").expect_err("x is no number");
    assert!(
        error.to_string().starts_with("read layout, line 2: "),
        "{error}"
    );
}

fn n_first_rows_in_full() -> usize {
    TRACEPOINTS
        .iter()
        .filter(|row| !row.program.starts_with("light_") && !row.program.ends_with(NESTED_PROGRAM))
        .filter(|row| !row.by_mount)
        .count()
}
