//! The maps of qcow2 images: their tables are read once before anything is recorded and once after,
//! through descriptors that were opened while there were privileges, by a process that has none ([`crate::roles::reader`]).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nestrace_probes::{clock, refusal::with_causes};
use nestrace_trace::ImageMap;
use nestrace_trace::image_map::MAX_EXTENTS;
use nestrace_trace::manifest::{Guest, Relation, Topology};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::{Deserialize, Serialize};

use crate::topology::image_file::{self, Viewer};
use crate::topology::open_files::{self, OpenFiles};
use crate::topology::qcow2_map;

/// How long reading all maps may take before the recording.
pub const AT_START: Duration = Duration::from_millis(300);
/// And after it.
pub const AT_END: Duration = Duration::from_millis(1500);
/// Extents of the first look that are kept until the end.
const MAX_KEPT: usize = MAX_EXTENTS / 4;

/// The qcow2 images of a recording's guests.
#[derive(Debug, Default)]
pub struct ImageMaps {
    images: Vec<OpenImage>,
    at_start: Vec<ImageMap>,
    /// Images that could not be opened or understood, in words.
    pub notes: Vec<String>,
}

/// An image by its place in the topology.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImagePlace {
    guest: u32,
    disk: u32,
    image: u32,
    path: String,
    /// Where in the file the image begins, in bytes.
    start: u64,
    /// The image's external data file: its index among the images, and where it begins.
    data_file: Option<(u32, u64)>,
    /// QEMU reads around the page cache, so what is read here would only be in its way.
    direct: bool,
}

/// An image that is open.
#[derive(Debug)]
pub struct OpenImage {
    /// Which.
    pub place: ImagePlace,
    /// It, for reading.
    pub file: File,
}

impl ImageMaps {
    /// Opens every qcow2 image.
    #[must_use]
    pub fn open(topology: &Topology) -> Self {
        let mut maps = Self::default();
        for (guest, index) in topology.guests.iter().zip(0u32..) {
            let has_one = |g: &Guest| {
                let mut images = g.disks.iter().flat_map(|d| &d.images);
                images.any(|i| i.format == "qcow2")
            };
            if has_one(guest) {
                maps.open_guest(guest, index);
            }
        }
        maps
    }

    fn open_guest(&mut self, guest: &Guest, index: u32) {
        let open = open_files::open_files(guest.pid).unwrap_or_default();
        for (disk, disk_index) in guest.disks.iter().zip(0u32..) {
            let relations = disk.relations();
            for (image, image_index) in disk.images.iter().zip(0u32..) {
                if image.format != "qcow2" {
                    continue;
                }
                let is_data_file = |relation: &Option<Relation>| {
                    *relation == Some(Relation::DataFileOf(image_index))
                };
                let data_file = relations.iter().position(is_data_file);
                let data_file =
                    data_file.and_then(|at| Some((at as u32, disk.images.get(at)?.start)));
                match open_image(guest.pid, &open, &image.path) {
                    Ok(file) => self.images.push(OpenImage {
                        place: ImagePlace {
                            guest: index,
                            disk: disk_index,
                            image: image_index,
                            path: image.path.clone(),
                            start: image.start,
                            data_file,
                            direct: image.direct == Some(true),
                        },
                        file,
                    }),
                    Err(error) => self.note(&image.path, &error.to_string()),
                }
            }
        }
    }

    fn note(&mut self, path: &str, why: &str) {
        let note = format!("the image map of {path} is not known: {why}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Of images that others opened.
    #[must_use]
    pub fn of(images: Vec<OpenImage>) -> Self {
        Self {
            images,
            ..Self::default()
        }
    }

    /// The images, and what could not be opened.
    #[must_use]
    pub fn into_parts(self) -> (Vec<OpenImage>, Vec<String>) {
        (self.images, self.notes)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// The first look, as far as there is time: QEMU may move what it finds.
    pub fn read_first(&mut self) {
        let maps = self.read(AT_START);
        let n_extents: usize = maps.iter().map(|m| m.extents.len()).sum();
        if n_extents <= MAX_KEPT {
            self.at_start = maps;
        }
    }

    /// The second look; writes both. What the first one already had is written once.
    ///
    /// # Errors
    /// Those of `file`.
    pub fn read_and_write(&mut self, file: &File) -> io::Result<()> {
        let at_end = self.read(AT_END);
        let is_new = |first: &&ImageMap| !at_end.iter().any(|last| is_same(first, last));
        let maps = self.at_start.iter().filter(is_new).chain(&at_end);
        let mut out = BufWriter::new(file);
        out.write_all(b"[")?;
        for (n, map) in maps.enumerate() {
            out.write_all(if n > 0 { b",\n" } else { b"\n" })?;
            serde_json::to_writer(&mut out, map)?;
        }
        out.write_all(b"\n]\n")?;
        out.flush()
    }

    fn read(&mut self, limit: Duration) -> Vec<ImageMap> {
        let deadline = Instant::now() + limit;
        let mut left = MAX_EXTENTS;
        let mut maps = Vec::new();
        let mut failed = Vec::new();
        for image in &self.images {
            match image.read(deadline, left) {
                Ok(map) => {
                    left = left.saturating_sub(map.extents.len());
                    maps.push(map);
                }
                Err(why) => failed.push((image.place.path.clone(), why)),
            }
        }
        for (path, why) in failed {
            self.note(&path, &why);
        }
        maps
    }
}

/// Everything but the time.
fn is_same(a: &ImageMap, b: &ImageMap) -> bool {
    (a.guest, a.disk, a.image, a.virtual_size) == (b.guest, b.disk, b.image, b.virtual_size)
        && a.extents == b.extents
        && a.compressed == b.compressed
        && a.partial == b.partial
}

impl OpenImage {
    fn read(&self, deadline: Instant, max_extents: usize) -> Result<ImageMap, String> {
        let mono_ns = clock::monotonic_ns();
        let read_at = |at: u64, into: &mut [u8]| {
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long"));
            }
            let at = at.saturating_add(self.place.start);
            self.file.read_exact_at(into, at)?;
            if self.place.direct
                && let (Ok(at), Ok(n)) = (i64::try_from(at), i64::try_from(into.len()))
            {
                let _ = posix_fadvise(&self.file, at, n, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
            }
            Ok(())
        };
        let mapped = qcow2_map::read(read_at, max_extents);
        let mapped = mapped.map_err(|error| format!("failed to {}", with_causes(&error)))?;
        let (image, start) = match (mapped.data_file, self.place.data_file) {
            (false, _) => (self.place.image, self.place.start),
            (true, Some(data_file)) => data_file,
            (true, None) => return Err("its data file is not followed".to_owned()),
        };
        let mut map = ImageMap {
            guest: self.place.guest,
            disk: self.place.disk,
            image,
            mono_ns,
            ..mapped.map
        };
        let extents = map.extents.iter_mut().map(|it| &mut it.file_offset);
        let compressed = map.compressed.iter_mut().map(|it| &mut it.file_offset);
        let tables = map
            .tables
            .iter_mut()
            .flatten()
            .map(|it| &mut it.file_offset);
        for offset in extents.chain(compressed).chain(tables) {
            *offset = offset.saturating_add(start);
        }
        Ok(map)
    }
}

fn open_image(pid: u32, open: &OpenFiles, path: &str) -> io::Result<File> {
    let viewer = Viewer {
        pid,
        open: Some(open),
    };
    let file = image_file::find(viewer, path)?.open_for_reading()?;
    // No read-ahead on QEMU's image for the sake of its tables.
    let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
    Ok(file)
}
