//! Everything that the probes ask of a kernel, read from its BTF in one go, with a text form that
//! is frozen in `fixtures/kernel` so that tests know kernels other than the running one.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nestrace_abi::layout::{ABSENT, FIELDS, Field};
use thiserror::Error;

use crate::btf::{Arg, BitField, Btf, FieldAt};
use crate::probes;

/// Enumerators whose numbers move between kernels: bits of `bio->bi_opf`, `request->rq_flags` and
/// `page->flags`, and operations.
pub const ENUMERATORS: &[&str] = &[
    "PG_head",
    "REQ_OP_READ",
    "REQ_OP_WRITE",
    "REQ_OP_FLUSH",
    "REQ_OP_DISCARD",
    "REQ_OP_SECURE_ERASE",
    "REQ_OP_WRITE_ZEROES",
    "__REQ_SYNC",
    "__REQ_META",
    "__REQ_PRIO",
    "__REQ_IDLE",
    "__REQ_FUA",
    "__REQ_PREFLUSH",
    "__REQ_RAHEAD",
    "__REQ_BACKGROUND",
    "__REQ_NOWAIT",
    "__RQF_FLUSH_SEQ",
];

/// The kernel's types: vmlinux, and each loaded module on top of it.
#[derive(Clone, Debug)]
pub struct KernelTypes {
    vmlinux: Btf,
    modules: Vec<(String, Btf)>,
}

impl KernelTypes {
    /// Only the kernel itself; add modules with [`KernelTypes::add_module`].
    #[must_use]
    pub const fn new(vmlinux: Btf) -> Self {
        Self {
            vmlinux,
            modules: Vec::new(),
        }
    }

    /// Adds the types of a module (its BTF was parsed on top of [`KernelTypes::vmlinux`]).
    pub fn add_module(&mut self, name: impl Into<String>, btf: Btf) {
        self.modules.push((name.into(), btf));
    }

    /// The kernel itself.
    #[must_use]
    pub const fn vmlinux(&self) -> &Btf {
        &self.vmlinux
    }

    /// The first answer: the kernel's own, else that of a module. A module's BTF also answers for the
    /// kernel, so whatever the kernel knows is found at the first step.
    pub fn find<T>(&self, query: impl Fn(&Btf) -> Option<T>) -> Option<T> {
        let modules = self.modules.iter().map(|(_, btf)| btf);
        std::iter::once(&self.vmlinux)
            .chain(modules)
            .find_map(query)
    }

    /// The name of the module that answers, or `None` for the kernel itself.
    pub fn find_with_module<T>(
        &self,
        query: impl Fn(&Btf) -> Option<T>,
    ) -> Option<(T, Option<&str>)> {
        if let Some(found) = query(&self.vmlinux) {
            return Some((found, None));
        }
        self.modules
            .iter()
            .find_map(|(name, btf)| Some((query(btf)?, Some(name.as_str()))))
    }
}

/// What the probes need to know of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Place of each entry of [`nestrace_abi::layout::FIELDS`] that this kernel has, by global.
    pub fields: BTreeMap<String, FieldAt>,
    /// Value of each of [`ENUMERATORS`] that this kernel has.
    pub enumerators: BTreeMap<String, i64>,
    /// Arguments of each tracepoint of the probe table that this kernel has, by tracepoint.
    pub tracepoints: BTreeMap<String, Vec<Arg>>,
    /// Arguments of each function of the probe table that this kernel has, by function.
    pub functions: BTreeMap<String, Vec<Arg>>,
}

impl Layout {
    /// Asks BTF.
    #[must_use]
    pub fn read(types: &KernelTypes) -> Self {
        let field = |field: &Field| Some((field.global.to_owned(), place(types, field.path)?));
        let enumerator = |name: &&str| {
            Some((
                (*name).to_owned(),
                types.find(|btf| btf.enum_value("", name))?,
            ))
        };
        let tracepoint = |name: &str| {
            Some((
                name.to_owned(),
                types.find(|btf| btf.tracepoint_args(name))?,
            ))
        };
        let function = |name: &str| {
            let found = types.find(|btf| btf.func_args(name))?;
            Some((name.to_owned(), found))
        };
        Self {
            fields: FIELDS.iter().filter_map(field).collect(),
            enumerators: ENUMERATORS.iter().filter_map(enumerator).collect(),
            tracepoints: probes::tracepoints().filter_map(tracepoint).collect(),
            functions: probes::functions().filter_map(function).collect(),
        }
    }

