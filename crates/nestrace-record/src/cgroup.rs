//! The freezer and the I/O limits of a process' cgroups, of both versions.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nestrace_probes::mountinfo::{self, MountEntry};
use nestrace_probes::proc_file;
use nestrace_trace::device_number;
use nestrace_trace::manifest::{Device, Limit, LimitPlace, Limited, MAX_LIMITS};

/// How deep a cgroup may lie; libvirt's are at level four or five.
const MAX_DEPTH: usize = 32;
/// A file with limits: one line for each device.
const MAX_BYTES: usize = 64 << 10;
/// Files of one process that are kept open.
const MAX_OPEN: usize = 256;

/// Where cgroups are mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hierarchies {
    mounts: Vec<MountEntry>,
}

/// A cgroup that a process is in, or one above it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cgroup {
    /// Below the root of its hierarchy.
    name: String,
    folder: PathBuf,
    is_v2: bool,
    /// The process is in it, not below it.
    is_own: bool,
    has_freezer: bool,
    has_limits: bool,
}

impl Hierarchies {
    /// Those of this process' mount namespace.
    pub(crate) fn read() -> Self {
        let mut mounts = mountinfo::read(0).unwrap_or_default();
        mounts.retain(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2"));
        Self { mounts }
    }

    /// Where the hierarchy with one of these controllers is mounted; without any, that of version 2.
    fn mount(&self, controllers: &str) -> Option<&Path> {
        let fits = |mount: &&MountEntry| match controllers {
            "" => mount.fs_type == "cgroup2",
            _ => {
                let first = controllers.split(',').next();
                let mut all = mount.super_options.split(',');
                mount.fs_type == "cgroup" && all.any(|name| Some(name) == first)
            }
        };
        let mount = self.mounts.iter().find(fits)?;
        Some(Path::new(&mount.mount_point))
    }

    /// The cgroups of a process, in each hierarchy the lowest first.
    fn of(&self, pid: u32) -> Vec<Cgroup> {
        let list = proc_file::read(format!("/proc/{pid}/cgroup"), proc_file::MAX_FDINFO);
        let list = list.map(|text| text.text()).unwrap_or_default();
        let mut found = Vec::new();
        for (controllers, path) in list.lines().filter_map(parse_line) {
            let has = |wanted: &str| {
                controllers.is_empty() || controllers.split(',').any(|name| name == wanted)
            };
            let (has_freezer, has_limits) = (has("freezer"), has("blkio"));
            let Some(mount) = self
                .mount(controllers)
                .filter(|_| has_freezer || has_limits)
            else {
                continue;
            };
            found.extend(upwards(path).enumerate().map(|(above, cgroup)| Cgroup {
                name: format!("/{}", cgroup.display()),
                folder: mount.join(cgroup),
                is_v2: controllers.is_empty(),
                is_own: above == 0,
                has_freezer,
                has_limits,
            }));
        }
        found
    }

    /// The cgroup that is frozen, if the process is in one: of several the uppermost, which is the one that was frozen.
    pub(crate) fn frozen(&self, pid: u32) -> Option<String> {
        let all = self.of(pid).into_iter();
        let mut frozen = all.filter(|it| it.has_freezer && is_frozen(&it.folder));
        frozen.next_back().map(|cgroup| cgroup.name)
    }

    /// Name and folder of the lowest cgroup of version 2 that holds a process as a whole, not some of its threads alone, which
    /// libvirt's `emulator` and `vcpu0` do; `None` where that is the root.
    pub(crate) fn whole(&self, pid: u32) -> Option<(String, PathBuf)> {
        let is_whole = |cgroup: &Cgroup| {
            let kind = proc_file::read(cgroup.folder.join("cgroup.type"), proc_file::MAX_STAT);
            kind.is_ok_and(|kind| kind.text().trim() != "threaded")
        };
        let mut all = self.of(pid).into_iter();
        let cgroup = all.find(|cgroup| cgroup.is_v2 && is_whole(cgroup))?;
        Some((cgroup.name, cgroup.folder))
    }

    /// The limits of a process' cgroups.
    pub(crate) fn limits(&self, pid: u32, devices: &[Device]) -> Vec<Limit> {
        LimitFiles::open(self, pid).read(devices)
    }
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

/// What a file with limits holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// `io.max`.
    Max,
    /// `io.latency`.
    Latency,
    /// `io.weight`.
    Weight,
    /// A file of version 1: a line with a device and a number for each limit.
    Old(Limited),
}

const FILES: [(&str, Holds); 7] = [
    ("io.max", Holds::Max),
    ("io.latency", Holds::Latency),
    ("io.weight", Holds::Weight),
    (
        "blkio.throttle.read_bps_device",
        Holds::Old(Limited::BytesRead),
    ),
    (
        "blkio.throttle.write_bps_device",
        Holds::Old(Limited::BytesWritten),
    ),
    (
        "blkio.throttle.read_iops_device",
        Holds::Old(Limited::Reads),
    ),
    (
        "blkio.throttle.write_iops_device",
        Holds::Old(Limited::Writes),
    ),
];

/// The files with a process' limits. They can be read again where nothing can be opened any more.
#[derive(Debug, Default)]
pub(crate) struct LimitFiles {
    files: Vec<(String, Holds, File)>,
    /// `io.cost.qos` of the root.
    cost: Option<File>,
}

impl LimitFiles {
    /// Opens what there is.
    pub(crate) fn open(hierarchies: &Hierarchies, pid: u32) -> Self {
        let mut files = Vec::new();
        // Limits of version 1 do not hold for cgroups below (`throtl_pd_init()`, in all kernels).
        let holds = |it: &Cgroup| it.has_limits && (it.is_v2 || it.is_own);
        for cgroup in hierarchies.of(pid).into_iter().filter(holds) {
            for (name, holds) in FILES {
                if let Ok(file) = open(&cgroup.folder.join(name)) {
                    files.push((cgroup.name.clone(), holds, file));
                }
            }
        }
        files.truncate(MAX_OPEN);
        let root = hierarchies.mount("");
        let cost = root.and_then(|root| open(&root.join("io.cost.qos")).ok());
        Self { files, cost }
    }

