//! Damaged BTF never panics, never loops, and answers every query in bounded time.

mod blob;

use std::time::{Duration, Instant};

use blob::Blob;
use nestrace_kernel::btf::Btf;
use proptest::prelude::*;

/// One of everything.
fn sample() -> Blob {
    let mut blob = Blob::default();
    let int = blob.int("int", 4);
    let pointer = blob.reference(2, "", 12);
    let array = blob.array(int, int, 4);
    let union = blob.members(5, "", 16, &[("u", int, 0), ("", 6, 0)]);
    let typedef = blob.reference(8, "alias", 7);
    let constant = blob.reference(10, "", typedef);
    let inner = blob.members(
        4,
        "inner",
        16,
        &[("x", int, 0), ("array", array, 32), ("", union, 0)],
    );
    blob.members(
        4,
        "outer",
        32,
        &[("p", pointer, 0), ("", constant, 64), ("in", inner, 128)],
    );
    blob.enumerators(6, "", 4, &[("A", &[1]), ("B", &[2])]);
    blob.enumerators(19, "wide", 8, &[("C", &[1, 2])]);
    let params = [("", pointer), ("rq", pointer), ("n", int)];
    let proto = blob.params(int, &params);
    blob.reference(12, "function", proto);
    let proto_pointer = blob.reference(2, "", proto);
    blob.reference(8, "btf_trace_point", proto_pointer);
    blob
}

/// Asks everything; the answers do not matter, that they come does.
fn query(btf: &Btf) {
    for name in ["outer", "inner", "alias", "wide", "function", ""] {
        for path in ["p", "in.x", "in.array", "u", "in.u.u", "x.x.x.x", "none"] {
            let _ = (btf.offset_of(name, path), btf.pointee(name, path));
        }
        let _ = (
            btf.size_of(name),
            btf.has_type(name),
            btf.has_func(name),
            btf.func_args(name),
        );
        let _ = (
            btf.enum_value(name, "B"),
            btf.enum_value(name, "C"),
            btf.tracepoint_args("point"),
        );
    }
}

fn parse_and_query(bytes: &[u8]) {
    let start = Instant::now();
    if let Ok(btf) = Btf::parse(bytes) {
        query(&btf);
    }
    if let Ok(split) = Btf::parse_split(bytes, &sample().parse()) {
        query(&split);
    }
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "took {:?}",
        start.elapsed()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn mutated(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
               cut in any::<Option<prop::sample::Index>>()) {
        let mut bytes = sample().bytes();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        parse_and_query(&bytes);
    }

    /// Words that are plausible type numbers, infos and offsets, behind a good header.
    #[test]
    fn invented(words in prop::collection::vec(prop_oneof![0u32..40, any::<u32>(),
                    (0u32..20, 0u32..5).prop_map(|(kind, vlen)| kind << 24 | vlen)], 0..200)) {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        let length = words.len() as u32 * 4;
        for word in [24, 0, length, length, 11].iter().chain(&words) {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"\0outer\0p\0x\0");
        parse_and_query(&bytes);
    }
}

#[test]
fn the_sample_itself_answers() {
    let btf = sample().parse();
    assert_eq!(
        btf.offset_of("outer", "in.array")
            .map(|field| field.byte_offset),
        Some(20)
    );
    assert_eq!(
        btf.offset_of("outer", "x").map(|field| field.byte_offset),
        Some(8)
    );
    assert_eq!(btf.tracepoint_args("point").map(|args| args.len()), Some(2));
}
