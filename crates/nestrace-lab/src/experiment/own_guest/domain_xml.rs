//! libvirt's XML of a domain's disks.

use std::collections::BTreeSet;

use nestrace_rig::guest::DiskSpec;
use nestrace_rig::stack::Bus;
use roxmltree::Document;

use crate::experiment::base::is_disk_id;

/// Aliases of the user's begin so; QEMU's device has the same name.
const ALIAS: &str = "ua-";

/// The name of a disk in libvirt, in QEMU and in recordings.
fn alias(disk_id: &str) -> String {
    format!("{ALIAS}{disk_id}")
}

/// A disk to attach at a target (`vdb`).
pub(super) fn disk(disk: &DiskSpec, target: &str, is_device: bool) -> String {
    let stack = &disk.stack;
    let bus = match stack.bus {
        Bus::Virtio => "virtio",
        Bus::VirtioScsi => "scsi",
        Bus::Ide => "ide",
    };
    let (kind, source) = if is_device {
        ("block", "dev")
    } else {
        ("file", "file")
    };
    format!(
        "<disk type='{kind}' device='disk'>\n\
         <driver name='qemu' type='{}' cache='{}' io='{}' discard='unmap'/>\n\
         <source {source}='{}'/>\n\
         <target dev='{target}' bus='{bus}'/>\n\
         <serial>{id}</serial>\n\
         <alias name='{}'/>\n\
         </disk>\n",
        stack.format,
        stack.cache,
        stack.aio,
        escaped(&disk.image.display().to_string()),
        alias(&disk.id),
        id = disk.id,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('\'', "&apos;")
}

/// Disks of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DomainDisks {
    /// Targets of all.
    pub(super) targets: BTreeSet<String>,
    /// Targets of those that the lab attached.
    pub(super) ours: Vec<String>,
    /// Targets of others whose serial number is one of the lab's.
    pub(super) alike: Vec<String>,
}

/// Reads them from a domain's XML.
pub(super) fn disks(domain: &str) -> Result<DomainDisks, roxmltree::Error> {
    let mut disks = DomainDisks::default();
    let document = Document::parse(domain)?;
    for disk in document
        .descendants()
        .filter(|node| node.has_tag_name("disk"))
    {
        let child = |name: &str| disk.children().find(|child| child.has_tag_name(name));
        let attribute = |element: &str, name: &str| child(element)?.attribute(name);
        let Some(target) = attribute("target", "dev") else {
            continue;
        };
        let alias = attribute("alias", "name").unwrap_or_default();
        let serial = child("serial").and_then(|node| node.text());
        disks.targets.insert(target.to_owned());
        if alias.strip_prefix(ALIAS).is_some_and(is_disk_id) {
            disks.ours.push(target.to_owned());
        } else if serial.is_some_and(is_disk_id) {
            disks.alike.push(target.to_owned());
        }
    }
    Ok(disks)
}

/// The first free target of a bus.
pub(super) fn free_target(taken: &BTreeSet<String>, bus: Bus) -> Option<String> {
    let prefix = if bus == Bus::Virtio { "vd" } else { "sd" };
    ('a'..='z')
        .map(|letter| format!("{prefix}{letter}"))
        .find(|target| !taken.contains(target))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use nestrace_rig::stack::DiskStack;

    #[test]
    fn a_disk_that_was_attached_is_known_again() {
        let spec = DiskSpec::new(
            "nestrace-lab-3",
            PathBuf::from("/a & b/it's.raw"),
            DiskStack::RAW,
        );
        let text = disk(&spec, "vdb", false);
        assert!(text.contains("file='/a &amp; b/it&apos;s.raw'"), "{text}");
        assert!(
            text.contains("type='raw' cache='none' io='native'"),
            "{text}"
        );
        assert!(disk(&spec, "vdb", true).contains("<disk type='block'"));
        let own = |target: &str, alias: &str, serial: &str| {
            format!(
                "<disk type='file' device='disk'><target dev=\"{target}\" bus='virtio'/>\
                 <serial>{serial}</serial><alias name='{alias}'/></disk>"
            )
        };
        let others = [
            own("vda", "virtio-disk0", "root"),
            own("vdc", "ua-nestrace-lab-data", "nestrace-lab-x"),
            own("vdd", "virtio-disk3", "nestrace-lab-1"),
        ];
        let domain = format!(
            "<domain><devices>{}{text}</devices></domain>",
            others.concat()
        );
        let found = disks(&domain).unwrap();
        assert_eq!(found.ours, ["vdb"]);
        assert_eq!(found.alike, ["vdd"]);
        assert_eq!(
            free_target(&found.targets, Bus::Virtio).as_deref(),
            Some("vde")
        );
        assert_eq!(
            free_target(&found.targets, Bus::VirtioScsi).as_deref(),
            Some("sda")
        );
        assert_eq!(disks("<domain/>"), Ok(DomainDisks::default()));
        assert!(disks("").is_err());
    }
}
