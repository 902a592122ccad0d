//! Rules about what a crate may depend on, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::Value;
use xtask::cargo_build::cargo;

/// The crates from the ground up; a crate depends only on crates that stand before it.
const FROM_THE_GROUND: [&str; 26] = [
    "nestrace-abi",
    "nestrace-stamp",
    "nestrace-sums",
    "nestrace-kernel",
    "nestrace-trace",
    "nestrace-condition",
    "nestrace-blktrace",
    "nestrace-wire",
    "nestrace-output",
    "nestrace-probes",
    "nestrace-agent",
    "nestrace-analyzer",
    "nestrace-bundle",
    "nestrace-report",
    "nestrace-stuck",
    "nestrace-record",
    "nestrace-cli",
    "nestrace-modelled-disk",
    "nestrace-disk",
    "nestrace-rig",
    "nestrace-lab",
    "nestrace-top",
    "nestrace",
    "xtask",
    "nestrace-benches",
    "nestrace-live",
];

/// The screen of `nestrace top` is for that program alone: nothing that records, analyzes or runs in a guest draws.
const SCREEN: [&str; 2] = ["nestrace-top", "ratatui"];
const MAY_DRAW: [&str; 2] = ["nestrace-top", "nestrace"];

/// They are built on a guest, in a container, or by every contributor: no polars below them.
const WITHOUT_POLARS: [&str; 8] = [
    "nestrace-record",
    "nestrace-agent",
    "nestrace-disk",
    "nestrace-rig",
    "nestrace-lab",
    "xtask",
    "nestrace-benches",
    "nestrace-live",
];

/// Only programs may use anyhow; a library's errors are typed.
const MAY_USE_ANYHOW: [&str; 6] = [
    "nestrace",
    "nestrace-agent",
    "nestrace-disk",
    "xtask",
    "nestrace-benches",
    "nestrace-live",
];

