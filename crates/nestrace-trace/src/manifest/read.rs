//! Reads and writes the bytes of a manifest.

use serde_json::{Map, Value};

use super::{FORMAT_MAJOR, MAX_FILES, MAX_PATH_BYTES, Manifest, State};
use crate::diagnostic::{Diagnostic, DiagnosticKind};

/// A manifest is never longer. One guest with a disk takes about 10 KiB.
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;

/// Why a manifest cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// It is longer than any manifest.
    #[error("read the manifest: it has {bytes} bytes, more than {MAX_MANIFEST_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It is not a JSON object.
    #[error("read the manifest: it is not a JSON object")]
    Syntax {
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// It has no `format`, so it is the manifest of something else.
    #[error("read the manifest: it has no `format.major`")]
    NoFormat,
    /// A newer release wrote the bundle in a way that this one cannot read.
    #[error(
        "read the manifest: the bundle has format {found}, this release reads up to {supported}; \
         nestrace {release} wrote it and can read it"
    )]
    NewerFormat {
        /// Its major version.
        found: u32,
        /// The newest major version that can be read.
        supported: u32,
        /// The release that wrote it; `?` where it does not say.
        release: String,
    },
}

impl Manifest {
    /// Reads `manifest.json`. Keys that this release does not know are passed over, and a key whose
    /// value has not the form that it must have reads as its default; both are reported.
    ///
    /// # Errors
    /// If it is no manifest, or one of a newer major version.
    pub fn from_slice(bytes: &[u8]) -> Result<(Self, Vec<Diagnostic>), ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLong { bytes: bytes.len() });
        }
        let mut keys: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|source| ManifestError::Syntax { source })?;
        check_version(&keys)?;
        let mut diagnostics = Vec::new();
        drop_unusable(&mut keys, &mut diagnostics);
        // Each key was tried by itself, so together they cannot fail.
        let mut manifest: Self = serde_json::from_value(Value::Object(keys))
            .map_err(|source| ManifestError::Syntax { source })?;
        manifest.leave_out_too_many(&mut diagnostics);
        manifest.forget_absurd_times(&mut diagnostics);
        manifest.put_files_in_order(&mut diagnostics);
        if manifest.state == State::Recording {
            let message = "the recording was not closed".to_owned();
            diagnostics.push(about(DiagnosticKind::NotClosed, message));
        }
        Ok((manifest, diagnostics))
    }

    /// What a host can have, and no more: whoever looks through the lists for each entry of another one must come to an end.
    fn leave_out_too_many(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        let mut n_left_out = cut(&mut self.guest_sides, MAX_GUESTS);
        let topology = &mut self.topology;
        n_left_out += cut(&mut topology.guests, MAX_GUESTS);
        n_left_out += cut(&mut topology.devices, MAX_LISTED);
        for guest in &mut topology.guests {
            n_left_out += cut(&mut guest.jobs, MAX_JOBS_OF_GUEST);
            let limits = [Some(&mut guest.limits), guest.limits_at_end.as_mut()];
            let of_disks = guest.disks.iter_mut();
            let of_disks =
                of_disks.flat_map(|disk| [Some(&mut disk.limits), disk.limits_at_end.as_mut()]);
            for limits in limits.into_iter().chain(of_disks).flatten() {
                n_left_out += cut(limits, MAX_LIMITS);
            }
        }
        let [mut disks, mut images, mut names] = [MAX_LISTED; 3];
        for disk_list in topology.guests.iter_mut().map(|guest| &mut guest.disks) {
            n_left_out += cut(disk_list, disks.min(MAX_DISKS_OF_GUEST));
            disks -= disk_list.len();
            for disk in disk_list {
                n_left_out += cut(&mut disk.images, images);
                images -= disk.images.len();
                for image in &mut disk.images {
                    n_left_out += cut(&mut image.devices, names);
                    names -= image.devices.len();
                }
            }
        }
        for device in &mut topology.devices {
            let of_loop = device.loop_file.iter_mut().map(|file| &mut file.devices);
            for list in of_loop.chain([&mut device.beneath]) {
                n_left_out += cut(list, names);
                names -= list.len();
            }
        }
        if n_left_out > 0 {
            let message = format!(
                "{n_left_out} guests, disks, images or devices are left out: the limit is {MAX_GUESTS} guests, {MAX_DISKS_OF_GUEST} disks of each, and {MAX_LISTED} disks in all"
            );
            diagnostics.push(about(DiagnosticKind::BadValue, message));
        }
    }

    /// Times that no clock shows read as not known: the events bound the recording then.
    fn forget_absurd_times(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        let mut forget = |name: &str, ns: &mut u64| {
            if *ns > LATEST_MONO_NS {
                let message = format!("key `{name}` is not a possible time: {ns} ns");
                diagnostics.push(about(DiagnosticKind::BadValue, message));
                *ns = 0;
            }
        };
        forget("start_mono_ns", &mut self.start_mono_ns);
        forget("live_mono_ns", &mut self.live_mono_ns);
        forget("end_mono_ns", &mut self.end_mono_ns);
        for side in &mut self.guest_sides {
            forget("guest_sides.start_mono_ns", &mut side.start_mono_ns);
            forget("guest_sides.live_mono_ns", &mut side.live_mono_ns);
            forget("guest_sides.end_mono_ns", &mut side.end_mono_ns);
        }
        diagnostics.truncate(MAX_KEY_DIAGNOSTICS);
    }

    /// Each file once, in the order in which they are looked for, and no more than a recorder takes.
    fn put_files_in_order(&mut self, diagnostics: &mut Vec<Diagnostic>) {
        let (mut n_left_out, mut left) = (0, MAX_LISTED_FILES);
        for files in self.guest_sides.iter_mut().map(|side| &mut side.files) {
            let n = files.len();
            files.truncate(left);
            files.retain(|file| file.path.len() <= MAX_PATH_BYTES);
            files.sort_by_key(|file| (file.dev, file.inode));
            files.dedup_by_key(|file| (file.dev, file.inode));
            n_left_out += n - files.len();
            left -= files.len();
        }
        if n_left_out > 0 {
            let message = format!(
                "names of {n_left_out} files are left out: they are listed twice, longer than {MAX_PATH_BYTES} bytes, or more than {MAX_LISTED_FILES}"
            );
            diagnostics.push(about(DiagnosticKind::BadValue, message));
        }
    }

    /// `manifest.json`, indented, with a line feed at the end.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no strings can fail, and there are none.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Guests of a recording, and sessions of their agents.
