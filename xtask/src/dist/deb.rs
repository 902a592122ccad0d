//! A Debian package: a tree of files and control files, packed by `dpkg-deb`.
//!
//! The same files give the same bytes: times are those of the commit, owner and group are root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::packages;
use tempfile::TempDir;
use xtask::cargo_build::workspace;

/// Programs that make a package, and the Debian package of each.
const TOOLS: [(&str, &str); 4] = [
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
];
/// Of this repository: every package has it.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Installs what is missing of the tools.
pub fn prepare() -> anyhow::Result<()> {
    packages::install_programs(&TOOLS, |line| eprintln!("xtask: {line}"))?;
    Ok(())
}

/// How a tree is packed.
pub struct Packing {
    /// The time that its files get, in seconds since 1970.
    pub date: u64,
    /// Of xz: 0 to 9.
    pub level: u8,
}

/// A package in the making; its tree is removed with it.
pub struct Deb {
    name: &'static str,
    tree: TempDir,
}

impl Deb {
    /// An empty one.
    pub fn new(name: &'static str) -> anyhow::Result<Self> {
        let tree = tempfile::tempdir().context("make a folder for a package")?;
        Ok(Self { name, tree })
    }

    /// The tree, as it will lie under `/`.
    pub fn tree(&self) -> &Path {
        self.tree.path()
    }

    /// A file that users read or programs run.
    pub fn put(&self, place: &str, bytes: &[u8], mode: u32) -> anyhow::Result<PathBuf> {
        let path = self.tree().join(place);
        let written = || {
            fs::create_dir_all(path.parent().unwrap_or(self.tree()))?;
            fs::write(&path, bytes)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))
        };
        written().with_context(|| format!("write {place} of {}", self.name))?;
        Ok(path)
    }

    /// A copy of a file.
    pub fn copy(&self, from: &Path, place: &str, mode: u32) -> anyhow::Result<PathBuf> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.put(place, &bytes, mode)
    }

    /// A file that Debian keeps compressed: a man page or the list of changes.
    pub fn put_compressed(&self, place: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.put(place, bytes, 0o644)?;
        Tool::new("gzip").arg("-9n").arg(path).run()?;
        Ok(())
    }

    /// What is the same in both packages: licences, the list of changes.
    pub fn put_common(&self) -> anyhow::Result<()> {
        let doc = format!("usr/share/doc/{}", self.name);
        let copyright = workspace().join("packaging/deb/copyright");
        self.copy(&copyright, &format!("{doc}/copyright"), 0o644)?;
        let changes = fs::read(workspace().join("CHANGELOG.md")).context("read CHANGELOG.md")?;
        self.put_compressed(&format!("{doc}/changelog.gz"), &changes)
    }

    /// The packages whose libraries these programs of the tree need, with versions.
    pub fn library_packages(&self, programs: &[&str]) -> anyhow::Result<String> {
        // It wants to run where a source package is.
        let source = tempfile::tempdir().context("make a folder for dpkg-shlibdeps")?;
        let control = source.path().join("debian/control");
        let text = format!(
            "Source: {0}\n\nPackage: {0}\nArchitecture: amd64\n",
            self.name
        );
        fs::create_dir(source.path().join("debian"))
            .and_then(|()| fs::write(&control, text))
            .context("write debian/control")?;
        let mut tool = Tool::new("dpkg-shlibdeps")
            .current_dir(source.path())
            .arg("-O");
        for program in programs {
            tool = tool.arg("-e").arg(self.tree().join(program));
        }
        let said = tool.run()?;
        let depends = said.trim().strip_prefix("shlibs:Depends=");
        let depends = depends.with_context(|| format!("read dpkg-shlibdeps' answer {said:?}"))?;
        Ok(depends.to_owned())
    }

    /// Packs it into `folder`, with the control files of `packaging/deb/NAME`. `depends` is the value of Depends, if it has
    /// one.
    pub fn build(self, folder: &Path, depends: &str, packing: &Packing) -> anyhow::Result<PathBuf> {
        let scripts = workspace().join("packaging/deb").join(self.name);
        let files = files(self.tree())?;
        let control = fs::read_to_string(scripts.join("control")).context("read control")?;
        let control = filled_in(&control, size_kib(&files)?, depends);
        let sums = self.md5sums(&files)?;
        self.put("DEBIAN/control", control.as_bytes(), 0o644)?;
        self.put("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        for script in ["postinst", "prerm", "postrm"] {
            let path = scripts.join(script);
            if path.exists() {
                self.copy(&path, &format!("DEBIAN/{script}"), 0o755)?;
            }
        }
        for path in folders(self.tree())? {
            fs::set_permissions(&path, Permissions::from_mode(0o755))
                .with_context(|| format!("set the mode of {}", path.display()))?;
        }
        let package = folder.join(format!("{}_{VERSION}_amd64.deb", self.name));
        Tool::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz"])
            .arg(format!("-z{}", packing.level))
            .arg("--build")
            .arg(self.tree())
            .arg(&package)
            .env("SOURCE_DATE_EPOCH", &packing.date.to_string())
            .run()?;
        Ok(package)
    }

    /// What `dpkg --verify` compares with.
    fn md5sums(&self, files: &[PathBuf]) -> anyhow::Result<String> {
        let within = files.iter().map(|file| file.strip_prefix(self.tree()));
        let within: Vec<&Path> = within.collect::<Result<_, _>>()?;
        let sums = Tool::new("md5sum").current_dir(self.tree()).args(within);
        Ok(sums.run()?)
    }
}

