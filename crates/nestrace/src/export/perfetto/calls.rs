//! Calls of guests' programs as slices: a track for each thread, an arrow to each bio that a call waited for.

use std::collections::HashSet;

use nestrace_analyzer::analysis::{CallStory, StoryLayer, StorySpan};
use nestrace_analyzer::{CALL_SEGMENT_NAMES, units::size};

use super::{
    chains::{Clocks, bio_identity, lasted_ns},
    packets::{NOTES, Note, Slice},
    tracks::Place,
    waiting::{Identity, Waiting},
};

/// Threads that have a track of their own, one for each program that they ran; a guest can make up more.
const MAX_THREADS: usize = 1 << 13;
/// Calls that wait for earlier ones: some 20 MB.
const MAX_WAITING: usize = 1 << 14;
/// Arrows of one call.
const MAX_ARROWS: usize = 1 << 10;

/// Puts calls onto the host's clock and hands them on as slices.
#[derive(Debug)]
pub struct Calls {
    /// Calls wait apart from all else: very many may need no I/O, and would leave no room.
    pub waiting: Waiting,
    threads: HashSet<Place>,
    /// Calls drawn.
    pub n: u64,
}

impl Calls {
    /// None yet.
    pub fn new() -> Self {
        Self {
            waiting: Waiting::of_at_most(MAX_WAITING),
            threads: HashSet::new(),
            n: 0,
        }
    }

    /// Takes a call; the bios that it waited for have come before.
    pub fn add(&mut self, call: &CallStory, clocks: &mut Clocks, bios: &mut Waiting) {
        self.n += 1;
        let mut found = Vec::new();
        bios_of(&call.tree, &mut found);
        let keys = found.iter().filter_map(|span| {
            let group = format!("{} {}", call.guest, span.place);
            Some((bios.find(&bio_identity(group, span))?, span.from_ns))
        });
        let keys: Vec<_> = keys.collect();
        let mut start_ns = clocks.host_ns(&call.guest, call.tree.ts_ns, call.at_ns);
        // Each bio lies where the clock had it at its own time, which may be a little off from here.
        for ((bio_ns, _), from_ns) in &keys {
            if *from_ns > 0 && *bio_ns <= start_ns {
                start_ns = bio_ns.saturating_sub(from_ns.unsigned_abs());
            }
        }
        let mut slice = Slice {
            start_ns,
            end_ns: start_ns.saturating_add(call.latency_ns),
            name: title(call),
            notes: notes(call),
            ..Slice::default()
        };
        for (key, _) in keys {
            bios.arrow(key, &mut slice);
        }
        let identity = Identity {
            place: self.place(call),
            ts_ns: call.tree.ts_ns,
            lasted_ns: call.latency_ns,
            // Two of one thread may begin and end together: each is drawn.
            offset: call.call,
            bytes: call.bytes,
        };
        self.waiting.add(identity, slice);
    }

    fn place(&mut self, call: &CallStory) -> Place {
        let thread = Place {
            group: format!("{} programs", call.guest),
            name: format!("{} {}", call.process, call.tid),
            rank: i64::from(call.tid),
        };
        if self.threads.len() >= MAX_THREADS && !self.threads.contains(&thread) {
            return Place {
                name: String::from("further threads"),
                rank: i64::MAX,
                ..thread
            };
        }
        self.threads.insert(thread.clone());
        thread
    }
}

/// The bios of a call, each once, as many as get an arrow.
fn bios_of<'a>(span: &'a StorySpan, found: &mut Vec<&'a StorySpan>) {
    for child in &span.children {
        if child.layer != StoryLayer::GuestBio {
            bios_of(child, found);
        } else if found.len() < MAX_ARROWS && !found.iter().any(|known| is_same(known, child)) {
            found.push(child);
        }
    }
}

/// A bio of the call's own file may also stand under the commit.
fn is_same(a: &StorySpan, b: &StorySpan) -> bool {
    let key = |span: &StorySpan| (span.ts_ns, span.offset, span.bytes, lasted_ns(span));
    key(a) == key(b) && a.place == b.place
}

fn notes(call: &CallStory) -> Vec<(usize, Note)> {
    let mut notes = vec![
        (9, Note::Number(call.call)),
        (10, Note::Text(call.process.clone())),
    ];
    if let Some(pid) = call.pid {
        notes.push((11, Note::Number(u64::from(pid))));
    }
    if !call.file.mount.is_empty() {
        notes.push((12, Note::Text(call.file.mount.clone())));
    }
    if let Some(inode) = call.file.inode {
        notes.push((13, Note::Number(inode)));
    }
    if let Some(path) = &call.file.path {
        notes.push((14, Note::Text(path.clone())));
    }
    notes.push((1, Note::Number(call.offset)));
    notes.push((2, Note::Number(call.bytes)));
    notes.push((15, Note::Signed(call.result)));
    notes.push((16, Note::Number(call.bios)));
    if call.without_io {
        notes.push((17, Note::Yes));
    }
    if !call.linked {
        notes.push((18, Note::Yes));
    }
    if call.at_ns.is_some() {
        notes.push((7, Note::Number(call.clock_bound_ns)));
    }
    for (place, name) in CALL_SEGMENT_NAMES.iter().enumerate() {
        if let Some(ns) = call.segment_ns(name).filter(|ns| *ns > 0) {
            notes.push((NOTES.len() + place, Note::Number(ns)));
        }
    }
    notes
}

/// `fsync ib_logfile0`, `read 4.0 KiB data.db`: the operation, how much, and the file.
fn title(call: &CallStory) -> String {
    let mut title = call.op.name().to_owned();
    if call.bytes > 0 {
        title.push(' ');
        title.push_str(&size(call.bytes));
    }
    let file = match (&call.file.path, call.file.inode) {
        (Some(path), _) => path.rsplit('/').next().unwrap_or_default().to_owned(),
        (None, Some(inode)) => format!("inode {inode}"),
        (None, None) => String::new(),
    };
    if !file.is_empty() {
        title.push(' ');
        title.push_str(&file);
    }
    title
}