const MAX_GUESTS: usize = 4096;
/// Disks of a guest: the recorder follows no more.
const MAX_DISKS_OF_GUEST: usize = 1024;
/// Jobs of a guest. QEMU does one on a disk at a time, and a recording may see many come and go.
pub const MAX_JOBS_OF_GUEST: usize = 256;
/// Limits of a disk, and of a guest's cgroups.
pub const MAX_LIMITS: usize = 256;
/// Disks, images, devices and names of devices of a recording.
const MAX_LISTED: usize = 16_384;

/// Files of all guests that are named.
const MAX_LISTED_FILES: usize = 4 * MAX_FILES;

/// Leaves out what a list has beyond so many; how many these were.
fn cut<T>(list: &mut Vec<T>, most: usize) -> usize {
    let n_left_out = list.len().saturating_sub(most);
    list.truncate(most);
    n_left_out
}

/// A hundred years: a monotonic clock begins with its machine's start.
const LATEST_MONO_NS: u64 = 100 * 365 * 24 * 3600 * 1_000_000_000;

fn check_version(keys: &Map<String, Value>) -> Result<(), ManifestError> {
    let found = keys
        .get("format")
        .and_then(|format| format.get("major"))
        .and_then(Value::as_u64);
    let found = found.ok_or(ManifestError::NoFormat)?;
    if found <= u64::from(FORMAT_MAJOR) {
        return Ok(());
    }
    let release = keys
        .get("tool_version")
        .and_then(Value::as_str)
        .filter(|r| !r.is_empty());
    Err(ManifestError::NewerFormat {
        found: u32::try_from(found).unwrap_or(u32::MAX),
        supported: FORMAT_MAJOR,
        release: release.unwrap_or("?").chars().take(64).collect(),
    })
}

