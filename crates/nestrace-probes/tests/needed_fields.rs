//! Which fields of the kernel each program reads without asking whether they are there, found out from the compiled
//! probes: `nestrace_kernel::needs` has to say just that.

mod interpreter;

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::{Object, generated::bpf_insn};
use interpreter::{Constants, Field, Function};
use nestrace_abi::layout::{ABSENT, FIELDS};
use nestrace_kernel::layout::Layout;
use nestrace_kernel::needs::{self, NEEDS};
use nestrace_kernel::probes::TRACEPOINTS;

const PROBES: &[u8] = include_bytes!("../../../ebpf/prebuilt/nestrace-probes.o");

/// A program's instructions, and what the constants hold on a kernel.
struct Programs {
    by_name: BTreeMap<String, Vec<bpf_insn>>,
    constants: Vec<u8>,
    /// Where each global lies in them.
    places: BTreeMap<String, usize>,
}

/// The number that stands for the map of the constants.
const CONSTANTS: i32 = 1;
const OTHER_MAP: i32 = 2;

impl Programs {
    /// As they are on a kernel of this layout.
    fn of(layout: &Layout) -> Self {
        let mut object = Object::parse(PROBES).expect("the probes parse");
        let values: Vec<(&str, [u8; 2])> = layout
            .globals()
            .map(|(name, value)| (name, value.to_ne_bytes()))
            .collect();
        let globals = values
            .iter()
            .map(|(name, value)| (*name, (value.as_slice(), true)))
            .collect();
        object
            .patch_map_data(globals)
            .expect("every field has a global");
        let places = FIELDS
            .iter()
            .map(|field| (field.global.to_owned(), object.symbol_place(field.global)))
            .collect();
        let maps: Vec<_> = std::mem::take(&mut object.maps).into_iter().collect();
        let constants = maps.iter().find(|(name, _)| name == ".rodata");
        let constants = constants.expect("there are constants").1.data().to_vec();
        let sections = object.functions.keys().map(|(section, _)| *section);
        let sections = sections.collect();
        let number = |name: &str| {
            if name == ".rodata" {
                CONSTANTS
            } else {
                OTHER_MAP
            }
        };
        let all = maps
            .iter()
            .map(|(name, map)| (name.as_str(), number(name), map));
        object
            .relocate_maps(all, &sections)
            .expect("maps are there");
        object
            .relocate_calls(&sections)
            .expect("functions are there");
        let by_name = object
            .programs
            .iter()
            .map(|(name, program)| {
                let function = &object.functions[&program.function_key()];
                (name.clone(), function.instructions.clone())
            })
            .collect();
        Self {
            by_name,
            constants,
            places,
        }
    }
}

/// Where a symbol lies in the constants.
trait SymbolPlace {
    fn symbol_place(&self, name: &str) -> usize;
}

impl SymbolPlace for Object {
    fn symbol_place(&self, name: &str) -> usize {
        interpreter::symbol_place(PROBES, name)
    }
}

fn frozen(kernel: &str) -> Layout {
    let path = format!(
        "{}/../../fixtures/kernel/{kernel}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Layout::from_text(&text).expect("a frozen layout reads")
}

/// What a program reads at the offset of a field that is not there.
fn read_when_absent(layout: &Layout) -> BTreeMap<String, BTreeSet<String>> {
    let programs = Programs::of(layout);
    let fields = programs.places.values().copied().collect();
    let mut needed = BTreeMap::new();
    for (name, instructions) in &programs.by_name {
        let function = Function::new(instructions, CONSTANTS);
        let mut of_program = BTreeSet::new();
        for field in FIELDS {
            let place = programs.places[field.global];
            let mut bytes = programs.constants.clone();
            bytes[place..place + 2].copy_from_slice(&ABSENT.to_ne_bytes());
            let constants = Constants {
                bytes: &bytes,
                fields: &fields,
            };
            let absent = Field { place, bytes: 2 };
            if function.reads_at(constants, absent) {
                of_program.insert(field.global.to_owned());
            }
        }
        needed.insert(name.clone(), of_program);
    }
    needed
}

#[test]
fn the_table_has_what_the_programs_read_without_asking() {
    // With both ways to a request's disk, and both to a folio's order, each program is looked at as it is anywhere.
    let kernels = ["5.10", "6.1", "6.12", "6.18", "7.3"];
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for kernel in kernels {
        for (program, fields) in read_when_absent(&frozen(kernel)) {
            found.entry(program).or_default().extend(fields);
        }
    }
    let mut wrong = String::new();
    for row in TRACEPOINTS {
        let says: BTreeSet<String> = needs::of(row.program)
            .map(|needs| needs.reads().map(str::to_owned).collect())
            .unwrap_or_default();
        let reads = found.remove(row.program).unwrap_or_default();
        if reads != says {
            wrong += &format!(
                "    {}: reads {reads:?}, the table says {says:?}\n",
                row.program
            );
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    for needs in NEEDS {
        for field in needs.reads().chain(needs.any_of.iter().copied()) {
            assert!(FIELDS.iter().any(|known| known.global == field), "{field}");
        }
    }
}
