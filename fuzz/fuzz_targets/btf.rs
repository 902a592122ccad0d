//! Any bytes as a kernel's BTF, and as a module's on top of it: no panic, and every query ends soon.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nestrace_kernel::btf::Btf;

const NAMES: &[&str] = &["outer", "inner", "alias", "wide", "function", "p", ""];
const PATHS: &[&str] = &["p", "in.x", "x", "in.x.x", "u.u.u.u"];

fn query(btf: &Btf) {
    for name in NAMES {
        for path in PATHS {
            if let Some(field) = btf.offset_of(name, path) {
                assert!(
                    field
                        .bit
                        .is_none_or(|bit| bit.offset + bit.width <= field.size * 8)
                );
            }
            let _ = btf.pointee(name, path);
        }
        let _ = (
            btf.size_of(name),
            btf.has_type(name),
            btf.has_func(name),
            btf.func_id(name),
        );
        let _ = (
            btf.func_args(name),
            btf.tracepoint_args(name),
            btf.tracepoint_id(name),
        );
        let _ = (btf.enum_value(name, "A"), btf.enum_value("wide", name));
    }
}

// The first byte says where the module begins, in sixteenths of the input.
fuzz_target!(|input: &[u8]| {
    let Some((cut, bytes)) = input.split_first() else {
        return;
    };
    let (kernel, module) = bytes.split_at(bytes.len() * usize::from(cut % 17) / 16);
    let Ok(base) = Btf::parse(kernel) else { return };
    query(&base);
    if let Ok(split) = Btf::parse_split(module, &base) {
        assert!(split.n_types() >= base.n_types());
        query(&split);
    }
});
