//! VMDK: a descriptor in plain text that names extents and the parent, or a sparse extent with such a descriptor in it
//! ("Virtual Disk Format 5.0", VMware).
//!
//! Pure, for hostile input: lengths are bounded, numbers are checked.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use super::image_header::{Extent, HeaderError, ImageHeader, Reader};

const SECTOR: u64 = 512;
/// What a descriptor in a file of its own begins with.
pub(super) const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";
/// QEMU's own limit of a descriptor's size (`vmdk_read_desc`, which cuts longer ones).
pub(super) const MAX_DESCRIPTOR: usize = 20 << 10;
/// Extents beyond this are left out: a disk in pieces of 2 GiB has 512 in a TiB.
const MAX_EXTENTS: usize = 4096;

/// Reads a descriptor in a file of its own.
pub(super) fn descriptor(bytes: &[u8]) -> ImageHeader {
    let bytes = bytes.get(..MAX_DESCRIPTOR).unwrap_or(bytes);
    let mut header = ImageHeader {
        format: "vmdk",
        ..ImageHeader::default()
    };
    let mut disk_offset = 0u64;
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Some(parent) = parent_of(line) {
            header.backing_file = Some(parent);
        }
        let Some((bytes, extent)) = extent_of(line, disk_offset) else {
            continue;
        };
        disk_offset = disk_offset.saturating_add(bytes);
        if let Some(extent) = extent.filter(|_| header.extents.len() < MAX_EXTENTS) {
            header.extents.push(extent);
        }
    }
    header.virtual_size = Some(disk_offset).filter(|size| *size > 0);
    header
}

/// Reads a sparse extent (`KDMV`): its one extent is the file itself.
pub(super) fn sparse(reader: &Reader<'_>) -> Result<ImageHeader, HeaderError> {
    let sectors = reader.le64("capacity", 12)?;
    let (at, sectors_of_descriptor) = (
        reader.le64("descriptor offset", 28)?,
        reader.le64("descriptor size", 36)?,
    );
    let mut header = ImageHeader {
        format: "vmdk",
        virtual_size: Some(sectors.saturating_mul(SECTOR)),
        ..ImageHeader::default()
    };
    if at != 0 {
        let bytes = sectors_of_descriptor
            .saturating_mul(SECTOR)
            .min(MAX_DESCRIPTOR as u64);
        let text = reader.take("descriptor", at.saturating_mul(SECTOR), bytes)?;
        header.backing_file = descriptor(text).backing_file;
    }
    Ok(header)
}

/// `parentFileNameHint="base.vmdk"`.
fn parent_of(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let name = value.trim().strip_prefix('"')?.split('"').next()?;
    (key.trim() == "parentFileNameHint" && !name.is_empty()).then(|| name.to_owned())
}

/// `RW 4192256 SPARSE "disk-s001.vmdk"`, `RW 41943040 FLAT "disk-flat.vmdk" 0`, `RW 2048 ZERO`: how many bytes of the disk
/// these are, and the file, if there is one.
fn extent_of(line: &str, disk_offset: u64) -> Option<(u64, Option<Extent>)> {
    let mut words = line.splitn(4, ' ');
    let access = words.next()?;
    if !matches!(access, "RW" | "RDONLY" | "NOACCESS") {
        return None;
    }
    let bytes = words.next()?.parse::<u64>().ok()?.checked_mul(SECTOR)?;
    let kind = words.next()?;
    let format = match kind {
        "FLAT" | "VMFS" => "raw",
        "SPARSE" | "VMFSSPARSE" | "SESPARSE" => "vmdk",
        _ => return Some((bytes, None)),
    };
    let (name, after) = words.next()?.strip_prefix('"')?.split_once('"')?;
    let start = after.trim().parse::<u64>().unwrap_or(0);
    let extent = Extent {
        name: name.to_owned(),
        format,
        start: start.saturating_mul(SECTOR),
        disk_offset,
    };
    Some((bytes, Some(extent)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::image_header::parse;

    /// As `qemu-img create -f vmdk -o subformat=twoGbMaxExtentFlat` and VMware write them.
    const FLAT: &str = "# Disk DescriptorFile\nversion=1\nCID=fd7c4d2a\nparentCID=ffffffff\n\
        createType=\"twoGbMaxExtentFlat\"\n\n# Extent description\n\
        RW 4194304 FLAT \"disk-f001.vmdk\" 0\nRW 2048 ZERO\nRW 4096 FLAT \"a b.vmdk\" 128\n\
        RW 8 SPARSE \"s.vmdk\"\n\nddb.virtualHWVersion = \"4\"\n";

    #[test]
    fn a_descriptor_names_its_extents() {
        let header = parse(FLAT.as_bytes()).expect("a descriptor");
        let extent = |name: &str, format, start, disk_offset| Extent {
            name: name.to_owned(),
            format,
            start,
            disk_offset,
        };
        let zeroes = (4_194_304 + 2048) * SECTOR;
        assert_eq!(
            header.extents,
            [
                extent("disk-f001.vmdk", "raw", 0, 0),
                extent("a b.vmdk", "raw", 128 * SECTOR, zeroes),
                extent("s.vmdk", "vmdk", 0, zeroes + 4096 * SECTOR),
            ]
        );
        assert_eq!(header.format, "vmdk");
        assert_eq!(
            header.virtual_size,
            Some((4_194_304 + 2048 + 4096 + 8) * SECTOR)
        );
        assert_eq!(header.backing_file, None);
    }

    #[test]
    fn a_sparse_extent_names_its_parent_in_the_descriptor_within() {
        let mut bytes = vec![0; 2 * 512];
        bytes[..4].copy_from_slice(b"KDMV");
        bytes[12..20].copy_from_slice(&2048u64.to_le_bytes());
        bytes[28..36].copy_from_slice(&1u64.to_le_bytes());
        bytes[36..44].copy_from_slice(&1u64.to_le_bytes());
        let text = b"# Disk DescriptorFile\nparentFileNameHint=\"base.vmdk\"\nRW 2048 SPARSE \"self.vmdk\"\n";
        bytes[512..512 + text.len()].copy_from_slice(text);
        let header = parse(&bytes).expect("a sparse extent");
        assert_eq!(header.backing_file.as_deref(), Some("base.vmdk"));
        assert_eq!(header.virtual_size, Some(1 << 20));
        assert!(header.extents.is_empty());
        for cut in 0..bytes.len() {
            let _ = parse(&bytes[..cut]);
        }
    }

    #[test]
    fn lines_that_are_no_extents_are_left_out() {
        for line in [
            "RW x FLAT \"a\"",
            "RW 1 FLAT a",
            "RW",
            "",
            "RWX 1 FLAT \"a\" 0",
            "RW 99999999999999999999 FLAT \"a\"",
        ] {
            assert!(extent_of(line, 0).is_none(), "{line}");
        }
    }
}
