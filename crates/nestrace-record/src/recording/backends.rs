//! Which disk a BlockBackend of QEMU belongs to, read from QEMU's own memory.
//!
//! QEMU events carry the address of a BlockBackend. Its first member is its name (`-drive id=`), and
//! it points to its root BdrvChild, whose first member points to the BlockDriverState, which holds the
//! node name and the file name *inline*. No offset is assumed beyond "first member": the strings are
//! searched for, and an answer counts only if exactly one disk's strings are found.

use std::{fs::File, os::unix::fs::FileExt};

use nestrace_trace::manifest::{Backend, Disk, Guest};

/// Words of a BlockBackend in which its root child is looked for.
const BACKEND_WORDS: usize = 8;
/// Bytes of a BlockDriverState that hold its names: flags, a few pointers, and four inline strings of
/// up to 4096 bytes.
const STATE_BYTES: usize = 20 << 10;
/// Longest name that is compared.
const MAX_NAME: usize = 4096;

/// Reads one QEMU's memory. Opened while privileges last; reading needs none.
pub struct QemuMemory {
    memory: Option<File>,
}

impl QemuMemory {
    /// Opens `/proc/PID/mem`; without permission nothing will be identified but by elimination.
    #[must_use]
    pub fn open(pid: u32) -> Self {
        Self {
            memory: File::open(format!("/proc/{pid}/mem")).ok(),
        }
    }

    /// The disk that the BlockBackend at `address` belongs to, with the proof.
    #[must_use]
    ///
    /// Where no name is found, the only disk is taken for the first BlockBackend that is seen, and for
    /// no other: a second one is a disk that was plugged in meanwhile.
    pub fn identify(&self, address: u64, guest: &Guest, is_first: bool) -> Option<Backend> {
        self.by_name(address, guest).or_else(|| {
            let only = is_first && guest.disks.len() == 1;
            only.then(|| Backend {
                address,
                disk: 0,
                proof: "only disk".to_owned(),
            })
        })
    }

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
        }
        None
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.memory.as_ref()?.read_exact_at(buffer, address).ok()
    }

    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0u8; 8];
        self.read(address, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// As many of [`STATE_BYTES`] as are mapped.
    fn block(&self, address: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; STATE_BYTES];
        let n = self.memory.as_ref()?.read_at(&mut bytes, address).ok()?;
        bytes.truncate(n);
        Some(bytes)
    }

    fn string(&self, address: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; MAX_NAME];
        let Some(memory) = self.memory.as_ref().filter(|_| is_heap(address)) else {
            return Vec::new();
        };
        let n = memory.read_at(&mut bytes, address).unwrap_or(0);
        bytes.truncate(n);
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
        let found = memory
            .identify(backend.as_ptr() as u64, &guest, true)
            .unwrap();
        assert_eq!((found.disk, found.proof.as_str()), (1, "node name"));
        let unknown = Guest {
            disks: vec![disk("x"), disk("y")],
            ..Guest::default()
        };
        assert_eq!(
            memory.identify(backend.as_ptr() as u64, &unknown, true),
            None
        );
        drop((empty, child));
    }
}
