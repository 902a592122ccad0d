//! Names of a guest's files: what an agent sends of them at once, and what is kept of them.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::BTreeMap;

use nestrace_trace::manifest::{GuestFile, MAX_FILES, MAX_PATH_BYTES};
use nestrace_trace::printable;

/// Bytes of the manifest that the names of all guests may have together, and those of one guest.
pub const MAX_NAMES_BYTES: usize = 8 << 20;
const MAX_NAMES_BYTES_OF_GUEST: usize = 4 << 20;
/// What a file has in the manifest besides its path.
const ENTRY_BYTES: usize = 128;
/// Bytes of one message. A path of [`MAX_PATH_BYTES`] fits in any case.
const PORTION_BYTES: usize = 128 << 10;

/// A file's name as a recorder takes it; `None` if it is none, or too long.
#[must_use]
pub fn bounded(file: GuestFile) -> Option<GuestFile> {
    let path = printable(&file.path);
    let is_path = path.starts_with('/') && path.len() <= MAX_PATH_BYTES && file.inode != 0;
    is_path.then_some(GuestFile { path, ..file })
}

/// The names in messages, none longer than a frame.
#[must_use]
pub fn portions(files: Vec<GuestFile>) -> Vec<Vec<GuestFile>> {
    let mut portions: Vec<Vec<GuestFile>> = Vec::new();
    let mut left = 0_usize;
    for file in files {
        let bytes = manifest_bytes(&file);
        match portions.last_mut().filter(|_| bytes <= left) {
            Some(portion) => portion.push(file),
            None => {
                portions.push(vec![file]);
                left = PORTION_BYTES;
            }
        }
        left = left.saturating_sub(bytes);
    }
    portions
}

/// The names of one guest's files, each with the number of the side that it belongs to.
#[derive(Clone, Debug, Default)]
pub struct Names {
    paths: BTreeMap<(usize, u32, u64), String>,
    /// Bytes of the manifest that may still be used.
    left: usize,
}

impl Names {
    /// Of one of so many guests.
    #[must_use]
    pub fn of_one_of(n_guests: usize) -> Self {
        let share = MAX_NAMES_BYTES.checked_div(n_guests).unwrap_or_default();
        Self {
            paths: BTreeMap::new(),
            left: share.min(MAX_NAMES_BYTES_OF_GUEST),
        }
    }

    /// Takes names of a side. Gives how many were refused: they are no names, or there is no room for them. The first
    /// name of a file counts; one that is named with an empty path has none from then on.
    pub fn take(&mut self, side: usize, files: Vec<GuestFile>) -> u64 {
        let mut n_refused = 0_u64;
        for file in files {
            if !self.take_one(side, file) {
                n_refused = n_refused.saturating_add(1);
            }
        }
        n_refused
    }

    fn take_one(&mut self, side: usize, file: GuestFile) -> bool {
        let key = (side, file.dev, file.inode);
        let has_none = file.path.is_empty() && file.inode != 0;
        let Some(file) = (if has_none { Some(file) } else { bounded(file) }) else {
            return false;
        };
        if let Some(path) = self.paths.get_mut(&key) {
            if has_none {
                path.clear();
            }
            return true;
        }
        let left = self.left.checked_sub(manifest_bytes(&file));
        let Some(left) = left.filter(|_| self.paths.len() < MAX_FILES) else {
            return false;
        };
        self.left = left;
        self.paths.insert(key, file.path);
        true
    }

    /// Hands over what was taken, with the number of the side, in the order of the manifest.
    pub fn drain(&mut self) -> impl Iterator<Item = (usize, GuestFile)> + use<> {
        let paths = std::mem::take(&mut self.paths);
        let file = |((side, dev, inode), path)| (side, GuestFile { dev, inode, path });
        let named = paths.into_iter().filter(|(_, path)| !path.is_empty());
        named.map(file)
    }
}

