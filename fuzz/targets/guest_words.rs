//! Any bytes as what a QEMU, libvirt or an image says of a guest's disks: no panic, every walk ends, and what is kept of it
//! stays within its bounds.
//!
//! Byte 0 of the input says what the rest is: 0 a command line, 1 a command line and (after two newlines) an answer to
//! `query-block`, 2 the same with libvirt's XML, 3 the start of an image, 4 a whole qcow2 image. Arguments end with NUL or a
//! newline.

use std::io;

use nestrace_record::guest::block_node::node_of_name;
use nestrace_record::guest::command_line::{self, CommandLine};
use nestrace_record::guest::disks::{Witness, plan};
use nestrace_record::guest::qmp::{BlockInfo, Facts};
use nestrace_record::guest::{libvirt, tree};
use nestrace_record::topology::{image_header, qcow2_map};
use nestrace_trace::manifest::{Guest, Topology};

/// Extents of a map.
const MAX_EXTENTS: usize = 1000;
/// Bytes that are shown of one guest: the bounds of a command line's texts, several times over.
const MAX_SHOWN: usize = 32 << 20;

/// Checks one input.
pub fn check(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    match kind % 5 {
        0 => shown(&line_of(rest), Witness::None),
        1 => {
            let (line, answer) = two_parts(rest);
            let blocks = serde_json::from_slice::<Vec<BlockInfo>>(answer).unwrap_or_default();
            let facts = Facts {
                blocks,
                ..Facts::default()
            };
            shown(&line_of(line), Witness::Qmp(&facts));
        }
        2 => {
            let (line, xml) = two_parts(rest);
            let line = line_of(line);
            let disks = libvirt::parse(&String::from_utf8_lossy(xml), line.uuid.as_deref());
            shown(&line, Witness::Libvirt(&disks.unwrap_or_default()));
        }
        3 => header(rest),
        _ => map(rest),
    }
}

fn two_parts(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.windows(2).position(|pair| pair == b"\n\n");
    at.map_or((bytes, &[]), |at| (&bytes[..at], &bytes[at + 2..]))
}

fn line_of(bytes: &[u8]) -> CommandLine {
    let words = bytes.split(|byte| matches!(byte, 0 | b'\n'));
    let argv: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    command_line::parse(&argv)
}

/// Plans the disks and prints them.
fn shown(line: &CommandLine, witness: Witness<'_>) {
    let disks = plan(line, witness);
    let bytes: usize = disks.iter().map(|disk| format!("{disk:?}").len()).sum();
    assert!(bytes < MAX_SHOWN, "{bytes} bytes of {} disks", disks.len());
    let guest = Guest {
        name: line.name.clone().unwrap_or_default(),
        disks: disks.into_iter().map(|planned| planned.disk).collect(),
        ..Guest::default()
    };
    let topology = Topology {
        guests: vec![guest],
        ..Topology::default()
    };
    assert!(tree::render(&topology).len() < MAX_SHOWN);
}

fn header(bytes: &[u8]) {
    match image_header::parse(bytes) {
        Ok(header) => {
            let names = [header.backing_file, header.data_file];
            for name in names.into_iter().flatten() {
                assert!(name.len() <= 3 * 1023);
                let _ = node_of_name(&name);
            }
        }
        Err(image_header::HeaderError::NeedsMore { needed, .. }) => assert!(needed > bytes.len()),
        Err(_) => {}
    }
}

fn map(bytes: &[u8]) {
    let mut n_read = 0u64;
    let read_at = |at: u64, into: &mut [u8]| {
        n_read += into.len() as u64;
        let end = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let at = usize::try_from(at).map_err(|_| end())?;
        let tail = bytes.get(at..).ok_or_else(end)?;
        into.copy_from_slice(tail.get(..into.len()).ok_or_else(end)?);
        Ok(())
    };
    let Ok(mapped) = qcow2_map::read(read_at, MAX_EXTENTS) else {
        return;
    };
    assert!(n_read <= 300 << 20, "{n_read} bytes were read");
    let map = &mapped.map;
    assert!(map.extents.len() <= MAX_EXTENTS && map.compressed.len() <= MAX_EXTENTS);
    let mut end = 0;
    for extent in &map.extents {
        assert!(extent.bytes > 0 && extent.guest_offset >= end);
        end = extent.guest_offset + extent.bytes;
        assert!(end <= map.virtual_size);
    }
}
