//! What each program cannot do without.

mod table;

use nestrace_abi::{layout::FIELDS, maps::NESTED_PROGRAM};

use crate::layout::Layout;

pub use table::NEEDS;

/// What a program needs of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Name of the program in the probe object.
    pub program: &'static str,
    /// Types of the first arguments of its tracepoint or function, as BTF names them; `_` is any.
    pub arguments: &'static [&'static str],
    /// Fields (globals of [`nestrace_abi::layout::FIELDS`]) that it reads without asking whether they are there. A test finds
    /// them out from the compiled probes (`nestrace-probes/tests/needed_fields.rs`).
    pub reads: &'static [&'static [&'static str]],
    /// Of these one has to be there, or the program sends nothing.
    pub any_of: &'static [&'static str],
}

impl Needs {
    /// [`Needs::reads`], one by one.
    pub fn reads(&self) -> impl Iterator<Item = &'static str> {
        self.reads.iter().copied().flatten().copied()
    }
}

/// What a program needs; `None` where that is nothing.
#[must_use]
pub fn of(program: &str) -> Option<&'static Needs> {
    let first = program.strip_suffix(NESTED_PROGRAM).unwrap_or(program);
    NEEDS.iter().find(|needs| needs.program == first)
}

/// What a kernel of this layout lacks of it, in words; `None` where it has all.
#[must_use]
pub fn lacking(layout: &Layout, program: &str, tracepoint: &str) -> Option<String> {
    let needs = of(program)?;
    let has = |field: &&str| layout.fields.contains_key(*field);
    if let Some(missing) = needs.reads().find(|field| !has(field)) {
        return Some(format!("this kernel has no {}", path_of(missing)));
    }
    if let Some(first) = needs.any_of.first()
        && !needs.any_of.iter().any(has)
    {
        return Some(format!("this kernel has no {}", path_of(first)));
    }
    // Of a tracepoint that only tracefs lists, the arguments are not known.
    let of_tracepoint = layout.tracepoints.get(tracepoint);
    let arguments = of_tracepoint.or_else(|| layout.functions.get(tracepoint))?;
    let fits = |(place, wanted): (usize, &&str)| {
        let found = arguments
            .get(place)
            .map(|argument| argument.type_name.as_str());
        *wanted == "_" || found.is_some_and(|found| wanted.split('|').any(|name| name == found))
    };
    let all_fit = needs.arguments.iter().enumerate().all(fits);
    (!all_fit).then(|| format!("this kernel's {tracepoint} has other arguments"))
}

/// `bio.bi_bdev` of a global's name.
fn path_of(global: &str) -> &str {
    let field = FIELDS.iter().find(|field| field.global == global);
    field.map_or(global, |field| field.path)
}
