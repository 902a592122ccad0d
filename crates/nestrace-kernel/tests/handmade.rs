//! Tiny BTF made by hand, one case for each kind of type and each way to be wrong.

mod blob;

use blob::Blob;
use nestrace_kernel::btf::{Arg, BitField, Btf, BtfError, FieldAt};

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const BIT_FIELDS: u32 = 1 << 31;

fn at(byte_offset: u32, size: u32) -> Option<FieldAt> {
    Some(FieldAt {
        byte_offset,
        size,
        bit: None,
    })
}

/// A path through every kind that a member's type may have.
#[test]
fn members_of_every_kind() {
    let mut blob = Blob::default();
    let int = blob.int("int", 4);
    let void_pointer = blob.reference(2, "", 0);
    let array = blob.array(int, int, 3);
    let matrix = blob.array(array, int, 2);
    let float = blob.sized(16, "double", 8);
    let enumeration = blob.sized(6, "", 4);
    let enum64 = blob.sized(19, "", 8);
    let constant = blob.reference(10, "", int);
    let volatile = blob.reference(9, "", constant);
    let tagged = blob.reference(18, "user", volatile);
    let typedef = blob.reference(8, "number_t", tagged);
    let restricted = blob.reference(11, "", void_pointer);
    let types = [
        (void_pointer, 8),
        (array, 12),
        (matrix, 24),
        (float, 8),
        (enumeration, 4),
        (enum64, 8),
        (typedef, 4),
        (restricted, 8),
    ];
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let mut members = Vec::new();
    let mut bit = 0;
    for (name, (type_id, size)) in names.iter().zip(types) {
        members.push((*name, type_id, bit));
        bit += size * 8;
    }
    blob.members(STRUCT, "all", bit / 8, &members);
    let btf = blob.parse();
    let mut byte = 0;
    for (name, (_, size)) in names.iter().zip(types) {
        assert_eq!(btf.offset_of("all", name), at(byte, size), "member {name}");
        byte += size;
    }
    assert_eq!(btf.size_of("all"), Some(byte));
    assert_eq!(btf.size_of("number_t"), Some(4));
}

#[test]
fn anonymous_members_are_entered_and_named_ones_are_not() {
    let mut blob = Blob::default();
    let long = blob.int("long", 8);
    let inner = blob.members(STRUCT, "", 16, &[("x", long, 0), ("y", long, 64)]);
    let either = blob.members(UNION, "", 16, &[("z", long, 0), ("", inner, 0)]);
    let constant = blob.reference(10, "", either);
    let named = blob.members(STRUCT, "named", 16, &[("hidden", long, 64)]);
    let alias = blob.reference(8, "named_t", named);
    blob.members(
        STRUCT,
        "outer",
        40,
        &[("first", long, 0), ("", constant, 64), ("in", alias, 192)],
    );
    let btf = blob.parse();
    let cases = [
        ("first", at(0, 8)),
        ("z", at(8, 8)),
        ("x", at(8, 8)),
        ("y", at(16, 8)),
        ("in", at(24, 16)),
        ("in.hidden", at(32, 8)),
        ("hidden", None),
        ("in.y", None),
        ("first.x", None),
        ("", None),
        (".", None),
        ("in.", None),
    ];
    for (path, expected) in cases {
        assert_eq!(btf.offset_of("outer", path), expected, "path {path:?}");
    }
    assert_eq!(btf.offset_of("named_t", "hidden"), at(8, 8));
}

#[test]
fn bit_fields() {
    let mut blob = Blob::default();
    let int = blob.int("unsigned int", 4);
    let byte = blob.int("unsigned char", 1);
    let members = [
        ("low", int, 3 << 24 | 32),
        ("high", int, 5 << 24 | 59),
        ("plain", int, 64),
        ("wide", byte, 6 << 24 | 100),
        ("broken", int, 255 << 24),
    ];
    blob.members(STRUCT | BIT_FIELDS, "flags", 32, &members);
    let btf = blob.parse();
    let bits = |byte_offset, size, offset, width| {
        Some(FieldAt {
            byte_offset,
            size,
            bit: Some(BitField { offset, width }),
        })
    };
    assert_eq!(btf.offset_of("flags", "low"), bits(4, 4, 0, 3));
    assert_eq!(btf.offset_of("flags", "high"), bits(4, 4, 27, 5));
    assert_eq!(btf.offset_of("flags", "plain"), at(8, 4));
    // Bits 100 to 105 cross a byte; the next larger unit holds them.
    assert_eq!(btf.offset_of("flags", "wide"), bits(12, 2, 4, 6));
    assert_eq!(btf.offset_of("flags", "broken"), None);
}

