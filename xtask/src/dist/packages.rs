//! What lies in the packages `nestrace` and `nestrace-agent`, and where.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nestrace_rig::external_tool::Tool;
use xtask::cargo_build::workspace;

use super::deb::{Deb, Packing};

/// Where the unit is that packages bring. On releases that still have a `/lib` of its own, deb-systemd-helper looks only there.
const UNITS: &str = "lib/systemd/system";

/// The package for hosts, of the programs in `folder`.
pub fn nestrace(folder: &Path, packing: &Packing) -> anyhow::Result<PathBuf> {
    let deb = Deb::new("nestrace")?;
    let programs = [
        "usr/bin/nestrace",
        "usr/bin/nestrace-lab",
        "usr/bin/nestrace-disk",
    ];
    let nestrace = deb.copy(&folder.join("nestrace"), programs[0], 0o755)?;
    deb.copy(&folder.join("nestrace-lab"), programs[1], 0o755)?;
    deb.copy(&folder.join("nestrace-disk"), programs[2], 0o755)?;
    man_pages(&deb, &nestrace)?;
    for (shell, place) in [
        ("bash", "bash-completion/completions/nestrace"),
        ("zsh", "zsh/vendor-completions/_nestrace"),
        ("fish", "fish/vendor_completions.d/nestrace.fish"),
    ] {
        let script = ask(&nestrace, &["completions", shell])?;
        deb.put(&format!("usr/share/{place}"), script.as_bytes(), 0o644)?;
    }
    let from = workspace().join("packaging");
    // It is there, and does not run before it is enabled.
    let unit = "nestrace-serve.service";
    deb.copy(&from.join(unit), &format!("{UNITS}/{unit}"), 0o644)?;
    for example in ["nestrace-alerts.yml", "nestrace-grafana.json"] {
        let place = format!("usr/share/doc/nestrace/examples/{example}");
        deb.copy(&from.join(example), &place, 0o644)?;
    }
    deb.put_common()?;
    docs(&deb)?;
    for program in ["nestrace", "nestrace-lab", "nestrace-disk"] {
        let bill = format!("{program}.cdx.json");
        let place = format!("usr/share/doc/nestrace/{bill}");
        deb.copy(&folder.join(&bill), &place, 0o644)?;
    }
    let depends = deb.library_packages(&programs)?;
    deb.build(folder, &depends, packing)
}

/// The package for guests, of the program in `folder`.
pub fn agent(folder: &Path, packing: &Packing) -> anyhow::Result<PathBuf> {
    let deb = Deb::new("nestrace-agent")?;
    let from = workspace().join("packaging");
    let program = folder.join("nestrace-agent");
    deb.copy(&program, "usr/bin/nestrace-agent", 0o755)?;
    let unit = fs::read_to_string(from.join("nestrace-agent.service")).context("read the unit")?;
    let unit = unit_of_package(&unit)?;
    let place = format!("{UNITS}/nestrace-agent.service");
    deb.put(&place, unit.as_bytes(), 0o644)?;
    let rule = "99-nestrace-agent.rules";
    deb.copy(&from.join(rule), &format!("lib/udev/rules.d/{rule}"), 0o644)?;
    let page = fs::read_to_string(from.join("nestrace-agent.8")).context("read the man page")?;
    ensure_complete(&page, &ask(&program, &["--help"])?)?;
    deb.put_compressed("usr/share/man/man8/nestrace-agent.8", page.as_bytes())?;
    deb.put_common()?;
    let doc = "usr/share/doc/nestrace-agent";
    let about = workspace().join("docs/agent.md");
    deb.copy(&about, &format!("{doc}/agent.md"), 0o644)?;
    let bill = "nestrace-agent.cdx.json";
    deb.copy(&folder.join(bill), &format!("{doc}/{bill}"), 0o644)?;
    deb.build(folder, "", packing)
}

/// A page for the command and for each of its subcommands.
fn man_pages(deb: &Deb, nestrace: &Path) -> anyhow::Result<()> {
    let pages = tempfile::tempdir().context("make a folder for man pages")?;
    let tool = Tool::new(&nestrace.to_string_lossy()).args(["man", "--dir"]);
    tool.arg(pages.path()).run()?;
    for page in pages.path().read_dir().context("list the man pages")? {
        let path = page?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(&path).with_context(|| format!("read {name}"))?;
        deb.put_compressed(&format!("usr/share/man/man1/{name}"), &bytes)?;
    }
    Ok(())
}

/// The README and what it links to.
fn docs(deb: &Deb) -> anyhow::Result<()> {
    const DOC: &str = "usr/share/doc/nestrace";
    for name in ["README.md", "SECURITY.md"] {
        deb.copy(&workspace().join(name), &format!("{DOC}/{name}"), 0o644)?;
    }
    for folder in ["docs", "docs/pictures"] {
        let entries = workspace().join(folder).read_dir();
        for entry in entries.with_context(|| format!("list {folder}"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_file() {
                deb.copy(&path, &format!("{DOC}/{folder}/{name}"), 0o644)?;
            }
        }
    }
    Ok(())
}

/// The unit for a program that a package has installed.
fn unit_of_package(unit: &str) -> anyhow::Result<String> {
    let (by_hand, by_package) = ("/usr/local/bin/", "/usr/bin/");
    ensure!(
        unit.contains(by_hand),
        "find {by_hand} in nestrace-agent.service"
    );
    Ok(unit.replace(by_hand, by_package))
}

/// The agent's page is written by hand: clap_mangen would be one more crate of a privileged program. It has to name every
/// option.
fn ensure_complete(page: &str, help: &str) -> anyhow::Result<()> {
    let page = page.replace("\\-", "-");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '-';
    for word in help.split(|c| !is_name(c)) {
        let is_option = word.starts_with("--") && word.len() > 2;
        ensure!(
            !is_option || page.contains(word),
            "describe {word} in packaging/nestrace-agent.8"
        );
    }
    Ok(())
}

fn ask(program: &Path, words: &[&str]) -> anyhow::Result<String> {
    Ok(Tool::new(&program.to_string_lossy()).args(words).run()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_lacks_an_option_is_refused() {
        let help = "Options:\n      --port <PATH>  Serve it\n  -h, --help\n";
        ensure_complete("\\-\\-port, \\-\\-help", help).unwrap();
        let error = ensure_complete("\\-\\-port", help).unwrap_err();
        assert!(error.to_string().contains("describe --help"), "{error}");
    }

    #[test]
    fn the_unit_starts_the_program_of_the_package() {
        let unit = include_str!("../../../packaging/nestrace-agent.service");
        let unit = unit_of_package(unit).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/nestrace-agent\n"));
        assert!(unit_of_package("[Unit]\n").is_err());
    }
}
