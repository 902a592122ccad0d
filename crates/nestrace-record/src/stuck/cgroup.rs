//! The freezer and the I/O limits of a process' cgroups, of both versions.

use std::path::{Component, Path, PathBuf};

use nestrace_probes::mountinfo::{self, MountEntry};
use nestrace_probes::proc_file;
use nestrace_stuck::facts::{CgroupFacts, CgroupLimit};
use nestrace_trace::device_number;
use nestrace_trace::manifest::Device;

/// How deep a cgroup may lie; libvirt's are at level four or five.
const MAX_DEPTH: usize = 32;
/// Limits of one cgroup: one line for each device.
const MAX_LIMITS: usize = 64 << 10;

/// Where cgroups are mounted.
#[derive(Clone, Debug, Default)]
pub(super) struct Hierarchies {
    mounts: Vec<MountEntry>,
}

impl Hierarchies {
    /// Those of this process' mount namespace.
    pub(super) fn read() -> Self {
        let mut mounts = mountinfo::read(0).unwrap_or_default();
        mounts.retain(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2"));
        Self { mounts }
    }

    /// The folder of a line of `/proc/PID/cgroup`.
    fn mount(&self, controllers: &str, wanted: &str) -> Option<&Path> {
        let has = |list: &str| list.split(',').any(|name| name == wanted);
        let fits = |mount: &&MountEntry| match controllers {
            "" => mount.fs_type == "cgroup2",
            _ => mount.fs_type == "cgroup" && has(&mount.super_options),
        };
        let mount = self.mounts.iter().find(fits)?;
        Some(Path::new(&mount.mount_point))
    }

    /// What the cgroups of a process do to it.
    pub(super) fn facts(&self, pid: u32, devices: &[Device]) -> CgroupFacts {
        let list = proc_file::read(format!("/proc/{pid}/cgroup"), proc_file::MAX_FDINFO);
        let list = list.map(|text| text.text()).unwrap_or_default();
        let mut facts = CgroupFacts::default();
        for (controllers, path) in list.lines().filter_map(parse_line) {
            let has = |wanted: &str| {
                controllers.is_empty() || controllers.split(',').any(|name| name == wanted)
            };
            for cgroup in upwards(path) {
                if let Some(mount) = self
                    .mount(controllers, "freezer")
                    .filter(|_| has("freezer"))
                    && is_frozen(&mount.join(cgroup))
                {
                    // The uppermost is the one that was frozen.
                    facts.frozen = Some(name(cgroup));
                }
                if let Some(mount) = self.mount(controllers, "blkio").filter(|_| has("blkio")) {
                    let found = limits(&mount.join(cgroup));
                    facts.limits.extend(found.into_iter().map(|mut limit| {
                        limit.cgroup = name(cgroup);
                        limit.device = named(&limit.device, devices);
                        limit
                    }));
                }
            }
        }
        facts
    }
}

fn name(cgroup: &Path) -> String {
    format!("/{}", cgroup.display())
}

fn named(number: &str, devices: &[Device]) -> String {
    let dev = device_number::parse(number);
    let known = devices.iter().find(|device| Some(device.dev) == dev);
    known.map_or_else(|| number.to_owned(), |device| device.name.clone())
}

/// `7:blkio:/a/b`: controllers and path. `0::/a/b` is that of version 2.
fn parse_line(line: &str) -> Option<(&str, &Path)> {
    let mut parts = line.splitn(3, ':');
    parts.next()?;
    let controllers = parts.next()?;
    Some((controllers, Path::new(parts.next()?)))
}

/// A cgroup and those above it, relative to the root. One outside of what can be seen begins with `..`.
fn upwards(path: &Path) -> impl Iterator<Item = &Path> {
    let path = path.strip_prefix("/").unwrap_or(path);
    let is_inside = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    path.ancestors()
        .filter(move |cgroup| is_inside && !cgroup.as_os_str().is_empty())
        .take(MAX_DEPTH)
}

fn is_frozen(folder: &Path) -> bool {
    let text = |file: &str| {
        let text = proc_file::read(folder.join(file), proc_file::MAX_STAT);
        text.map(|text| text.text()).unwrap_or_default()
    };
    text("cgroup.freeze").trim() == "1"
        || (text("freezer.self_freezing").trim() == "1" && text("freezer.state").trim() == "FROZEN")
}

fn limits(folder: &Path) -> Vec<CgroupLimit> {
    let text = |file: &str| {
        let path: PathBuf = folder.join(file);
        let text = proc_file::read(path, MAX_LIMITS);
        text.map(|text| text.text()).unwrap_or_default()
    };
    let mut limits: Vec<CgroupLimit> = text("io.max").lines().filter_map(parse_io_max).collect();
    for (file, part) in OLD_FILES {
        for (device, value) in text(file).lines().filter_map(|line| line.split_once(' ')) {
            let Ok(value) = value.trim().parse() else {
                continue;
            };
            let known = limits.iter().position(|limit| limit.device == device);
            let mut limit = known.map_or_else(
                || CgroupLimit {
                    device: device.to_owned(),
                    ..CgroupLimit::default()
                },
                |index| limits.remove(index),
            );
            *part(&mut limit) = Some(value);
            limits.push(limit);
        }
    }
    limits
}

/// The part of a limit that a file holds.
type Part = fn(&mut CgroupLimit) -> &mut Option<u64>;

/// Files of version 1.
const OLD_FILES: [(&str, Part); 4] = [
    ("blkio.throttle.read_bps_device", |limit| &mut limit.bps_rd),
    ("blkio.throttle.write_bps_device", |limit| &mut limit.bps_wr),
    ("blkio.throttle.read_iops_device", |limit| {
        &mut limit.iops_rd
    }),
    ("blkio.throttle.write_iops_device", |limit| {
        &mut limit.iops_wr
    }),
];

/// `8:16 rbps=2097152 wbps=max riops=max wiops=120`.
fn parse_io_max(line: &str) -> Option<CgroupLimit> {
    let mut words = line.split_ascii_whitespace();
    let mut limit = CgroupLimit {
        device: words.next()?.to_owned(),
        ..CgroupLimit::default()
    };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let value = value.parse().ok();
        match key {
            "rbps" => limit.bps_rd = value,
            "wbps" => limit.bps_wr = value,
            "riops" => limit.iops_rd = value,
            "wiops" => limit.iops_wr = value,
            _ => {}
        }
    }
    Some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cgroups() {
        assert_eq!(
            parse_line("7:blkio:/a:b"),
            Some(("blkio", Path::new("/a:b")))
        );
        assert_eq!(parse_line("0::/"), Some(("", Path::new("/"))));
        assert_eq!(parse_line("0"), None);
        let all: Vec<&Path> = upwards(Path::new("/machine.slice/vm.scope")).collect();
        assert_eq!(
            all,
            [
                Path::new("machine.slice/vm.scope"),
                Path::new("machine.slice")
            ]
        );
        assert_eq!(upwards(Path::new("/")).count(), 0);
        assert_eq!(upwards(Path::new("/../../etc")).count(), 0);
    }

    #[test]
    fn limits_of_version_2() {
        let limit = parse_io_max("8:16 rbps=2097152 wbps=max riops=max wiops=120").unwrap();
        assert_eq!(limit.device, "8:16");
        assert_eq!((limit.bps_rd, limit.bps_wr), (Some(2_097_152), None));
        assert_eq!((limit.iops_rd, limit.iops_wr), (None, Some(120)));
    }

    #[test]
    fn files_of_version_1() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        write("blkio.throttle.read_iops_device", "7:0 1\n7:1 5\n");
        write("blkio.throttle.write_bps_device", "7:0 4096\n");
        write("freezer.state", "FROZEN\n");
        let found = limits(folder.path());
        let of = |device: &str| found.iter().find(|limit| limit.device == device).unwrap();
        assert_eq!((of("7:0").iops_rd, of("7:0").bps_wr), (Some(1), Some(4096)));
        assert_eq!(of("7:1").iops_rd, Some(5));
        // A parent that is frozen freezes it too, and is the one to name.
        assert!(!is_frozen(folder.path()));
        write("freezer.self_freezing", "1\n");
        assert!(is_frozen(folder.path()));
    }
}
