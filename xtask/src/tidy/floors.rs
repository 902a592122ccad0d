//! Rules about what a module may import: nothing from a floor above its own, and no circles.
//!
//! What a module imports is read by [`paths`]; code of tests may import what it likes.

use std::collections::{BTreeMap, BTreeSet};

use super::paths::{Module, brought_in, code_of, joined, paths_in};
use super::sources::Source;

/// Crates whose modules stand on floors: their top-level modules from the ground up. A floor's own modules are those in
/// its folder: they may import each other, but not in a circle, and neither may those within each of them.
const FLOORS: [(&str, &[&str]); 5] = [
    (
        "crates/nestrace-analyzer",
        &[
            "result",
            "model",
            "measure",
            "follow",
            "link",
            "judge",
            "analyzers",
            "dataframe",
        ],
    ),
    (
        "crates/nestrace-sums",
        &[
            "snapshot", "interval", "rows", "series", "native", "metrics", "protobuf", "text",
        ],
    ),
    (
        "crates/nestrace-condition",
        &["expression", "parse", "window", "in_flight", "meter"],
    ),
    (
        "crates/nestrace-top",
        &[
            "keys", "minute", "chart", "columns", "page", "figures", "state", "draw",
        ],
    ),
    (
        "crates/nestrace-stuck",
        &["facts", "words", "judge", "text"],
    ),
];

/// Circles that still stand in crates whose modules all share one floor: each entry names every module of its circle.
/// An entry goes when its circle is gone or has another shape.
const STILL_CIRCLES: [(&str, &[&str]); 0] = [];

/// What one module takes from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    from: Module,
    to: Module,
    name: String,
}

/// Every breach of every crate.
pub fn check_floors(sources: &[Source]) -> Vec<String> {
    check(sources, &FLOORS, &STILL_CIRCLES)
}

fn check(sources: &[Source], floors: &[(&str, &[&str])], still: &[(&str, &[&str])]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources {
        if let Some((folder, _)) = source.path.split_once("/src/") {
            crates.entry(folder).or_default().push(source);
        }
    }
    let mut breaches = Vec::new();
    let mut unused: BTreeSet<(&str, &[&str])> = still.iter().copied().collect();
    for (folder, sources) in crates {
        let tree = Tree::read(folder, &sources);
        let arrows = tree.arrows();
        match floors.iter().find(|(known, _)| *known == folder) {
            Some((_, floors)) => breaches.extend(on_floors(folder, &tree, floors, &arrows)),
            None => {
                let tops = arrows.iter().map(|arrow| between(arrow, 1));
                for circle in circles(tops.flatten()) {
                    let allowed = |(known, modules): &&(&str, &[&str])| {
                        *known == folder && circle.is(modules)
                    };
                    match still.iter().find(allowed) {
                        Some(entry) => _ = unused.remove(entry),
                        None => breaches.extend(circle.breaches(folder)),
                    }
                }
            }
        }
    }
    breaches.extend(unused.into_iter().map(|(folder, modules)| {
        format!(
            "{folder}: the circle of {} is not there any more, or is another one: see STILL_CIRCLES",
            modules.join(", ")
        )
    }));
    breaches
}

/// A crate with floors: every top-level module has one, arrows go down, and no folder has a circle.
fn on_floors(folder: &str, tree: &Tree, floors: &[&str], arrows: &[Arrow]) -> Vec<String> {
    let tops: BTreeSet<&str> = tree
        .modules
        .iter()
        .filter_map(|module| module.first().map(String::as_str))
        .collect();
    let named: BTreeSet<&str> = floors.iter().copied().collect();
    let mut breaches: Vec<String> = tops
        .difference(&named)
        .map(|top| format!("{folder}: {top} has no floor"))
        .collect();
    let gone = named.difference(&tops);
    breaches.extend(gone.map(|floor| format!("{folder}: the floor {floor} has no modules")));
    let height = |module: &Module| floors.iter().position(|floor| *floor == module[0]);
    let mut within = Vec::new();
    for arrow in arrows {
        if height(&arrow.to) > height(&arrow.from) {
            breaches.push(format!(
                "{folder}: {} imports {} of {}, which is on a floor above",
                arrow.from.join("::"),
                arrow.name,
                arrow.to.join("::"),
            ));
        }
        if arrow.to[0] == arrow.from[0] {
            within.extend(between_siblings(arrow));
        }
    }
    for circle in circles(within) {
        breaches.extend(circle.breaches(folder));
    }
    breaches
}

/// The arrow at the depth at which its two modules part, where neither is within the other.
fn between_siblings(arrow: &Arrow) -> Option<Arrow> {
    let both = arrow.from.iter().zip(&arrow.to);
    between(arrow, both.take_while(|(from, to)| from == to).count() + 1)
}

/// An arrow between modules of this depth, if it is one.
fn between(arrow: &Arrow, depth: usize) -> Option<Arrow> {
    let [from, to] = [&arrow.from, &arrow.to].map(|module| module.get(..depth));
    let (from, to) = (from?.to_vec(), to?.to_vec());
    let name = arrow.name.clone();
    (from != to).then_some(Arrow { from, to, name })
}

