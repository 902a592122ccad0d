//! The bios of a disk of the guest, with the data that they carried: by the stamps in the image.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::Context;
use nestrace_stamp::{OFFSET_BITS, STAMP_BYTES, Stamp};
use nestrace_trace::flags::{OP_READ, OP_WRITE};
use nestrace_trace::{Event, Kind};

use super::scene::OfDisk;
use crate::truth::stories::Story;

const PAGE: u64 = 4096;

/// A page of a file as it stands on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// File, by its number in the stamps.
    pub number: u64,
    /// Page of the file.
    pub page: u64,
    /// The write that it is of; `None` where the place was written again later.
    pub serial: Option<u64>,
}

/// A bio from Q to C.
#[derive(Clone, Debug)]
pub struct Bio {
    /// Q.
    pub queued_ns: u64,
    /// C.
    pub ended_ns: u64,
    /// Thread that queued it.
    pub tid: u32,
    /// It reads.
    pub reads: bool,
    /// Where on the disk.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Its data; empty for metadata and flushes, and where files move and the place was written again later.
    pub pages: Vec<Page>,
    /// Some of it was written again later.
    pub overwritten: bool,
    /// Inode of its data as the probe saw it.
    pub inode: u64,
    /// Page of the file as the probe saw it.
    pub seen_page: u64,
    /// `OWNER_*` as the probe saw it.
    pub owner: u8,
    /// Why it was not followed to the host, if it was not.
    pub unlinked: Option<String>,
}

impl Bio {
    /// Whether it moves one of these pages of a file, which has this number in stamps and this inode; `None` for a bio
    /// without data of files.
    pub fn touches(&self, (number, inode): (u64, u64), pages: &BTreeSet<u64>) -> Option<bool> {
        if !self.pages.is_empty() {
            let is_it = |page: &Page| page.number == number && pages.contains(&page.page);
            return Some(self.pages.iter().any(is_it));
        }
        let seen = self.seen_pages(inode)?;
        Some(pages.range(seen).next().is_some())
    }

    /// Pages of this inode as the probe saw them, where the image has nothing to say.
    pub fn seen_pages(&self, inode: u64) -> Option<Range<u64>> {
        let known = self.overwritten && self.inode == inode;
        known.then(|| self.seen_page..self.seen_page + self.bytes.div_ceil(PAGE))
    }
}

/// Every bio of a disk by the time of its Q.
#[derive(Debug, Default)]
pub struct Bios {
    /// In the order of Q.
    pub all: Vec<Bio>,
    by_key: HashMap<(u64, u64), usize>,
    /// Bios whose end is in no tree.
    pub without_end: usize,
}

impl Bios {
    /// Joins the guest's events, the ends of bios, and the image.
    pub fn of(disk: &OfDisk, events: &[Event], stories: &[Story]) -> anyhow::Result<Self> {
        let by_begin: HashMap<(u64, u64), &Story> = stories
            .iter()
            .map(|story| ((story.tree.ts_ns, story.tree.bytes), story))
            .collect();
        let image = File::open(&disk.image).context("open the image")?;
        let mut last_write: HashMap<u64, u64> = HashMap::new();
        let queued: Vec<&Event> = events
            .iter()
            .filter(|event| event.kind() == Some(Kind::Queue) && event.dev == disk.dev)
            .collect();
        for event in queued.iter().filter(|event| event.op() == OP_WRITE) {
            for place in places(event) {
                last_write.insert(place, event.ts_ns);
            }
        }
        let mut bios = Self::default();
        for event in queued {
            let Some(story) = by_begin.get(&(event.ts_ns, event.bytes)) else {
                bios.without_end += 1;
                continue;
            };
            let key = (event.ts_ns, event.bytes);
            bios.by_key.insert(key, bios.all.len());
            bios.all.push(bio(disk, event, story, &last_write, &image)?);
        }
        Ok(bios)
    }

    /// The bio with this time of Q and so many bytes.
    pub fn at(&self, queued_ns: u64, bytes: u64) -> Option<usize> {
        self.by_key.get(&(queued_ns, bytes)).copied()
    }

    /// Those that were queued and ended within this time.
    pub fn within(&self, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = usize> + '_ {
        let from = self.all.partition_point(|bio| bio.queued_ns < begin_ns);
        let until = self.all.partition_point(|bio| bio.queued_ns < end_ns);
        (from..until).filter(move |index| self.all[*index].ended_ns <= end_ns)
    }

    /// Those that ended within this time, whenever they were queued.
    pub fn ended_within(&self, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = usize> + '_ {
        let until = self.all.partition_point(|bio| bio.queued_ns < end_ns);
        (0..until).filter(move |index| {
            let ended_ns = self.all[*index].ended_ns;
            ended_ns > begin_ns && ended_ns <= end_ns
        })
    }
}

fn places(event: &Event) -> impl Iterator<Item = u64> + use<> {
    let (begin, end) = (event.offset, event.offset.saturating_add(event.bytes));
    (begin..end).step_by(PAGE as usize)
}

fn bio(
    disk: &OfDisk,
    event: &Event,
    story: &Story,
    last_write: &HashMap<u64, u64>,
    image: &File,
) -> anyhow::Result<Bio> {
    let mut bio = Bio {
        queued_ns: event.ts_ns,
        ended_ns: event.ts_ns + story.q2c_ns,
        tid: event.tid,
        reads: event.op() == OP_READ,
        offset: event.offset,
        bytes: event.bytes,
        pages: Vec::new(),
        overwritten: false,
        inode: event.inode,
        seen_page: event.file_offset / PAGE,
        owner: event.sub,
        unlinked: story.unlinked.clone(),
    };
    if ![OP_READ, OP_WRITE].contains(&event.op()) {
        return Ok(bio);
    }
    for place in places(event) {
        let written_ns = last_write.get(&place).copied().unwrap_or(0);
        let again = written_ns > event.ts_ns;
        bio.overwritten |= again;
        // No file is removed, so a place has one page of one file for ever, if the file system overwrites in place.
        if again && disk.disk.moves() {
            continue;
        }
        let mut front = [0; STAMP_BYTES];
        if image.read_exact_at(&mut front, place).is_err() {
            continue;
        }
        if let Some(stamp) = Stamp::read(&front) {
            bio.pages.push(Page {
                number: stamp.address >> OFFSET_BITS,
                page: (stamp.address & ((1 << OFFSET_BITS) - 1)) / PAGE,
                serial: (!again).then_some(stamp.serial),
            });
        }
    }
    Ok(bio)
}
