//! The stage `packages`: the Debian packages, installed on a bare Debian, where nothing of this repository is and the commands
//! of the README are run.

mod bare_root;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use nestrace_rig::loop_device::LoopDevice;
use nestrace_rig::root;
use serde_json::Value;
use xtask::cargo_build::{self, workspace};
use xtask::case::{Case, Report};

use crate::analysis::{entry, number};
use bare_root::BareRoot;

/// Name of the stage.
pub const STAGE: &str = "packages";
/// What it does.
pub const ABOUT: &str =
    "the Debian packages on a bare Debian 12: installed, used, purged (--full: the release build)";

const FIXTURE: &str = "fixtures/findings/cached-again.nest";
/// Blocks of 64 KiB that are read from a device.
const N_BLOCKS: u64 = 64;

/// What a case does in the root where the packages are installed.
type Body = fn(&BareRoot, &mut Case) -> anyhow::Result<()>;

/// Builds the packages and tries them; `only` are the names that were asked for, as `packages` or `packages/CASE`.
pub fn run(full: bool, only: &[String], report: &mut Report) -> anyhow::Result<()> {
    root::require()?;
    let packages = build(full)?;
    let root = BareRoot::start()?;
    let before = root.listing()?;
    // The others need what this installs.
    report.case("packages/install", |case| install(&root, &packages, case))?;
    let cases: [(&str, Body); 4] = [
        ("packages/commands", commands),
        ("packages/record", record),
        ("packages/pages", pages),
        ("packages/agent", agent),
    ];
    for (name, body) in cases {
        let wanted = |only: &String| only == STAGE || name.starts_with(only.as_str());
        if only.is_empty() || only.iter().any(wanted) {
            report.case(name, |case| body(&root, case))?;
        }
    }
    report.case("packages/purge", |case| purge(&root, &before, case))?;
    Ok(())
}

/// The packages, made as users get them, of the programs that the other tests use or, with `--full`, of the release build.
fn build(full: bool) -> anyhow::Result<Vec<PathBuf>> {
    let (profile, folder) = match full {
        true => ("release", "target/dist"),
        false => ("dev", "target/dist-dev"),
    };
    let status = Command::new(cargo_build::build_shared("xtask")?)
        .args(["dist", "--profile", profile])
        .stdout(Stdio::null())
        .status()
        .context("start xtask")?;
    ensure!(status.success(), "run cargo xtask dist");
    let folder = workspace().join(folder);
    let version = env!("CARGO_PKG_VERSION");
    let names = ["nestrace", "nestrace-agent"];
    Ok(names
        .map(|name| folder.join(format!("{name}_{version}_amd64.deb")))
        .to_vec())
}

fn install(root: &BareRoot, packages: &[PathBuf], case: &mut Case) -> anyhow::Result<()> {
    for package in packages {
        root.copy(package)?;
        let size = package.metadata().context("find a package")?.len();
        let name = package.file_name().unwrap_or_default().to_string_lossy();
        case.figure(format!("{name} {:.1} MB", size as f64 / 1e6));
    }
    // With the libraries that a bare system has: dpkg refuses what lacks one.
    root.run_ok("dpkg --install *.deb")?;
    let damaged = root.run_ok("dpkg --verify nestrace nestrace-agent")?;
    case.equal("files with other bytes", damaged.as_str(), "");
    let needs = |package: &str| {
        root.run_ok(&format!(
            "dpkg-query --show --showformat='${{Depends}}' {package}"
        ))
    };
    let host = needs("nestrace")?;
    case.holds("libraries", host.contains("libc6 (>= 2."), &host);
    case.equal(
        "what the agent needs",
        needs("nestrace-agent")?.as_str(),
        "",
    );
    Ok(())
}

/// Those of the README that need no guest.
fn commands(root: &BareRoot, case: &mut Case) -> anyhow::Result<()> {
    root.copy(&workspace().join(FIXTURE))?;
    let fixture = FIXTURE.rsplit('/').next().unwrap_or(FIXTURE);
    for (command, expected) in [
        ("nestrace --version".to_owned(), env!("CARGO_PKG_VERSION")),
        ("nestrace --help".to_owned(), "sudo nestrace guests"),
        ("nestrace guests".to_owned(), "no QEMU guest"),
        ("nestrace doctor".to_owned(), "BTF"),
        (format!("nestrace analyze {fixture}"), "where the time goes"),
        ("nestrace analyze".to_owned(), "where the time goes"),
        (
            format!("nestrace analyze {fixture} --report report.html --plots plots && ls plots"),
            "segments",
        ),
        (
            format!("nestrace compare {fixture} {fixture}"),
            "cached-again",
        ),
        (
            format!("nestrace export --format csv {fixture} -o out && ls"),
            "out.requests.csv",
        ),
        (
            format!("nestrace repair {fixture} -o clean.nest --redact && ls"),
            "clean.nest",
        ),
        ("nestrace lab --help".to_owned(), "nestrace lab"),
        ("nestrace lab plan quick".to_owned(), "quick"),
    ] {
        let ended = root.run(&command)?;
        let said = format!("{}{}", ended.stdout, ended.stderr);
        case.holds(&command, said.contains(expected), &said);
        case.equal(&format!("exit of {command}"), ended.code, 0);
    }
    Ok(())
}