/// At least what a file takes in the manifest, and more than in a message: `"` and `\` become two bytes.
fn manifest_bytes(file: &GuestFile) -> usize {
    let n_escaped = file.path.bytes().filter(|b| matches!(b, b'"' | b'\\'));
    let path_bytes = file.path.len().saturating_add(n_escaped.count());
    path_bytes.saturating_add(ENTRY_BYTES)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic
    )]

    use nestrace_trace::Manifest;
    use nestrace_trace::manifest::GuestSide;

    use super::*;
    use crate::{AgentMessage, FrameReader};

    fn file(inode: u64, path: &str) -> GuestFile {
        GuestFile {
            dev: u32::MAX,
            inode,
            path: path.to_owned(),
        }
    }

    #[test]
    fn what_is_no_name_is_refused_and_what_a_terminal_obeys_replaced() {
        let long = format!("/{}", "x".repeat(MAX_PATH_BYTES));
        for (inode, path, expected) in [
            (7, "/srv/a b", Some("/srv/a b")),
            (7, "/../../etc/x", Some("/../../etc/x")),
            (
                7,
                "/a\x1b[2J\0\n\u{202e}",
                Some("/a\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}"),
            ),
            (7, "a", None),
            (7, "", None),
            (0, "/a", None),
            (7, long.as_str(), None),
            (7, &long[..MAX_PATH_BYTES], Some(&long[..MAX_PATH_BYTES])),
        ] {
            let path = bounded(file(inode, path)).map(|file| file.path);
            assert_eq!(path.as_deref(), expected);
        }
    }

    #[test]
    fn a_flood_of_names_ends() {
        let mut names = Names::of_one_of(1);
        let short = (1..20_000).map(|n| file(n, "/a")).collect();
        assert_eq!(names.take(0, short), 19_999 - MAX_FILES as u64);
        assert_eq!(names.take(0, vec![file(5, "/b")]), 0, "it is known");
        assert_eq!(names.take(1, vec![file(5, "/b")]), 1);
        let taken: Vec<_> = names.drain().collect();
        assert_eq!(taken.len(), MAX_FILES);
        assert_eq!(taken.first(), Some(&(0, file(1, "/a"))));
        // As long as they can be, of many guests.
        let long = format!("/{}", "\"".repeat(MAX_PATH_BYTES - 1));
        let sides = (0..40).map(|_| {
            let mut names = Names::of_one_of(40);
            names.take(0, (1..3000).map(|n| file(n, &long)).collect());
            GuestSide {
                files: names.drain().map(|(_, file)| file).collect(),
                ..GuestSide::default()
            }
        });
        let mut manifest = Manifest::default();
        manifest.guest_sides = sides.collect();
        assert!(manifest.to_json().len() < MAX_NAMES_BYTES + (64 << 10));
    }

    #[test]
    fn a_file_whose_inode_was_used_again_has_no_name() {
        let mut names = Names::of_one_of(1);
        let taken = names.take(
            0,
            vec![file(5, "/a"), file(6, "/b"), file(5, ""), file(7, "")],
        );
        assert_eq!(taken, 0);
        assert_eq!(
            names.take(0, vec![file(5, "/c"), file(7, "/d"), file(0, "")]),
            1
        );
        let left: Vec<_> = names.drain().collect();
        assert_eq!(left, [(0, file(6, "/b"))]);
    }

    #[test]
    fn any_names_fit_into_messages() {
        let paths = [2, 100, MAX_PATH_BYTES].map(|n| format!("/{}", "\\".repeat(n - 1)));
        let files: Vec<GuestFile> = (1..5000)
            .map(|n| file(n, &paths[n as usize % paths.len()]))
            .collect();
        let mut came = Vec::new();
        for portion in portions(files.clone()) {
            let mut bytes = Vec::new();
            AgentMessage::Files(portion).encode_to(&mut bytes);
            let mut reader = FrameReader::new();
            assert_eq!(reader.feed(&bytes), bytes.len());
            let frame = reader.next_frame().ok().flatten();
            let said = frame.and_then(|frame| AgentMessage::parse(frame).ok().flatten());
            let Some(AgentMessage::Files(files)) = said else {
                panic!("{} bytes are no message", bytes.len());
            };
            came.extend(files);
        }
        assert!(came == files);
        assert!(portions(Vec::new()).is_empty());
    }
}
