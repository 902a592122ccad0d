//! Which disk a BlockBackend of QEMU belongs to, read from QEMU's own memory.
//!
//! QEMU events carry the address of a BlockBackend. Its first member is its name (`-drive id=`), and
//! it points to its root BdrvChild, whose first member points to the BlockDriverState, which holds the
//! node name and the file name *inline*. No offset is assumed beyond "first member": the strings are
//! searched for, and an answer counts only if exactly one disk's strings are found.
//!
//! A QEMU that was taken over decides what its memory is: reading a mapping of a file on FUSE waits for whoever serves it,
//! for ever. So only memory that has no file is read, and by a thread that nothing waits for ([`BackendFinder`]).

use std::{
    collections::{BTreeSet, VecDeque},
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use nestrace_trace::manifest::{Backend, Disk, Guest};

use nestrace_probes::proc_file::MAX_MAPS;

/// Words of a BlockBackend in which its root child is looked for.
const BACKEND_WORDS: usize = 8;
/// Bytes of a BlockDriverState that hold its names: flags, a few pointers, and four inline strings of
/// up to 4096 bytes.
const STATE_BYTES: usize = 20 << 10;
/// What may be a child of a node, that is looked at: more of its pointers lead to a pointer than there are children.
const MAX_CHILDREN: usize = 256;
/// Longest name that is compared.
const MAX_NAME: usize = 4096;

/// A BlockBackend whose disk is looked for.
struct Question {
    address: u64,
    guest: Guest,
    is_first: bool,
}

impl Question {
    /// Where no name is found, the only disk is taken for the first BlockBackend that is seen, and for no other: a second
    /// one is a disk that was plugged in meanwhile.
    fn by_elimination(&self) -> Option<Backend> {
        let only = self.is_first && self.guest.disks.len() == 1;
        only.then(|| Backend {
            address: self.address,
            disk: 0,
            proof: "only disk".to_owned(),
        })
    }
}

/// Finds the disks of one QEMU's BlockBackends in a thread of its own. One whose read never ends is left behind.
pub struct BackendFinder {
    questions: Option<Sender<Question>>,
    answers: Receiver<Option<Backend>>,
    /// Questions without an answer, in the order in which they were asked.
    open: VecDeque<Question>,
}

impl BackendFinder {
    /// Starts the thread; without memory to read disks are found by elimination alone.
    #[must_use]
    pub fn start(memory: QemuMemory) -> Self {
        let (questions, asked) = mpsc::channel::<Question>();
        let (told, answers) = mpsc::channel();
        let started = thread::Builder::new()
            .name("nestrace-memory".to_owned())
            .spawn(move || {
                for question in asked {
                    let found = memory
                        .by_name(question.address, &question.guest)
                        .or_else(|| question.by_elimination());
                    if told.send(found).is_err() {
                        break;
                    }
                }
            });
        Self {
            questions: started.is_ok().then_some(questions),
            answers,
            open: VecDeque::new(),
        }
    }

    /// Asks for the disk of the BlockBackend at `address`.
    pub fn ask(&mut self, address: u64, guest: &Guest, is_first: bool) {
        let question = || Question {
            address,
            guest: guest.clone(),
            is_first,
        };
        if let Some(questions) = &self.questions {
            // A thread that is gone answers nothing, like one that hangs.
            let _ = questions.send(question());
        }
        self.open.push_back(question());
    }

    /// Answers that have come, each with its proof.
    pub fn found(&mut self) -> Vec<Backend> {
        let mut found = Vec::new();
        while let Ok(answer) = self.answers.try_recv() {
            self.open.pop_front();
            found.extend(answer);
        }
        found
    }

    /// The last answers: those that come until the deadline, and for the others what elimination says.
    pub fn last(&mut self, deadline: Instant) -> Vec<Backend> {
        let mut found = self.found();
        while !self.open.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => {
                    self.open.pop_front();
                    found.extend(answer);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let eliminated = self.open.drain(..);
        found.extend(eliminated.filter_map(|question| question.by_elimination()));
        found
    }
}

/// How long the last answers may take, all guests together.
pub const LAST_ANSWERS: Duration = Duration::from_millis(300);

/// Reads one QEMU's memory. Opened while privileges last; reading needs none.
#[derive(Debug)]
pub struct QemuMemory {
    memory: Option<File>,
    maps: Option<File>,
}

impl QemuMemory {
    /// Opens `/proc/PID/mem` and `/proc/PID/maps`.
    #[must_use]
    pub fn open(pid: u32) -> Self {
        Self {
            memory: File::open(format!("/proc/{pid}/mem")).ok(),
            maps: File::open(format!("/proc/{pid}/maps")).ok(),
        }
    }

    /// The two files, or none.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        let both = self.memory.as_ref().zip(self.maps.as_ref());
        both.into_iter().flat_map(|(memory, maps)| [memory, maps])
    }

    /// Of the two files in that order.
    #[must_use]
    pub fn of(mut files: impl Iterator<Item = File>) -> Self {
        Self {
            memory: files.next(),
            maps: files.next(),
        }
    }

    /// The disk that the BlockBackend at `address` belongs to, by a name in QEMU's memory.
    fn by_name(&self, address: u64, guest: &Guest) -> Option<Backend> {
        self.anonymous()?.by_name(address, guest)
    }

    /// The memory that has no file, as it is mapped now.
    fn anonymous(&self) -> Option<AnonymousMemory<'_>> {
        let maps = self.maps.as_ref()?;
        let mut text = Vec::new();
        let mut part = vec![0u8; 64 << 10];
        while text.len() < MAX_MAPS {
            match maps.read_at(&mut part, text.len() as u64).ok()? {
                0 => break,
                n => text.extend_from_slice(part.get(..n)?),
            }
        }
        Some(AnonymousMemory {
            memory: self.memory.as_ref()?,
            ranges: anonymous_ranges(&String::from_utf8_lossy(&text)),
        })
    }
}