/// Modules that all reach each other, and the arrows between them.
#[derive(Debug)]
struct Circle {
    modules: BTreeSet<Module>,
    arrows: BTreeSet<Arrow>,
}

impl Circle {
    fn is(&self, modules: &[&str]) -> bool {
        let own: BTreeSet<String> = self.modules.iter().map(|it| it.join("::")).collect();
        own.len() == modules.len() && modules.iter().all(|module| own.contains(*module))
    }

    fn breaches(&self, folder: &str) -> impl Iterator<Item = String> {
        self.arrows.iter().map(move |arrow| {
            let [from, to] = [&arrow.from, &arrow.to].map(|module| module.join("::"));
            let name = &arrow.name;
            format!("{folder}: {from} imports {name} of {to}, which imports {from} in a circle")
        })
    }
}

fn circles(arrows: impl IntoIterator<Item = Arrow>) -> Vec<Circle> {
    let arrows: BTreeSet<Arrow> = arrows.into_iter().collect();
    let mut next: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for arrow in &arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reached_from = |start: &Module| {
        let mut reached: BTreeSet<&Module> = BTreeSet::new();
        let mut open: Vec<&Module> = next.get(start).into_iter().flatten().copied().collect();
        while let Some(module) = open.pop() {
            if reached.insert(module) {
                open.extend(next.get(module).into_iter().flatten());
            }
        }
        reached
    };
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = next
        .keys()
        .map(|from| (*from, reached_from(from)))
        .collect();
    let meet = |a: &Module, b: &Module| {
        let goes = |from: &Module, to: &Module| reach.get(from).is_some_and(|it| it.contains(to));
        goes(a, b) && goes(b, a)
    };
    let mut found: Vec<Circle> = Vec::new();
    for module in next.keys().filter(|module| meet(module, module)) {
        if found.iter().any(|circle| circle.modules.contains(*module)) {
            continue;
        }
        let modules: BTreeSet<Module> = next
            .keys()
            .filter(|other| meet(module, other))
            .map(|other| (*other).clone())
            .collect();
        let within = |arrow: &&Arrow| modules.contains(&arrow.from) && modules.contains(&arrow.to);
        found.push(Circle {
            arrows: arrows.iter().filter(within).cloned().collect(),
            modules,
        });
    }
    found
}

/// The modules of a crate, and the paths that they name.
#[derive(Debug, Default)]
struct Tree {
    modules: BTreeSet<Module>,
    /// Module, and a path from the root that it names.
    named: Vec<(Module, Module)>,
    /// What the root brings in under a name of its own.
    of_root: BTreeMap<String, Module>,
}

impl Tree {
    fn read(folder: &str, sources: &[&Source]) -> Self {
        let mut tree = Self::default();
        let mut tests: BTreeSet<Module> = BTreeSet::new();
        let mut files = Vec::new();
        for source in sources {
            let Some(module) = module_of(folder, &source.path) else {
                continue;
            };
            let code = code_of(&source.text);
            tests.extend(code.tests.iter().map(|test| joined(&module, test)));
            files.push((module, code.text));
        }
        let is_test = |module: &Module| {
            tests.iter().any(|test| module.starts_with(test))
                || module.iter().any(|part| part == "tests")
        };
        files.retain(|(module, _)| !is_test(module));
        for (module, _) in &files {
            let all = (1..=module.len()).map(|depth| module[..depth].to_vec());
            tree.modules.extend(all);
        }
        for (module, code) in &files {
            if module.is_empty() {
                tree.of_root.extend(brought_in(code));
            } else {
                let paths = paths_in(code, module);
                tree.named
                    .extend(paths.into_iter().map(|path| (module.clone(), path)));
            }
        }
        tree
    }

    fn arrows(&self) -> Vec<Arrow> {
        let arrow = |(from, path): &(Module, Module)| {
            let path = self.behind_root(path)?;
            let depth = (1..=path.len())
                .rev()
                .find(|depth| self.modules.contains(&path[..*depth]))?;
            let to = path[..depth].to_vec();
            let name = path.get(depth).or(path.last())?.clone();
            let own = from.starts_with(&to);
            (!own).then(|| Arrow {
                from: from.clone(),
                to,
                name,
            })
        };
        self.named.iter().filter_map(arrow).collect()
    }

    /// The path that a name of the root stands for; the path itself where it begins with a module.
    fn behind_root(&self, path: &Module) -> Option<Module> {
        let first = path.first()?;
        if self.modules.contains(std::slice::from_ref(first)) {
            return Some(path.clone());
        }
        let behind = self.of_root.get(first)?;
        let known = self.modules.contains(&behind[..1]);
        known.then(|| joined(behind, &path[1..]))
    }
}