    /// What to write into each global of the probes: the field's byte offset (of an entry without a
    /// dot: the structure's size), or [`ABSENT`]. An offset that does not fit is absent, too.
    pub fn globals(&self) -> impl Iterator<Item = (&'static str, u16)> + '_ {
        FIELDS.iter().map(|field| {
            let is_size = !field.path.contains('.');
            let found = self
                .fields
                .get(field.global)
                .and_then(|at| u16::try_from(if is_size { at.size } else { at.byte_offset }).ok());
            (field.global, found.unwrap_or(ABSENT))
        })
    }

    /// The text that [`Layout::from_text`] reads: one line an item, absent ones included as comments.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for field in FIELDS {
            let line = match self.fields.get(field.global) {
                Some(FieldAt {
                    byte_offset,
                    size,
                    bit: None,
                }) => {
                    format!("field {} {byte_offset} {size}", field.global)
                }
                Some(FieldAt {
                    byte_offset,
                    size,
                    bit: Some(BitField { offset, width }),
                }) => {
                    format!(
                        "field {} {byte_offset} {size} {offset} {width}",
                        field.global
                    )
                }
                None => format!("# absent: {}", field.global),
            };
            let _ = writeln!(text, "{line:<40} # {}", field.path);
        }
        for name in ENUMERATORS {
            let _ = match self.enumerators.get(*name) {
                Some(value) => writeln!(text, "enum {name} {value}"),
                None => writeln!(text, "# absent: {name}"),
            };
        }
        for name in probes::tracepoints() {
            let _ = match self.tracepoints.get(name) {
                Some(args) => writeln!(text, "tracepoint {name}({})", spell_args(args)),
                None => writeln!(text, "# absent: tracepoint {name}"),
            };
        }
        for name in probes::functions() {
            let _ = match self.functions.get(name) {
                Some(args) => writeln!(text, "function {name}({})", spell_args(args)),
                None => writeln!(text, "# absent: function {name}"),
            };
        }
        text
    }

    /// Reads what [`Layout::to_text`] wrote.
    ///
    /// # Errors
    /// The first line that is neither a comment nor an item.
    pub fn from_text(text: &str) -> Result<Self, LayoutError> {
        let mut layout = Self::default();
        for (index, line) in text.lines().enumerate() {
            let item = line.split('#').next().unwrap_or_default().trim();
            if !item.is_empty() && layout.add_line(item).is_none() {
                return Err(LayoutError {
                    line: index.saturating_add(1),
                    text: line.to_owned(),
                });
            }
        }
        Ok(layout)
    }

    fn add_line(&mut self, item: &str) -> Option<()> {
        let (kind, rest) = item.split_once(' ')?;
        match kind {
            "field" => {
                let (global, numbers) = rest.split_once(' ')?;
                let numbers: Vec<u32> = numbers
                    .split(' ')
                    .map(|word| word.parse().ok())
                    .collect::<Option<_>>()?;
                let (byte_offset, size, bit) = match *numbers.as_slice() {
                    [at, size] => (at, size, None),
                    [at, size, offset, width] => (at, size, Some(BitField { offset, width })),
                    _ => return None,
                };
                self.fields.insert(
                    global.to_owned(),
                    FieldAt {
                        byte_offset,
                        size,
                        bit,
                    },
                );
            }
            "enum" => {
                let (name, value) = rest.split_once(' ')?;
                self.enumerators
                    .insert(name.to_owned(), value.parse().ok()?);
            }
            "tracepoint" => {
                let (name, args) = rest.strip_suffix(')')?.split_once('(')?;
                self.tracepoints.insert(name.to_owned(), read_args(args));
            }
            "function" => {
                let (name, args) = rest.strip_suffix(')')?.split_once('(')?;
                self.functions.insert(name.to_owned(), read_args(args));
            }
            _ => return None,
        }
        Some(())
    }
}

/// A line of a frozen layout that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("read layout, line {line}: {text:?} is not a field, enum, tracepoint or function")]
pub struct LayoutError {
    line: usize,
    text: String,
}

/// The first alternative of `path` that the kernel has.
fn place(types: &KernelTypes, path: &str) -> Option<FieldAt> {
    path.split('|').find_map(|path| match path.split_once('.') {
        Some((name, path)) => types.find(|btf| btf.offset_of(name, path)),
        None => {
            let size = types.find(|btf| btf.size_of(path))?;
            Some(FieldAt {
                byte_offset: 0,
                size,
                bit: None,
            })
        }
    })
}

/// `bio *bio, dev_t dev`; an argument without a name is only its type.
fn spell_args(args: &[Arg]) -> String {
    let spell = |arg: &Arg| {
        let star = if arg.is_pointer { " *" } else { " " };
        format!(
            "{}{star}{}",
            arg.type_name,
            arg.name.as_deref().unwrap_or_default()
        )
    };
    args.iter().map(spell).collect::<Vec<_>>().join(", ")
}

fn read_args(text: &str) -> Vec<Arg> {
    let read = |arg: &str| {
        // The type may hold spaces and stars itself (`unsigned int n`, `char * *names`).
        let (type_name, name) = arg.rsplit_once(' ').unwrap_or((arg, ""));
        let (is_pointer, name) = name
            .strip_prefix('*')
            .map_or((false, name), |name| (true, name));
        Arg {
            name: (!name.is_empty()).then(|| name.to_owned()),
            type_name: type_name.to_owned(),
            is_pointer,
        }
    };
    text.split(", ")
        .filter(|arg| !arg.is_empty())
        .map(read)
        .collect()
}