/// Where memory without a file is mapped: `7f00-7f10 rw-p 00000000 00:00 0 [heap]`.
fn anonymous_ranges(maps: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let may_read = fields.next()?.starts_with('r');
        let has_no_file = fields.nth(1)? == "00:00" && fields.next()? == "0";
        let is_plain = fields
            .next()
            .is_none_or(|name| name == "[heap]" || name.starts_with("[anon"));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        (may_read && has_no_file && is_plain).then_some(number(start)?..number(end)?)
    };
    maps.lines().filter_map(range).collect()
}

/// Memory of a process that has no file.
struct AnonymousMemory<'m> {
    memory: &'m File,
    ranges: Vec<Range<u64>>,
}

impl AnonymousMemory<'_> {
    fn by_name(&self, address: u64, guest: &Guest) -> Option<Backend> {
        let found = |disk: usize, proof: &str| {
            Some(Backend {
                address,
                disk: u32::try_from(disk).ok()?,
                proof: proof.to_owned(),
            })
        };
        let mut words = [0u8; BACKEND_WORDS * 8];
        self.read(address, &mut words)?;
        let pointers: Vec<u64> = words
            .chunks_exact(8)
            .filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)))
            .collect();
        let name = pointers
            .first()
            .map(|at| self.string(*at))
            .unwrap_or_default();
        if !name.is_empty()
            && let Some(disk) = only(&guest.disks, |disk| disk.name.as_bytes() == name)
        {
            return found(disk, "drive name");
        }
        for child in pointers.iter().skip(1).filter(|at| is_heap(**at)) {
            let Some(state) = self.word(*child).filter(|at| is_heap(*at)) else {
                continue;
            };
            let Some(bytes) = self.block(state) else {
                continue;
            };
            if let Some(disk) = only(&guest.disks, |disk| names_node(disk, &bytes)) {
                return found(disk, "node name");
            }
            if let Some(disk) = only(&guest.disks, |disk| names_file(disk, &bytes)) {
                return found(disk, "file name");
            }
            // A job that began since (backup, mirror) has put a filter above the disk's node.
            if let Some(disk) = self.beneath_filter(state, &bytes, guest) {
                return found(disk, "node name below a filter");
            }
        }
        None
    }

    /// The one disk whose node is a child of the node at `state`, which has these bytes: a node has its children's
    /// BdrvChild among its pointers, and no other disk's.
    fn beneath_filter(&self, state: u64, bytes: &[u8], guest: &Guest) -> Option<usize> {
        let words = bytes
            .chunks_exact(8)
            .filter_map(|word| word.try_into().ok());
        let pointers = words.map(u64::from_le_bytes).filter(|at| is_heap(*at));
        let children = pointers.filter_map(|at| self.word(at));
        let children: BTreeSet<u64> = children
            .filter(|child| is_heap(*child) && *child != state)
            .take(MAX_CHILDREN)
            .collect();
        let mut disks = BTreeSet::new();
        for child in children {
            let Some(bytes) = self.block(child) else {
                continue;
            };
            disks.extend(only(&guest.disks, |disk| names_node(disk, &bytes)));
        }
        let first = disks.pop_first()?;
        disks.is_empty().then_some(first)
    }

    /// Bytes of memory without a file from `address` on, `most` at most.
    fn readable(&self, address: u64, most: usize) -> usize {
        let mut end = address;
        // Neighbours are several lines where their rights differ.
        while let Some(range) = self.ranges.iter().find(|range| range.contains(&end)) {
            end = range.end;
            if end - address >= most as u64 {
                return most;
            }
        }
        usize::try_from(end - address).unwrap_or(0)
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        if self.readable(address, buffer.len()) < buffer.len() {
            return None;
        }
        self.memory.read_exact_at(buffer, address).ok()
    }

    /// As many of `most` bytes as can be read.
    fn part(&self, address: u64, most: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; self.readable(address, most)];
        self.read(address, &mut bytes)?;
        Some(bytes)
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0u8; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// As many of [`STATE_BYTES`] as are mapped.
    fn block(&self, address: u64) -> Option<Vec<u8>> {
        self.part(address, STATE_BYTES)
    }

    fn string(&self, address: u64) -> Vec<u8> {
        if !is_heap(address) {
            return Vec::new();
        }
        let Some(bytes) = self.part(address, MAX_NAME) else {
            return Vec::new();
        };
        match bytes.iter().position(|byte| *byte == 0) {
            Some(end) => bytes[..end].to_vec(),
            None => Vec::new(),
        }
    }
}