#[test]
fn enumerators_of_both_widths_and_signs() {
    let mut blob = Blob::default();
    blob.enumerators(6, "", 4, &[("ZERO", &[0]), ("MAX", &[u32::MAX])]);
    blob.enumerators(6 | BIT_FIELDS, "signed", 4, &[("MINUS", &[u32::MAX])]);
    blob.enumerators(19, "wide", 8, &[("BIG", &[1, 2])]);
    let btf = blob.parse();
    assert_eq!(btf.enum_value("", "MAX"), Some(i64::from(u32::MAX)));
    assert_eq!(btf.enum_value("", "MINUS"), Some(-1));
    assert_eq!(btf.enum_value("signed", "MINUS"), Some(-1));
    assert_eq!(btf.enum_value("wide", "BIG"), Some((2 << 32) + 1));
    assert_eq!(btf.enum_value("wide", "ZERO"), None);
    assert_eq!(btf.enum_value("", "NONE"), None);
}

#[test]
fn tracepoints_and_functions() {
    let mut blob = Blob::default();
    let int = blob.int("int", 4);
    let forward = blob.reference(7, "request", 0);
    let pointer = blob.reference(2, "", forward);
    let char_type = blob.int("char", 1);
    let constant = blob.reference(10, "", char_type);
    let text = blob.reference(2, "", constant);
    let texts = blob.reference(2, "", text);
    let void_pointer = blob.reference(2, "", 0);
    let all = [("", void_pointer), ("", pointer), ("", int), ("", texts)];
    let proto = blob.params(0, &all);
    let proto_pointer = blob.reference(2, "", proto);
    blob.reference(8, "btf_trace_rq", proto_pointer);
    let stub = blob.params(
        0,
        &[
            ("__data", void_pointer),
            ("rq", pointer),
            ("n", int),
            ("s", texts),
        ],
    );
    blob.reference(12, "__probestub_rq", stub);
    let empty = blob.params(0, &[]);
    let empty_pointer = blob.reference(2, "", empty);
    blob.reference(8, "btf_trace_odd", empty_pointer);
    // What comes with functions and is of no interest must still be passed over.
    blob.variable("var", int);
    blob.data_section(".data", &[(int, 0, 4)]);
    blob.decl_tag("tag", stub);
    blob.members(STRUCT, "holder", 8, &[("rq", pointer, 0)]);
    let btf = blob.parse();
    let arg = |name: &str, type_name: &str, is_pointer| Arg {
        name: Some(name.to_owned()),
        type_name: type_name.to_owned(),
        is_pointer,
    };
    let expected = vec![
        arg("rq", "request", true),
        arg("n", "int", false),
        arg("s", "char *", true),
    ];
    assert_eq!(btf.tracepoint_args("rq"), Some(expected));
    assert_eq!(btf.tracepoint_args("odd"), None);
    assert_eq!(
        btf.func_args("__probestub_rq").map(|args| args.len()),
        Some(4)
    );
    assert_eq!(btf.func_args("btf_trace_rq"), None);
    assert!(btf.has_func("__probestub_rq") && !btf.has_func("btf_trace_rq"));
    assert_eq!(
        (btf.tracepoint_id("rq"), btf.func_id("rq")),
        (Some(proto_pointer + 1), None)
    );
    assert_eq!(btf.func_id("__probestub_rq"), Some(stub + 1));
    assert!(btf.has_type("btf_trace_rq") && !btf.has_type("request"));
    assert_eq!(btf.pointee("holder", "rq").as_deref(), Some("request"));
}