/// Takes away keys that are not known and keys whose value cannot be read.
fn drop_unusable(keys: &mut Map<String, Value>, diagnostics: &mut Vec<Diagnostic>) {
    // Also the key that most recordings leave out.
    let every = Manifest {
        flight: Some(super::Flight::default()),
        ..Manifest::default()
    };
    let known = serde_json::to_value(every).unwrap_or_default();
    let mut usable = Map::new();
    for (key, value) in std::mem::take(keys) {
        if known.get(&key).is_none() {
            let message = format!("key `{}` is not known to this release", shown(&key));
            diagnostics.push(about(DiagnosticKind::UnknownKey, message));
            continue;
        }
        let mut alone = Map::new();
        alone.insert(key.clone(), value.clone());
        match serde_json::from_value::<Manifest>(Value::Object(alone)) {
            Ok(_) => {
                usable.insert(key, value);
            }
            Err(error) => {
                let message = format!("key `{}` cannot be read: {error}", shown(&key));
                diagnostics.push(about(DiagnosticKind::BadValue, message));
            }
        }
    }
    diagnostics.truncate(MAX_KEY_DIAGNOSTICS);
    *keys = usable;
}

/// More keys than this are not reported: a hostile file can have a million.
const MAX_KEY_DIAGNOSTICS: usize = 100;

fn shown(key: &str) -> String {
    key.chars().take(64).collect()
}