/// A plausible address of user space on x86-64.
fn is_heap(address: u64) -> bool {
    address.is_multiple_of(8) && (0x1_0000..0x7fff_ffff_f000).contains(&address)
}

/// Index of the one disk that satisfies `test`; none if several do.
fn only(disks: &[Disk], test: impl Fn(&Disk) -> bool) -> Option<usize> {
    let mut matching = disks
        .iter()
        .enumerate()
        .filter(|(_, disk)| test(disk))
        .map(|(index, _)| index);
    let first = matching.next()?;
    matching.next().is_none().then_some(first)
}

fn names_node(disk: &Disk, bytes: &[u8]) -> bool {
    disk.node
        .as_ref()
        .is_some_and(|node| contains_string(bytes, node.as_bytes()))
}

fn names_file(disk: &Disk, bytes: &[u8]) -> bool {
    disk.images
        .first()
        .is_some_and(|image| contains_string(bytes, image.path.as_bytes()))
}

/// Whether `bytes` holds `text` as a whole NUL-terminated string.
fn contains_string(bytes: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        return false;
    }
    bytes
        .windows(text.len() + 1)
        .enumerate()
        .any(|(at, window)| {
            window.last() == Some(&0)
                && window.starts_with(text)
                && (at == 0 || bytes.get(at - 1) == Some(&0))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_strings_count() {
        for (bytes, text, expected) in [
            (&b"\0disk1\0"[..], &b"disk1"[..], true),
            (b"disk1\0", b"disk1", true),
            (b"\0disk11\0", b"disk1", false),
            (b"\0mydisk1\0", b"disk1", false),
            (b"\0disk1", b"disk1", false),
            (b"\0\0", b"", false),
        ] {
            assert_eq!(
                contains_string(bytes, text),
                expected,
                "{text:?} in {bytes:?}"
            );
        }
    }

    #[test]
    fn this_process_stands_for_qemu() {
        // A BlockBackend with an empty name, whose third word leads to a child, whose first word leads
        // to a state with the node name inline.
        let empty = Box::new([0u8; 8]);
        // As long as what is read of it: behind it lie the names of both disks.
        let mut state = vec![0u64; STATE_BYTES / 8];
        state[17] = u64::from_le_bytes(*b"node-b\0\0");
        let child = Box::new([state.as_ptr() as u64, 0]);
        let mut backend = vec![0u64; 512];
        backend[0] = empty.as_ptr() as u64;
        backend[2] = child.as_ptr() as u64;
        let disk = |node: &str| Disk {
            name: node.into(),
            node: Some(node.into()),
            ..Disk::default()
        };
        let guest = Guest {
            disks: vec![disk("node-a"), disk("node-b")],
            ..Guest::default()
        };
        let memory = QemuMemory::open(std::process::id());
        let found = memory.by_name(backend.as_ptr() as u64, &guest).unwrap();
        assert_eq!((found.disk, found.proof.as_str()), (1, "node name"));
        // The same by the thread.
        let mut finder = BackendFinder::start(QemuMemory::open(std::process::id()));
        finder.ask(backend.as_ptr() as u64, &guest, true);
        let deadline = Instant::now() + Duration::from_secs(20);
        assert_eq!(finder.last(deadline), [found]);
        // A filter above it has the child among its pointers, and a name of its own.
        let mut filter = vec![0u64; STATE_BYTES / 8];
        filter[9] = u64::from_le_bytes(*b"#block7\0");
        filter[700] = child.as_ptr() as u64;
        let above = Box::new([filter.as_ptr() as u64, 0]);
        backend[2] = above.as_ptr() as u64;
        let beneath = memory.by_name(backend.as_ptr() as u64, &guest).unwrap();
        assert_eq!(
            (beneath.disk, beneath.proof.as_str()),
            (1, "node name below a filter")
        );
        let unknown = Guest {
            disks: vec![disk("x"), disk("y")],
            ..Guest::default()
        };
        assert_eq!(memory.by_name(backend.as_ptr() as u64, &unknown), None);
        drop((empty, child, above, filter, state));
    }

    #[test]
    fn memory_of_files_is_not_read() {
        let maps = "55d000000000-55d000002000 rw-p 00000000 00:00 0 [heap]\n\
                    55d000002000-55d000004000 r--p 00000000 00:00 0\n\
                    55d000004000-55d000005000 ---p 00000000 00:00 0\n\
                    7f0000000000-7f0000001000 rw-p 00000000 00:31 4711 /mnt/fuse/file\n\
                    7f0000001000-7f0000002000 rw-s 00000000 00:01 12 /dev/zero (deleted)\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0 [anon:x]\n\
                    7ffc00000000-7ffc00001000 r--p 00000000 00:00 0 [vvar]\n";
        let file = tempfile::tempfile().unwrap();
        let memory = AnonymousMemory {
            memory: &file,
            ranges: anonymous_ranges(maps),
        };
        for (address, most, readable) in [
            (0x55d0_0000_0000, 16, 16),
            // Two lines that touch.
            (0x55d0_0000_1ff8, 16, 16),
            (0x55d0_0000_3ff8, 16, 8),
            (0x55d0_0000_4000, 16, 0),
            (0x7f00_0000_0000, 16, 0),
            (0x7f00_0000_1000, 16, 0),
            (0x7f00_0000_2000, 4096, 4096),
            (0x7f00_0000_2000, 4097, 4096),
            (0x7ffc_0000_0000, 16, 0),
            (u64::MAX, 16, 0),
        ] {
            assert_eq!(memory.readable(address, most), readable, "{address:#x}");
        }
    }

    #[test]
    fn a_thread_that_hangs_is_left_behind() {
        let (questions, _asked) = mpsc::channel();
        let (_told, answers) = mpsc::channel();
        let mut finder = BackendFinder {
            questions: Some(questions),
            answers,
            open: VecDeque::new(),
        };
        let guest = Guest {
            disks: vec![Disk::default()],
            ..Guest::default()
        };
        finder.ask(7, &guest, true);
        finder.ask(8, &guest, false);
        assert_eq!(finder.found(), []);
        let begin = Instant::now();
        let found = finder.last(begin + Duration::from_millis(50));
        assert!(begin.elapsed() < Duration::from_secs(10));
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.address, it.proof.as_str()))
            .collect();
        assert_eq!(found, [(7, "only disk")]);
    }
}
