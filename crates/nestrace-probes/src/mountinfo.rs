//! `/proc/PID/mountinfo`: which file system a file lies on.
//!
//! Its `major:minor` is the kernel's `s_dev` of the super block, which on btrfs is *not* what `stat`
//! shows (there every subvolume has an anonymous number of its own).

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeSet;
use std::io;

use nestrace_trace::device_number;
use nestrace_trace::manifest::Mount;

use crate::proc_file;

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount id, as in `fdinfo`.
    pub id: u64,
    /// `s_dev` as `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// Directory of the file system that is mounted here.
    pub root: String,
    /// Mount point, from the reader's root.
    pub mount_point: String,
    /// Options of the mount.
    pub options: String,
    /// File system type.
    pub fs_type: String,
    /// Source.
    pub source: String,
    /// Options of the super block.
    pub super_options: String,
}

impl MountEntry {
    /// As the manifest has it: options of mount and super block together, each once.
    #[must_use]
    pub fn to_mount(&self) -> Mount {
        let mut options: Vec<&str> = self.options.split(',').collect();
        options.extend(self.super_options.split(',').filter(|o| !o.is_empty()));
        // `rw` of the mount and `ro` of the super block both matter, so only equals are dropped.
        let mut seen = BTreeSet::new();
        options.retain(|option| seen.insert(*option));
        Mount {
            fs_type: self.fs_type.clone(),
            mount_point: self.mount_point.clone(),
            source: self.source.clone(),
            options: options.join(","),
        }
    }
}

/// Reads a process' mounts (`pid` 0: the caller's own).
///
/// # Errors
///
/// Where the file cannot be read.
pub fn read(pid: u32) -> io::Result<Vec<MountEntry>> {
    let path = if pid == 0 {
        "/proc/self/mountinfo".to_owned()
    } else {
        format!("/proc/{pid}/mountinfo")
    };
    Ok(parse(
        &proc_file::read(path, proc_file::MAX_MOUNTINFO)?.text(),
    ))
}

/// Lines that are not understood are left out.
#[must_use]
pub fn parse(text: &str) -> Vec<MountEntry> {
    text.lines().filter_map(parse_line).collect()
}

/// The mount that a path leads to, by the path alone: nothing is looked at, so a file system that does not answer keeps no
/// caller waiting. Symbolic links are not followed.
#[must_use]
pub fn above<'a>(mounts: &'a [MountEntry], path: &str) -> Option<&'a MountEntry> {
    let is_above = |mount: &&MountEntry| {
        let rest = path.strip_prefix(mount.mount_point.as_str());
        rest.is_some_and(|rest| {
            mount.mount_point == "/" || rest.is_empty() || rest.starts_with('/')
        })
    };
    // Of several at one place the last one covers the others.
    mounts
        .iter()
        .filter(is_above)
        .max_by_key(|mount| mount.mount_point.len())
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn parse_line(line: &str) -> Option<MountEntry> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    fields.next()?;
    let dev = device_number::parse(fields.next()?)?;
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let options = unescape(fields.next()?);
    // Optional fields end with a dash.
    fields.find(|field| *field == "-")?;
    let fs_type = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let super_options = fields.next().map(unescape).unwrap_or_default();
    Some(MountEntry {
        id,
        dev,
        root,
        mount_point,
        options,
        fs_type,
        source,
        super_options,
    })
}

/// `\040` is a space, and so on.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| {
                digits.iter().try_fold(0u32, |value, d| {
                    matches!(d, b'0'..=b'7').then(|| value * 8 + u32::from(d - b'0'))
                })
            });
        match octal.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: &str) {
        let got = parse(line)
            .into_iter()
            .map(|m| {
                let mount = m.to_mount();
                format!(
                    "{} {:#x} {}|{}|{}|{}|{}",
                    m.id,
                    m.dev,
                    m.root,
                    mount.mount_point,
                    mount.fs_type,
                    mount.source,
                    mount.options
                )
            })
            .collect::<Vec<_>>()
            .join("\n");
        assert_eq!(got, expected, "{line}");
    }

    #[test]
    fn lines() {
        check(
            "27 1 254:3 / / rw,relatime - ext4 /dev/vda rw,discard",
            "27 0xfe00003 /|/|ext4|/dev/vda|rw,relatime,discard",
        );
        check(
            "40 27 0:44 /sub /mnt/a\\040b rw,noatime shared:7 master:2 - btrfs /dev/loop0 rw,space_cache=v2,subvolid=256",
            "40 0x2c /sub|/mnt/a b|btrfs|/dev/loop0|rw,noatime,space_cache=v2,subvolid=256",
        );
        check(
            "41 27 7:0 / /x ro - xfs /dev/loop0 rw",
            "41 0x700000 /|/x|xfs|/dev/loop0|ro,rw",
        );
        check(
            "41 27 7:0 / /x ro - tmpfs none",
            "41 0x700000 /|/x|tmpfs|none|ro",
        );
        check("41 27 7:0 / /x ro", "");
        check("garbage", "");
        check("", "");
    }

    #[test]
    fn the_mount_above_a_path() {
        let mounts: Vec<MountEntry> = ["/", "/img", "/img/a", "/img/a"]
            .iter()
            .zip(1..)
            .map(|(mount_point, id)| MountEntry {
                id,
                mount_point: (*mount_point).to_owned(),
                ..MountEntry::default()
            })
            .collect();
        let id = |path: &str| above(&mounts, path).map(|mount| mount.id);
        assert_eq!(id("/img/b.raw"), Some(2));
        assert_eq!(id("/img/a/b.raw"), Some(4));
        assert_eq!(id("/images/b.raw"), Some(1));
        assert_eq!(id("b.raw"), None);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape("a\\134b\\012"), "a\\b\n");
        assert_eq!(unescape("\\9\\777\\04"), "\\9\\777\\04");
    }
}