/// Which crate depends on which, features as they are by default, tests and build scripts included
/// only where a rule says so.
#[derive(Debug, Default)]
pub struct CrateGraph {
    /// Members of the workspace.
    members: BTreeSet<String>,
    /// Crate → crates it needs to run.
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl CrateGraph {
    /// Asks cargo.
    pub fn read() -> anyhow::Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--locked"])
            .output()
            .context("start cargo metadata")?;
        if !output.status.success() {
            anyhow::bail!(
                "run cargo metadata: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let metadata: Value =
            serde_json::from_slice(&output.stdout).context("read the answer of cargo metadata")?;
        Self::from_metadata(&metadata).context("find packages in the answer of cargo metadata")
    }

    fn from_metadata(metadata: &Value) -> Option<Self> {
        let mut name_of = BTreeMap::new();
        for package in metadata["packages"].as_array()? {
            name_of.insert(
                package["id"].as_str()?,
                package["name"].as_str()?.to_owned(),
            );
        }
        let members = metadata["workspace_members"].as_array()?;
        let members = members
            .iter()
            .filter_map(|id| name_of.get(id.as_str()?).cloned())
            .collect();
        let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in metadata["resolve"]["nodes"].as_array()? {
            let needed = node["deps"].as_array()?.iter().filter(|dep| is_normal(dep));
            let names = needed.filter_map(|dep| name_of.get(dep["pkg"].as_str()?).cloned());
            needs
                .entry(name_of.get(node["id"].as_str()?)?.clone())
                .or_default()
                .extend(names);
        }
        Some(Self { members, needs })
    }

    /// Dependencies point downward only, and every crate has its place.
    pub fn check_direction(&self) -> Vec<String> {
        let place = |name: &str| FROM_THE_GROUND.iter().position(|known| *known == name);
        let mut breaches = Vec::new();
        for member in &self.members {
            let Some(own) = place(member) else {
                breaches.push(format!("{member} has no place in the order of crates"));
                continue;
            };
            for need in self.needs.get(member).into_iter().flatten() {
                if place(need).is_some_and(|needed| needed >= own) {
                    breaches.push(format!("{member} depends on {need}, which stands above it"));
                }
            }
        }
        breaches
    }

    /// The screen in one program only.
    pub fn check_screen(&self) -> Vec<String> {
        let others = self
            .members
            .iter()
            .filter(|name| !MAY_DRAW.contains(&name.as_str()));
        let draws = others.filter(|name| {
            let needs = self.needs.get(*name);
            needs.is_some_and(|needs| SCREEN.iter().any(|it| needs.contains(*it)))
        });
        draws
            .map(|name| format!("{name} draws on a terminal"))
            .collect()
    }

    /// anyhow in programs only.
    pub fn check_anyhow(&self) -> Vec<String> {
        let uses = |name: &&String| {
            self.needs
                .get(*name)
                .is_some_and(|needs| needs.contains("anyhow"))
        };
        let libraries = self
            .members
            .iter()
            .filter(|name| !MAY_USE_ANYHOW.contains(&name.as_str()));
        libraries
            .filter(uses)
            .map(|name| format!("{name} is a library and uses anyhow"))
            .collect()
    }
}

/// polars takes minutes to build: it stays out of everything that runs on the recording side.
///
/// Each crate is asked for alone: `cargo metadata` knows features only as the whole workspace has them, and there
/// the command turns the analyzer's tables on.
pub fn check_polars() -> anyhow::Result<Vec<String>> {
    let mut breaches = Vec::new();
    for name in WITHOUT_POLARS {
        let tree = cargo_tree(&["--edges", "normal,build", "--package", name])?;
        if has_polars(&tree) {
            breaches.push(format!("{name} pulls polars in"));
        }
    }
    Ok(breaches)
}

/// The engine of `nestrace-fleet`, which is a workspace of its own, is in none of the others' builds.
pub fn check_engine() -> anyhow::Result<Vec<String>> {
    let tree = cargo_tree(&["--workspace", "--edges", "normal,build,dev"])?;
    Ok(match has_engine(&tree) {
        true => vec![String::from("the workspace pulls datafusion in")],
        false => Vec::new(),
    })
}

/// One dependency a line, below each other without indentation.
pub fn cargo_tree(args: &[&str]) -> anyhow::Result<String> {
    let output = cargo()
        .args(["tree", "--locked", "--prefix", "none"])
        .args(args)
        .output()
        .context("start cargo tree")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "run cargo tree: {stderr}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn has_polars(tree: &str) -> bool {
    tree.lines().any(|line| line.starts_with("polars"))
}

fn has_engine(tree: &str) -> bool {
    tree.lines().any(|line| line.starts_with("datafusion"))
}

/// Not for tests or build scripts.
fn is_normal(dep: &Value) -> bool {
    dep["dep_kinds"]
        .as_array()
        .is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> CrateGraph {
        let mut graph = CrateGraph::default();
        for (from, to) in edges {
            graph
                .needs
                .entry((*from).to_owned())
                .or_default()
                .insert((*to).to_owned());
            let ours = [from, to]
                .into_iter()
                .filter(|name| name.starts_with("nestrace"));
            graph.members.extend(ours.map(|name| (*name).to_owned()));
        }
        graph
    }

    #[test]
    fn upward_dependencies_and_strangers_are_breaches() {
        assert!(
            graph(&[("nestrace", "nestrace-abi")])
                .check_direction()
                .is_empty()
        );
        let breaches = graph(&[("nestrace-trace", "nestrace-record")]).check_direction();
        assert_eq!(
            breaches,
            ["nestrace-trace depends on nestrace-record, which stands above it"]
        );
        assert_eq!(
            graph(&[("nestrace-new", "serde")]).check_direction().len(),
            1
        );
    }

    #[test]
    fn polars_is_found_beneath_other_crates() {
        assert!(has_polars(
            "nestrace-lab v0.1.0\na v1.0.0\npolars-core v0.55.2 (*)\n"
        ));
        assert!(!has_polars(
            "nestrace-lab v0.1.0 (/polars)\nserde v1.0.229\n"
        ));
    }

    #[test]
    fn only_the_command_draws() {
        let drawing = [("nestrace", "ratatui"), ("nestrace", "nestrace-top")];
        assert!(graph(&drawing).check_screen().is_empty());
        for (from, to) in [
            ("nestrace-record", "ratatui"),
            ("nestrace-live", "nestrace-top"),
        ] {
            assert_eq!(
                graph(&[(from, to)]).check_screen(),
                [format!("{from} draws on a terminal")]
            );
        }
    }

    #[test]
    fn the_engine_is_found_as_well() {
        assert!(has_engine("nestrace v0.1.0\ndatafusion-expr v55.2.0\n"));
        assert!(!has_engine("nestrace-fleet v0.1.0 (/datafusion)\n"));
    }

    #[test]
    fn libraries_have_typed_errors() {
        assert_eq!(
            graph(&[("nestrace-trace", "anyhow")]).check_anyhow().len(),
            1
        );
        assert!(graph(&[("nestrace", "anyhow")]).check_anyhow().is_empty());
    }
}