/// The module that a file is, by its path; `None` for a program beside the crate.
fn module_of(folder: &str, path: &str) -> Option<Module> {
    let path = path.strip_prefix(folder)?.strip_prefix("/src/")?;
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" | "main" => Some(Module::new()),
        _ if path.starts_with("bin/") => None,
        _ => Some(path.split('/').map(str::to_owned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: format!("crates/x/src/{path}"),
            text: text.to_owned(),
        }
    }

    /// With the floors `low` and `high`.
    fn on_two_floors(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| source(path, text))
            .collect();
        check(&sources, &[("crates/x", &["low", "high"])], &[])
    }

    fn on_one_floor(files: &[(&str, &str)], still: &[&str]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| source(path, text))
            .collect();
        let still = [("crates/x", still)];
        let n = usize::from(!still[0].1.is_empty());
        check(&sources, &[], &still[..n])
    }

    #[test]
    fn arrows_go_down() {
        let clean = [
            ("lib.rs", "mod low; mod high; pub use high::top::Top;"),
            ("low/mod.rs", "pub mod a; pub mod b;"),
            ("low/a.rs", "use super::b::B; pub struct A;"),
            ("low/b.rs", "pub struct B;"),
            ("high/mod.rs", "pub mod top;"),
            (
                "high/top.rs",
                "use crate::low::{a::A, b}; pub struct Top(A, b::B);",
            ),
        ];
        assert!(on_two_floors(&clean).is_empty());
        for up in [
            "use crate::high::top::Top;",
            "use crate::{Top, other};",
            "use super::super::high::top::{self, Top};",
            "fn f() { let x = crate::high::top::Top::new(); }",
        ] {
            let mut files = clean;
            files[3].1 = up;
            let expected =
                "crates/x: low::b imports Top of high::top, which is on a floor above".to_owned();
            assert!(on_two_floors(&files).contains(&expected), "{up}");
        }
        for none in [
            "// crate::high::top::Top",
            "/// [`Top`](crate::high::top::Top)",
            "pub(in crate::high::top) struct B;",
            "const A: (&str, char) = (\"crate::high::top::Top\", '\"');",
            "const A: &str = r#\"\" crate::high::top::Top\"#;",
            "#[cfg(test)]\nmod tests { use crate::high::top::Top; }",
            "#[cfg(test)]\nuse crate::high::top::Top;\npub struct B;",
        ] {
            let mut files = clean;
            files[3].1 = none;
            assert_eq!(on_two_floors(&files), Vec::<String>::new(), "{none}");
        }
    }

    #[test]
    fn a_floor_has_no_circle() {
        let breaches = on_two_floors(&[
            ("low/a.rs", "use super::b::B;"),
            ("low/b.rs", "use super::c::{C, D};"),
            ("low/c/inner.rs", "use crate::low::a::A;"),
            ("low/c/mod.rs", "mod inner;"),
            ("low/d.rs", "use super::a::A;"),
            ("low/d/one.rs", "use super::two::Two;"),
            ("low/d/two.rs", "use crate::low::d::one::f;"),
            ("high.rs", "use crate::low::a::A;"),
        ]);
        let circle = |from: &str, name: &str, to: &str| {
            format!(
                "crates/x: low::{from} imports {name} of low::{to}, which imports low::{from} in a circle"
            )
        };
        let expected = [
            circle("a", "B", "b"),
            circle("b", "C", "c"),
            circle("b", "D", "c"),
            circle("c", "A", "a"),
            circle("d::one", "Two", "d::two"),
            circle("d::two", "f", "d::one"),
        ];
        assert_eq!(breaches, expected);
    }

    #[test]
    fn every_module_has_a_floor() {
        let breaches = on_two_floors(&[("low.rs", ""), ("other.rs", "")]);
        let expected = [
            "crates/x: other has no floor",
            "crates/x: the floor high has no modules",
        ];
        assert_eq!(breaches, expected);
    }

    #[test]
    fn circles_of_other_crates_are_listed_or_breaches() {
        let files = [
            ("main.rs", "mod a; mod b; use outer::c;"),
            ("a.rs", "use crate::b::run; use crate::c;"),
            ("b/deep.rs", "use super::super::a;"),
            ("bin/tool.rs", "use crate::a;"),
        ];
        let expected = [
            "crates/x: a imports run of b, which imports a in a circle",
            "crates/x: b imports a of a, which imports b in a circle",
        ];
        assert_eq!(on_one_floor(&files, &[]), expected);
        assert!(on_one_floor(&files, &["b", "a"]).is_empty());
        let gone = "crates/x: the circle of a, b is not there any more, or is another one: see STILL_CIRCLES";
        assert_eq!(on_one_floor(&files[..2], &["a", "b"]), [gone]);
    }

    #[test]
    fn modules_of_tests_import_what_they_like() {
        let files = [
            ("low/mod.rs", "pub mod a;\n#[cfg(test)]\nmod trial;"),
            ("low/a.rs", ""),
            ("low/trial.rs", "use crate::high::Top;"),
            ("low/a/tests.rs", "use crate::high::Top;"),
            ("high.rs", "pub struct Top;"),
        ];
        assert!(on_two_floors(&files).is_empty());
    }
}