/// Removes debug information and symbols, which are nine tenths of a program.
pub fn strip(program: &Path) -> anyhow::Result<()> {
    Tool::new("strip")
        .args(["--strip-all", "--remove-section=.comment"])
        .arg(program)
        .run()?;
    Ok(())
}

/// The time that packages carry: `SOURCE_DATE_EPOCH`, or that of the commit.
pub fn date() -> anyhow::Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => Tool::new("git")
            .args(["log", "-1", "--format=%ct"])
            .current_dir(workspace())
            .run()
            .context("ask git for the time of the commit; SOURCE_DATE_EPOCH may give it")?,
    };
    text.trim().parse().context("read SOURCE_DATE_EPOCH")
}

fn filled_in(control: &str, size_kib: u64, depends: &str) -> String {
    control
        .replace("@VERSION@", VERSION)
        .replace("@SIZE@", &size_kib.to_string())
        .replace("@DEPENDS@", depends)
}

/// As Debian counts: each file in whole KiB.
fn size_kib(files: &[PathBuf]) -> anyhow::Result<u64> {
    let sizes = files.iter().map(|file| Ok(file.metadata()?.len()));
    let sizes = sizes.collect::<std::io::Result<Vec<u64>>>();
    let sizes = sizes.context("ask for the size of a file")?;
    Ok(sizes.iter().map(|size| size.div_ceil(1024)).sum())
}

/// Every file below a folder, sorted.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    Ok(all_below(folder)?
        .into_iter()
        .filter(|path| !path.is_dir())
        .collect())
}

/// A folder and those below it.
fn folders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let below = all_below(folder)?.into_iter();
    let below = below.filter(|path| path.is_dir());
    Ok(std::iter::once(folder.to_owned()).chain(below).collect())
}

fn all_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let entries = folder.read_dir();
    for entry in entries.with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(all_below(&path)?);
        }
        all.push(path);
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_what_was_put_in_and_the_same_bytes_each_time() {
        if prepare().is_err() {
            eprintln!("skipped: no dpkg-dev, and no right to install it");
            return;
        }
        let make = || {
            let folder = tempfile::tempdir().unwrap();
            let deb = Deb::new("nestrace-agent").unwrap();
            deb.put("usr/bin/nestrace-agent", b"#!/bin/sh\n", 0o755)
                .unwrap();
            deb.put_common().unwrap();
            let packing = Packing {
                date: 1_700_000_000,
                level: 1,
            };
            let made = deb.build(folder.path(), "", &packing).unwrap();
            let listing = Tool::new("dpkg-deb").arg("--contents").arg(&made);
            (listing.run().unwrap(), fs::read(&made).unwrap())
        };
        let (listing, bytes) = make();
        assert!(listing.contains("-rwxr-xr-x root/root"), "{listing}");
        assert!(
            listing.contains("./usr/share/doc/nestrace-agent/changelog.gz"),
            "{listing}"
        );
        assert!(listing.contains("2023-11-14"), "{listing}");
        assert!(bytes == make().1, "the bytes differ");
    }

    #[test]
    fn nothing_of_a_control_file_stays_open() {
        for name in ["nestrace", "nestrace-agent"] {
            let path = workspace().join("packaging/deb").join(name).join("control");
            let control = filled_in(&fs::read_to_string(path).unwrap(), 7, "libc6");
            assert!(control.starts_with(&format!("Package: {name}\nVersion: {VERSION}\n")));
            assert!(control.contains("\nInstalled-Size: 7\n"), "{control}");
            assert!(!control.replace("<maintainers@", "").contains('@'));
        }
    }
}
