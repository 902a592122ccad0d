//! What a program is made of, in CycloneDX' JSON: each crate that is compiled into it or runs while it is built, with
//! version, licence, and the checksum that `Cargo.lock` holds it to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use xtask::cargo_build::{TARGET, cargo, workspace};

/// The part of a lock file that is needed.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// Writes `PROGRAM.cdx.json` into `folder`; the number of crates in it.
pub fn write(program: &str, folder: &Path) -> anyhow::Result<usize> {
    let lock = fs::read_to_string(workspace().join("Cargo.lock")).context("read Cargo.lock")?;
    let lock: Lock = toml::from_str(&lock).context("read Cargo.lock")?;
    let bill = bill(program, &crates_of(program)?, &lock)?;
    let n = bill["components"].as_array().map_or(0, Vec::len);
    let path = folder.join(format!("{program}.cdx.json"));
    let text = serde_json::to_string_pretty(&bill)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    Ok(n)
}

/// `NAME VERSION LICENCE` of each crate, the program's own among them.
fn crates_of(program: &str) -> anyhow::Result<String> {
    let output = cargo()
        .args(["tree", "--locked", "--edges", "normal,build"])
        .args(["--package", program, "--target", TARGET])
        .args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"])
        .output()
        .context("start cargo tree")?;
    ensure!(output.status.success(), "list the crates of {program}");
    String::from_utf8(output.stdout).context("read the list of crates")
}

fn bill(program: &str, crates: &str, lock: &Lock) -> anyhow::Result<Value> {
    let mut components = BTreeMap::new();
    let mut own = None;
    for line in crates.lines().filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('|').context("read a crate's licence")?;
        let mut words = package.split(' ');
        let name = words.next().context("read a crate's name")?;
        let version = words.next().and_then(|word| word.strip_prefix('v'));
        let version = version.with_context(|| format!("read the version of {name}"))?;
        let locked = lock
            .package
            .iter()
            .find(|locked| locked.name == name && locked.version == version)
            .with_context(|| format!("find {name} {version} in Cargo.lock"))?;
        let mut component = json!({
            "type": if name == program { "application" } else { "library" },
            "name": name,
            "version": version,
            "licenses": [{ "expression": licence }],
        });
        // What has no checksum is a crate of this repository.
        if let Some(checksum) = &locked.checksum {
            component["purl"] = json!(format!("pkg:cargo/{name}@{version}"));
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if name == program {
            own = Some(component);
        } else {
            components.insert((name, version), component);
        }
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": own.with_context(|| format!("find {program} among its crates"))? },
        "components": components.into_values().collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_crates_are_all_locked_and_privileged_code_is_among_them() {
        let folder = tempfile::tempdir().unwrap();
        let n = write("nestrace-agent", folder.path()).unwrap();
        let text = fs::read(folder.path().join("nestrace-agent.cdx.json")).unwrap();
        let bill: Value = serde_json::from_slice(&text).unwrap();
        let components = bill["components"].as_array().unwrap();
        assert_eq!(components.len(), n);
        assert_eq!(bill["metadata"]["component"]["name"], "nestrace-agent");
        let find = |name: &str| components.iter().find(|c| c["name"] == name);
        assert_eq!(find("nestrace-probes").unwrap()["hashes"], Value::Null);
        assert!(
            find("nestrace-record").is_none(),
            "the recorder is no part of it"
        );
        let aya = find("aya").unwrap();
        assert_eq!(aya["hashes"][0]["content"].as_str().unwrap().len(), 64);
        // Crates of other systems are not compiled, and are not in it.
        assert!(find("windows-sys").is_none());
    }

    #[test]
    fn a_crate_that_is_not_locked_is_an_error() {
        let lock: Lock = toml::from_str("package = []").unwrap();
        let error = bill("a", "a v1.0.0|MIT\n", &lock).unwrap_err();
        assert_eq!(error.to_string(), "find a 1.0.0 in Cargo.lock");
    }
}
