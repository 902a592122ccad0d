//! Arguments of functions and tracepoints.

use super::Btf;
use super::types::{Kind, Type};

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name, where BTF has it (the type of a tracepoint often has none).
    pub name: Option<String>,
    /// Name of the type without qualifiers, `struct`, `union` or `enum`; for a pointer that of what
    /// it points to: `bio`, `unsigned int`, `char`, `void`.
    pub type_name: String,
    /// Whether it is a pointer.
    pub is_pointer: bool,
}

impl Btf {
    /// What a tracepoint hands to a raw or BTF-typed program, without the leading `void *__data`.
    ///
    /// The types come from the typedef `btf_trace_NAME`, which exists for every tracepoint that the
    /// kernel was built with; the names from `__probestub_NAME`, which 6.4 and later have.
    #[must_use]
    pub fn tracepoint_args(&self, name: &str) -> Option<Vec<Arg>> {
        let typedef = format!("btf_trace_{name}");
        let typed = self
            .section
            .named(&typedef)
            .find(|found| found.kind == Kind::Typedef)?;
        let pointer = self
            .section
            .resolved(typed.size_or_type)
            .filter(|found| found.kind == Kind::Pointer)?;
        let mut args = self.prototype_args(self.section.resolved(pointer.size_or_type)?)?;
        let stub = self
            .func_args(&format!("__probestub_{name}"))
            .filter(|stub| stub.len() == args.len());
        for (arg, named) in args.iter_mut().zip(stub.into_iter().flatten()) {
            arg.name = arg.name.take().or(named.name);
        }
        (!args.is_empty()).then(|| args.split_off(1))
    }

    /// The arguments of a kernel function.
    #[must_use]
    pub fn func_args(&self, name: &str) -> Option<Vec<Arg>> {
        let func = self
            .section
            .named(name)
            .find(|found| found.kind == Kind::Func)?;
        self.prototype_args(self.section.get(func.size_or_type)?)
    }

    /// Whether the kernel has a function of this name (inlined ones have none).
    #[must_use]
    pub fn has_func(&self, name: &str) -> bool {
        self.section
            .named(name)
            .any(|found| found.kind == Kind::Func)
    }

    /// The number of a function, which a fentry program attaches to.
    #[must_use]
    pub fn func_id(&self, name: &str) -> Option<u32> {
        self.section
            .named(name)
            .find(|found| found.kind == Kind::Func)
            .map(|found| found.id)
    }

    /// The number of a tracepoint's typedef, which a BTF tracepoint program attaches to.
    #[must_use]
    pub fn tracepoint_id(&self, name: &str) -> Option<u32> {
        let typedef = format!("btf_trace_{name}");
        self.section
            .named(&typedef)
            .find(|found| found.kind == Kind::Typedef)
            .map(|found| found.id)
    }

    fn prototype_args(&self, prototype: Type<'_>) -> Option<Vec<Arg>> {
        if prototype.kind != Kind::FuncProto {
            return None;
        }
        let arg = |[name, type_id]: [u32; 2]| {
            let (type_name, is_pointer) = self.spelled(type_id);
            let name = prototype.string(name).filter(|name| !name.is_empty());
            let name = name.map(|name| String::from_utf8_lossy(name).into_owned());
            Arg {
                name,
                type_name,
                is_pointer,
            }
        };
        Some(prototype.entries::<2>().map(arg).collect())
    }

    /// The type's name and whether it is a pointer to it. A pointer to a pointer reads `char *`.
    fn spelled(&self, type_id: u32) -> (String, bool) {
        let Some(found) = self.section.unqualified(type_id) else {
            return ("void".to_owned(), false);
        };
        if found.kind != Kind::Pointer {
            return (bare_name(found), false);
        }
        match self.section.unqualified(found.size_or_type) {
            None => ("void".to_owned(), true),
            Some(target) if target.kind == Kind::Pointer => {
                let name = self
                    .section
                    .unqualified(target.size_or_type)
                    .map_or("void".to_owned(), bare_name);
                (format!("{name} *"), true)
            }
            Some(target) => (bare_name(target), true),
        }
    }
}

fn bare_name(found: Type<'_>) -> String {
    match found.name() {
        Some(name) if !name.is_empty() => String::from_utf8_lossy(name).into_owned(),
        _ if found.kind == Kind::FuncProto => "function".to_owned(),
        _ => "anonymous".to_owned(),
    }
}