    /// The limits that they hold now, those of the lowest cgroup first.
    pub(crate) fn read(&self, devices: &[Device]) -> Vec<Limit> {
        let cost = self.cost.as_ref().map(text_of).unwrap_or_default();
        let with_cost: Vec<&str> = cost.lines().filter_map(device_with_cost).collect();
        let mut limits = Vec::new();
        for (cgroup, holds, file) in &self.files {
            for line in text_of(file).lines() {
                limits.extend(parse(*holds, line, &with_cost).map(|limit| Limit {
                    name: cgroup.clone(),
                    device: limit.device.map(|number| named(&number, devices)),
                    ..limit
                }));
            }
        }
        limits.truncate(MAX_LIMITS);
        limits
    }
}

/// Opens a file that can be read again.
pub(crate) fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// What a file of a cgroup or of `/proc` holds now; empty where the cgroup is gone.
pub(crate) fn text_of(file: &File) -> String {
    let mut file = file;
    let mut bytes = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(MAX_BYTES as u64).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

fn named(number: &str, devices: &[Device]) -> String {
    let dev = device_number::parse(number);
    let known = devices.iter().find(|device| Some(device.dev) == dev);
    known.map_or_else(|| number.to_owned(), |device| device.name.clone())
}

/// The device of a line of `io.cost.qos` that is switched on: `8:16 enable=1 ctrl=auto …`.
fn device_with_cost(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    let device = words.next()?;
    words.any(|word| word == "enable=1").then_some(device)
}

/// The limits of a line, each with its device's number.
fn parse(holds: Holds, line: &str, with_cost: &[&str]) -> impl Iterator<Item = Limit> + use<> {
    let mut words = line.split_ascii_whitespace();
    let first = words.next().unwrap_or_default();
    let limit = |set_with, device: &str, bounds, value: &str| {
        Some(Limit {
            set_with,
            name: String::new(),
            device: Some(device.to_owned()),
            bounds,
            value: value.parse().ok()?,
        })
    };
    let mut limits = Vec::new();
    match holds {
        // `8:16 rbps=2097152 wbps=max riops=max wiops=120`.
        Holds::Max => {
            for (key, value) in words.filter_map(|word| word.split_once('=')) {
                let bounds = match key {
                    "rbps" => Limited::BytesRead,
                    "wbps" => Limited::BytesWritten,
                    "riops" => Limited::Reads,
                    "wiops" => Limited::Writes,
                    _ => continue,
                };
                limits.extend(limit(LimitPlace::IoMax, first, bounds, value));
            }
        }
        // `8:16 target=10000`, in microseconds.
        Holds::Latency => {
            let targets = words.filter_map(|word| word.strip_prefix("target="));
            limits.extend(targets.filter_map(|value| {
                limit(LimitPlace::IoLatency, first, Limited::LatencyUs, value)
            }));
        }
        // `default 100` and `8:16 50`. It means something where the cost model is on.
        Holds::Weight => {
            let value = words.next().unwrap_or_default();
            let concerned = with_cost
                .iter()
                .filter(|device| first == "default" || first == **device);
            limits
                .extend(concerned.filter_map(|device| {
                    limit(LimitPlace::IoCost, device, Limited::Weight, value)
                }));
        }
        // `7:0 120`.
        Holds::Old(bounds) => {
            let value = words.next().unwrap_or_default();
            limits.extend(limit(LimitPlace::Blkio, first, bounds, value));
        }
    }
    limits.into_iter()
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

    /// Device, what is bounded, value.
    fn parsed(holds: Holds, line: &str) -> Vec<(String, Limited, u64)> {
        let limits = parse(holds, line, &["8:16"]);
        let parts = limits.map(|it| (it.device.unwrap_or_default(), it.bounds, it.value));
        parts.collect()
    }

    #[test]
    fn lines_of_limits() {
        let of = |bounds, value| ("8:16".to_owned(), bounds, value);
        let line = "8:16 rbps=2097152 wbps=max riops=max wiops=120";
        let expected = [of(Limited::BytesRead, 2_097_152), of(Limited::Writes, 120)];
        assert_eq!(parsed(Holds::Max, line), expected);
        let latency = parsed(Holds::Latency, "8:16 target=10000");
        assert_eq!(latency, [of(Limited::LatencyUs, 10_000)]);
        let weight = parsed(Holds::Weight, "default 100");
        assert_eq!(weight, [of(Limited::Weight, 100)]);
        assert_eq!(parsed(Holds::Weight, "8:32 50"), []);
        let old = parsed(Holds::Old(Limited::Reads), "8:16 7");
        assert_eq!(old, [of(Limited::Reads, 7)]);
        for nonsense in ["", "8:16", "8:16 x", "8:16 wiops=-1"] {
            for (_, holds) in FILES {
                assert_eq!(parsed(holds, nonsense), [], "{nonsense}");
            }
        }
        assert_eq!(device_with_cost("8:16 enable=1 ctrl=auto"), Some("8:16"));
        assert_eq!(device_with_cost("8:16 enable=0"), None);
    }

    #[test]
    fn a_limit_that_is_changed_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("io.max");
        std::fs::write(&path, "7:3 wiops=1\n").unwrap();
        let files = LimitFiles {
            files: vec![("/a".to_owned(), Holds::Max, open(&path).unwrap())],
            cost: None,
        };
        let devices = [Device {
            name: "loop3".to_owned(),
            dev: 7 << 20 | 3,
            ..Device::default()
        }];
        let limit = |value| Limit {
            set_with: LimitPlace::IoMax,
            name: "/a".to_owned(),
            device: Some("loop3".to_owned()),
            bounds: Limited::Writes,
            value,
        };
        assert_eq!(files.read(&devices), [limit(1)]);
        std::fs::write(&path, "7:3 wiops=20\n").unwrap();
        assert_eq!(files.read(&devices), [limit(20)]);
    }

    #[test]
    fn a_frozen_parent_is_the_one_to_name() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |file: &str, text: &str| std::fs::write(folder.path().join(file), text).unwrap();
        write("freezer.state", "FROZEN\n");
        assert!(!is_frozen(folder.path()));
        write("freezer.self_freezing", "1\n");
        assert!(is_frozen(folder.path()));
    }
}
