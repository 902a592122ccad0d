//! The disks of a domain as libvirt has them now.

use crate::guest::block_node::{Backing, BlockNode, Storage};
use crate::guest::command_line::{DiskOption, DiskSource};
use crate::guest::libvirt::DomainDisk;

/// The options of the command line as they would be today.
pub(super) fn today(line: &[DiskOption], domain: &[DomainDisk]) -> Vec<DiskOption> {
    let of = |option: &DiskOption| {
        let mut disks = domain.iter();
        disks.find(|disk| option.qdev.as_ref() == Some(&disk.alias))
    };
    let mut now = Vec::new();
    for option in line {
        match of(option) {
            Some(disk) => now.extend(disk.medium.as_ref().map(|found| one(option, found))),
            None if is_of_a_disk(option) => {}
            // Of a device of the host's, or of the user's own arguments for QEMU.
            None => now.push(option.clone()),
        }
    }
    let is_on_line = |disk: &&DomainDisk| {
        line.iter()
            .any(|option| option.qdev.as_ref() == Some(&disk.alias))
    };
    let later = domain.iter().filter(|disk| !is_on_line(disk));
    now.extend(later.filter_map(|disk| disk.medium.clone()));
    now
}

/// Whether libvirt gave the option for a disk, which was unplugged since if it has none of that name now.
fn is_of_a_disk(option: &DiskOption) -> bool {
    let node = option.node_name.as_deref().unwrap_or_default();
    node.starts_with("libvirt-") && (node.ends_with("-format") || node.ends_with("-storage"))
}

/// An option with what libvirt says of it now.
fn one(option: &DiskOption, found: &DiskOption) -> DiskOption {
    let source = match (&found.source, &option.source) {
        (DiskSource::Node(found), DiskSource::Node(known)) => {
            DiskSource::Node(found_or_known(found, known))
        }
        (found, _) => found.clone(),
    };
    let same = files(&option.source) == files(&source);
    let known = if same { option } else { found };
    DiskOption {
        node_name: found.node_name.clone(),
        iothread: option.iothread.clone().or_else(|| found.iothread.clone()),
        source,
        limits: found.limits.clone(),
        ..known.clone()
    }
}

/// libvirt names the volume of a pool, the command line had its path.
fn found_or_known(found: &BlockNode, known: &BlockNode) -> BlockNode {
    let mut node = found.clone();
    if node.storage == Storage::Unknown {
        let same = chain(known).find(|known| known.node_name == node.node_name);
        node.storage = same.map_or(Storage::Unknown, |same| same.storage.clone());
    }
    if let Backing::Node(below) = &node.backing {
        node.backing = Backing::Node(Box::new(found_or_known(below, known)));
    }
    node
}

/// The images of a chain, from the top.
fn chain(top: &BlockNode) -> impl Iterator<Item = &BlockNode> {
    std::iter::successors(Some(top), |node| match &node.backing {
        Backing::Node(below) => Some(below),
        _ => None,
    })
}

/// The files of a chain.
fn files(source: &DiskSource) -> Vec<&Storage> {
    match source {
        DiskSource::Node(top) => chain(top).map(|node| &node.storage).collect(),
        _ => Vec::new(),
    }
}