#[test]
fn a_module_continues_its_kernel() {
    let mut kernel = Blob::default();
    let int = kernel.int("int", 4);
    kernel.members(STRUCT, "shared", 4, &[("a", int, 0)]);
    let base = kernel.parse();
    let mut module = Blob::after(&kernel);
    let own = module.members(STRUCT, "shared", 8, &[("b", int, 32)]);
    module.members(STRUCT, "outer", 16, &[("in", own, 64)]);
    let split = Btf::parse_split(&module.bytes(), &base).expect("the module parses");
    assert_eq!(split.n_types(), base.n_types() + 2);
    assert_eq!(split.offset_of("outer", "in.b"), at(12, 4));
    // Two structs of one name: the module's own first, then the kernel's.
    assert_eq!(split.offset_of("shared", "b"), at(4, 4));
    assert_eq!(split.offset_of("shared", "a"), at(0, 4));
    assert_eq!(split.size_of("shared"), Some(8));
    assert_eq!(base.offset_of("shared", "b"), None);
}

/// Types that refer to themselves, to later types, or to nothing.
#[test]
fn endless_chains_end() {
    let mut blob = Blob::default();
    blob.reference(8, "self", 1);
    blob.members(STRUCT, "recursive", 8, &[("", 2, 0), ("self", 1, 0)]);
    blob.members(STRUCT, "nothing", 8, &[("x", 4_000_000, 0), ("v", 0, 0)]);
    blob.array(4, 4, u32::MAX);
    blob.members(STRUCT, "large", 8, &[("x", 4, 0)]);
    let wide = vec![("", 6, 0); 60_000];
    blob.members(STRUCT, "wide", 8, &wide);
    let btf = blob.parse();
    assert_eq!(btf.size_of("self"), None);
    assert_eq!(btf.offset_of("self", "x"), None);
    assert_eq!(btf.offset_of("recursive", "x"), None);
    assert_eq!(btf.offset_of("recursive", "self"), None);
    assert_eq!(btf.offset_of("nothing", "x"), None);
    assert_eq!(btf.offset_of("nothing", "v"), None);
    assert_eq!(btf.offset_of("large", "x"), None);
    assert_eq!(btf.offset_of("wide", "x"), None);
}

#[test]
fn errors_name_item_and_offset() {
    let mut blob = Blob::default();
    blob.int("int", 4);
    let good = blob.bytes();
    let with = |offset: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        Btf::parse(&bytes).expect_err("damaged").to_string()
    };
    let cases = [
        (
            0,
            &[0xeb, 0x9f][..],
            "read BTF magic at offset 0: big-endian BTF is not supported",
        ),
        (
            0,
            &[0x7f],
            "read BTF magic at offset 0: found 0xeb7f, not 0xeb9f",
        ),
        (
            2,
            &[2],
            "read BTF version at offset 2: found 2, only 1 is known",
        ),
        (
            4,
            &[8],
            "read BTF header field hdr_len: 8 is out of range for 45 bytes",
        ),
        (
            15,
            &[1],
            "read BTF header field type_len: 16777232 is out of range for 45 bytes",
        ),
        (
            16,
            &[99],
            "read BTF header field str_off: 99 is out of range for 45 bytes",
        ),
        (
            12,
            &[12],
            "read BTF type at offset 24: 16 bytes needed, 12 left",
        ),
        (
            12,
            &[8],
            "read BTF type at offset 24: 12 bytes needed, 8 left",
        ),
        (31, &[31], "read BTF type 1 at offset 24: unknown kind 31"),
    ];
    for (offset, value, expected) in cases {
        assert_eq!(with(offset, value), expected);
    }
    let short = Btf::parse(&good[..10]).expect_err("no header");
    assert_eq!(
        short.to_string(),
        "read BTF header at offset 0: 24 bytes needed, 10 left"
    );

    let mut unnamed = Blob::default();
    unnamed.members(STRUCT, "lost", 4, &[]);
    let mut bytes = unnamed.bytes();
    bytes[24] = 77;
    let error = Btf::parse(&bytes).expect_err("a name outside the strings");
    assert_eq!(
        error,
        BtfError::Name {
            id: 1,
            offset: 24,
            string: 77
        }
    );
    // The last string has lost its end.
    let mut bytes = unnamed.bytes();
    bytes.pop();
    bytes[20] -= 1;
    assert!(matches!(
        Btf::parse(&bytes),
        Err(BtfError::Name { id: 1, .. })
    ));
}
