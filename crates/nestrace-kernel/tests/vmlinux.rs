//! The BTF of the kernel that runs the tests. Every kernel that nestrace supports has it.

use std::time::{Duration, Instant};

use nestrace_kernel::btf::{Arg, Btf};

fn vmlinux() -> Btf {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux").expect("this kernel has no BTF");
    Btf::parse(&bytes).expect("the running kernel's BTF parses")
}

fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs is mounted")
}

fn offset(btf: &Btf, name: &str, path: &str) -> u32 {
    let field = btf
        .offset_of(name, path)
        .unwrap_or_else(|| panic!("{name}.{path} not found"));
    field.byte_offset
}

#[test]
fn fields_through_named_and_anonymous_members() {
    let btf = vmlinux();
    let sector = btf
        .offset_of("bio", "bi_iter.bi_sector")
        .expect("bio has a sector");
    assert_eq!(sector.size, 8);
    assert_eq!(
        sector.byte_offset,
        offset(&btf, "bio", "bi_iter") + offset(&btf, "bvec_iter", "bi_sector")
    );
    // `mapping` is in an anonymous struct in an anonymous union of `struct page`.
    assert_eq!(
        btf.offset_of("page", "mapping")
            .map(|field| (field.byte_offset, field.size)),
        Some((24, 8))
    );
    // Named members are not searched: bi_sector is in bi_iter, not in bio.
    assert_eq!(btf.offset_of("bio", "bi_sector"), None);
    assert_eq!(btf.offset_of("bio", "bi_iter."), None);
    assert_eq!(btf.offset_of("bio", ""), None);
    assert_eq!(btf.offset_of("no_such_struct", "x"), None);
    assert_eq!(
        btf.offset_of("task_struct", "comm").map(|field| field.size),
        Some(16)
    );
}

#[test]
fn measured_offsets() {
    let btf = vmlinux();
    let measured = match release() {
        release if release.starts_with("6.18.") => (104, 52),
        release if release.starts_with("6.1.") => (160, 36),
        // Elsewhere the two must at least be pointer- and dev_t-aligned places within their structs.
        _ => {
            let within = |name, path, align| {
                let at = offset(&btf, name, path);
                assert!(
                    at.is_multiple_of(align) && Some(at) < btf.size_of(name),
                    "{name}.{path} at {at}"
                );
            };
            within("request_queue", "disk", 8);
            return within("block_device", "bd_dev", 4);
        }
    };
    let found = (
        offset(&btf, "request_queue", "disk"),
        offset(&btf, "block_device", "bd_dev"),
    );
    assert_eq!(found, measured);
}

#[test]
fn pointers_enums_and_sizes() {
    let btf = vmlinux();
    assert_eq!(
        btf.pointee("bio", "bi_bdev").as_deref(),
        Some("block_device")
    );
    assert_eq!(
        btf.pointee("request", "q").as_deref(),
        Some("request_queue")
    );
    assert_eq!(btf.pointee("bio", "bi_iter"), None);
    // include/linux/blk_types.h: REQ_OP_BITS is 8, so the first flag bit is number 8.
    assert_eq!(btf.enum_value("", "__REQ_FAILFAST_DEV"), Some(8));
    assert_eq!(btf.enum_value("req_flag_bits", "__REQ_SYNC"), Some(11));
    assert_eq!(btf.enum_value("req_flag_bits", "REQ_OP_WRITE"), None);
    assert_eq!(btf.enum_value("", "REQ_OP_WRITE"), Some(1));
    assert_eq!(btf.size_of("list_head"), Some(16));
    assert_eq!(btf.size_of("sector_t"), Some(8));
    assert!(btf.has_type("iov_iter") && !btf.has_type("iov_iter_"));
    assert!(btf.has_func("submit_bio") && !btf.has_func("bio"));
}

#[test]
fn arguments_of_tracepoints() {
    let btf = vmlinux();
    let args = btf
        .tracepoint_args("block_bio_remap")
        .expect("the block layer has tracepoints");
    let types: Vec<_> = args
        .iter()
        .map(|arg| (arg.type_name.as_str(), arg.is_pointer))
        .collect();
    assert_eq!(
        types,
        [("bio", true), ("dev_t", false), ("sector_t", false)]
    );
    let args = btf
        .tracepoint_args("sys_enter")
        .expect("system calls have tracepoints");
    let types: Vec<_> = args
        .iter()
        .map(|arg| (arg.type_name.as_str(), arg.is_pointer))
        .collect();
    assert_eq!(types, [("pt_regs", true), ("long int", false)]);
    assert_eq!(btf.tracepoint_args("no_such_tracepoint"), None);
    let submit_bio = Arg {
        name: Some("bio".into()),
        type_name: "bio".into(),
        is_pointer: true,
    };
    assert_eq!(btf.func_args("submit_bio"), Some(vec![submit_bio]));
}

#[test]
fn parses_in_time() {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux").expect("this kernel has no BTF");
    // The fastest of several, because the machine may be busy.
    let parse = |_| {
        let start = Instant::now();
        let btf = Btf::parse(&bytes).expect("the running kernel's BTF parses");
        assert!(btf.n_types() > 10_000);
        start.elapsed()
    };
    let fastest = (0..20).map(parse).min().expect("twenty runs");
    println!("parsed {} bytes in {fastest:?}", bytes.len());
    // A debug build on a busy machine has time enough; what looked at all types for each of them would take hours.
    assert!(fastest < Duration::from_secs(5), "parsing took {fastest:?}");
}