fn about(kind: DiagnosticKind, message: String) -> Diagnostic {
    Diagnostic {
        kind,
        offset: 0,
        bytes: 0,
        rows_lost: None,
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Disk, Guest, GuestFile, GuestSide, Image, Loss, Topology};

    /// Reads `json`; the kinds of the diagnostics, or the error's text.
    fn read(json: &str) -> Result<(Manifest, Vec<DiagnosticKind>), String> {
        Manifest::from_slice(json.as_bytes())
            .map(|(manifest, d)| (manifest, d.iter().map(|d| d.kind).collect()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn comes_back_as_it_was() {
        let manifest = Manifest {
            state: State::Complete,
            end_reason: "signal".to_owned(),
            losses: vec![Loss {
                source: "block".to_owned(),
                guest: None,
                events: 7,
            }],
            topology: Topology {
                guests: vec![Guest {
                    name: "vm1".to_owned(),
                    ..Guest::default()
                }],
                devices: Vec::new(),
                ..Topology::default()
            },
            ..Manifest::default()
        };
        assert_eq!(read(&manifest.to_json()), Ok((manifest, Vec::new())));
    }

    #[test]
    fn tells_what_it_left_out() {
        use DiagnosticKind::{BadValue, NotClosed, UnknownKey};
        for (json, kinds) in [
            (
                r#"{"format":{"major":1,"minor":0},"state":"complete"}"#,
                vec![],
            ),
            (
                r#"{"format":{"major":1,"minor":9},"state":"repaired","new":1}"#,
                vec![UnknownKey],
            ),
            (r#"{"format":{"major":1,"minor":0}}"#, vec![NotClosed]),
            (
                r#"{"format":{"major":1,"minor":0},"state":"complete","start_mono_ns":18446744073709551615,
                    "end_mono_ns":18446744073709551615,"guest_sides":[{"live_mono_ns":9223372036854775808}]}"#,
                vec![BadValue, BadValue, BadValue],
            ),
            (
                r#"{"format":{"major":1,"minor":0},"host":7,"state":"complete"}"#,
                vec![BadValue],
            ),
            (
                r#"{"format":{"major":1,"minor":0},"state":"odd"}"#,
                vec![BadValue, NotClosed],
            ),
        ] {
            assert_eq!(read(json).map(|(_, kinds)| kinds), Ok(kinds), "{json}");
        }
    }

    #[test]
    fn keeps_the_rest_of_a_manifest_with_a_bad_key() {
        let json = r#"{"format":{"major":1,"minor":0},"detail":"light","streams":"x"}"#;
        assert_eq!(
            read(json).map(|(manifest, _)| manifest.detail),
            Ok("light".to_owned())
        );
    }

    #[test]
    fn refuses_what_is_no_manifest() {
        for (json, message) in [
            ("", "read the manifest: it is not a JSON object"),
            ("[]", "read the manifest: it is not a JSON object"),
            ("{}", "read the manifest: it has no `format.major`"),
            (
                r#"{"format":{"major":"1"}}"#,
                "read the manifest: it has no `format.major`",
            ),
            (
                r#"{"format":{"major":2,"minor":1},"tool_version":"0.9.0","host":[]}"#,
                "read the manifest: the bundle has format 2, this release reads up to 1; \
                 nestrace 0.9.0 wrote it and can read it",
            ),
        ] {
            assert_eq!(read(json).map(drop), Err(message.to_owned()), "{json}");
        }
        let long = vec![b' '; MAX_MANIFEST_BYTES + 1];
        assert!(matches!(
            Manifest::from_slice(&long),
            Err(ManifestError::TooLong { .. })
        ));
    }

    #[test]
    fn files_are_in_order_and_no_more_than_a_recorder_takes() {
        let file = |dev, inode, path: &str| GuestFile {
            dev,
            inode,
            path: path.to_owned(),
        };
        let long = "x".repeat(MAX_PATH_BYTES + 1);
        let mut whole = Manifest::default();
        let many = (0..2 * MAX_LISTED_FILES as u64).map(|n| file(1, n, "/a"));
        for files in [
            vec![file(2, 1, "/c"), file(1, 9, "/b"), file(1, 9, "/a")],
            vec![file(1, 1, &long), file(1, 2, &long[1..])],
            many.collect(),
        ] {
            let side = GuestSide {
                files,
                ..GuestSide::default()
            };
            whole.guest_sides.push(side);
        }
        let (read, told) = Manifest::from_slice(whole.to_json().as_bytes()).expect("a manifest");
        let files = |n: usize| &read.guest_sides[n].files;
        assert_eq!(files(0), &[file(1, 9, "/b"), file(2, 1, "/c")]);
        assert_eq!(files(1), &[file(1, 2, &long[1..])]);
        assert_eq!(files(2).len(), MAX_LISTED_FILES - 3);
        let said = |it: &Diagnostic| it.message.starts_with("names of 65541 files are left out");
        assert!(told.iter().any(said), "{told:?}");
    }

    #[test]
    fn lists_that_no_host_has_are_cut() {
        let disk = Disk {
            images: vec![Image::default(); 20_000],
            ..Disk::default()
        };
        let guest = Guest {
            disks: vec![disk, Disk::default()],
            ..Guest::default()
        };
        let mut whole = Manifest::default();
        whole.topology.guests = vec![guest];
        let (read, told) = Manifest::from_slice(whole.to_json().as_bytes()).expect("a manifest");
        let disks = &read.topology.guests[0].disks;
        assert_eq!(disks.len(), 2);
        assert_eq!(disks[0].images.len(), MAX_LISTED);
        let said = |it: &Diagnostic| {
            it.message
                .starts_with("3616 guests, disks, images or devices are left out")
        };
        assert!(told.iter().any(said), "{told:?}");
    }
}