/// Records a device while it is read, and finds each read.
fn record(root: &BareRoot, case: &mut Case) -> anyhow::Result<()> {
    let backing = tempfile::NamedTempFile::new().context("make a file for a loop device")?;
    let size = N_BLOCKS << 16;
    File::set_len(backing.as_file(), size).context("size the file of a loop device")?;
    let device = LoopDevice::attach(backing.path(), false)?;
    let name = device.name();
    root.run_ok(&format!(
        "nestrace record --device {name} -o read.nest -- \
         dd if=/dev/{name} of=/dev/null bs=64k count={N_BLOCKS} iflag=direct status=none"
    ))?;
    let said = root.run_ok("nestrace analyze read.nest --format json")?;
    let analysis: Value = serde_json::from_str(&said).context("read the analysis")?;
    let found = entry(&analysis, "devices", &[("name", name)])?;
    let bytes = number(found, "/bytes/read")?;
    case.figure(format!("{bytes} bytes"));
    // udev may read the new device too.
    case.holds("bytes that were read", bytes >= size, &bytes.to_string());
    Ok(())
}

/// Man pages and completions.
fn pages(root: &BareRoot, case: &mut Case) -> anyhow::Result<()> {
    let page = root.run_ok("man nestrace")?;
    case.holds("man nestrace", page.contains("nestrace guests"), &page);
    let pages = root.run_ok("ls /usr/share/man/man1 | grep '^nestrace'")?;
    case.figure(format!("{} pages", pages.lines().count()));
    for page in pages.lines() {
        let name = page.strip_suffix(".1.gz").unwrap_or(page);
        let said = root.run_ok(&format!("man --warnings {name} 2>&1 > /dev/null"))?;
        case.equal(&format!("what man says of {name}"), said.trim(), "");
    }
    let of_commands = root.run_ok(
        "nestrace help | sed -n '/^Commands:/,/^$/s/^  \\([a-z]*\\) .*/\\1/p' | grep -vx help",
    )?;
    case.holds("commands", of_commands.lines().count() > 8, &of_commands);
    for command in of_commands.lines() {
        let file = format!("nestrace-{command}.1.gz");
        case.holds(&file, pages.lines().any(|page| page == file), &pages);
    }
    let bash = "/usr/share/bash-completion/completions/nestrace";
    let said = root.run_ok(&format!("bash -c '. {bash} && complete -p nestrace'"))?;
    case.holds("bash", said.contains("_nestrace"), &said);
    for place in [
        "zsh/vendor-completions/_nestrace",
        "fish/vendor_completions.d/nestrace.fish",
    ] {
        let n = root.run_ok(&format!("grep -c nestrace /usr/share/{place}"))?;
        case.holds(place, n.trim() != "0", &n);
    }
    Ok(())
}

/// The agent's program, page and unit. Nothing is started by the installation.
fn agent(root: &BareRoot, case: &mut Case) -> anyhow::Result<()> {
    let version = root.run_ok("nestrace-agent --version")?;
    let expected = concat!("nestrace-agent ", env!("CARGO_PKG_VERSION"));
    case.equal("version", version.trim(), expected);
    let page = root.run_ok("man nestrace-agent")?;
    case.holds("man nestrace-agent", page.contains("--vsock PORT"), &page);
    let said = root.run_ok("man --warnings nestrace-agent 2>&1 > /dev/null")?;
    case.equal("what man says of it", said.trim(), "");
    let said = root.run_ok("systemd-analyze verify nestrace-agent.service 2>&1")?;
    case.equal("what systemd-analyze says", said.trim(), "");
    let enabled = root.run("systemctl is-enabled nestrace-agent")?;
    case.equal("the unit", enabled.stdout.trim(), "enabled");
    root.run_ok("test -f /lib/udev/rules.d/99-nestrace-agent.rules")?;
    let running = root.run("grep -l nestrace-agent /proc/[0-9]*/comm")?;
    case.equal("agents that run", running.stdout.trim(), "");
    Ok(())
}

fn purge(root: &BareRoot, before: &str, case: &mut Case) -> anyhow::Result<()> {
    root.run_ok("dpkg --purge nestrace nestrace-agent")?;
    let after = root.listing()?;
    let added = |all: &str, known: &str| {
        let known: Vec<&str> = known.lines().collect();
        let new = all.lines().filter(|line| !known.contains(line));
        new.collect::<Vec<_>>().join(" ")
    };
    case.equal("left behind", added(&after, before).as_str(), "");
    case.equal("taken along", added(before, &after).as_str(), "");
    Ok(())
}
